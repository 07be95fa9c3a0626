"""The safetensors format, against the library's own reader and writer; damaged files."""

import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from damage import NUMPY_DTYPES, SHAPES, at_most, bounded, damaged, numbers, outcome, read_all, same
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.safetensors import open_safetensors, write_safetensors
from keras_vit.checkpoints.store import Entry

ARRAYS = {
    "block.kernel": numbers((3, 4), "float32"),
    "block.bias": numbers((4,), "float16"),
    "step": numbers((), "int64"),
    "none": numbers((0, 2), "float32"),
    "größe": numbers((3,), "bool"),
}
METADATA = {"format": "pt", "keras_vit": '{"hidden_dim": 12}', "note": "ä\n"}


def written(path, arrays=ARRAYS, metadata=METADATA) -> bytes:
    entries = {name: Entry(array.shape, array.dtype.name) for name, array in arrays.items()}
    write_safetensors(path, entries, arrays.__getitem__, metadata)
    return path.read_bytes()


def array(dtype="F32", shape=(2, 3), offsets=(0, 24)):
    """The header's word on one array."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def built(path, header, data=bytes(24), length=None):
    """A file of any header: text, or what JSON makes text of."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + text + data)
    return path


# Round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_reads_what_the_library_writes(dtype, tmp_path):
    arrays = {f"{i}.{shape}": numbers(shape, dtype, i) for i, shape in enumerate(SHAPES)}
    safetensors.numpy.save_file(arrays, tmp_path / "x.safetensors", METADATA)
    found = read_all(tmp_path / "x.safetensors")
    assert found.keys() == arrays.keys()
    for name, value in arrays.items():
        same(found[name], value)
    with open_checkpoint(tmp_path / "x.safetensors") as store:
        assert store.metadata == METADATA


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_library_reads_what_we_write(dtype, tmp_path):
    path = tmp_path / "x.safetensors"
    arrays = {f"{i}.{shape}": numbers(shape, dtype, i) for i, shape in enumerate(SHAPES)}
    written(path, arrays)
    found, ours = safetensors.numpy.load_file(path), read_all(path)
    assert found.keys() == ours.keys() == arrays.keys()
    for name, value in arrays.items():
        same(ours[name], value)
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == METADATA


def test_all_dtypes_in_one_file(tmp_path):
    """The widest come first, so that all are aligned."""
    arrays = {dtype: numbers((3,), dtype) for dtype in sorted(NUMPY_DTYPES)}
    data = written(tmp_path / "x.safetensors", arrays, None)
    length = int.from_bytes(data[:8], "little")
    for name, value in json.loads(data[8 : 8 + length]).items():
        assert (8 + length + value["data_offsets"][0]) % arrays[name].itemsize == 0
    for found in (read_all(tmp_path / "x.safetensors"), safetensors.numpy.load(data)):
        assert found.keys() == arrays.keys()
        for name, value in found.items():
            np.testing.assert_array_equal(value, arrays[name], strict=True)


