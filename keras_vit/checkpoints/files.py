"""Checkpoints on disk: which format a file has, and what a directory holds."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.hdf5 import open_hdf5
from keras_vit.checkpoints.npz import DAMAGE, open_npz
from keras_vit.checkpoints.raw import new_file
from keras_vit.checkpoints.safetensors import MAX_HEADER, open_safetensors
from keras_vit.checkpoints.store import Entry, Store

ARRAYS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_HUB_MODEL, _HUB_TASK = "model.weights.h5", "task.weights.h5"
DOCUMENTS = (
    *("config.json", "preprocessor_config.json", "task.json", "preprocessor.json"),
    "metadata.json",
)
_ENDINGS = (".safetensors", ".npz", ".h5")
_PICKLES = (".bin", ".pth", ".pt", ".ckpt")
_MAX_JSON = 64 << 20
_HDF5 = b"\x89HDF\r\n\x1a\n"

_TENSORFLOW_INDEX = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"  # the last bytes of its table of names
_TAR = 257, b"ustar"

_PICKLE = (
    "it is a torch pickle, which can run code of its own when it is loaded. Where torch is, make "
    'a safetensors file of it: `state = torch.load(PATH, map_location="cpu", weights_only=True)`, '
    "then "
    "`safetensors.torch.save_file({k: v.contiguous().clone() for k, v in state.items()}, "
    '"model.safetensors")` (of `state["model"]` or the like, where the weights lie deeper).'
)
_TENSORFLOW = (
    "it is a TensorFlow checkpoint. Where TensorFlow is, make an .npz file of it: "
    '`reader = tf.train.load_checkpoint(PREFIX)`, then `np.savez("model.npz", **{name: '
    "reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})`."
)
# What else people have under the name of a checkpoint: first bytes -> what to do.
_STRANGERS: tuple[tuple[tuple[bytes, ...], str], ...] = (
    ((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), _PICKLE),
    (
        (b"<",),
        "it is an HTML or XML page, such as a server sends with an error: open the address in a "
        "browser, and download the file itself.",
    ),
    (
        (b"version https://git-lfs",),
        "it is a Git LFS pointer, not the file: run `git lfs pull`, or download it from the site.",
    ),
    ((b"{", b"["), "it is JSON: name the directory, or the file with the arrays."),
)


def open_checkpoint(path: str | os.PathLike) -> Store:
    """Opens a file or directory with weights; headers are read, no data.

    Args:
        path: a `.npz`, `.safetensors` or `.weights.h5` file (told by content, not by name), a
            `model.safetensors.index.json` with its shards beside it, or a directory: of
            transformers or timm, a keras-hub preset, or one with a single such file.

    Raises:
        CheckpointError: if there is no such thing, it is damaged, or of another kind.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _open_directory(path)
        if not path.is_file():
            if path.with_name(f"{path.name}.index").is_file():
                raise _refuse(path, _TENSORFLOW)
            raise CheckpointError(
                f"No such file or directory: {path}. Expected a .npz, .safetensors or "
                ".weights.h5 file, or a directory with one."
            )
        if path.suffix == ".json":
            return _open_shards(path)
        opener = _opener(path)
        # Those of .npz files are not theirs: Google's lie together in one directory.
        documents = {} if opener is open_npz else _documents(path.parent)
        store = opener(path)
        store.documents = documents
        return store
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _refuse(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} cannot be loaded: {what}")


def _opener(path: Path) -> Callable[[Path], Store]:
    """Finds out what a file is; a CheckpointError if it is nothing that can be loaded."""
    with open(path, "rb") as file:
        start = file.read(512)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_TENSORFLOW_INDEX)))
        end = file.read()
    if not start:
        raise _refuse(path, "it is empty. Get it again.")
    if start.startswith(_HDF5):
        return open_hdf5
    if start.startswith(b"PK"):
        _refuse_other_archives(path)
        return open_npz
    # A safetensors file begins with a length, which may look like the start of a pickle; its
    # ninth byte opens the header.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= MAX_HEADER:
        return open_safetensors
    for beginnings, what in _STRANGERS:
        if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(beginnings):
            raise _refuse(path, what)
    if end == _TENSORFLOW_INDEX:
        raise _refuse(path, _TENSORFLOW)
    place, tar = _TAR
    if path.suffix in _PICKLES or start[place:].startswith(tar):
        raise _refuse(path, _PICKLE)
    raise _refuse(
        path,
        f"its {size} bytes are no .npz, .safetensors or .h5 file, by how they begin. Get it "
        "again, or convert it to one of these.",
    )


