"""Checkpoints on disk: which format a file has, and what a directory holds."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit._atomic import replacing
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.hdf5 import open_hdf5
from keras_vit.checkpoints.npz import open_npz
from keras_vit.checkpoints.safetensors import open_safetensors
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

_PICKLE = (
    "it is a torch pickle, which can run code of its own when it is loaded. Where torch is, make "
    "a safetensors file of it: `state = torch.load(PATH, weights_only=True)`, then "
    "`safetensors.torch.save_file({k: v.contiguous().clone() for k, v in state.items()}, "
    '"model.safetensors")` (of `state["model"]` or the like, where the weights lie deeper).'
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
            raise CheckpointError(
                f"No such file or directory: {path}. Expected a .npz, .safetensors or "
                ".weights.h5 file, or a directory with one."
            )
        if path.name.endswith(".index.json"):
            return _open_shards(path, _documents(path.parent))
        return _open_file(path, _documents(path.parent))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _open_file(path: Path, documents: Mapping[str, Any], prefix: str = "") -> Store:
    with open(path, "rb") as file:
        start = file.read(64)
    if start.startswith(_HDF5):
        store = open_hdf5(path, prefix)
    elif start.startswith(b"PK"):
        _refuse_other_archives(path)
        return open_npz(path)
    else:
        _refuse_strangers(path, start)
        store = open_safetensors(path)
    store.documents = documents
    return store


def _refuse(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} cannot be loaded: {what}")


def _refuse_strangers(path: Path, start: bytes) -> None:
    if not start:
        raise _refuse(path, "it is empty. Get it again.")
    # A safetensors file begins with a length; its ninth byte opens the header.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size:
        return
    for beginnings, what in _STRANGERS:
        if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(beginnings):
            raise _refuse(path, what)
    if path.suffix in _PICKLES:
        raise _refuse(path, _PICKLE)


def _refuse_other_archives(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _refuse(
            path,
            f"it begins like a zip archive and is cut short or damaged ({error}). Get it again.",
        ) from error
    if any(name.endswith("/data.pkl") or name == "data.pkl" for name in names):
        raise _refuse(path, _PICKLE)
    if "config.json" in names and "metadata.json" in names:
        raise _refuse(path, "it is a whole Keras model: load it by keras_vit.load_model.")


def _open_directory(path: Path) -> Store:
    documents = _documents(path)
    if (path / ARRAYS).is_file():
        store = _open_file(path / ARRAYS, documents)
    elif (path / INDEX).is_file():
        store = _open_shards(path / INDEX, documents)
    elif (path / _HUB_MODEL).is_file():
        parts = [open_hdf5(path / _HUB_MODEL)]
        if (path / _HUB_TASK).is_file():
            parts.append(open_hdf5(path / _HUB_TASK, "task/"))
        store = _joined(path, parts, documents)
    else:
        store = _open_file(_only_file(path), documents)
    store.path = path
    return store


def _only_file(path: Path) -> Path:
    found = sorted(entry for entry in path.iterdir() if entry.suffix in _ENDINGS)
    if len(found) == 1:
        return found[0]
    if not found and (pickles := [e for e in path.iterdir() if e.suffix in _PICKLES]):
        raise _refuse(sorted(pickles)[0], _PICKLE)
    names = [entry.name for entry in found]
    raise CheckpointError(
        f"{path} must hold {ARRAYS}, {INDEX}, {_HUB_MODEL}, or one file ending in "
        f"{' or '.join(_ENDINGS)}: name the file. Received: {names or 'none of them'}"
    )


def _open_shards(index: Path, documents: Mapping[str, Any]) -> Store:
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
        raise CheckpointError(
            f"{index} must have a `weight_map` from array names to file names. Get it again."
        )
    parts: list[Store] = []
    try:
        for shard in sorted(set(names.values())):
            if not shard or Path(shard).name != shard or shard in (".", ".."):
                raise CheckpointError(f"{index} names a file outside its directory: {shard!r}.")
            if not (index.parent / shard).is_file():
                raise CheckpointError(f"{index} names {shard!r}, which is not beside it. Get it.")
            parts.append(open_safetensors(index.parent / shard))
            missing = {n for n, file in names.items() if file == shard} - set(parts[-1].entries)
            if missing:
                raise CheckpointError(
                    f"{index.parent / shard} lacks {sorted(missing)[:5]}, which {index.name} "
                    "places there. Get both again."
                )
        return _joined(index, parts, documents)
    except BaseException:
        for part in parts:
            part.close()
        raise


def _joined(path: Path, parts: list[Store], documents: Mapping[str, Any]) -> Store:
    owners: dict[str, Store] = {}
    entries: dict[str, Entry] = {}
    for part in parts:
        if both := owners.keys() & part.entries.keys():
            raise CheckpointError(f"{path}: {sorted(both)[:5]} lie in two files. Get it again.")
        owners |= dict.fromkeys(part.entries, part)
        entries |= part.entries

    def close():
        for part in parts:
            part.close()

    return Store(
        path,
        entries,
        lambda name: owners[name].read(name),
        parts[0].metadata if parts else {},
        documents,
        close,
    )


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
    """
    for name, value in documents.items():
        with replacing(directory / name) as temporary:
            temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
