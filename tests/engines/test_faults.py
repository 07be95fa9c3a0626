"""What processes of one run may do that does not go together: it ends for all alike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import harness
import keras
import pytest
from engines import test_runs, train_run

from keras_vit import training

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
