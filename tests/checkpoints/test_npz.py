"""The .npz format, against NumPy's own writer and reader; damaged archives; no pickles."""

import io
import pathlib
import struct
import zipfile

import numpy as np
import pytest
from damage import NUMPY_DTYPES, SHAPES, at_most, bounded, damaged, numbers, outcome, read_all, same
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.npz import open_npz, write_npz
from keras_vit.checkpoints.store import Entry

ARRAYS = {
    "block/kernel": numbers((3, 4), "float32"),
    "block/bias": numbers((4,), "float16"),
    "step": numbers((), "int64"),
    "none": numbers((0, 2), "float32"),
}
ENTRIES = {name: Entry(array.shape, array.dtype.name) for name, array in ARRAYS.items()}
METADATA = {"keras_vit": '{"hidden_dim": 12}', "note": "ä\n"}


def written(path, arrays=ARRAYS, metadata=METADATA) -> bytes:
    entries = {name: Entry(array.shape, array.dtype.name) for name, array in arrays.items()}
    write_npz(path, entries, arrays.__getitem__, metadata)
    return path.read_bytes()


def saved(**arrays) -> bytes:
    """As `numpy.savez_compressed` writes."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def npy(header, data=b"", version=(1, 0)) -> bytes:
    """A .npy file with any header."""
    text = header.encode("latin1")
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def header(descr="'<f4'", shape="(2, 3)", fortran="False"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def archive(path, *members, method=zipfile.ZIP_STORED):
    """A zip archive of names and contents."""
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members:
            # zipfile warns of a name that comes twice.
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            file.NameToInfo.pop(name, None)
            file.writestr(info, data)
    return path


def patch(path, record, offset, value, layout):
    """Changes a field in all records of an archive that begin with `record`."""
    data, at = bytearray(path.read_bytes()), -1
    while (at := data.find(record, at + 1)) >= 0:
        struct.pack_into(layout, data, at + offset, value)
    path.write_bytes(data)


# Round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("save", (np.savez, np.savez_compressed))
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_reads_what_numpy_writes(dtype, save, tmp_path):
    arrays = {f"{i}/{shape}": numbers(shape, dtype, i) for i, shape in enumerate(SHAPES)}
    cube = numbers((4, 6, 5), dtype)
    arrays |= {
        "fortran": np.asfortranarray(cube),
        "big": cube.astype(cube.dtype.newbyteorder(">")),
        "fortran_big": np.asfortranarray(cube.astype(cube.dtype.newbyteorder(">"))),
        "strided": cube[::-1, ::2, 1:3],
        "transposed": cube.T,
    }
    save(tmp_path / "x.npz", **arrays)
    found = read_all(tmp_path / "x.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        same(found[name], array)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_reads_what_we_write(dtype, tmp_path):
    arrays = {f"{i}/{shape}": numbers(shape, dtype, i) for i, shape in enumerate(SHAPES)}
    written(tmp_path / "x.npz", arrays)
    with np.load(tmp_path / "x.npz") as found:
        assert found.files == list(arrays)
        for name, array in arrays.items():
            same(found[name], array)
    for name, array in read_all(tmp_path / "x.npz").items():
        same(array, arrays[name])


def test_bfloat16(tmp_path):
    """As two bytes without a meaning, as NumPy writes the arrays of ml_dtypes."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for shape in SHAPES:
        for order in ("C", "F"):
            array = np.asarray(numbers(shape, "float32").astype(bfloat16), order=order)
            np.savez(tmp_path / "x.npz", x=array)
            with open_checkpoint(tmp_path / "x.npz") as store:
                assert store.entries["x"] == Entry(shape, "bfloat16")
                same(store.read("x"), array.astype("float32"))
            entries = {"x": Entry(shape, "bfloat16")}
            write_npz(tmp_path / "y.npz", entries, lambda _, a=array: a.astype("float32"))
            with np.load(tmp_path / "y.npz") as found:
                np.testing.assert_array_equal(found["x"].view(bfloat16), array)


def test_metadata(tmp_path):
    """In the archive's comment, which NumPy does not mind."""
    written(tmp_path / "x.npz")
    with open_checkpoint(tmp_path / "x.npz") as store:
        assert store.metadata == METADATA
    with np.load(tmp_path / "x.npz") as found:
        same(found["block/kernel"], ARRAYS["block/kernel"])


