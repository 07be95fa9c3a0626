"""HDF5 files: what Keras writes is read; what leads elsewhere, or is no number, is refused."""

import h5py
import keras
import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import (
    assert_harmless,
    assert_same,
    contents,
    damaged,
    damaging,
    every_dtype,
    refused,
    small,
    widened,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vit.checkpoints import CheckpointError, raw
from keras_vit.checkpoints.hdf5 import open_hdf5


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.weights.h5"


def test_every_dtype(path):
    with h5py.File(path, "w") as file:
        for name, array in every_dtype().items():
            file[name] = array
    assert_same(contents(path, open_hdf5), widened(every_dtype()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_keras_saves(dtype, path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype=dtype, name="dense")])
    model.save_weights(path)
    kernel, bias = (keras.ops.convert_to_numpy(w).astype("float32") for w in model.weights)
    expected = {"layers/dense/vars/0": kernel, "layers/dense/vars/1": bias}
    assert_same(contents(path, open_hdf5), expected)


def test_other_layouts(path):
    array = np.arange(600, dtype="float32").reshape(20, 30)
    with h5py.File(path, "w") as file:
        packed = {"compression": "gzip", "shuffle": True, "fletcher32": True}
        file.create_dataset("packed", data=array, **packed)
        file.create_dataset("chunks", data=array, chunks=(7, 11), maxshape=(None, None))
        file["big endian"] = array.astype(">f4")
        file["scalar"] = np.array(3, ">i8")
        file["narrow"] = np.ones((), ml_dtypes.bfloat16)
    expected = {**dict.fromkeys(("packed", "chunks", "big endian"), array), "scalar": np.array(3)}
    assert_same(contents(path), expected | {"narrow": np.array(1, "float32")})


RAGGED = np.empty(1, h5py.vlen_dtype("f4"))
RAGGED[0] = np.ones(2, "float32")


@pytest.mark.parametrize(
    "value",
    [
        "text",
        np.array([b"bytes"]),
        np.array(["words"], h5py.string_dtype()),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]),
        RAGGED,
        np.ones(2, "complex64"),
        np.zeros(2, "V3"),
        h5py.Empty("f4"),
    ],
    ids=str,
)
def test_only_numbers(value, path):
    with h5py.File(path, "w") as file:
        file["fine"] = np.ones(3)
        file.create_dataset("in/wrong", data=value, dtype=getattr(value, "dtype", None))
    with pytest.raises(CheckpointError, match=r"a\.weights\.h5.*'in/wrong' has the dtype"):
        open_hdf5(path)


@pytest.mark.parametrize("link", [h5py.SoftLink("/fine"), h5py.ExternalLink("b.h5", "/fine")])
def test_links(link, path):
    with h5py.File(path, "w") as file:
        file["fine"] = np.ones(3)
        file["group/link"] = link
    with pytest.raises(CheckpointError, match="'group/link' is a link to another place or file"):
        open_hdf5(path)


def test_data_in_other_files(path, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(8))
    with h5py.File(path, "w") as file:
        external = [(str(tmp_path / "secret"), 0, 8)]
        file.create_dataset("x", (2,), "f4", external=external)
    with pytest.raises(CheckpointError, match="the data of 'x' lie in another file"):
        open_hdf5(path)
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout((2,), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "b.h5"), "x", (2,))
        file.create_virtual_dataset("x", layout)
    with pytest.raises(CheckpointError, match="the data of 'x' lie in another file"):
        open_hdf5(path)


def test_groups_that_contain_themselves(path):
    with h5py.File(path, "w") as file:
        group = file.create_group("a")
        for name in "bc":
            group[name] = file["/"]
    with pytest.raises(CheckpointError, match="'a/b/' contains itself"):
        open_hdf5(path)


def test_deep_groups(path):
    with h5py.File(path, "w") as file:
        file["a/" * 70 + "x"] = np.ones(3)
    with pytest.raises(CheckpointError, match="lies too deep"):
        open_hdf5(path)


@pytest.mark.parametrize("chunks", [None, (10,)])
def test_never_written(chunks, path):
    """HDF5 would make up zeros."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (2**40,), "f4", chunks=chunks)
    with pytest.raises(CheckpointError, match="'x' of shape.*the file has 0"):
        open_hdf5(path)


def test_bombs(path, monkeypatch):
    monkeypatch.setattr(raw, "_SMALL", 1 << 20)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros(1 << 20), compression="gzip")
    with pytest.raises(CheckpointError, match="declares 8388608 bytes"):
        open_hdf5(path)
    # A small array in one huge chunk: all of the chunk is unpacked.
    with h5py.File(path, "w") as file:
        shape = {"shape": (2,), "chunks": (1 << 20,), "maxshape": (None,)}
        file.create_dataset("x", data=np.zeros(2), compression="gzip", **shape)
    with pytest.raises(CheckpointError, match="declares 8388608 bytes"):
        open_hdf5(path)


def test_damaged_data(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("fine", data=np.ones(3))
        file.create_dataset("wrong", data=np.arange(100.0), chunks=(100,), fletcher32=True)
    data = path.read_bytes()
    path.write_bytes(data.replace(np.arange(100.0).tobytes(), bytes(800)))
    with open_hdf5(path) as store:
        assert store.read("fine").tolist() == [1, 1, 1]
        with pytest.raises(CheckpointError, match="'wrong' cannot be read"):
            store.read("wrong")


def test_missing(tmp_path):
    with pytest.raises(CheckpointError, match="none.h5.*cannot be opened"):
        open_hdf5(tmp_path / "none.h5")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "a.h5"
    with h5py.File(path, "w") as file:
        for name, array in small().items():
            file[name] = array
        file.create_dataset("packed", data=np.zeros((4, 4)), compression="gzip")
    return path.read_bytes()


def test_cut_anywhere(whole, path):
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert refused(path), length
        assert refused(path, open_hdf5), length


@settings(damaging, max_examples=100)
@given(data=st.data())
def test_damaged_anywhere(data, whole, path):
    path.write_bytes(data.draw(damaged(whole)))
    assert_harmless(path)
