"""The safetensors format: a length, a JSON header, and the arrays' bytes.

Read here rather than by the library, so that nothing but NumPy is needed, messages name file and
array, and no more than one array is in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.raw import checked_entry, new_file, read_array, stored_bytes
from keras_vit.checkpoints.store import Entry, Store

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
MAX_HEADER = 100_000_000
_ALIGNMENT = 8


def open_safetensors(path: Path) -> Store:
    """Opens a file; only its header is read.

    Raises:
        CheckpointError: if the file is damaged, cut short, or not of this format.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error}") from error
    try:
        entries, offsets, metadata = _header(path, file)
    except BaseException:
        file.close()
        raise

    def read(name: str) -> np.ndarray:
        return _read(path, file, name, entries[name], offsets[name])

    return Store(path, entries, read, metadata, on_close=file.close)


def _fault(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is no whole safetensors file: {what}. Get the file again.")


def _header(
    path: Path, file: BufferedReader
) -> tuple[dict[str, Entry], dict[str, int], dict[str, str]]:
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, MAX_HEADER):
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
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} comes twice")
        found[name] = value
    return found


def _entry(path: Path, name: str, value: Any) -> tuple[Entry, int, int]:
    value = value if isinstance(value, dict) else {}
    dtype, shape = value.get("dtype"), value.get("shape")
    offsets = value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _fault(path, f"the dtype of {name!r} is {dtype!r}, none of {tuple(_DTYPES)}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise _fault(path, f"{name!r} has shape {shape!r} and offsets {offsets!r}")
    entry = checked_entry(path, name, shape, _DTYPES[dtype])
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


def _read(path: Path, file: BufferedReader, name: str, entry: Entry, offset: int) -> np.ndarray:
    def fill(data: np.ndarray) -> None:
        try:
            file.seek(offset)
            count = file.readinto(data.data)
        except (OSError, ValueError) as error:
            raise _fault(path, f"{name!r} cannot be read ({error})") from error
        if count != len(data):
            raise _fault(path, f"it is cut short in {name!r}")

    return read_array(entry, fill)


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

    Raises:
        CheckpointError: if an array has another shape than its entry, or the file cannot be
            written.
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
    with new_file(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            file.write(stored_bytes(name, produce(name), entries[name]))
