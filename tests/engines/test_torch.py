"""Two processes of PyTorch against one: the same losses and weights, or a refusal."""

import datetime
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import harness
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch_worker

from keras_vit.engines.engine import Engine
from keras_vit.training import distribution

if harness.BACKEND != "torch":
    pytest.skip("the engine of the torch backend", allow_module_level=True)

WORKER = Path(torch_worker.__file__)
# Weights after ten steps: SGD, and AdamW, which turns rounding of small gradients into steps.
SGD, ADAMW = 1e-5, 1e-4
# bfloat16 and float16 round each process' part of a sum by itself.
ROUGH = {"mixed_bfloat16": (4e-3, 2e-2), "mixed_float16": (5e-4, 1e-2)}
ADAPTIVE = ("adamw", "keras", "accumulation", "average", "lora", "soft")


_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment(**variables):
    own = {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
    return {**own, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", **variables}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def by_hand(scenario, folder):
    """Starts both processes without torchrun; (process, what it said on stderr, exit code)."""
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), scenario, str(folder)],
            env=environment(
                RANK=str(number),
                LOCAL_RANK=str(number),
                WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        for port in [free_port()]
        for number in range(2)
    ]
    try:
        lost = started[1].wait(120)
        begin = time.monotonic()
        _, words = started[0].communicate(timeout=60)
        return words, started[0].returncode, lost, time.monotonic() - begin
    finally:
        for each in started:
            each.kill()
            each.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes under torchrun found."""
    folder = tmp_path_factory.mktemp("torchrun")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    done = subprocess.run(
        [sys.executable, *launcher, str(WORKER), "numbers", str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pair(folder):
    """Numbers by name, of each process."""
    return [dict(np.load(folder / f"found-{number}.npz")) for number in range(2)]


@pytest.fixture(scope="module")
def refused(folder):
    return [json.loads((folder / f"refused-{number}.json").read_text()) for number in range(2)]


# One device and two -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", torch_worker.CASES)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_two_processes_equal_one(pair, name):
    alone = torch_worker.run_case(name, Engine())
    losses, weights = ROUGH.get(name, (1e-5, ADAMW if name in ADAPTIVE else SGD))
    assert any(key.startswith("weight") for key in alone)
    for found in pair:
        prefix = f"{name}/"
        together = {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
        assert together.keys() == alone.keys()
        assert together.pop("same"), "the processes' weights differ"
        for key, value in together.items():
            of_weight = key.startswith(("weight", "average"))
            limit = weights if of_weight or "accuracy" in key else losses
            np.testing.assert_allclose(value, alone[key], rtol=0, atol=limit, err_msg=key)


def test_the_cases_move_weights_and_losses():
    """Far enough for the test above to tell one device's steps from others."""
    alone = torch_worker.run_case("adamw", Engine())
    other = torch_worker.run_case("accumulation", Engine())
    moved = max(np.abs(alone[k] - other[k]).max() for k in alone if k.startswith("weight"))
    assert moved > 10 * ADAMW
    assert np.ptp(torch_worker.run_case("sgd", Engine())["losses"]) > 1e-2


def test_evaluation_sums_over_what_the_processes_do_not_divide(pair):
    alone = torch_worker.run_evaluation(Engine())
    assert alone["rows"] == torch_worker.UNEVEN
    for found in pair:
        for key, value in alone.items():
            np.testing.assert_allclose(found[f"evaluation/{key}"], value, atol=1e-6, err_msg=key)


# Random numbers, state, sums --------------------------------------------------------------------


def test_each_process_draws_its_own_random_numbers(pair):
    first, second = pair
    np.testing.assert_array_equal(first["random/first"], first["random/varied"])
    np.testing.assert_array_equal(second["random/varied"], second["random/again"])
    mine, other = second["random/all"]
    assert (mine[:, 0] != other[:, 0]).all()  # the seeds
    np.testing.assert_array_equal(mine[:, 1], other[:, 1])  # how many were drawn
    draws = first["random/draws"]
    assert (draws[0] != draws[1]).all()
    assert first["random/same"], "weights differ after training with dropout"


