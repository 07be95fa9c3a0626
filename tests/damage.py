"""Damaged files, and the one thing that may come of them beside arrays: CheckpointError."""

import contextlib
import tracemalloc

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.store import FLOATS, ITEM_SIZES

# The same examples each time: a failure is a fault, not bad luck. `tmp_path` is one for all of
# them, so each writes its file anew.
bounded = settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# Arrays of all dtypes that NumPy has, of an odd number of sides; one empty, one without sides.
NUMPY_DTYPES = tuple(name for name in ITEM_SIZES if name != "bfloat16")
SHAPES = ((2, 3, 5), (7,), (), (0,), (3, 0, 2), (1, 1))


def numbers(shape, dtype, seed=0):
    """Random numbers of a dtype, over all that its bits can say but NaN."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return np.asarray(random.integers(0, 2, shape)).astype("bool")
    if dtype in FLOATS:
        return np.asarray(random.normal(size=shape) * 100).astype(dtype)
    info = np.iinfo(dtype)
    return np.asarray(random.integers(info.min, info.max, shape, dtype, endpoint=True))


def same(found, expected):
    """Asserts the same numbers, bit by bit, in an array of this machine that can be written to."""
    assert type(found) is np.ndarray
    assert found.dtype.isnative and found.flags.writeable
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype.newbyteorder("="))
    np.testing.assert_array_equal(found, expected)


def read_all(path):
    """All arrays of a checkpoint."""
    with open_checkpoint(path) as store:
        arrays = {name: store.read(name) for name in store.entries}
        for name, array in arrays.items():
            entry = store.entries[name]
            expected = "float32" if entry.dtype == "bfloat16" else entry.dtype
            assert (array.shape, array.dtype) == (entry.shape, expected)
    return arrays


def outcome(path):
    """All arrays, or `None` if the file is refused, by an error that names it; in little memory."""
    with at_most(64):
        try:
            return read_all(path)
        except CheckpointError as error:
            assert str(path) in str(error)
            return None


@st.composite
def damaged(draw, whole: bytes):
    """A file with up to four flips, inserted, deleted or copied pieces."""
    data = bytearray(whole)
    place = st.integers(0, len(whole) - 1)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(place)
        kind = draw(st.sampled_from(("flip", "set", "delete", "insert", "splice")))
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set":
            data[at : at + 1] = draw(st.sampled_from((b"\0", b"\xff", b"\x7f")))
        elif kind == "delete":
            del data[at : at + draw(st.integers(1, 9))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=9))
        else:
            start, length = draw(place), draw(st.integers(1, 64))
            data[at : at + length] = data[start : start + length]
    return bytes(data)


@contextlib.contextmanager
def at_most(megabytes):
    """Asserts that no more memory is taken at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()
