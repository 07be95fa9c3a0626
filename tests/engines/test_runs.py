"""`train` on several devices: the losses and weights of one, evaluation of every example once.

Every run has clipping, accumulation of 2, an average of the weights, and data whose size no number
of devices divides; 10 updates each, see `train_run.RECIPE`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import harness
import numpy as np
import pytest
from engines import train_run

import keras_vit

SCRIPT = Path(train_run.__file__)
SGD = {"optimizer": "sgd", "learning_rate": 0.02}
ADAMW = {}
TOLERANCES = {"adamw": 1e-4, "sgd": 1e-5}

# Backend -> name -> scope, in one process with 4 virtual devices.
SCOPES = {
    "tensorflow": {"mirrored 2": {"devices": 2}},
    "jax": {
        "data 4": {"devices": 4},
        "model 2 x 2": {"distribution": "model", "mesh": [2, 2]},
        "fsdp 4": {"distribution": "fsdp"},
        "fsdp 2 x 2": {"distribution": "fsdp", "mesh": [2, 2]},
        "sharded optimizer": {"devices": 4, "shard_optimizer": True},
    },
    "torch": {},
}[harness.BACKEND]
BOTH = ("mirrored 2", "data 4", "model 2 x 2")  # with either optimizer


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(process=None, ports=()):
    """Of one of two processes, or of a single one, as each backend wants it."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    if process is None:
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    elif harness.BACKEND == "jax":
        env["KERAS_DISTRIBUTION_JOB_ADDRESSES"] = f"127.0.0.1:{ports[0]}"
        env["KERAS_DISTRIBUTION_NUM_PROCESSES"] = "2"
        env["KERAS_DISTRIBUTION_PROCESS_ID"] = str(process)
    elif harness.BACKEND == "tensorflow":
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        task = {"type": "worker", "index": process}
        env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    else:
        env |= {"RANK": str(process), "LOCAL_RANK": str(process), "WORLD_SIZE": "2"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}
    return env


def start(runs, env, log, **more):
    command = [sys.executable, SCRIPT, json.dumps({"runs": runs, **more})]
    with log.open("w") as printed:
        return subprocess.Popen(command, env=env, stdout=printed, stderr=subprocess.STDOUT)


def start_two(folder, runs_of):
    """Two processes that know each other; `runs_of(process)` is what each does."""
    ports = [free_port(), free_port()]
    return [start(runs_of(i), environment(i, ports), folder / f"process{i}.txt") for i in range(2)]


def ended(processes, folder, seconds=280):
    """Waits for processes, and fails with what they printed unless all end well."""
    limit = time.monotonic() + seconds
    try:
        codes = [process.wait(max(limit - time.monotonic(), 1)) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("*.txt")))
    assert not any(codes), f"{codes}\n{logs}"


@pytest.fixture(scope="module")
def one_device():
    """Optimizer -> the numbers of one device, in this process."""
    return {"adamw": train_run.run(recipe=ADAMW), "sgd": train_run.run(recipe=SGD)}


def assert_equal(found, expected, tolerance):
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=0, atol=tolerance if "weight" in name else 1e-5, err_msg=name
        )


def test_learning_happens(one_device):
    """What is compared would tell: the weights move by more than the tolerances."""
    start_weights = {v.path: harness.numpy(v) for v in train_run.build().trainable_variables}
    for name, numbers in one_device.items():
        moved = [
            np.abs(array - start_weights[key.split()[-1]]).max()
            for key, array in numbers.items()
            if key.startswith("weight") and key.split()[-1] in start_weights
        ]
        assert min(moved) > 5 * TOLERANCES[name]
        assert numbers["loss"][1] < numbers["loss"][0] - 0.01
        # Of 19 examples, none left out and none twice.
        right = numbers["val_accuracy"] * 19
        np.testing.assert_allclose(right, np.round(right), atol=1e-4)


@pytest.mark.skipif(not SCOPES, reason="PyTorch has a process for each device")
def test_devices_of_one_process(one_device, tmp_path):
    runs = {}
    for name, scope in SCOPES.items():
        for optimizer, recipe in {"adamw": ADAMW, "sgd": SGD}.items():
            if optimizer == "adamw" or name in BOTH:
                runs[name, optimizer] = {"scope": scope, "recipe": recipe}
    for number, arguments in enumerate(runs.values()):
        arguments["numbers"] = str(tmp_path / f"{number}.npz")
    process = start(list(runs.values()), environment(), tmp_path / "log.txt", virtual=4)
    ended([process], tmp_path)
    for (name, optimizer), arguments in runs.items():
        found = dict(np.load(arguments["numbers"]))
        try:
            assert_equal(found, one_device[optimizer], TOLERANCES[optimizer])
        except AssertionError as error:
            raise AssertionError(f"{name}, {optimizer}: {error}") from error


def test_two_processes(one_device, tmp_path):
    runs = [
        {"scope": {}, "recipe": recipe, "numbers": str(tmp_path / f"{name}.npz")}
        for name, recipe in {"adamw": ADAMW, "sgd": SGD}.items()
    ]
    runs[0]["output"] = str(tmp_path / "run")
    ended(start_two(tmp_path, lambda i: runs), tmp_path)
    for name, numbers in one_device.items():
        assert_equal(dict(np.load(tmp_path / f"{name}.npz")), numbers, TOLERANCES[name])
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["epoch", "1", "2"]
    saved = keras_vit.load_model(tmp_path / "run" / "model.keras")
    images = train_run.pictures(3, 5)[0].astype("float32")
    again = train_run.build()
    for variable, (key, array) in zip(
        again.variables,
        [item for item in np.load(tmp_path / "adamw.npz").items() if "weight" in item[0]],
        strict=True,
    ):
        assert key.endswith(variable.path)
        variable.assign(array)
    np.testing.assert_allclose(
        saved.predict(images, verbose=0), again.predict(images, verbose=0), atol=1e-6
    )


def test_a_killed_process(one_device, tmp_path):
    """The other ends with a message; one process alone goes on from where both were."""
    output = str(tmp_path / "run")
    # In the second epoch: the state is that of the first's end.
    runs = [{"scope": {}, "output": output}, {"scope": {}, "output": output, "kill_after": 15}]
    chief, victim = start_two(tmp_path, lambda i: [runs[i]])
    try:
        assert victim.wait(200) == -signal.SIGKILL
        assert chief.wait(60) == 7, (tmp_path / "process0.txt").read_text()
    finally:
        for process in (chief, victim):
            process.kill()
            process.wait()
    printed = (tmp_path / "process0.txt").read_text()
    assert "Process 0 of 2 lost another" in printed and "Start all of them again" in printed
    states = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert states == ["step-000000010.safetensors"]  # whole, and nothing half-written
    assert_equal(train_run.run(output=output), one_device["adamw"], TOLERANCES["adamw"])