def test_bfloat16(tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for shape in SHAPES:
        value = np.asarray(numbers(shape, "float32").astype(bfloat16))
        safetensors.numpy.save_file({"x": value}, tmp_path / "x.safetensors")
        with open_checkpoint(tmp_path / "x.safetensors") as store:
            assert store.entries["x"] == Entry(shape, "bfloat16")
            same(store.read("x"), value.astype("float32"))
        entries = {"x": Entry(shape, "bfloat16")}
        write_safetensors(
            tmp_path / "y.safetensors", entries, lambda _, v=value: v.astype("float32")
        )
        [(name, found)] = safetensors.deserialize((tmp_path / "y.safetensors").read_bytes())
        assert (name, found["dtype"], tuple(found["shape"])) == ("x", "BF16", shape)
        assert bytes(found["data"]) == value.tobytes()


def test_nothing_in_it(tmp_path):
    assert written(tmp_path / "x.safetensors", {}, None) == b"\x08" + bytes(7) + b"{}      "
    assert read_all(tmp_path / "x.safetensors") == {}


def test_header_is_aligned(tmp_path):
    for name in ("a", "ab", "abc", "abcdefgh"):
        data = written(tmp_path / "x.safetensors", {name: np.ones(3)}, None)
        assert int.from_bytes(data[:8], "little") % 8 == 0


def test_bools_that_are_neither(tmp_path):
    path = built(tmp_path / "x.safetensors", {"x": array("BOOL", [3], [0, 3])}, b"\0\1\2")
    assert read_all(path)["x"].view("uint8").tolist() == [0, 1, 1]


# Bad files ---------------------------------------------------------------------------------


def refused(path, match):
    with at_most(16), pytest.raises(CheckpointError, match=match) as error:
        open_safetensors(path)
    assert str(path) in str(error.value) and "Get" in str(error.value)
    assert len(str(error.value)) < 1500
    with pytest.raises(CheckpointError):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("header", "match"),
    (
        (b"", "no JSON object"),
        (b"hello", "no JSON object"),
        (b"[]", "no JSON object"),
        (b"null", "no JSON object"),
        (b"{} {}", "no JSON object"),
        (b'{"x": ', "no JSON object"),
        (b"\xff\xfe{}", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b'{"x":' * 100_000, "no JSON object"),
        (b'{"x": ' + b"9" * 5_000 + b"}", "no JSON object"),
        (b'{"x": {"dtype": "F32"}, "x": {"dtype": "F32"}}', "'x' comes twice"),
        (b'{"x": {"dtype": "F32", "dtype": "F64"}}', "'dtype' comes twice"),
        ({"__metadata__": {"a": 1}}, "metadata are no strings"),
        ({"__metadata__": ["a"]}, "metadata are no strings"),
        ({"kernel": None}, "the dtype of 'kernel' is None"),
        ({"kernel": []}, "the dtype of 'kernel' is None"),
        ({"kernel": array("F8_E4M3")}, "the dtype of 'kernel' is 'F8_E4M3', none of .*'F32'"),
        ({"kernel": array("f32")}, "the dtype of 'kernel' is 'f32'"),
        ({"kernel": array(["F32"])}, "the dtype of 'kernel' is "),
        ({"kernel": array(shape=[-2, 3])}, r"'kernel' has shape \[-2, 3\]"),
        ({"kernel": array(shape=[2.0, 3])}, r"'kernel' has shape \[2.0, 3\]"),
        ({"kernel": array(shape=[True, 6])}, r"'kernel' has shape \[True, 6\]"),
        ({"kernel": array(shape=["2", 3])}, r"'kernel' has shape"),
        ({"kernel": array(shape=6)}, "'kernel' has shape 6"),
        ({"kernel": array(shape=None)}, "'kernel' has shape None"),
        ({"kernel": array(offsets=[0])}, r"'kernel' has .*offsets \[0\]"),
        ({"kernel": array(offsets=[0, 24, 24])}, r"'kernel' has .*offsets \[0, 24, 24\]"),
        ({"kernel": array(offsets=[0, 24.0])}, r"'kernel' has .*offsets \[0, 24.0\]"),
        ({"kernel": array(offsets=[-24, 0])}, r"'kernel' has .*offsets \[-24, 0\]"),
        ({"kernel": array(offsets=None)}, "'kernel' has .*offsets None"),
        ({"kernel": array(offsets=[0, 20])}, r"'kernel' of shape \(2, 3\).* needs 24 .* give 20"),
        ({"kernel": array(offsets=[24, 0])}, r"'kernel' of shape \(2, 3\).* needs 24 .* give -24"),
        ({"kernel": array("F64")}, "'kernel' .* float64 needs 48 bytes"),
        ({"kernel": array(offsets=[4, 28])}, "'kernel' leaves a hole before it"),
        ({"a": array(shape=[2], offsets=[0, 8])}, "16 bytes after the last array"),
        ({}, "24 bytes after the last array"),
        (
            {"a": array(shape=[2], offsets=[0, 8]), "b": array(shape=[3], offsets=[12, 24])},
            "'b' leaves a hole before it .it begins at 12, expected 8",
        ),
        (
            {"a": array(shape=[4], offsets=[0, 16]), "b": array(shape=[3], offsets=[12, 24])},
            "'b' overlaps another array .it begins at 12, expected 16",
        ),
        (
            {"a": array(), "b": array()},
            "'b' overlaps another array",
        ),
        ({"kernel": array(shape=[7], offsets=[0, 28])}, "cut short in 'kernel', at byte 24 of 28"),
    ),
)
def test_headers(header, match, tmp_path):
    refused(built(tmp_path / "x.safetensors", header), match)


