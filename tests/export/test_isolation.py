"""TensorFlow at work in a process of its own: results, errors and ends come through."""

import os
import time

import harness
import keras
import pytest

import keras_vit
from keras_vit.export import isolation
from keras_vit.export.preparation import serving_of

needs_a_child = pytest.mark.skipif(
    harness.BACKEND != "torch", reason="the child is the same from JAX and PyTorch: run on PyTorch"
)


@pytest.fixture(scope="module")
def model():
    return keras_vit.VisionTransformer(
        image_shape=(8, 8, 3), patch_size=8, hidden_dim=4, num_layers=1, num_heads=1, mlp_dim=4,
        num_classes=2,
    )  # fmt: skip


def test_a_task_gets_the_graph(model):
    found = isolation.with_graph(model, "os:listdir", serving_of(model))
    assert {"saved_model.pb", "variables"} <= set(found)


@needs_a_child
def test_errors_keep_their_kind_and_words(model):
    with pytest.raises(OSError, match="Directory not empty"):
        isolation.with_graph(model, "os:rmdir", serving_of(model))
    with pytest.raises(RuntimeError, match="TypeError: .*PosixPath"):
        isolation.with_graph(model, "os:close", serving_of(model))


@needs_a_child
def test_a_dead_child_says_why(model, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    with pytest.raises(RuntimeError, match="signal SIGKILL, as when memory runs out"):
        isolation.under_tensorflow(model, "export_tasks:die", serving_of(model))


@needs_a_child
def test_layers_of_the_user_s_own_are_explained():
    @keras.saving.register_keras_serializable("test_isolation")
    class Twice(keras.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    images = keras.Input((8, 8, 3))
    flat = keras.layers.Flatten()(Twice()(images))
    model = keras.Model(images, keras.layers.Dense(2)(flat))
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        isolation.with_graph(model, "os:listdir", serving_of(model))


@needs_a_child
def test_the_child_ends_with_its_parent(model, tmp_path):
    import subprocess
    import sys

    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "pid")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(harness.ROOT), TASKS])},
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while _alive(child):
        assert time.monotonic() < deadline, "the child goes on without its parent"
        time.sleep(0.1)


TASKS = str(harness.ROOT / "tests" / "export")
PARENT = """
import sys, keras_vit
from keras_vit.export import isolation
from keras_vit.export.preparation import serving_of
model = keras_vit.VisionTransformer(image_shape=(8, 8, 3), patch_size=8, hidden_dim=4,
    num_layers=1, num_heads=1, mlp_dim=4, num_classes=2)
isolation.under_tensorflow(model, "export_tasks:stay", serving_of(model), path=sys.argv[1])
"""


@pytest.fixture(autouse=True)
def tasks_on_the_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASKS)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_tensorflow_it_says_what_to_install(model, monkeypatch):
    monkeypatch.setattr("keras_vit._deps._installed", lambda package: package != "tensorflow")
    with pytest.raises(ImportError, match=r"needs tensorflow.*\[export\]"):
        isolation.with_graph(model, "os:listdir", serving_of(model))
