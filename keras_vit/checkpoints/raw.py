"""Arrays as bytes in files: what the file formats have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from keras_vit._atomic import replacing
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.store import ITEM_SIZES, Entry, from_bfloat16, to_bfloat16

# NumPy's code without byte order -> our name. NumPy has no bfloat16: ml_dtypes makes it "V2".
DTYPES = {np.dtype(name).str[1:]: name for name in ITEM_SIZES if name != "bfloat16"}
DTYPES["V2"] = "bfloat16"
# Floats hardly shrink; a file that declares this many times its size is a decompression bomb.
_MAX_RATIO = 100
_SMALL = 256 << 20
_MAX_SIDES = 32  # of NumPy 1; NumPy 2 takes 64
_MAX_BYTES = 2**63 - 1


def checked_entry(path: Path, name: str, shape: Sequence[int], dtype: str) -> Entry:
    """Returns the entry of an array that NumPy can make.

    Raises:
        CheckpointError: if it cannot: NumPy counts bytes as if no side were 0.
    """
    item_size = ITEM_SIZES[dtype]
    # The product of millions of sides would take hours.
    if len(shape) > _MAX_SIDES or math.prod(n for n in shape if n) * item_size > _MAX_BYTES:
        raise CheckpointError(
            f"{path}: {name!r} has the shape {str(shape)[:200]}; expected one that fits into "
            "memory. The file is damaged. Get it again."
        )
    return Entry(tuple(shape), dtype)


def check_declared(path: Path, declared: int) -> None:
    """Raises a CheckpointError if a file's arrays are far larger than the file."""
    size = path.stat().st_size
    if declared > max(_SMALL, _MAX_RATIO * size):
        raise CheckpointError(
            f"{path} declares {declared} bytes of arrays in a file of {size}; expected at most "
            f"{_MAX_RATIO} times as many. It is damaged, or made to fill the memory. Get it again."
        )


def read_array(
    entry: Entry,
    fill: Callable[[np.ndarray], None],
    *,
    big_endian: bool = False,
    fortran: bool = False,
) -> np.ndarray:
    """Makes an array of the bytes that `fill` puts into the uint8 array it is given."""
    dtype = np.dtype("uint16" if entry.dtype == "bfloat16" else entry.dtype)
    flat = np.empty(entry.size, dtype.newbyteorder(">" if big_endian else "<"))
    fill(flat.view("uint8"))
    array = as_native(flat, entry.dtype)
    return array.reshape(entry.shape, order="F" if fortran else "C")


def as_native(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array as files have it, in this machine's byte order; bfloat16 becomes float32."""
    if dtype == "bool":
        return array.view("uint8") != 0  # NumPy goes wrong on a bool that is neither 0 nor 1
    if not array.dtype.isnative:
        array = array.byteswap(inplace=True).view(array.dtype.newbyteorder("="))
    return from_bfloat16(array) if dtype == "bfloat16" else array


def stored_bytes(name: str, array: np.ndarray, entry: Entry) -> memoryview:
    """An array's bytes in the entry's dtype, little-endian and in C order.

    Raises:
        CheckpointError: if it has another shape, or numbers too large for the dtype.
    """
    if array.shape != entry.shape:
        raise CheckpointError(
            f"{name!r} must be written with the shape {entry.shape}. Received: {array.shape}"
        )
    try:
        with np.errstate(over="raise"):
            if entry.dtype == "bfloat16":
                array = to_bfloat16(array)
            else:
                array = array.astype(np.dtype(entry.dtype).newbyteorder("<"), copy=False)
    except FloatingPointError as error:
        raise CheckpointError(
            f"{name!r} has numbers too large for {entry.dtype}. Write it in a wider dtype."
        ) from error
    return np.ascontiguousarray(array).reshape(-1).view("uint8").data


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that becomes `path` if all goes well.

    Raises:
        CheckpointError: if it cannot be written.
    """
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            yield file
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error}. It needs a directory that is there, and room."
        ) from error
