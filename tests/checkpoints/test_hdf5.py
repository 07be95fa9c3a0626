"""Keras' .weights.h5 files: HDF5 as h5py writes it, links and damaged files."""

import json

import h5py
import keras
import numpy as np
import pytest
from damage import NUMPY_DTYPES, SHAPES, at_most, bounded, damaged, numbers, outcome, read_all, same
from hypothesis import given

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.hdf5 import open_hdf5
from keras_vit.checkpoints.store import Entry

ARRAYS = {
    "layers/dense/vars/0": numbers((3, 4), "float32"),
    "layers/dense/vars/1": numbers((4,), "float16"),
    "step": numbers((), "int64"),
    "none": numbers((0, 2), "float32"),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.weights.h5"


def written(path, arrays=ARRAYS, **kwargs) -> bytes:
    with h5py.File(path, "w", **kwargs) as file:
        for name, array in arrays.items():
            file[name] = array
    return path.read_bytes()


# Reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("libver", ("earliest", "latest"))
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_reads_what_h5py_writes(dtype, libver, path):
    arrays = {f"{i}/x": numbers(shape, dtype, i) for i, shape in enumerate(SHAPES)}
    cube = numbers((4, 6, 5), dtype)
    arrays |= {"big": cube.astype(cube.dtype.newbyteorder(">"))}
    arrays |= {"fortran": np.asfortranarray(cube), "strided": cube[::-1, ::2]}
    written(path, arrays, libver=libver)
    found = read_all(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        same(found[name], array)


@pytest.mark.parametrize(
    "settings",
    (
        {"chunks": (3, 2)},
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"compression": "lzf"},
        {"maxshape": (None, None)},
    ),
)
def test_chunks_and_filters(settings, path):
    array = numbers((7, 5), "float32")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, **settings)
    same(read_all(path)["x"], array)


def test_compact(path):
    """Data within the header."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((3,))
        made = h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, plist)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(3, dtype="float32"))
    same(read_all(path)["x"], np.arange(3, dtype="float32"))


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_what_keras_writes(dtype, path):
    layer = keras.layers.Dense(3, dtype=dtype)
    model = keras.Sequential([keras.Input((2,)), layer])
    model.save_weights(path)
    found = read_all(path)
    assert sorted(found) == ["layers/dense/vars/0", "layers/dense/vars/1"]
    expected = keras.ops.convert_to_numpy(keras.ops.cast(layer.kernel, "float32"))
    np.testing.assert_array_equal(found["layers/dense/vars/0"].astype("float32"), expected)
    with open_checkpoint(path) as store:
        assert store.entries["layers/dense/vars/0"] == Entry((2, 3), dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16(shape, path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    array = np.asarray(numbers(shape, "float32").astype(bfloat16))
    with h5py.File(path, "w") as file:
        file["x"] = array.view("V2")
    same(read_all(path)["x"], array.astype("float32"))


def test_bools_that_are_neither(path):
    written(path, {"x": np.array([False, True, True])})
    data = path.read_bytes()
    assert data.count(b"\0\1\1") >= 1
    with h5py.File(path) as file:
        at = file["x"].id.get_offset()
    path.write_bytes(data[:at] + b"\0\1\2" + data[at + 3 :])
    assert read_all(path)["x"].view("uint8").tolist() == [0, 1, 1]


# What a file must not hold -----------------------------------------------------------------


def refused(path, match):
    with at_most(16), pytest.raises(CheckpointError, match=match) as error:
        open_hdf5(path)
    assert str(path) in str(error.value)
    with pytest.raises(CheckpointError):
        open_checkpoint(path)


@pytest.mark.parametrize("target", ("/x", "/absent", "/"))
def test_soft_link(target, path):
    with h5py.File(path, "w") as file:
        file["x"] = np.ones(3)
        file["group/kernel"] = h5py.SoftLink(target)
    refused(path, "'group/kernel' is a link to another place")


@pytest.mark.parametrize("absent", (True, False))
def test_external_link(absent, path, tmp_path):
    """Not even a file that is there may be read through another."""
    if not absent:
        written(tmp_path / "secret.h5")
    with h5py.File(path, "w") as file:
        file["kernel"] = h5py.ExternalLink("secret.h5", "/step")
    refused(path, "'kernel' is a link to another place or file")


def test_external_data(path, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(12))
    with h5py.File(path, "w") as file:
        file.create_dataset("kernel", (3,), "float32", external=[(str(secret), 0, 12)])
    refused(path, "'kernel' lie in another file")


def test_virtual_data(path, tmp_path):
    written(tmp_path / "secret.h5", {"x": np.ones(3, "float32")})
    layout = h5py.VirtualLayout((3,), "float32")
    layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", (3,))
    with h5py.File(path, "w", libver="latest") as file:
        file.create_virtual_dataset("kernel", layout)
    refused(path, "'kernel' lie in another file")


@pytest.mark.parametrize("links", (1, 2))
def test_circles(links, path):
    """A group within itself, by links that look like any other; two are 2^64 ways to go."""
    with h5py.File(path, "w") as file:
        group = file.create_group("a/b")
        for i in range(links):
            group[f"c{i}"] = file["a"]
    refused(path, "'a/b/c0/' contains itself")


def test_deep_groups(path):
    with h5py.File(path, "w") as file:
        file["/".join("a" * 1500)] = np.ones(3)
    refused(path, "lies too deep")


@pytest.mark.parametrize(
    ("value", "shown"),
    (
        ("text", "object"),
        (b"text", r"\|S4|object"),
        (["a", "b"], "object"),
        (np.array([b"ab"]), r"\|S2"),
        (np.ones(3, "complex64"), "complex64"),
        (np.ones(3, [("a", "f4"), ("b", "u1")]), "'a'"),
        (np.ones(3, [("a", "u1"), ("b", "u1")]), "'a'"),
        (np.zeros(3, "V4"), r"\|V4"),
        (h5py.Empty("float32"), "float32"),
    ),
)
def test_dtypes(value, shown, path):
    with h5py.File(path, "w") as file:
        file["group/kernel"] = value
    refused(path, f"'group/kernel' has the dtype .*({shown}).*expected an array of real numbers")


@pytest.mark.parametrize(
    "dtype",
    (
        h5py.vlen_dtype("float32"),
        h5py.string_dtype(),
        h5py.ref_dtype,
        h5py.regionref_dtype,
        np.dtype(("float32", (3,))),
        np.dtype(("uint8", (2,))),
    ),
    ids=str,
)
def test_more_dtypes(dtype, path):
    with h5py.File(path, "w") as file:
        file.create_dataset("kernel", (3,), dtype)
    refused(path, "'kernel' has the dtype .*expected an array of real numbers")


# Sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", (None, (8,)))
def test_never_written(chunks, path):
    """HDF5 would read zeros."""
    with h5py.File(path, "w") as file:
        file.create_dataset("kernel", (8,), "float32", chunks=chunks)
    refused(path, r"'kernel' of shape \(8,\) and dtype float32 needs 32 bytes, the file has 0")


def test_bomb(path):
    with h5py.File(path, "w") as file:
        made = file.create_dataset("kernel", (1 << 40,), "float32", chunks=(8,))
        made[:8] = 1
    refused(path, f"declares {4 << 40} bytes of arrays .*at most 100 times as many")


def test_large_chunk(path):
    """A chunk is unpacked whole, however small the array."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "kernel", (3,), "uint8", chunks=(300 << 20,), maxshape=(None,), compression="gzip"
        )
        made.id.write_direct_chunk((0,), b"x")
    refused(path, f"declares {300 << 20} bytes of arrays")


