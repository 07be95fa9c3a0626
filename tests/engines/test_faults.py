"""What processes of one run may do that does not go together: it ends for all alike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import harness
import keras
import numpy as np
import pytest
from engines import test_runs, train_run

from keras_vit import training
from keras_vit.training import state
from keras_vit.training.randomness import random_arrays

RECIPE = {
    **train_run.RECIPE,
    "batch_size": 4,
    "accumulation_steps": 1,
    "ema_decay": None,
    "clip_norm": None,
}


class Stopper(keras.callbacks.Callback):
    """Stops the training after so many batches."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.model.stop_training = True


def stopped(process):
    """(epochs, updates) of a run that the second process alone stops in batch 5 of 11."""
    training.callbacks.Keeper._ASKED = 6
    result = training.train(
        train_run.build(),
        train_run.pictures(train_run.TRAINED, 0),
        training.Recipe(**RECIPE),
        callbacks=[Stopper(5)] if process == 1 else [],
        verbose=False,
    )
    return [len(result.history), result.history[-1]["step"]]


def test_one_process_that_stops_the_training_stops_all(tmp_path):
    ports = [test_runs.free_port(), test_runs.free_port()]
    tests = Path(__file__).resolve().parents[1]
    known = {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
    processes = []
    for process in range(2):
        with (tmp_path / f"{process}.txt").open("w") as printed:
            processes.append(
                subprocess.Popen(
                    [sys.executable, __file__, str(process), str(tmp_path)],
                    env=test_runs.environment(process, ports) | known,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                )
            )
    test_runs.ended(processes, tmp_path, 120)
    for process in range(2):
        found = json.loads((tmp_path / f"{process}.json").read_text())
        assert found == [1, 6]  # when all are asked, both leave the first of two epochs


@pytest.mark.parametrize("where", ["saved", "loaded"])
def test_a_state_of_a_machine_with_other_gpus(tmp_path, monkeypatch, where):
    """Each GPU has a random generator, which must not decide whether a state can be read."""

    def with_a_gpu():
        return {**random_arrays(), "random/cuda_0": np.zeros(3, "uint8")}

    def model():
        found = train_run.build()
        found.compile(training.SGD(0.1), "sparse_categorical_crossentropy")
        found.optimizer.build(found.trainable_variables)
        return found

    saved, path = model(), tmp_path / "state.safetensors"
    with monkeypatch.context() as patched:
        if where == "saved":
            patched.setattr(state, "random_arrays", with_a_gpu)
        state.save_state(path, saved, {"position": 3})
    if where == "loaded":
        monkeypatch.setattr(state, "random_arrays", with_a_gpu)
    loaded = model()
    loaded.get_layer("head").kernel.assign(np.zeros((64, train_run.CLASSES)))
    assert state.load_state(path, loaded) == {"position": 3}
    np.testing.assert_array_equal(
        harness.numpy(loaded.get_layer("head").kernel),
        harness.numpy(saved.get_layer("head").kernel),
    )


@pytest.mark.skipif(harness.BACKEND != "jax", reason="jax.distributed")
def test_joined_processes_outside_of_a_scope_do_not_train(monkeypatch):
    import jax

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    images, labels = train_run.pictures(4, 0)
    with pytest.raises(ValueError, match="one of 2 processes, and each would train on its own"):
        train_run.build().fit(images, labels, verbose=0)


@pytest.mark.skipif(harness.BACKEND != "jax", reason="the environment of JAX")
def test_processes_that_do_not_know_each_other_are_refused(monkeypatch):
    monkeypatch.delenv("KERAS_DISTRIBUTION_JOB_ADDRESSES", raising=False)
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", "1")
    with (
        pytest.raises(ValueError, match="KERAS_DISTRIBUTION_JOB_ADDRESSES is not set"),
        training.distribution.scope(),
    ):
        pass


if __name__ == "__main__":
    number, folder = int(sys.argv[1]), sys.argv[2]
    with training.distribution.scope():
        found = stopped(number)
    with open(f"{folder}/{number}.json", "w") as written:
        json.dump(found, written)
