"""JAX on 4 virtual devices: layouts, bytes a device, and what is refused in plain words."""

import json
import os
import subprocess
import sys
from pathlib import Path

import harness
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(harness.BACKEND != "jax", reason="keras.distribution is JAX's")


@pytest.fixture(scope="module")
def found():
    """What `jax_worker.py` printed; this process has one device for good."""
    script = Path(__file__).with_name("jax_worker.py")
    flags = "--xla_force_host_platform_device_count=4"
    env = {**os.environ, "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


REFUSALS = {
    "arrays": "batches of 5",
    "last of arrays": "a last batch of 2",
    "first of a generator": "4 equal parts",
    "evaluate": "4 equal parts",
    "predict": "a last batch of 2",
    "by hand": "batches of 6",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_batch_that_cannot_be_divided(found, name):
    """Keras alone leaves a model without weights behind."""
    outcome = found[f"refused: {name}"]
    assert outcome["same"] and outcome["trains"]
    assert REFUSALS[name] in outcome["words"]
    assert "drop_remainder=True" in outcome["words"] and "predict_all" in outcome["words"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("outside", "build it inside of the scope"),
        ("batch of a recipe", "times accumulation_steps=2: take 8 or 16. Received: batch_size=12"),
        ("too many", "9 devices were asked for, and there are 4"),
        ("mesh and devices", "has 2 devices. Received: devices=4"),
    ],
)
def test_refusals(found, name, words):
    assert words in found[f"refused: {name}"]


def test_values(found):
    assert found["description"] == "4 devices (data, mesh 4 x 1)"
    assert found["predict_all"] < 1e-5
    for name, same in {
        "evaluate": "evaluate, one device",
        "hybrid": "hybrid, one device",
        "by hand": "one device",
    }.items():
        np.testing.assert_allclose(found[name], found[same], atol=1e-5, err_msg=name)
    # 8 bits of mantissa.
    np.testing.assert_allclose(found["bfloat16"], found["bfloat16, one device"], atol=0.01)


def test_axes(found):
    """As Megatron-LM cuts them, and along the tokens' width."""
    block = "encoder_block_1/"
    expected = {
        "attention/qkv/kernel": (["None", "model"], ["batch", "None"]),
        "attention/qkv/bias": (["model"], ["None"]),
        "attention/out/kernel": (["model", "None"], ["None", "batch"]),
        "attention/out/bias": (["None"], ["None"]),
        "mlp/fc1/kernel": (["None", "model"], ["batch", "None"]),
        "mlp/fc2/kernel": (["model", "None"], ["None", "batch"]),
        "mlp_norm/gamma": (["None"], ["None"]),
    }
    for path, (model, fsdp) in expected.items():
        assert found["model: axes"][block + path] == model
        assert found["fsdp: axes"][block + path] == fsdp
        assert set(found["optimizer: axes"][block + path]) == {"None"}


def test_weights_that_are_cut_do_not_draw_the_images_along(found):
    """Without it, XLA moves whole batches between devices: 27 times the memory at 22B's width."""
    assert len(found["constrained"]) >= 5 and all(found["constrained"])


# Width 64, MLP 128, 2 blocks, 5 classes, patches of 48 numbers, 5 tokens; by hand.
KERNELS = 2 * (64 * 192 + 64 * 64 + 64 * 128 + 128 * 64)
COLUMN_BIASES = 2 * (192 + 128)
OTHERS = (48 * 64 + 64) + 64 + 5 * 64 + 2 * (64 + 64 + 4 * 64) + 2 * 64 + (64 * 5 + 5)
COUNTERS = 4 + 4  # iterations and learning rate


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        # A weight and two numbers of AdamW for it, wherever it is cut.
        ("model", 3 * ((KERNELS + COLUMN_BIASES) // 2 + OTHERS)),
        ("fsdp", 3 * (KERNELS // 4 + COLUMN_BIASES + OTHERS)),
        ("optimizer", KERNELS + 2 * KERNELS // 4 + 3 * (COLUMN_BIASES + OTHERS)),
    ],
)
def test_bytes_of_a_device(found, kind, numbers):
    assert set(found[f"{kind}: bytes"].values()) == {4 * numbers + COUNTERS}
