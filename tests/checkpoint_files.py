"""Checkpoint files for tests of the formats: whole ones, and damaged ones."""

import tracemalloc

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from keras_vit.checkpoints import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.store import ITEM_SIZES, Entry

MOST_MEMORY = 64 << 20

# For tests that damage files. The same examples each time: a failure is a fault, not bad luck.
damaging = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def every_dtype():
    """Arrays of every dtype that files hold (bfloat16 as of ml_dtypes), and of odd shapes."""
    random = np.random.default_rng(7)
    arrays = {
        f"of/{name}": (random.normal(size=(5, 3)) * 40).astype(
            ml_dtypes.bfloat16 if name == "bfloat16" else name
        )
        for name in ITEM_SIZES
    }
    arrays["of/float32"][0] = np.nan, np.inf, -0.0
    shapes = {"scalar": (), "empty": (0, 4), "one": (1,), "deep": (1, 2, 1, 3, 1), "ünïcode": (2,)}
    return arrays | {name: random.normal(size=s).astype("float32") for name, s in shapes.items()}


def small():
    """Few bytes, so that each of them can be damaged."""
    return {
        "b/kernel": np.arange(6, dtype="float32").reshape(2, 3),
        "a": np.ones(3, "float16"),
        "step": np.array(7, "int64"),
    }


def entries_of(arrays):
    return {name: Entry(array.shape, array.dtype.name) for name, array in arrays.items()}


def widened(arrays):
    """As they are read: bfloat16 as float32."""
    narrow = ml_dtypes.bfloat16
    return {n: a.astype("float32") if a.dtype == narrow else a for n, a in arrays.items()}


def contents(path, opener=open_checkpoint):
    """All arrays of a file, which fit what its header says."""
    with opener(path) as store:
        arrays = {name: store.read(name) for name in store.entries}
        for name, entry in store.entries.items():
            dtype = "float32" if entry.dtype == "bfloat16" else entry.dtype
            assert isinstance(arrays[name], np.ndarray)
            assert (arrays[name].shape, arrays[name].dtype) == (entry.shape, dtype)
        return arrays


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name


def refused(path, opener=open_checkpoint):
    """The message of the only error that may come, or None if everything can be read."""
    try:
        contents(path, opener)
    except CheckpointError as error:
        return str(error)
    return None


def assert_harmless(path, named=None):
    """The file can be read, or is refused in a message that names it; memory stays bounded."""
    tracemalloc.start()
    try:
        message = refused(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message is None or str(named or path) in message
    assert peak < MOST_MEMORY


@st.composite
def damaged(draw, data):
    """Bytes with one to four places flipped, overwritten, inserted, cut out or copied over."""
    data = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "write", "insert", "delete", "splice"]))
        if kind == "flip" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "write":
            piece = draw(st.one_of(st.binary(max_size=8), st.sampled_from([b"\xff" * 8, bytes(8)])))
            data[place : place + len(piece)] = piece
        elif kind == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=12))
        elif kind == "delete":
            del data[place : place + draw(st.integers(1, 40))]
        elif kind == "splice":
            start = draw(st.integers(0, max(len(data) - 1, 0)))
            data[place : place + 24] = data[start : start + 24]
    return bytes(data)
