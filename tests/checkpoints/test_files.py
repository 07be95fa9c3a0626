"""What a path is: told by content, strangers by name; directories; files that appear whole."""

import json
import os
import pathlib
import pickle
import re
import shutil
import stat
import zipfile

import h5py
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from damage import at_most, bounded, damaged, outcome, read_all, same
from hypothesis import given
from hypothesis import strategies as st
from parity_cases import FIXTURES

from keras_vit.checkpoints import CheckpointError
from keras_vit.checkpoints.files import INDEX, open_checkpoint, write_documents
from keras_vit.checkpoints.npz import write_npz
from keras_vit.checkpoints.safetensors import write_safetensors
from keras_vit.checkpoints.store import Entry, from_bfloat16, to_bfloat16


def small():
    """Few bytes, so that each of them can be damaged."""
    return {
        "b/kernel": np.arange(6, dtype="float32").reshape(2, 3),
        "a": np.ones(3, "float16"),
        "step": np.array(7, "int64"),
    }


def entries_of(arrays):
    return {name: Entry(array.shape, array.dtype.name) for name, array in arrays.items()}


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        same(found[name], array)


def refused(path):
    """The message."""
    with pytest.raises(CheckpointError) as error:
        read_all(path)
    return str(error.value)


def save_h5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def save_npz(path, arrays):
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def save_safetensors(path, arrays):
    safetensors.numpy.save_file(arrays, path)


SAVE = {".npz": save_npz, ".safetensors": save_safetensors, ".h5": save_h5}
WRITE = pytest.mark.parametrize("write", [write_npz, write_safetensors])


def save_shards(directory, *, index=None):
    """transformers' layout: `a` in the first file, the rest in the second."""
    arrays = small()
    save_safetensors(directory / "model-1.safetensors", {"a": arrays["a"]})
    others = {name: array for name, array in arrays.items() if name != "a"}
    save_safetensors(directory / "model-2.safetensors", others)
    names = {name: f"model-{1 if name == 'a' else 2}.safetensors" for name in arrays}
    text = json.dumps({"metadata": {"total_size": 38}, "weight_map": names})
    (directory / INDEX).write_text(text if index is None else index)
    return names


@pytest.mark.parametrize("kind", SAVE)
@pytest.mark.parametrize("name", ["weights", "a.npz", "a.safetensors", "a.h5", "a.bin", "a.keras"])
def test_told_by_content(kind, name, tmp_path):
    SAVE[kind](tmp_path / name, small())
    assert_same(read_all(tmp_path / name), small())
    assert_same(read_all(str(tmp_path / name)), small())


def test_headers_that_look_like_pickles(tmp_path):
    """A safetensors header of 640 bytes begins like a pickle, even where the file is cut."""
    header = json.dumps({"__metadata__": {}}).ljust(640).encode()
    data = len(header).to_bytes(8, "little") + header
    assert data.startswith(b"\x80\x02")
    (tmp_path / "a").write_bytes(data)
    assert read_all(tmp_path / "a") == {}
    (tmp_path / "a").write_bytes(data[:100])
    assert "header should have 640 bytes, the file has 100" in refused(tmp_path / "a")


TENSORFLOW_END = bytes.fromhex("57fb808b247547db")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.npz", b"", "is empty"),
        ("a.npz", b"<!DOCTYPE html><title>404</title>", "HTML"),
        ("a.npz", b"\n <html>", "HTML"),
        ("a.npz", b"<?xml version='1.0'?><Error>", "HTML or XML"),
        ("a.npz", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS"),
        ("a.npz", b'{"model_type": "vit"}', "is JSON"),
        ("a.npz", b"PK\3\4 and no more", "cut short or damaged"),
        ("a.npz", b"words of all kinds", "18 bytes are no .npz, .safetensors or .h5 file"),
        ("a.npz", b"\0" * 8, "8 bytes are no .npz"),
        ("a.pth", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "torch pickle"),
        ("a.pth", b"\x80\x04}.", "torch pickle"),
        ("a.tar", b"pickle".ljust(257, b"\0") + b"ustar", "torch pickle"),
        ("a.pt", b"whatever", "torch pickle"),
        ("model.ckpt.index", b"\0\0\1\2" + TENSORFLOW_END, "TensorFlow checkpoint"),
    ],
)
def test_strangers(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name} cannot be loaded: .*{message}"):
        open_checkpoint(tmp_path / name)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["archive/data.pkl", "archive/data/0"], "torch pickle.*weights_only=True"),
        (["config.json", "metadata.json", "model.weights.h5"], "keras_vit.load_model"),
    ],
)
def test_other_archives(members, message, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        for name in members:
            file.writestr(name, b"{}")
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "a.npz")


