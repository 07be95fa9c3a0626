"""Artifacts of several files that appear together or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keras_vit import _checks
from keras_vit._atomic import umask
from keras_vit.export.folders import refuse_existing


def target(path: Any, suffix: str, overwrite: bool) -> Path:
    """The path to write, checked before any work is done.

    Args:
        path: what the user gave.
        suffix: the ending it must have, such as `".onnx"`.
        overwrite: whether a file may be there already.

    Raises:
        ValueError: if the path has another ending, or is a directory.
        FileExistsError: if there is a file and `overwrite` is False.
    """
    _checks.boolean("overwrite", overwrite)
    if not isinstance(path, str | os.PathLike) or Path(os.fsdecode(path)).suffix != suffix:
        raise ValueError(f"`path` must end in {suffix}. Received: path={path!r}")
    path = Path(os.fsdecode(path))
    if path.is_dir():
        raise ValueError(f"`path` must be a file; {path} is a directory.")
    refuse_existing(path, overwrite)
    return path


@contextmanager
def placing(path: Path, companions: Sequence[str]) -> Iterator[Path]:
    """Gives a directory to write in; what it then holds moves beside and to `path`.

    Args:
        path: the artifact's main file, without which the others are nothing; directories above
            it are made.
        companions: suffixes of the names of other files that it may have: `path.name` less its
            own suffix, and this.

    Yields:
        A temporary directory in that of `path`. If all goes well its files, named as they will
        be, take their places, `path` the last, and companions of an older artifact go. Whatever
        is raised, the old artifact is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.stem[:40]}-", dir=path.parent) as name:
        folder = Path(name)
        yield folder
        for file in folder.iterdir():
            os.chmod(file, 0o666 & ~umask())
        # An end in between leaves nothing that loads: there is no old main file any more.
        path.unlink(missing_ok=True)
        for suffix in companions:
            companion = path.with_name(path.stem + suffix)
            if (folder / companion.name).exists():
                os.replace(folder / companion.name, companion)
            else:
                companion.unlink(missing_ok=True)
        os.replace(folder / path.name, path)