@pytest.mark.parametrize(
    "comment", (b"made by hand", b"[1]", b'{"a": 1}', b"\xff", b"[" * 60_000, b"1" * 5_000)
)
def test_comments_of_others(comment, tmp_path):
    with zipfile.ZipFile(archive(tmp_path / "x.npz"), "a") as file:
        file.comment = comment
    with open_checkpoint(tmp_path / "x.npz") as store:
        assert store.metadata == {} and not store.entries


def test_too_much_metadata(tmp_path):
    with pytest.raises(CheckpointError, match="x.npz: .* at most 65535 bytes of metadata"):
        written(tmp_path / "x.npz", metadata={"a": "x" * 70_000})
    assert not any(tmp_path.iterdir())


def test_same_bytes_every_time(tmp_path):
    assert written(tmp_path / "x.npz") == written(tmp_path / "y.npz")


def test_header_of_python_2(tmp_path):
    data = npy(header(shape="(2L, 3L)"), bytes(24))
    same(read_all(archive(tmp_path / "x.npz", ("x.npy", data)))["x"], np.zeros((2, 3), "float32"))


@pytest.mark.parametrize("version", ((1, 0), (2, 0), (3, 0)))
def test_versions(version, tmp_path):
    data = npy(header(), np.arange(6, dtype="<f4").tobytes(), version)
    found = read_all(archive(tmp_path / "x.npz", ("x.npy", data)))["x"]
    same(found, np.arange(6, dtype="float32").reshape(2, 3))


def test_bools_that_are_neither(tmp_path):
    data = npy(header("'|b1'", "(3,)"), b"\0\1\2")
    found = read_all(archive(tmp_path / "x.npz", ("x.npy", data)))["x"]
    assert found.view("uint8").tolist() == [0, 1, 1]


# Pickles -----------------------------------------------------------------------------------


