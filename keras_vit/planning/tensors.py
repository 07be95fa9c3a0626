"""How a tensor that training keeps is written down, and how many bytes it has."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# "compute" is the policy's dtype; a mask is stored as the backend has it, see `item_bytes`.
ITEM_BYTES = {"float32": 4, "int64": 8, "int32": 4, "bool": 1}


@dataclass(frozen=True)
class Kept:
    """A tensor that is kept between forward and backward pass.

    Attributes:
        name: in words.
        shape: in the symbols of `planning.model.sizes`, such as "B T 3D"; "B" is the images that
            one device gets at a time.
        dtype: "compute", or a key of `ITEM_BYTES`.
        cut: whether model parallelism cuts it (heads, or the MLP's width).
    """

    name: str
    shape: str
    dtype: str = "compute"
    cut: bool = False

    def count(self, sizes: Mapping[str, int]) -> int:
        """How many numbers it has."""
        return math.prod(_size(axis, sizes) for axis in self.shape.split())

    def bytes(self, sizes: Mapping[str, int], compute: int, parts: int = 1) -> int:
        """Bytes on one device.

        Args:
            sizes: symbols, "B" included.
            compute: bytes of a number in the compute dtype.
            parts: devices that share what model parallelism cuts.
        """
        item = compute if self.dtype == "compute" else ITEM_BYTES[self.dtype]
        return self.count(sizes) * item // (parts if self.cut else 1)


def _size(axis: str, sizes: Mapping[str, int]) -> int:
    factor, symbol = re.fullmatch(r"(\d*)([A-Za-z]?)", axis).groups()  # type: ignore[union-attr]
    return int(factor or 1) * (sizes[symbol] if symbol else 1)


def total(tensors: Iterable[Kept], sizes: Mapping[str, int], compute: int, parts: int = 1) -> int:
    """Bytes of several tensors on one device."""
    return sum(tensor.bytes(sizes, compute, parts) for tensor in tensors)