@pytest.mark.parametrize("deeper", [False, True])
@pytest.mark.parametrize("legacy", [False, True])
def test_the_advice_on_pickles_works(deeper, legacy, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors.torch")
    weight = torch.arange(6.0).reshape(2, 3)
    state = {"weight": weight, "turned": weight.T, "shared": weight}
    path = tmp_path / "model.pth"
    saved = {"model": state} if deeper else state
    torch.save(saved, path, _use_new_zipfile_serialization=not legacy)
    load, save, deep = re.findall("`(.*?)`", refused(path))
    monkeypatch.chdir(tmp_path)
    names = {"torch": torch, "safetensors": safetensors, "PATH": path}
    exec(load, names)
    if deeper:
        names["state"] = eval(deep, names)
    exec(save, names)
    found = read_all(tmp_path / "model.safetensors")
    assert_same(found, {name: np.ascontiguousarray(t.numpy()) for name, t in state.items()})


PICKLES = [
    path
    for pattern in ("**/*.pth", "**/pytorch_model.bin")
    for path in sorted(pathlib.Path(FIXTURES or "").glob(pattern) if FIXTURES else ())
]


@pytest.mark.parametrize("path", PICKLES, ids=lambda path: "/".join(path.parts[-2:]))
def test_pickles_of_other_projects(path):
    with pytest.raises(CheckpointError, match=r"cannot be loaded: it is a torch pickle") as error:
        open_checkpoint(path)
    assert str(path) in str(error.value)


class Evil:
    """What makes a directory when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.npz", "model.safetensors", "a.h5"])
def test_nothing_is_unpickled(name, protocol, tmp_path):
    trap = tmp_path / "trap"
    data = pickle.dumps(Evil(trap), protocol)
    (tmp_path / name).write_bytes(data)
    match = "torch pickle" if protocol >= 2 or name.endswith(".bin") else r"no \.npz, .* file"
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(CheckpointError, match=match):
            open_checkpoint(path)
    with zipfile.ZipFile(tmp_path / name, "w") as file:
        file.writestr("archive/data.pkl", data)
    with pytest.raises(CheckpointError, match="torch pickle"):
        open_checkpoint(tmp_path / name)
    assert not trap.exists()
    pickle.loads(data)
    assert trap.exists(), "the trap does not work"


def test_missing(tmp_path):
    with pytest.raises(CheckpointError, match=r"No such file or directory: .*none\.npz"):
        open_checkpoint(tmp_path / "none.npz")
    with pytest.raises(CheckpointError, match="No such file"):
        open_checkpoint(tmp_path / "a\0b")
    (tmp_path / "model.ckpt.index").write_bytes(b"table")
    with pytest.raises(CheckpointError, match=r"model\.ckpt cannot be loaded.*TensorFlow"):
        open_checkpoint(tmp_path / "model.ckpt")


def test_a_name_too_long(tmp_path):
    with pytest.raises(CheckpointError, match="xxx"):
        open_checkpoint(tmp_path / ("x" * 300))


# Directories.


@pytest.mark.parametrize("kind", SAVE)
def test_directory_with_one_file(kind, tmp_path):
    SAVE[kind](tmp_path / f"any{kind}", small())
    SAVE[kind](tmp_path / f".any-left{kind}", {"x": np.ones(1)})
    (tmp_path / "readme.md").write_text("words")
    assert_same(read_all(tmp_path), small())
    with open_checkpoint(tmp_path) as store:
        assert store.path == tmp_path


def test_the_file_that_transformers_takes(tmp_path):
    save_safetensors(tmp_path / "model.safetensors", small())
    save_safetensors(tmp_path / "other.safetensors", {"x": np.ones(1)})
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert_same(read_all(tmp_path), small())


def test_directories_of_nothing_and_of_too_much(tmp_path):
    with pytest.raises(CheckpointError, match="must hold model.safetensors.*an empty directory"):
        open_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("words")
    with pytest.raises(CheckpointError, match=r"name the file. Received: \['notes.txt'\]"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match="pytorch_model.bin cannot be loaded.*torch pickle"):
        open_checkpoint(tmp_path)
    for name in ("a.npz", "b.npz"):
        save_npz(tmp_path / name, small())
    with pytest.raises(CheckpointError, match=r"name the file. Received: \['a.npz', 'b.npz'\]"):
        open_checkpoint(tmp_path)
    save_h5(tmp_path / "model.weights.h5", small())
    save_safetensors(tmp_path / "model.safetensors", small())
    with pytest.raises(CheckpointError, match="must hold one model"):
        open_checkpoint(tmp_path)


def test_shards(tmp_path):
    save_shards(tmp_path)
    assert_same(read_all(tmp_path), small())
    assert_same(read_all(tmp_path / INDEX), small())


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is no JSON object"),
        ("[]", "is no JSON object"),
        ("[" * 100_000, "is no JSON object"),
        ("{}", "must have a `weight_map`"),
        ('{"weight_map": []}', "must have a `weight_map`"),
        ('{"weight_map": {"a": 1}}', "must have a `weight_map`"),
        ('{"weight_map": {"a": "model-3.safetensors"}}', r"names \['model-3.safetensors'\]"),
        ('{"weight_map": {"a": "../model-1.safetensors"}}', "outside its directory: '../"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "outside its directory: '/etc"),
        (r'{"weight_map": {"a": "b\\c"}}', "outside its directory"),
        (r'{"weight_map": {"a": "b\u0000c"}}', "not to be found beside it"),
        ('{"weight_map": {"a": ""}}', "outside its directory"),
        ('{"weight_map": {"a": ".."}}', "outside its directory"),
        ('{"weight_map": {"b": "model-1.safetensors"}}', "model-1.safetensors lacks 'b'"),
        (f'{{"weight_map": {{"a": "{INDEX}"}}}}', "is JSON"),
    ],
)
def test_bad_indices(index, message, tmp_path):
    save_shards(tmp_path, index=index)
    for path in (tmp_path, tmp_path / INDEX):
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)


def test_bad_shards(tmp_path):
    names = save_shards(tmp_path)
    save_safetensors(tmp_path / "model-1.safetensors", small())
    with pytest.raises(CheckpointError, match="is both in model-1.* and in model-2"):
        open_checkpoint(tmp_path)
    # Both files are there and whole, but the index has them the other way round.
    save_safetensors(tmp_path / "model-1.safetensors", {"a": small()["a"]})
    turned = {n: f"model-{2 if n == 'a' else 1}.safetensors" for n in names}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": turned}))
    with pytest.raises(CheckpointError, match="model-2.safetensors lacks 'a'.*3 arrays"):
        open_checkpoint(tmp_path)
    (tmp_path / "model-1.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(CheckpointError, match="model-1.safetensors cannot be loaded: .*Git LFS"):
        open_checkpoint(tmp_path)


def test_preset_of_keras_hub(tmp_path):
    save_h5(tmp_path / "model.weights.h5", small())
    assert_same(read_all(tmp_path), small())
    save_h5(tmp_path / "task.weights.h5", {"a": np.zeros(2)})
    assert_same(read_all(tmp_path), small() | {"task/a": np.zeros(2)})
    (tmp_path / "task.weights.h5").write_bytes(b"<html>")
    with pytest.raises(CheckpointError, match="task.weights.h5 cannot be loaded: .*HTML"):
        open_checkpoint(tmp_path)


# Documents.


@pytest.mark.parametrize("kind", SAVE)
def test_documents(kind, tmp_path):
    path = tmp_path / f"a{kind}"
    SAVE[kind](path, small())
    written = {"config.json": {"a": [1, None, "ü"]}, "preprocessor_config.json": {"size": 7}}
    write_documents(tmp_path, {**written, "other.json": {}})
    with open_checkpoint(tmp_path) as store:
        assert store.documents == written
    # Beside a single .npz file lie other people's.
    with open_checkpoint(path) as store:
        assert store.documents == ({} if kind == ".npz" else written)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is no JSON object"):
        open_checkpoint(tmp_path)
    if kind == ".npz":
        assert_same(read_all(path), small())
    else:
        assert "config.json is no JSON object" in refused(path)


@pytest.mark.parametrize("data", [b"[1]", b"", b"\xff", b"[" * 100_000, b'{"a": ' * 50_000])
def test_bad_documents(data, tmp_path):
    save_safetensors(tmp_path / "model.safetensors", small())
    (tmp_path / "task.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"task\.json is no JSON object"):
        open_checkpoint(tmp_path)


def test_document_too_large(tmp_path):
    save_safetensors(tmp_path / "model.safetensors", small())
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(CheckpointError, match=r"config\.json is no JSON object \(too large"):
        open_checkpoint(tmp_path)


def test_written_documents(tmp_path):
    write_documents(tmp_path, {"config.json": {"b": 1, "a": ["ü"]}})
    text = (tmp_path / "config.json").read_text("utf-8")
    assert text == '{\n  "b": 1,\n  "a": [\n    "ü"\n  ]\n}\n'
    with pytest.raises(TypeError):
        write_documents(tmp_path, {"config.json": {"a": object()}})
    assert (tmp_path / "config.json").read_text("utf-8") == text
    with pytest.raises(CheckpointError, match=r"none.config\.json cannot be written"):
        write_documents(tmp_path / "none", {"config.json": {}})
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


# Writing.


@WRITE
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_half_written(write, error, tmp_path):
    arrays, path = small(), tmp_path / "a"

    def produce(name):
        if name == "step":
            raise error("in the middle")
        return arrays[name]

    with pytest.raises(error, match="in the middle"):
        write(path, entries_of(arrays), produce)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"old")
    with pytest.raises(error, match="in the middle"):
        write(path, entries_of(arrays), produce)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]
    write(path, entries_of(arrays), arrays.__getitem__)
    assert_same(read_all(path), arrays)


@WRITE
def test_usual_permissions(write, tmp_path):
    (tmp_path / "usual").touch()
    write(tmp_path / "a", {}, {}.__getitem__)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


@WRITE
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o007])
def test_permissions_follow_the_umask(write, mask, tmp_path):
    (tmp_path / "a").touch(0o640)
    before = os.umask(mask)
    try:
        write(tmp_path / "a", {}, {}.__getitem__)
        write_documents(tmp_path, {"b": {}})
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@WRITE
@pytest.mark.parametrize("room", [10, 300, 70_000])
def test_no_room(write, room, tmp_path):
    """The system refuses, at whatever byte: the old file stays, and nothing else."""
    (tmp_path / "a").write_bytes(b"old")
    resource = pytest.importorskip("resource")
    arrays = {"x": np.ones((100, 100)), "y": np.ones((10, 10))}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="a cannot be written: .*File too large"):
            write(tmp_path / "a", entries_of(arrays), arrays.__getitem__)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


@WRITE
@pytest.mark.parametrize("name", ["x" * 255, "ü" * 120 + ".npz", "a", ".hidden", "a.b.c.npz"])
def test_names(write, name, tmp_path):
    """Whatever name a file can have; the temporary one has to fit too."""
    write(tmp_path / name, entries_of(small()), small().__getitem__)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert_same(read_all(tmp_path / name), small())


@WRITE
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("size", [1, 1000])
def test_numbers_too_large(write, dtype, size, tmp_path):
    """Never silently infinite; what is infinite already stays so."""
    entries, array = {"kernel": Entry((size,), dtype)}, np.full(size, 1e39)
    with pytest.raises(CheckpointError, match=f"'kernel' has numbers too large for {dtype}"):
        write(tmp_path / "a", entries, lambda name: array)
    assert list(tmp_path.iterdir()) == []
    array[:] = np.inf
    write(tmp_path / "a", entries, lambda name: array)
    assert np.isposinf(read_all(tmp_path / "a")["kernel"]).all()


@pytest.mark.parametrize("low", [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_rounding_to_bfloat16(low):
    """As ml_dtypes rounds, for every upper half of a float32."""
    bits = (np.arange(1 << 16, dtype="uint32") << 16) | np.uint32(low)
    array = bits.view("float32")
    with np.errstate(all="ignore"):
        expected = array.astype(ml_dtypes.bfloat16)
    found = from_bfloat16(to_bfloat16(array))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(array))
    numbers = ~np.isnan(array)
    np.testing.assert_array_equal(
        found.view("uint32")[numbers], expected.astype("float32").view("uint32")[numbers]
    )


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_bfloat16_keeps_shapes(shape):
    array = np.ones(shape, "float32")
    same(to_bfloat16(array), np.full(shape, 0x3F80, "uint16"))
    same(from_bfloat16(to_bfloat16(array)), array)


@WRITE
def test_places_that_cannot_be_written(write, tmp_path):
    with pytest.raises(CheckpointError, match="none/a cannot be written"):
        write(tmp_path / "none" / "a", {}, {}.__getitem__)
    with pytest.raises(CheckpointError, match="cannot be written"):
        write(tmp_path, {}, {}.__getitem__)


@WRITE
def test_wrong_shape(write, tmp_path):
    with pytest.raises(CheckpointError, match=r"'x'.*\(2, 3\).*Received: \(3, 2\)"):
        write(tmp_path / "a", {"x": Entry((2, 3))}, lambda name: np.ones((3, 2), "float32"))
    assert list(tmp_path.iterdir()) == []


@WRITE
def test_dtype_of_the_entry(write, tmp_path):
    """Whatever is produced, in whatever order it lies in memory."""
    array = np.arange(6.0).reshape(2, 3) + 2**-12
    entries = {name: Entry((3, 2), name) for name in ("float64", "float32", "float16", "bfloat16")}
    write(tmp_path / "a", entries, lambda name: array.T)
    found = read_all(tmp_path / "a")
    for name in ("float64", "float32", "float16"):
        np.testing.assert_array_equal(found[name], array.T.astype(name))
    np.testing.assert_allclose(found["bfloat16"], array.T, rtol=2**-8)


@WRITE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_array_in_memory(write, dtype, tmp_path):
    size = 1 << 20
    entries = {f"{number}": Entry((size,), dtype) for number in range(8)}
    # Of 4 MiB each, and what rounding to bfloat16 takes.
    most = 10 if dtype == "float32" else 30
    with at_most(most):
        write(tmp_path / "a", entries, lambda name: np.full(size, float(name), "float32"))
    with at_most(most), open_checkpoint(tmp_path / "a") as store:
        for name in store.entries:
            assert store.read(name)[0] == float(name)


# Damage.


@bounded
@given(data=st.data())
def test_damaged_directories(data, tmp_path):
    directory = tmp_path / "hf"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    save_shards(directory)
    write_documents(directory, {"config.json": {"model_type": "vit", "sizes": [1, 2]}})
    victim = directory / data.draw(st.sampled_from(sorted(p.name for p in directory.iterdir())))
    victim.write_bytes(data.draw(damaged(victim.read_bytes())))
    with at_most(64):
        outcome(directory)


@bounded
@given(data=st.binary(max_size=64))
def test_any_bytes(data, tmp_path):
    (tmp_path / "a").write_bytes(data)
    outcome(tmp_path / "a")
