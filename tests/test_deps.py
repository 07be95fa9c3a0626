"""The choice of a backend and the messages of missing packages."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from keras_vit import _deps

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def select(monkeypatch, tmp_path):
    """Runs select_backend with pretended packages; returns the KERAS_BACKEND it left behind."""

    def run(installed, requested=None, keras_json=None, keras_imported=False):
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
        monkeypatch.delenv("KERAS_BACKEND", raising=False)
        if requested is not None:
            monkeypatch.setenv("KERAS_BACKEND", requested)
        if keras_json is not None:
            (tmp_path / "keras.json").write_bytes(keras_json)
        monkeypatch.setitem(sys.modules, "keras", types.ModuleType("keras"))
        if not keras_imported:
            monkeypatch.delitem(sys.modules, "keras")
        monkeypatch.setattr(_deps, "_installed", lambda package: package in installed)
        _deps.select_backend()
        return os.environ.get("KERAS_BACKEND")

    return run


def configured(backend):
    return json.dumps({"floatx": "float32", "backend": backend}).encode()


@pytest.mark.parametrize(
    ("installed", "keras_json", "chosen"),
    [
        (("tensorflow", "jax", "torch"), None, None),
        (("tensorflow",), None, None),
        (("jax",), None, "jax"),
        (("torch",), None, "torch"),
        (("jax", "torch"), None, "jax"),
        # Keras wrote its default at the first import, for someone who has only JAX.
        (("jax",), configured("tensorflow"), "jax"),
        (("jax", "torch"), configured("torch"), None),
        (("tensorflow", "torch"), configured("jax"), "tensorflow"),
        # Not ours to judge.
        (("jax",), configured("openvino"), None),
        (("jax",), configured(["jax"]), None),
        # A file that says nothing.
        (("torch",), b"{", "torch"),
        (("torch",), b"\xff\xfe\x00", "torch"),
        (("torch",), b"[1, 2]", "torch"),
        (("torch",), b"{}", "torch"),
        (("tensorflow",), b"", None),
    ],
)
def test_selects_an_installed_backend(select, installed, keras_json, chosen):
    assert select(installed, keras_json=keras_json) == chosen


@pytest.mark.parametrize("requested", ["jax", "openvino", "no-such-backend"])
def test_a_set_variable_is_left_alone(select, requested):
    assert select(("jax", "tensorflow"), requested=requested) == requested


def test_an_empty_variable_counts_as_unset(select):
    assert select(("torch",), requested="") == "torch"


def test_nothing_is_changed_once_keras_is_imported(select):
    assert select((), keras_imported=True) is None


def test_no_backend_says_what_to_install(select):
    with pytest.raises(ImportError) as caught:
        select(())
    message = str(caught.value)
    assert 'pip install "keras-vision-transformers[jax]"' in message
    assert "[tensorflow]" in message and "[torch]" in message and "\n" not in message


def test_a_requested_backend_that_is_missing(select):
    with pytest.raises(ImportError) as caught:
        select(("jax",), requested="torch")
    message = str(caught.value)
    assert "KERAS_BACKEND is 'torch'" in message
    assert 'pip install "keras-vision-transformers[torch]"' in message and "\n" not in message


@pytest.mark.parametrize("keras_home", ["set", "unset"])
def test_reads_the_file_that_keras_reads(monkeypatch, tmp_path, keras_home):
    folder = tmp_path / ".keras"
    folder.mkdir()
    (folder / "keras.json").write_bytes(configured("torch"))
    monkeypatch.delenv("KERAS_HOME", raising=False)
    if keras_home == "set":
        monkeypatch.setenv("KERAS_HOME", str(folder))
    else:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert _deps._configured_backend() == "torch"


def test_installed(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_leftover_folder").mkdir()
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    importlib.invalidate_caches()
    assert _deps._installed("a_package")
    assert not _deps._installed("a_leftover_folder")
    assert not _deps._installed("no_such_package")
    module = types.ModuleType("made_by_hand")
    module.__spec__ = None
    monkeypatch.setitem(sys.modules, "made_by_hand", module)
    assert _deps._installed("made_by_hand")


def test_optional_imports():
    assert _deps.optional("json.decoder", "plots", "Reading") is sys.modules["json.decoder"]


def test_optional_says_what_to_install():
    with pytest.raises(ImportError) as caught:
        _deps.optional("no_such_package.part", "plots", "Drawing attention maps")
    message = str(caught.value)
    assert message.startswith("Drawing attention maps needs no_such_package.part")
    assert 'pip install "keras-vision-transformers[plots]"' in message and "\n" not in message
    assert isinstance(caught.value.__cause__, ImportError)


def test_the_extras_exist():
    """Every extra that a message can name is one that pip can install."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == _deps.DISTRIBUTION
    assert set(_deps.BACKENDS) <= set(project["optional-dependencies"])


def test_the_module_needs_only_the_standard_library():
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("deps", {str(ROOT / "keras_vit" / "_deps.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print([name for name in ("numpy", "keras", *module.BACKENDS) if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
