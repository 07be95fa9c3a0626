"""Artifacts, of one file or many, that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keras_vit import _checks
from keras_vit._atomic import umask


def target(path: Any, suffix: str, overwrite: bool) -> Path:
    """The file to write, checked before any work is done.

    Args:
        path: what the user gave.
        suffix: the ending it must have, such as `".onnx"`.
        overwrite: whether a file may be there already.

    Raises:
        ValueError: if the path has another ending, or is a directory.
        FileExistsError: if there is a file and `overwrite` is False.
    """
    if not isinstance(path, str | os.PathLike) or Path(os.fsdecode(path)).suffix != suffix:
        raise ValueError(f"`path` must end in {suffix}. Received: path={str(path)!r}")
    path = Path(os.fsdecode(path)).expanduser()
    if path.is_dir():
        raise ValueError(f"`path` must be a file. Received: the directory {path}")
    refuse_existing(path, overwrite)
    return path


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raises a FileExistsError if there is something, and it is not to be replaced."""
    if not _checks.boolean("overwrite", overwrite) and path.exists():
        raise FileExistsError(
            f"{path} exists: name another path, or pass overwrite=True to replace it."
        )


@contextmanager
def staged(path: Path, overwrite: bool, companions: Sequence[str] = ()) -> Iterator[Path]:
    """Gives a path of the same name elsewhere; what is written there takes its place at the end.

    Args:
        path: a file or directory; missing directories above it are made.
        overwrite: whether what is there may be replaced.
        companions: names of files that belong to `path`: an older one goes if there is no new one.

    Yields:
        The path to write, in a hidden directory beside `path`, in a folder of its parent's name.
        Files that are written beside it go along. Whatever is raised, all of that is gone, and
        what was at `path` is as it was.
    """
    refuse_existing(path, overwrite)
    path = path.absolute()
    made = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(".partial", f".{path.name[:40]}-", path.parent))
    try:
        folder = hidden / (path.parent.name or "root")
        folder.mkdir()
        yield folder / path.name
        # Another export may have come first.
        refuse_existing(path, overwrite)
        _place(folder, path, companions)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):  # it is of use to what was written
                path.parent.rmdir()


def _place(folder: Path, path: Path, companions: Sequence[str]) -> None:
    mask = umask()
    for entry in folder.iterdir():
        os.chmod(entry, (0o777 if entry.is_dir() else 0o666) & ~mask)
    beside = sorted(entry.name for entry in folder.iterdir() if entry.name != path.name)
    old = folder.parent / "old"
    if path.exists() and (beside or companions or path.is_dir()):
        # An end in between leaves nothing that loads: there is no main part any more.
        os.rename(path, old)
    try:
        for name in beside:
            os.replace(folder / name, path.with_name(name))
        os.replace(folder / path.name, path)
    except OSError:
        if old.exists():
            os.replace(old, path)
        raise
    for name in set(companions) - set(beside):
        path.with_name(name).unlink(missing_ok=True)
