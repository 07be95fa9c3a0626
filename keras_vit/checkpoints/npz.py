"""NumPy's .npz: a zip archive of .npy files. Nothing is ever unpickled."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from keras_vit._atomic import replacing
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.safetensors import stored_bytes
from keras_vit.checkpoints.store import ITEM_SIZES, Entry, Store, from_bfloat16

# A file of floats hardly shrinks; one that declares this many times its size is a zip bomb.
_MAX_RATIO = 100
_SMALL = 256 << 20
_MAX_COMMENT = 65_535
_MAX_HEADER = 65_536
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# What zipfile and zlib raise on damaged archives.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError),
    *(RuntimeError, KeyError, IndexError, OverflowError, MemoryError, SyntaxError, TypeError),
)


def open_npz(path: Path) -> Store:
    """Opens a file; the archive's directory and the arrays' headers are read, no data.

    Raises:
        CheckpointError: if the file is damaged, holds anything but arrays of numbers, or declares
            far more data than it can have.
    """
    try:
        archive = zipfile.ZipFile(path)
    except _DAMAGE as error:
        raise _fault(path, f"the archive cannot be read ({error})") from error
    try:
        entries, members = _entries(path, archive)
    except BaseException:
        archive.close()
        raise
    read = partial(_read, path, archive, entries, members)
    return Store(path, entries, read, _metadata(archive.comment), {}, archive.close)


def _fault(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is no whole .npz file of arrays: {what}. Get the file again.")


def _entries(path: Path, archive: zipfile.ZipFile):
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in members or not info.filename.endswith(".npy") or info.flag_bits & 1:
            raise _fault(path, f"{info.filename!r} comes twice, is no .npy file or is encrypted")
        members[name] = info
    declared, size = sum(info.file_size for info in members.values()), path.stat().st_size
    if declared > max(_SMALL, _MAX_RATIO * size):
        raise _fault(path, f"it declares {declared} bytes of data in a file of {size}")
    return {name: _entry(path, archive, info)[0] for name, info in members.items()}, members


def _entry(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, file=None):
    """The array's header; `file` is left where its data begin."""
    try:
        if file is None:
            with archive.open(info) as opened:
                return _entry(path, archive, info, opened)
        version = np.lib.format.read_magic(file)
        shape, fortran, dtype = _HEADERS[version](file, max_header_size=_MAX_HEADER)
        position = file.tell()
    except CheckpointError:
        raise
    except _DAMAGE as error:
        raise _fault(path, f"{info.filename!r} has no readable header ({error})") from error
    name = "bfloat16" if dtype.kind == "V" and dtype.itemsize == 2 else dtype.name
    if dtype.hasobject or name not in ITEM_SIZES or dtype.fields is not None:
        raise CheckpointError(
            f"{path}: {info.filename!r} has dtype {dtype}; expected numbers. Python objects are "
            "never unpickled: save the arrays themselves."
        )
    if any(side < 0 for side in shape):
        raise _fault(path, f"{info.filename!r} has shape {shape}")
    entry = Entry(tuple(int(side) for side in shape), name)
    if info.file_size - position != entry.nbytes:
        raise _fault(
            path,
            f"{info.filename!r} of shape {entry.shape} and dtype {name} needs {entry.nbytes} "
            f"bytes, the archive declares {info.file_size - position}",
        )
    return entry, fortran, dtype


def _read(path: Path, archive: zipfile.ZipFile, entries, members, name: str) -> np.ndarray:
    info = members[name]
    try:
        with archive.open(info) as file:
            entry, fortran, dtype = _entry(path, archive, info, file)
            data = file.read(entry.nbytes)
            # At the end zipfile compares checksums.
            rest = file.read(1)
    except CheckpointError:
        raise
    except _DAMAGE as error:
        raise _fault(path, f"{info.filename!r} cannot be read ({error})") from error
    if len(data) != entry.nbytes or rest or entry != entries[name]:
        raise _fault(path, f"{info.filename!r} does not have the bytes that it declares")
    bfloat16 = entry.dtype == "bfloat16"
    array = np.frombuffer(data, np.dtype("<u2") if bfloat16 else dtype)
    array = array.reshape(entry.shape, order="F" if fortran else "C")
    if bfloat16:
        return from_bfloat16(np.ascontiguousarray(array))
    return array.astype(dtype.newbyteorder("="), copy=False)


def _metadata(comment: bytes) -> dict[str, str]:
    """Our strings in the archive's comment; anything else that stands there is ignored."""
    try:
        found = json.loads(comment.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    strings = isinstance(found, dict) and all(isinstance(v, str) for v in found.values())
    return found if strings else {}


def write_npz(
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
        metadata: strings for the archive's comment, which other readers do not look at.
    """
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, entry in entries.items():
            info = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(info, "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(
                    file,
                    {
                        "descr": _descr(entry.dtype),
                        "fortran_order": False,
                        "shape": entry.shape,
                    },
                )
                file.write(stored_bytes(produce(name), entry))
        comment = json.dumps(dict(metadata)).encode("utf-8") if metadata else b""
        if len(comment) <= _MAX_COMMENT:
            archive.comment = comment


def _descr(dtype: str) -> str:
    """NumPy's code; bfloat16 goes as two bytes of any kind, as ml_dtypes has it."""
    return "|V2" if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<").str
