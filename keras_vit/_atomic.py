"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary name in the same directory, which becomes `path` if all goes well.

    Args:
        path: the file to write; its ending stays, as some writers go by it.

    Yields:
        The path to write to. Whatever is raised, it is gone, and an old `path` is as it was.
    """
    # A long name has no room for more.
    handle, name = tempfile.mkstemp(path.suffix, f".{path.stem[:40]}-", path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        os.chmod(partial, 0o666 & ~umask())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def umask() -> int:
    """The process' umask, which can only be read by setting it."""
    # Meanwhile other threads' files are closed to others rather than open to all.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