def test_bombs_add_up(path):
    with h5py.File(path, "w") as file:
        for i in range(5):
            made = file.create_dataset(f"{i}", (60 << 20,), "uint8", chunks=(8,))
            made[:8] = 1
    refused(path, f"declares {5 * (60 << 20)} bytes")


@pytest.mark.parametrize("shape", ((2**40, 2**40, 0), (2**62, 0)))
def test_shapes_without_memory(shape, path):
    with h5py.File(path, "w") as file:
        file.create_dataset("kernel", shape, "float32")
    refused(path, "'kernel' has the shape .* expected one that fits into memory")


def test_wrong_checksum(path):
    array = numbers((100,), "float32")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, chunks=(100,), fletcher32=True)
        file["y"] = array
    data = bytearray(path.read_bytes())
    data[data.find(array.tobytes()) + 5] ^= 4
    path.write_bytes(data)
    with open_checkpoint(path) as store:
        same(store.read("y"), array)
        with pytest.raises(CheckpointError, match="model.weights.h5 .*'x' cannot be read"):
            store.read("x")


# Damage ------------------------------------------------------------------------------------


def test_missing(path):
    with pytest.raises(CheckpointError, match="model.weights.h5 .*cannot be opened"):
        open_hdf5(path)


def test_not_after_closing(path):
    written(path)
    with open_checkpoint(path) as store:
        pass
    with pytest.raises(CheckpointError, match="'step' cannot be read"):
        store.read("step")


@pytest.mark.parametrize("libver", ("earliest", "latest"))
def test_cut_short(libver, path, tmp_path):
    whole = written(tmp_path / "whole.h5", libver=libver)
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert outcome(path) is None, length


@pytest.fixture(scope="module", params=("earliest", "latest"))
def whole(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("hdf5") / "x.h5"
    written(path, libver=request.param)
    with h5py.File(path, "a") as file:
        file.create_dataset("packed", data=np.arange(200.0), compression="gzip", chunks=(64,))
    return path.read_bytes()


def test_damaged(whole, path):
    @bounded
    @given(data=damaged(whole))
    def check(data):
        path.write_bytes(data)
        outcome(path)

    check()


def test_attributes_are_not_read(path):
    """Keras keeps a description of its classes in them, which could be anything."""
    written(path)
    with h5py.File(path, "a") as file:
        file.attrs["model_config"] = json.dumps({"class_name": "Lambda"})
        file["step"].attrs["x"] = h5py.Empty("float32")
    assert read_all(path).keys() == ARRAYS.keys()
    with open_checkpoint(path) as store:
        assert store.metadata == {}