@pytest.mark.parametrize(
    "shape",
    ([2**62, 4, 0], [2**64, 0], [1] * 33, [0] * 33, [10**4000, 10**4000], [9] * 300_000),
    ids=lambda shape: f"{len(shape)} sides",
)
def test_shapes_without_memory(shape, tmp_path):
    """Nothing is counted that takes hours to count."""
    path = built(tmp_path / "x.safetensors", {"kernel": array(shape=shape, offsets=[0, 0])}, b"")
    refused(path, r"'kernel' has the shape .{1,300} expected one that fits into memory")


def test_ten_terabytes(tmp_path):
    """What a header declares is compared to the file before any memory is asked for."""
    size = 10 << 40
    header = {"kernel": array("U8", [size], [0, size])}
    refused(
        built(tmp_path / "x.safetensors", header), f"cut short in 'kernel', at byte 24 of {size}"
    )


@pytest.mark.parametrize("length", (1_000, 2**31, 2**63, 2**64 - 1))
def test_header_longer_than_the_file(length, tmp_path):
    path = built(tmp_path / "x.safetensors", {"kernel": array()}, length=length)
    refused(path, f"its header should have {length} bytes, the file has ")


def test_header_over_the_limit(tmp_path):
    """100 MB, as the library has it; the file itself is a hole of the file system."""
    path = built(tmp_path / "x.safetensors", b"{", b"", length=100_000_001)
    with open(path, "r+b") as file:
        file.truncate(100_000_100)
    refused(path, "its header should have 100000001 bytes")
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(path, "numpy").__enter__()


def test_missing_and_too_short(tmp_path):
    with pytest.raises(CheckpointError, match="x.safetensors cannot be opened"):
        open_safetensors(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="cannot be opened"):
        open_safetensors(tmp_path)


def test_cut_short(tmp_path):
    whole, path = written(tmp_path / "whole.safetensors"), tmp_path / "x.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert outcome(path) is None, length


def test_cut_short_while_open(tmp_path):
    path = tmp_path / "x.safetensors"
    written(path, {"a": np.ones((100, 100)), "b": np.ones((100, 100))})
    with open_checkpoint(path) as store:
        with open(path, "r+b") as file:
            file.truncate(100_000)
        same(store.read("a"), np.ones((100, 100)))
        with pytest.raises(CheckpointError, match="cut short in 'b'"):
            store.read("b")


def test_not_after_closing(tmp_path):
    written(tmp_path / "x.safetensors")
    with open_checkpoint(tmp_path / "x.safetensors") as store:
        pass
    with pytest.raises(CheckpointError, match="'step' cannot be read"):
        store.read("step")


WHOLE = safetensors.numpy.save(ARRAYS, METADATA)


@bounded
@given(data=damaged(WHOLE))
def test_damaged(data, tmp_path):
    """No checksums here, but the library has to agree on whatever is read."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    for name, value in (outcome(path) or {}).items():
        if value.dtype != "bool":
            theirs = dict(safetensors.deserialize(data))[name]
            assert tuple(theirs["shape"]) == value.shape
            assert theirs["dtype"] == "BF16" or bytes(theirs["data"]) == value.tobytes()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("dtype", "shape", "data_offsets", "__metadata__", "x")), inner
        )
    ),
    max_leaves=20,
)
HEADERS = st.dictionaries(
    st.sampled_from(("a", "b", "__metadata__")),
    JSON
    | st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(("F32", "U8", "BF16", "BOOL")) | JSON,
            "shape": st.lists(st.integers(-1, 2**66), max_size=3)
            | st.lists(st.integers(0, 4), max_size=3)
            | JSON,
            "data_offsets": st.lists(st.integers(0, 24), min_size=2, max_size=2) | JSON,
        }
    ),
)


@bounded
@given(header=HEADERS)
def test_any_header(header, tmp_path):
    outcome(built(tmp_path / "x.safetensors", header))