def _refuse_other_archives(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except DAMAGE as error:
        raise _refuse(
            path,
            f"it begins like a zip archive and is cut short or damaged ({error}). Get it again.",
        ) from error
    if any(name.endswith("/data.pkl") or name == "data.pkl" for name in names):
        raise _refuse(path, _PICKLE)
    if "config.json" in names and "metadata.json" in names:
        raise _refuse(path, "it is a whole Keras model: load it by keras_vit.load_model.")


def _open_directory(path: Path) -> Store:
    whole, sharded, hub = ((path / name).is_file() for name in (ARRAYS, INDEX, _HUB_MODEL))
    if hub and (whole or sharded):
        raise CheckpointError(
            f"{path} must hold one model. Received: {ARRAYS if whole else INDEX} and "
            f"{_HUB_MODEL}; name the file."
        )
    if sharded and not whole:
        store = _open_shards(path / INDEX)
    else:
        parts = [(path / ARRAYS, "")] if whole else [(path / _HUB_MODEL, "")]
        if hub and (path / _HUB_TASK).is_file():
            parts.append((path / _HUB_TASK, "task/"))
        if not whole and not hub:
            parts = [(_only_file(path), "")]
        store, _ = _open_parts(path, parts, _documents(path))
    store.path = path
    return store


def _only_file(path: Path) -> Path:
    # Hidden ones are what a killed process left half-written.
    files = sorted(e for e in path.iterdir() if e.is_file() and not e.name.startswith("."))
    found = [file for file in files if file.suffix in _ENDINGS]
    if len(found) == 1:
        return found[0]
    if not found and (pickles := [file for file in files if file.suffix in _PICKLES]):
        raise _refuse(pickles[0], _PICKLE)
    names = [file.name for file in found or files]
    raise CheckpointError(
        f"{path} must hold {ARRAYS}, {INDEX}, {_HUB_MODEL}, or one file ending in "
        f"{' or '.join(_ENDINGS)}: name the file. Received: {names[:20] or 'an empty directory'}"
    )


def _open_shards(index: Path) -> Store:
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
        raise CheckpointError(
            f"{index} must have a `weight_map` from array names to file names. Get it again; to "
            "load what lies beside another JSON file, name the directory."
        )
    shards = sorted(set(names.values()))
    for shard in shards:
        if Path(shard).name != shard or "\\" in shard or shard in ("", ".", ".."):
            raise CheckpointError(
                f"{index} names a file outside its directory: {shard!r}. Expected plain file "
                "names. Get it again."
            )
    if absent := [shard for shard in shards if not (index.parent / shard).is_file()]:
        raise CheckpointError(
            f"{index} names {absent[:5]}, not to be found beside it. Get all {len(shards)} files."
        )
    parts = [(index.parent / shard, "") for shard in shards]
    store, owners = _open_parts(index, parts, _documents(index.parent))
    # The index may leave arrays out, but what it names must be where it says.
    astray = sorted(n for n, shard in names.items() if owners.get(n) != index.parent / shard)
    if astray:
        store.close()
        raise CheckpointError(
            f"{index.parent / names[astray[0]]} lacks {astray[0]!r}, which {index.name} places "
            f"there; {len(astray)} arrays are not where they should be. Get all files again."
        )
    return store


def _open_parts(
    path: Path, parts: Sequence[tuple[Path, str]], documents: Mapping[str, Any]
) -> tuple[Store, dict[str, Path]]:
    """Opens files as one store, and says which array is in which.

    Args:
        path: of the store.
        parts: the files, and what to put before the names of their arrays.
        documents: of the store.
    """
    places: dict[str, tuple[Store, str]] = {}
    entries: dict[str, Entry] = {}
    metadata: dict[str, str] = {}
    with ExitStack() as stack:
        for file, prefix in parts:
            part = stack.enter_context(_opener(file)(file))
            metadata |= part.metadata
            for inner, entry in part.entries.items():
                name = prefix + inner
                if name in entries:
                    raise CheckpointError(
                        f"{path}: {name!r} is both in {places[name][0].path.name} and in "
                        f"{file.name}. Get the files again, or take one away."
                    )
                places[name], entries[name] = (part, inner), entry
        close = stack.pop_all().close

    def read(name: str) -> np.ndarray:
        part, inner = places[name]
        return part.read(inner)

    store = Store(path, entries, read, metadata, documents, close)
    return store, {name: part.path for name, (part, _) in places.items()}


def _documents(directory: Path) -> dict[str, Any]:
    files = (directory / name for name in DOCUMENTS)
    return {file.name: _read_json(file) for file in files if file.is_file()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON:
            raise ValueError("too large")
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no JSON object ({error}). Mend it, or take it away if the weights do "
            "without it."
        ) from error
    return found


def write_documents(directory: Path, documents: Mapping[str, Any]) -> None:
    """Writes JSON files, each whole or not at all.

    Args:
        directory: where; it must be there.
        documents: values by file name.

    Raises:
        CheckpointError: if a file cannot be written.
    """
    for name, value in documents.items():
        with new_file(directory / name) as file:
            text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
            file.write(text.encode("utf-8"))
