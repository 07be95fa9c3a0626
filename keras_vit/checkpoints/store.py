"""What a checkpoint is, whatever its file format: named arrays, read one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

# Bytes of one number. "bfloat16" is no NumPy dtype: arrays of it are read as float32.
ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": 1,
}
FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Entry:
    """An array of a checkpoint, as the file's header describes it.

    Attributes:
        shape: its shape.
        dtype: key of `ITEM_SIZES`.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Numbers in the array."""
        return math.prod(self.shape)

    @property
    def item_size(self) -> int:
        """Bytes of one number."""
        return ITEM_SIZES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return self.size * self.item_size


@dataclass
class Store:
    """An open checkpoint. Only headers are in memory; use it as a context manager.

    Attributes:
        path: the file or directory, as it was given.
        entries: every array by name.
        read_array: reads one array; see `read`.
        metadata: strings that the file format carries beside the arrays.
        documents: parsed JSON files beside the arrays, by file name.
        on_close: releases what is open.
    """

    path: Path
    entries: Mapping[str, Entry]
    read_array: Callable[[str], np.ndarray]
    metadata: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, Any] = field(default_factory=dict)
    on_close: Callable[[], None] = lambda: None

    def read(self, name: str) -> np.ndarray:
        """Reads one array; bfloat16 comes as float32, everything else in its own dtype."""
        return self.read_array(name)

    def close(self) -> None:
        """Closes the files."""
        self.on_close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 as uint16 to float32: the upper half of its bits."""
    # NumPy makes scalars of results without sides.
    return np.asarray(bits.astype("uint32") << 16).view("float32")


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Numbers to bfloat16 as uint16, rounded to the nearest, ties to even; NaN stays NaN."""
    bits = np.asarray(array, "float32").view("uint32")
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded).astype("<u2")
