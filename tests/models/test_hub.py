"""The Hugging Face Hub: a stand-in for its library, and the library itself where installed."""

import importlib.util
import os
import subprocess
import sys
import types

import pytest

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.models.download import resolve_source

# A repository's files; fnmatch patterns of the Hub's library choose among them.
FILES = (
    "config.json",
    "preprocessor_config.json",
    "model.safetensors",
    "pytorch_model.bin",
    "README.md",
    "onnx/model.safetensors",
    "big/config.json",
    "big/model-00001-of-00002.safetensors",
    "big/model-00002-of-00002.safetensors",
    "big/model.safetensors.index.json",
    "big/deeper/model.safetensors",
    "jax/vit.npz",
    "preset/model.weights.h5",
    "preset/task.json",
    "preset/tf_model.h5",
    "pickles/pytorch_model.bin",
)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A module with `snapshot_download` as huggingface_hub's, and what it was called with."""
    from fnmatch import fnmatch

    module = types.ModuleType("huggingface_hub")
    module.calls = []
    module.error = None

    def snapshot_download(*, repo_id, revision, allow_patterns, ignore_patterns):
        module.calls.append((repo_id, revision))
        if module.error:
            raise module.error
        folder = tmp_path / "snapshots" / "0123abcd"
        for name in FILES:
            if any(fnmatch(name, p) for p in allow_patterns):
                if not any(fnmatch(name, p) for p in ignore_patterns):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_text(name)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    module.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


def below(folder) -> list[str]:
    found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return sorted(found)


@pytest.mark.parametrize(
    ("inner", "files"),
    (
        ("", ["config.json", "model.safetensors", "preprocessor_config.json"]),
        ("/", ["config.json", "model.safetensors", "preprocessor_config.json"]),
        ("/big", sorted(f for f in FILES if f.startswith("big/m") or f == "big/config.json")),
        ("/big/", sorted(f for f in FILES if f.startswith("big/m") or f == "big/config.json")),
        ("/big/deeper", ["big/deeper/model.safetensors"]),
        ("/jax/vit.npz", ["jax/vit.npz"]),
        ("/preset", ["preset/model.weights.h5", "preset/task.json"]),
        ("/model.safetensors", ["config.json", "model.safetensors", "preprocessor_config.json"]),
    ),
)
def test_folders_and_files(hub, tmp_path, inner, files):
    path = resolve_source(f"hf://google/vit{inner}")
    snapshot = tmp_path / "snapshots" / "0123abcd"
    assert path == snapshot / inner.strip("/")
    assert below(snapshot) == files
    assert hub.calls == [("google/vit", None)]


@pytest.mark.parametrize(
    ("address", "call"),
    (
        ("hf://timm/vit_b.augreg_in21k", ("timm/vit_b.augreg_in21k", None)),
        ("hf://a/b@v1.0", ("a/b", "v1.0")),
        ("hf://a/b@refs%2Fpr%2F1/big", ("a/b", "refs/pr/1")),
        ("HF://a/b", ("a/b", None)),
    ),
)
def test_addresses(hub, address, call):
    resolve_source(address)
    assert hub.calls == [call]


@pytest.mark.parametrize(
    "address", ("hf://", "hf://name", "hf://a/b@", "hf://a/b/../c", "hf://a/b//c", "hf://a@1/b")
)
def test_malformed_addresses(hub, address):
    with pytest.raises(CheckpointError, match="Expected 'hf://owner/name"):
        resolve_source(address)
    assert hub.calls == []


@pytest.mark.parametrize("inner", ("/pickles", "/nowhere", "/nowhere.npz"))
def test_without_weights(hub, inner):
    with pytest.raises(CheckpointError, match="no weights of kinds .*/a/b/tree/v2"):
        resolve_source(f"hf://a/b@v2{inner}")


# class -> (its parents, part of the message): what huggingface_hub.errors has.
ERRORS = {
    "GatedRepoError": (
        "RepositoryNotFoundError",
        "a/b asks for consent: .*huggingface.co/a/b.*log in",
    ),
    "RepositoryNotFoundError": ("HfHubHTTPError", "a/b does not exist, or is private"),
    "RevisionNotFoundError": ("HfHubHTTPError", "a/b has no revision 'v2'"),
    "LocalEntryNotFoundError": (
        "EntryNotFoundError",
        "run `hf download a/b --revision v2 --local-dir",
    ),
    "OfflineModeIsEnabled": ("ConnectionError", "a/b cannot be reached and is not in the cache"),
    "HFValidationError": ("ValueError", "is no valid name"),
    "HfHubHTTPError": ("OSError", r"could not be downloaded \(first line\)\."),
    "Silent": ("Exception", r"could not be downloaded \(Silent\)\."),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(hub, name):
    parent, message = ERRORS[name]
    kind = type(name, (type(parent, (Exception,), {}),), {})
    hub.error = kind("" if name == "Silent" else "first line\nsecond line")
    with pytest.raises(CheckpointError, match=message) as caught:
        resolve_source("hf://a/b@v2")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is hub.error


def test_library_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"hf://a/b needs huggingface_hub.*\[weights\]"):
        resolve_source("hf://a/b")


@pytest.mark.skipif(
    not importlib.util.find_spec("huggingface_hub"), reason="huggingface_hub is not installed"
)
@pytest.mark.parametrize("cached", (False, True))
def test_the_library_offline(tmp_path, cached):
    """In a process of its own: the library reads its variables when it is imported."""
    if cached:
        commit = "0123456789" * 4
        repo = tmp_path / "hub" / "models--google--vit"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text(commit)
        (repo / "snapshots" / commit).mkdir(parents=True)
        (repo / "snapshots" / commit / "model.safetensors").write_text("")
    code = (
        "from keras_vit.models.download import resolve_source, CheckpointError\n"
        "try: print(resolve_source('hf://google/vit'))\n"
        "except CheckpointError as error: print('CheckpointError:', error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    expected = str(repo / "snapshots" / commit) if cached else "hf download google/vit --local-dir"
    assert expected in run.stdout, run.stdout + run.stderr
    assert cached or "CheckpointError: hf://google/vit: google/vit cannot be reached" in run.stdout