class Evil:
    """What makes a directory when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.mkdir, (self.path,)


def test_objects_are_not_unpickled(tmp_path):
    trap = tmp_path / "trap"
    objects = np.array([Evil(trap)], dtype=object)
    np.savez(tmp_path / "x.npz", good=np.ones(3), objects=objects)
    with pytest.raises(CheckpointError, match=r"x\.npz: 'objects' has the dtype '\|O'.*never unpi"):
        open_checkpoint(tmp_path / "x.npz")
    assert not trap.exists()
    with np.load(tmp_path / "x.npz", allow_pickle=True) as file:
        file["objects"]
    assert trap.exists(), "the trap does not work"


def test_objects_hidden_behind_numbers(tmp_path):
    """The header says bytes, the data are a pickle: bytes they stay."""
    trap = tmp_path / "trap"
    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil(trap)], dtype=object))
    pickled = buffer.getvalue()[128:]
    data = npy(header("'|u1'", f"({len(pickled)},)"), pickled)
    found = read_all(archive(tmp_path / "x.npz", ("x.npy", data)))["x"]
    assert found.tobytes() == pickled and not trap.exists()


# Bad archives ------------------------------------------------------------------------------


def refused(path, match):
    with at_most(16), pytest.raises(CheckpointError, match=match) as error:
        read_all(path)
    assert str(path) in str(error.value)
    assert "Get" in str(error.value) or "save the arrays" in str(error.value)
    with pytest.raises(CheckpointError), open_npz(path) as store:
        [store.read(name) for name in store.entries]


@pytest.mark.parametrize(
    ("descr", "shown"),
    (
        ("'<U3'", "'<U3'"),
        ("'|S4'", r"'\|S4'"),
        ("'<c8'", "'<c8'"),
        ("'<M8[s]'", "M8"),
        ("'|V4'", r"'\|V4'"),
        ("'2u1'", "2u1"),
        ("'<f16'", "<f16"),
        ("('<f4', (3,))", "'<f4'"),
        ("[('a', '<f4'), ('b', '|O')]", r"\('a', '<f4'\)"),
        ("[('a', '|u1'), ('b', '|u1')]", "'a'"),
        ("None", "None"),
    ),
)
def test_dtypes(descr, shown, tmp_path):
    data = npy(header(descr), bytes(24))
    path = archive(tmp_path / "x.npz", ("kernel.npy", data))
    refused(path, f"'kernel' has the dtype .*{shown}.*expected real numbers")


SHAPELESS = (
    *("(-2, 3)", "(2.0, 3)", "('2', 3)", "6", "None", "[2, 3]", "(2, (3,))", "(0x2, 3)"),
    *("(" + "9" * 5000 + ",)", "(2, 3", "(1e3,)", "(True, 6)"),
)


@pytest.mark.parametrize("shape", SHAPELESS)
def test_shapes(shape, tmp_path):
    path = archive(tmp_path / "x.npz", ("kernel.npy", npy(header(shape=shape), bytes(24))))
    refused(path, "'kernel' has no readable header")


@pytest.mark.parametrize(
    "shape",
    (
        f"({2**62}, 4, 0)",
        f"({2**63},)",
        "(" + "1, " * 33 + ")",
        "(" + "9, " * 15_000 + ")",
        "(" + "9" * 19 + ", 0)",
    ),
)
def test_shapes_without_memory(shape, tmp_path):
    path = archive(tmp_path / "x.npz", ("kernel.npy", npy(header(shape=shape), bytes(24))))
    refused(path, r"'kernel' has the shape [\[(].{1,200}; expected one that fits into memory")


@pytest.mark.parametrize(
    ("text", "match"),
    (
        ("", "has the dtype ''"),
        ("-" * 9_000 + "1", "has the dtype '---"),
        ("(" * 60_000, r"has the dtype '\(\("),
        ("__import__('os').mkdir('x')", "has the dtype .__imp"),
        ("{'descr': '<f4', 'shape': (2, 3)}", "has no readable header"),
        ("{'descr': '<f4', 'fortran_order': 2, 'shape': (2, 3)}", "has no readable header"),
    ),
)
def test_headers(text, match, tmp_path):
    path = archive(tmp_path / "x.npz", ("kernel.npy", npy(text, bytes(24))))
    refused(path, f"'kernel' {match}")
    assert not pathlib.Path("x").exists()


@pytest.mark.parametrize(
    "data",
    (
        b"",
        b"\x93NUMPY",
        b"\x93NUMPX" + npy(header())[6:],
        npy(header(), bytes(24), (4, 0)),
        npy(header(), bytes(24), (0, 0)),
        npy("\xff" + header(), bytes(24), (3, 0)),
        npy(" " * 100_000 + header(), bytes(24), (2, 0)),
        b"\x93NUMPY\2\0\xff\xff\xff\xff" + header().encode(),
    ),
)
def test_no_npy(data, tmp_path):
    path = archive(tmp_path / "x.npz", ("kernel.npy", data))
    refused(path, "'kernel' has (no readable header|the dtype '')")


@pytest.mark.parametrize("size", (0, 20, 23, 25, 48))
def test_size_unlike_the_header(size, tmp_path):
    path = archive(tmp_path / "x.npz", ("kernel.npy", npy(header(), bytes(size))))
    refused(path, f"'kernel' of shape .2, 3. and dtype float32 needs 24 .* declares {size}")


GOOD = npy(header(), np.arange(6, dtype="<f4").tobytes())


@pytest.mark.parametrize(
    ("members", "match"),
    (
        ((("a.npy", GOOD), ("b.txt", b"hello")), "'b.txt' is not the .npy file of an array"),
        ((("a.npy", GOOD), ("b/", b"")), "'b/' is not the .npy file"),
        ((("a.npy", GOOD), ("a.npy", GOOD)), "'a' comes twice"),
    ),
)
def test_members(members, match, tmp_path):
    refused(archive(tmp_path / "x.npz", *members), match)


def test_encrypted(tmp_path):
    path = archive(tmp_path / "x.npz", ("kernel.npy", GOOD))
    patch(path, b"PK\1\2", 8, 1, "<H")
    refused(path, "'kernel' is encrypted")


@pytest.mark.parametrize("method", (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
def test_other_compressions(method, tmp_path):
    path = archive(tmp_path / "x.npz", ("kernel.npy", GOOD), method=method)
    refused(path, "'kernel' is compressed in a way that NumPy does not write")


def test_wrong_checksum(tmp_path):
    path, large = tmp_path / "x.npz", numbers((100, 100), "float32")
    data = bytearray(written(path, {"kernel": large, **ARRAYS}))
    data[data.find(large.tobytes()) + 20_000] ^= 4
    path.write_bytes(data)
    with open_checkpoint(path) as store:
        same(store.read("block/bias"), ARRAYS["block/bias"])
        with pytest.raises(CheckpointError, match=r"x\.npz .*'kernel' cannot be read.*CRC"):
            store.read("kernel")


def test_bomb(tmp_path):
    """The directory declares far more than the file can hold: nothing is unpacked."""
    path = archive(tmp_path / "x.npz", ("kernel.npy", GOOD))
    patch(path, b"PK\1\2", 24, 3 << 30, "<I")
    refused(path, f"x.npz declares {3 << 30} bytes of arrays .*at most 100 times as many")


def test_bombs_add_up(tmp_path):
    names = [(f"{i}.npy", GOOD) for i in range(5)]
    path = archive(tmp_path / "x.npz", *names)
    patch(path, b"PK\1\2", 24, 60 << 20, "<I")
    refused(path, f"declares {5 * (60 << 20)} bytes")


def test_bomb_that_hides_its_size(tmp_path):
    """24 bytes declared, 64 MB to unpack: not unpacked beyond what is declared."""
    long = npy(header(), bytes(64 << 20))
    path = archive(tmp_path / "x.npz", ("kernel.npy", long), method=zipfile.ZIP_DEFLATED)
    patch(path, b"PK\1\2", 24, len(GOOD), "<I")
    refused(path, "'kernel' has no readable header .*CRC")


@pytest.mark.parametrize("method", (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
def test_fewer_bytes_than_declared(method, tmp_path):
    """The checksum is right, of what there is."""
    half = npy(header(), bytes(12))
    path = archive(tmp_path / "x.npz", ("kernel.npy", half), method=method)
    patch(path, b"PK\1\2", 24, len(half) + 12, "<I")
    refused(path, "'kernel' cannot be read .12 bytes instead of 24")


def test_well_compressed_is_no_bomb(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros((1024, 2048), "float32"))
    assert path.stat().st_size * 100 < 8 << 20
    assert not read_all(path)["x"].any()


def test_large_file_in_little_memory(tmp_path):
    """One array is in memory once, not once packed and once unpacked."""
    path, array = tmp_path / "x.npz", np.zeros((8, 1 << 20), "float32")
    with at_most(4):
        write_npz(path, {"a": Entry(array.shape), "b": Entry(array.shape)}, lambda _: array)
    with at_most(36), open_checkpoint(path) as store:
        store.read("a")


@pytest.mark.parametrize("metadata", (METADATA, None))
def test_cut_short(metadata, tmp_path):
    whole, path = written(tmp_path / "whole.npz", metadata=metadata), tmp_path / "x.npz"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert outcome(path) is None, length


def test_cut_short_as_numpy_writes_it(tmp_path):
    whole, path = saved(**ARRAYS), tmp_path / "x.npz"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert outcome(path) is None, length


def test_bytes_after_the_archive(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(written(path) + b"\0")
    refused(path, "does not end where the file ends")


def test_not_after_closing(tmp_path):
    written(tmp_path / "x.npz")
    with open_checkpoint(tmp_path / "x.npz") as store:
        pass
    with pytest.raises(CheckpointError, match="'step' cannot be read"):
        store.read("step")


WHOLE = saved(**ARRAYS)


@bounded
@given(data=damaged(WHOLE))
def test_damaged(data, tmp_path):
    """zip has checksums: what is not refused has the right numbers."""
    path = tmp_path / "x.npz"
    path.write_bytes(data)
    found = outcome(path) or {}
    for array in found.values():
        assert any(
            array.size == a.size and sorted(array.tobytes()) == sorted(a.tobytes())
            for a in ARRAYS.values()
        )


@bounded
@given(text=st.text(alphabet="{}()[]'\":,<>|-.0123456789Lescrfotanhdp4 ", max_size=80))
def test_any_header(text, tmp_path):
    path = archive(tmp_path / "x.npz", ("kernel.npy", npy(text, bytes(24))))
    assert outcome(path) is None
