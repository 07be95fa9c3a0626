"""The safetensors format: a length, a JSON header, and the arrays' bytes.

Read here rather than by the library, so that nothing but NumPy is needed, messages name file and
array, and no more than one array is in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._atomic import replacing
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.store import Entry, Store, from_bfloat16, to_bfloat16

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    **{
        f"{letter}{bits}": f"{word}{bits}"
        for letter, word in (("I", "int"), ("U", "uint"))
        for bits in (8, 16, 32, 64)
    },
    "BOOL": "bool",
}
_CODES = {name: code for code, name in _DTYPES.items()}
# The format's own limit.
_MAX_HEADER = 100_000_000
_ALIGNMENT = 8


def open_safetensors(path: Path) -> Store:
    """Opens a file; only its header is read.

    Raises:
        CheckpointError: if the file is damaged, cut short, or not of this format.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115  # the store closes it
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error}") from error
    try:
        entries, offsets, metadata = _header(path, file)
    except BaseException:
        file.close()
        raise
    return Store(
        path, entries, partial(_read, path, file, entries, offsets), metadata, {}, file.close
    )


def _fault(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is no whole safetensors file: {what}. Get the file again.")


def _header(path: Path, file) -> tuple[dict[str, Entry], dict[str, int], dict[str, str]]:
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, _MAX_HEADER):
        raise _fault(path, f"its header should have {length} bytes, the file has {size}")
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _fault(path, f"its header is no JSON object ({error})") from error
    if not isinstance(header, dict):
        raise _fault(path, "its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _fault(path, "its metadata are no strings")
    entries, spans = {}, []
    for name, value in header.items():
        entries[name], begin, end = _entry(path, name, value)
        spans.append((begin, end, name))
    _check_spans(path, sorted(spans), size - 8 - length)
    offsets = {name: 8 + length + begin for begin, _, name in spans}
    return entries, offsets, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _entry(path: Path, name: str, value: Any) -> tuple[Entry, int, int]:
    value = value if isinstance(value, dict) else {}
    dtype, shape = value.get("dtype"), value.get("shape")
    offsets = value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _fault(path, f"the dtype of {name!r} is {dtype!r}, none of {tuple(_DTYPES)}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise _fault(path, f"{name!r} has shape {shape!r} and offsets {offsets!r}")
    entry = Entry(tuple(shape), _DTYPES[dtype])
    begin, end = offsets
    if end - begin != entry.nbytes:
        raise _fault(
            path,
            f"{name!r} of shape {entry.shape} and dtype {entry.dtype} needs {entry.nbytes} bytes, "
            f"its offsets {begin} to {end} give {end - begin}",
        )
    return entry, begin, end


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _check_spans(path: Path, spans: list[tuple[int, int, str]], size: int) -> None:
    """The arrays' bytes must follow each other and fill the file."""
    position = 0
    for begin, end, name in spans:
        if begin != position:
            relation = "overlaps another array" if begin < position else "leaves a hole before it"
            raise _fault(path, f"{name!r} {relation} (it begins at {begin}, expected {position})")
        if end > size:
            raise _fault(path, f"it is cut short in {name!r}, at byte {size} of {end}")
        position = end
    if position != size:
        raise _fault(path, f"{size - position} bytes after the last array belong to none")


def _read(path: Path, file, entries, offsets, name: str) -> np.ndarray:
    entry = entries[name]
    stored = "uint16" if entry.dtype == "bfloat16" else entry.dtype
    array = np.empty(entry.shape, np.dtype(stored).newbyteorder("<"))
    view = memoryview(array.reshape(-1)).cast("B") if entry.nbytes else memoryview(b"")
    try:
        file.seek(offsets[name])
        count = file.readinto(view) if entry.nbytes else 0
    except (OSError, ValueError) as error:
        raise _fault(path, f"{name!r} cannot be read ({error})") from error
    if count != entry.nbytes:
        raise _fault(path, f"it is cut short in {name!r}")
    return from_bfloat16(array) if entry.dtype == "bfloat16" else array


def write_safetensors(
    path: Path,
    entries: Mapping[str, Entry],
    produce: Callable[[str], np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a file, one array at a time in memory; it appears whole or not at all.

    Args:
        path: where.
        entries: shapes and dtypes.
        produce: makes an array by its name; it is converted to the entry's dtype.
        metadata: strings to put into the header.
    """
    # The library sorts by alignment too, then by name.
    names = sorted(entries, key=lambda name: (-entries[name].item_size, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name in names:
        entry, begin = entries[name], position
        position += entry.nbytes
        header[name] = {
            "dtype": _CODES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [begin, position],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            file.write(stored_bytes(produce(name), entries[name]))


def stored_bytes(array: np.ndarray, entry: Entry) -> memoryview:
    """An array's bytes in the entry's dtype, little-endian and in C order.

    Raises:
        CheckpointError: if it has another shape.
    """
    if array.shape != entry.shape:
        raise CheckpointError(f"Expected an array of shape {entry.shape}. Received: {array.shape}")
    if entry.dtype == "bfloat16":
        array = to_bfloat16(array)
    else:
        array = array.astype(np.dtype(entry.dtype).newbyteorder("<"), copy=False)
    return (
        memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B")
        if array.size
        else memoryview(b"")
    )
