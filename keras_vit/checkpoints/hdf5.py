"""Keras' `.weights.h5` files, as keras-hub's presets have them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.store import ITEM_SIZES, Entry, Store

# Whatever HDF5 finds wrong comes as one of these.
_DAMAGE = (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, MemoryError)
_MAX_RATIO = 100
_SMALL = 256 << 20


def open_hdf5(path: Path, prefix: str = "") -> Store:
    """Opens a file; data sets are listed, none is read.

    Args:
        path: the file.
        prefix: put before all names.

    Raises:
        CheckpointError: if the file is damaged, or holds links or anything but numbers.
    """
    import h5py

    try:
        file = h5py.File(path, "r")
    except _DAMAGE as error:
        raise _fault(path, f"it cannot be opened ({error})") from error
    try:
        entries: dict[str, Entry] = {}
        _walk(path, file, "", prefix, entries, h5py)
        declared, size = sum(e.nbytes for e in entries.values()), path.stat().st_size
        if declared > max(_SMALL, _MAX_RATIO * size):
            raise _fault(path, f"it declares {declared} bytes of data in a file of {size}")
    except CheckpointError:
        file.close()
        raise
    except (*_DAMAGE, RecursionError) as error:
        file.close()
        raise _fault(path, f"it cannot be listed ({error})") from error
    read = partial(_read, path, file, entries, len(prefix))
    return Store(path, entries, read, {}, {}, file.close)


def _fault(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is no whole HDF5 file of arrays: {what}. Get the file again.")


def _walk(path, group, place, prefix, entries, h5py) -> None:
    for name in group:
        inner = f"{place}{name}"
        # Links may lead out of the file, or round in circles.
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise _fault(path, f"{inner!r} is a link")
        item = group[name]
        if isinstance(item, h5py.Group):
            if inner.count("/") > 64:
                raise _fault(path, "its groups go deeper than 64 levels")
            _walk(path, item, f"{inner}/", prefix, entries, h5py)
        elif isinstance(item, h5py.Dataset):
            dtype = item.dtype.name
            if dtype not in ITEM_SIZES or item.is_virtual or item.external:
                raise _fault(path, f"{inner!r} has dtype {item.dtype} or lies elsewhere")
            entries[prefix + inner] = Entry(tuple(item.shape), dtype)


def _read(path: Path, file, entries, skip: int, name: str) -> np.ndarray:
    try:
        array = np.asarray(file[name[skip:]][()])
    except _DAMAGE as error:
        raise _fault(path, f"{name!r} cannot be read ({error})") from error
    if array.shape != entries[name].shape:
        raise _fault(path, f"{name!r} changed its shape")
    return array
