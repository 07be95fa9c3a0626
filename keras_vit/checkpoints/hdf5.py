"""Keras' `.weights.h5` files, as keras-hub's presets have them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.raw import DTYPES, as_native, check_declared, checked_entry
from keras_vit.checkpoints.store import Entry, Store

_MAX_DEPTH = 64


def open_hdf5(path: Path) -> Store:
    """Opens a file; data sets are listed by their full path, none is read.

    Raises:
        CheckpointError: if the file is damaged, or holds links or anything but numbers.
    """
    import h5py

    try:
        file = h5py.File(path, "r")
    except Exception as error:  # h5py has a class for each kind of fault that the C library finds
        raise _fault(path, f"it cannot be opened ({error})") from error
    try:
        listing = _Listing(path)
        listing.walk(file, "", 0)
        check_declared(path, listing.declared)
    except CheckpointError:
        file.close()
        raise
    except Exception as error:
        file.close()
        raise _fault(path, f"it cannot be listed ({error})") from error
    except BaseException:
        file.close()
        raise

    def read(name: str) -> np.ndarray:
        try:
            array = np.asarray(listing.datasets[name][()])
        except Exception as error:
            raise _fault(path, f"{name!r} cannot be read ({error})") from error
        entry = listing.entries[name]
        if entry.dtype == "bfloat16":
            array = array.view("<u2")  # as Keras writes it, from ml_dtypes
        return np.asarray(as_native(array, entry.dtype))

    return Store(path, listing.entries, read, on_close=file.close)


def _fault(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is no whole HDF5 file of arrays: {what}. Get the file again.")


class _Listing:
    """The data sets of a file.

    Args:
        path: the file, for messages.
    """

    def __init__(self, path: Path):
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.datasets: dict[str, Any] = {}
        self.declared = 0  # bytes that reading everything takes
        self._groups: set[int] = set()

    def walk(self, group: Any, place: str, depth: int) -> None:
        """Lists what is in a group and below."""
        import h5py

        address = h5py.h5o.get_info(group.id).addr
        if address in self._groups or depth > _MAX_DEPTH:
            raise _fault(self.path, f"{place!r} contains itself, or lies too deep")
        self._groups.add(address)
        for key in group:
            name = f"{place}{key}"
            # Other links lead to other places, out of the file or round in circles.
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise _fault(self.path, f"{name!r} is a link to another place or file")
            item = group[key]
            if isinstance(item, h5py.Group):
                self.walk(item, f"{name}/", depth + 1)
            elif isinstance(item, h5py.Dataset):
                self.entries[name] = self._entry(name, item)
                self.datasets[name] = item

    def _entry(self, name: str, item: Any) -> Entry:
        dtype = item.dtype
        if item.shape is None or dtype.fields or dtype.subdtype or dtype.str[1:] not in DTYPES:
            raise CheckpointError(
                f"{self.path}: {name!r} has the dtype {dtype}; expected an array of real numbers."
            )
        if item.is_virtual or item.external:
            raise _fault(self.path, f"the data of {name!r} lie in another file")
        entry = checked_entry(self.path, name, item.shape, DTYPES[dtype.str[1:]])
        stored, width = item.id.get_storage_size(), item.id.get_type().get_size()
        if item.chunks is None and stored != entry.size * width or entry.size and not stored:
            raise _fault(
                self.path,
                f"{name!r} of shape {entry.shape} and dtype {entry.dtype} needs {entry.nbytes} "
                f"bytes, the file has {stored}",
            )
        # A chunk is unpacked whole, even where it is larger than the array.
        self.declared += max(entry.nbytes, math.prod(item.chunks or (0,)) * entry.item_size)
        return entry