def test_a_resumed_process_draws_what_it_would_have_drawn(pair):
    for found in pair:
        assert (found["random/before"][:, 1] > 0).any()
        np.testing.assert_array_equal(found["random/before"], found["random/resumed"])


def test_the_first_process_optimizer_state_reaches_all(pair):
    assert [found["state/largest"] for found in pair] == pytest.approx([0.01, 0.01])


def test_sums(pair):
    for found in pair:
        np.testing.assert_array_equal(found["sums/sum float32"], [1.5, 1.5])
        np.testing.assert_array_equal(found["sums/sum float64"], [3 * (1e9 + 1e-6)] * 2)
        np.testing.assert_array_equal(found["sums/sum int32"], [9, 9])
        np.testing.assert_array_equal(found["sums/own float32"], [0.5, 0.5])
        np.testing.assert_array_equal(found["sums/own int32"], [3, 3])
        np.testing.assert_array_equal(found["sums/assigned"], [[7, 7], [0, 0]])
        assert found["sums/total"] == 4.0


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("images", "ValueError.*process 0 .* fit to 5 images, but process 1 .* 4 images"),
        ("rows", "ValueError.*step on 4 images, but process 1 .* 3 images"),
        ("steps", "ValueError.*process 0 .* sum.*, but process 1 .* train a step"),
        ("outer", "'inner' is called for training"),
        ("train_on_batch", "attach"),
        ("unused", "no influence"),
        ("normalization", "Batch normalization"),
        ("other model", "ValueError.*same model"),
        ("devices", "there are 2. Received: devices=3"),
        ("alike", "same images"),
        ("again", r"2 processes .*, 2\.0"),
    ],
)
def test_what_would_be_wrong_is_refused(refused, name, words):
    for found in refused:
        assert re.search(words, found[name], re.DOTALL), found[name]


@pytest.fixture
def alone(monkeypatch):
    for name in _LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    "arguments",
    [
        {"distribution": "model", "devices": 2},
        {"distribution": "fsdp"},
        {"mesh": (1, 2)},
        {"shard_optimizer": True},
    ],
)
def test_models_cannot_be_cut(alone, arguments):
    with pytest.raises(ValueError, match="--backend jax"), distribution.scope(**arguments):
        pass


@pytest.mark.parametrize("arguments", [{"devices": 4}, {"mesh": (4, 1)}])
def test_several_devices_need_torchrun(alone, arguments):
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 4 -m keras_vit train"):
        distribution.scope(**arguments).__enter__()


@pytest.mark.parametrize("devices", [None, 1])
def test_one_device_needs_nothing(alone, devices):
    with distribution.scope(devices=devices) as engine:
        assert type(engine) is Engine


def test_a_mesh_and_devices_must_agree(alone):
    with pytest.raises(ValueError, match="has 2 devices"):
        distribution.scope(mesh=(2, 1), devices=3).__enter__()


def test_half_an_environment_is_refused(alone):
    alone.setenv("WORLD_SIZE", "2")
    alone.setenv("RANK", "0")
    with pytest.raises(ValueError, match="MASTER_ADDR, MASTER_PORT is not set"):
        distribution.scope().__enter__()
    alone.setenv("WORLD_SIZE", "two")
    with pytest.raises(ValueError, match="WORLD_SIZE='two'"):
        distribution.scope().__enter__()


def test_a_start_without_the_others_is_explained(alone):
    from keras_vit.engines import torch_processes

    alone.setattr(torch_processes, "START_TIMEOUT", datetime.timedelta(seconds=1))
    own = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in own.items():
        alone.setenv(name, value)
    with pytest.raises(RuntimeError, match="Process 1 of 2 did not find the others"):
        distribution.scope().__enter__()


# A process that ends ----------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize(("scenario", "where"), [("killed", "PeerLostError"), ("stuck", "Process")])
def test_a_killed_process_is_noticed(tmp_path, scenario, where):
    words, code, lost, seconds = by_hand(scenario, tmp_path)
    assert lost == -signal.SIGKILL
    assert code == 1, words
    assert where in words
    assert "Process 0 of 2 lost another one" in words.replace("PeerLostError: ", "")
    assert "the run goes on from its last checkpoint" in words
    assert seconds < 60
