"""NumPy's .npz: a zip archive of .npy files. Nothing is ever unpickled."""

from __future__ import annotations

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.raw import (
    DTYPES,
    check_declared,
    checked_entry,
    new_file,
    read_array,
    stored_bytes,
)
from keras_vit.checkpoints.store import Entry, Store

_MAX_COMMENT = 65_535  # of the zip format
_MAX_HEADER = 65_536
_END = 22  # bytes of the record that ends an archive, before its comment
_CHUNK = 1 << 20
_ENCRYPTED = 1
# What zipfile and zlib raise on damaged archives.
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError),
    *(NotImplementedError, RuntimeError, KeyError, IndexError, OverflowError),
)
# The header is a Python literal. These three say the same without running a parser on it; the L
# is Python 2's.
_DESCR = re.compile(r"""['"]descr['"]: *['"]([<>|])(\w+)['"]""")
_FORTRAN = re.compile(r"""['"]fortran_order['"]: *(True|False)""")
_SHAPE = re.compile(r"""['"]shape['"]: *\(((?:\d{1,19}L?, *)*(?:\d{1,19}L?)?)\)""")


@dataclass(frozen=True)
class _Member:
    """A .npy file of the archive."""

    info: zipfile.ZipInfo
    entry: Entry
    position: int
    big_endian: bool
    fortran: bool


def open_npz(path: Path) -> Store:
    """Opens a file; the archive's directory and the arrays' headers are read, no data.

    Strings that `write_npz` put into the archive come back as `Store.metadata`.

    Raises:
        CheckpointError: if the file is damaged, holds anything but arrays of numbers, or declares
            far more data than it can have.
    """
    with _faults(path, "the archive cannot be read"):
        file = open(path, "rb")
    try:
        with _faults(path, "the archive cannot be read"):
            archive = zipfile.ZipFile(file)
            _check_end(path, file, archive)
            check_declared(path, sum(info.file_size for info in archive.infolist()))
        members = _members(path, archive)
    except BaseException:
        file.close()
        raise
    entries = {name: member.entry for name, member in members.items()}
    return Store(
        path,
        entries,
        lambda name: _read(path, archive, name, members[name]),
        _metadata(archive.comment),
        on_close=file.close,
    )


def _fault(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is no whole .npz file of arrays: {what}. Get the file again.")


@contextmanager
def _faults(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except DAMAGE as error:
        raise _fault(path, f"{what} ({error})") from error


def _check_end(path: Path, file: IO[bytes], archive: zipfile.ZipFile) -> None:
    """What zipfile puts up with: a comment that is cut short, and bytes after the archive."""
    file.seek(-_END - len(archive.comment), 2)
    end = file.read(_END)
    if not end.startswith(b"PK\5\6") or int.from_bytes(end[-2:], "little") != len(archive.comment):
        raise _fault(path, "the archive does not end where the file ends")


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename:
            raise _fault(path, f"{name!r} is not the .npy file of an array")
        if name in members:
            raise _fault(path, f"{name!r} comes twice")
        if info.flag_bits & _ENCRYPTED:
            raise _fault(path, f"{name!r} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _fault(path, f"{name!r} is compressed in a way that NumPy does not write")
        with _faults(path, f"{name!r} has no readable header"), archive.open(info) as file:
            members[name] = _member(path, name, info, file)
    return members


def _member(path: Path, name: str, info: zipfile.ZipInfo, file: IO[bytes]) -> _Member:
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:7] not in (b"\1", b"\2", b"\3"):
        raise ValueError(f"it begins with {magic!r}")
    length = int.from_bytes(file.read(2 if magic[6] == 1 else 4), "little")
    if length > _MAX_HEADER:
        raise ValueError(f"it should have {length} bytes")
    header = file.read(length).decode("utf-8")
    position = file.tell()
    descr, fortran, shape = (p.search(header) for p in (_DESCR, _FORTRAN, _SHAPE))
    if descr is None or descr[2] not in DTYPES:
        # A dtype with fields is a list; the header then shows it.
        received = descr[1] + descr[2] if descr else header.strip()[:100]
        raise CheckpointError(
            f"{path}: {name!r} has the dtype {received!r}; expected real numbers. Python objects "
            "('|O') are never unpickled: save the arrays themselves."
        )
    if fortran is None or shape is None:
        raise ValueError(f"it is {header[:100]!r}")
    sides = [int(side.rstrip("L ")) for side in shape[1].split(",") if side.strip()]
    entry = checked_entry(path, name, sides, DTYPES[descr[2]])
    if info.file_size - position != entry.nbytes:
        raise _fault(
            path,
            f"{name!r} of shape {entry.shape} and dtype {entry.dtype} needs {entry.nbytes} "
            f"bytes, the archive declares {info.file_size - position}",
        )
    return _Member(info, entry, position, descr[1] == ">", fortran[1] == "True")


def _read(path: Path, archive: zipfile.ZipFile, name: str, member: _Member) -> np.ndarray:
    def fill(data: np.ndarray) -> None:
        with _faults(path, f"{name!r} cannot be read"), archive.open(member.info) as file:
            file.read(member.position)
            # In pieces, since zipfile builds a copy of all that is asked for.
            count = 0
            while piece := file.read(min(_CHUNK, len(data) - count)):
                data[count : count + len(piece)] = np.frombuffer(piece, "uint8")
                count += len(piece)
            # With the last byte zipfile has compared checksums.
            if count != len(data):
                raise EOFError(f"{count} bytes instead of {len(data)}")

    return read_array(member.entry, fill, big_endian=member.big_endian, fortran=member.fortran)


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

    Raises:
        CheckpointError: if an array has another shape than its entry, the metadata are too long,
            or the file cannot be written.
    """
    comment = json.dumps(dict(metadata)).encode("utf-8") if metadata else b""
    if len(comment) > _MAX_COMMENT:
        raise CheckpointError(
            f"{path}: an .npz file holds at most {_MAX_COMMENT} bytes of metadata; write a "
            f".safetensors file, or less of them. Received: {len(comment)} bytes"
        )
    with new_file(path) as target, zipfile.ZipFile(target, "w") as archive:
        for name, entry in entries.items():
            info = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(info, "w", force_zip64=True) as file:
                header = {
                    "descr": _descr(entry.dtype),
                    "fortran_order": False,
                    "shape": entry.shape,
                }
                np.lib.format.write_array_header_1_0(file, header)
                file.write(stored_bytes(name, produce(name), entry))
        archive.comment = comment


def _descr(dtype: str) -> str:
    """NumPy's code; bfloat16 goes as two bytes of any kind, as ml_dtypes has it."""
    return "|V2" if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<").str
