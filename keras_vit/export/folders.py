"""Directories that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_vit._atomic import umask


@contextmanager
def new_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """Gives a hidden directory beside `path`, which becomes `path` if all goes well.

    Args:
        path: the directory to make; those above it are made too.
        overwrite: whether an old `path` may be replaced, see `refuse_existing`.

    Yields:
        The directory to fill. Whatever is raised, it is gone, and an old `path` is as it was.
    """
    refuse_existing(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(".partial", f".{path.name[:40]}-", path.parent))
    try:
        yield partial
        os.chmod(partial, 0o777 & ~umask())
        _put(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def staged(path: Path, overwrite: bool) -> Iterator[Path]:
    """Gives a path of the same name elsewhere; what is written there goes to `path` if all is well.

    Args:
        path: a file or directory; files written beside the staged one go along, before it.
        overwrite: whether what is there may be replaced.

    Yields:
        The path to write, in a hidden directory beside `path`, in a folder of its parent's name.
    """
    refuse_existing(path, overwrite)
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(".staged", f".{path.name[:40]}-", path.parent))
    try:
        folder = hidden / (path.parent.name or "root")
        folder.mkdir()
        yield folder / path.name
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == path.name):
            _put(entry, path.parent / entry.name)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raises a FileExistsError if there is something, and it is not to be replaced."""
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{path} is there already: name another path, or pass overwrite=True to replace it."
        )


def _put(partial: Path, path: Path) -> None:
    if not path.is_dir():
        os.replace(partial, path)
        return
    # A directory that is not empty cannot be replaced in one step.
    old = Path(tempfile.mkdtemp(".old", f".{path.name[:40]}-", path.parent))
    os.rename(path, old / "content")
    try:
        os.rename(partial, path)
    except OSError:
        os.rename(old / "content", path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
