"""The plan against XLA's account of the step, compiled ahead of time over virtual devices."""

import json

import harness
import pytest

from keras_vit.cli.main import main
from keras_vit.planning import check
from keras_vit.planning.devices import DEVICES
from keras_vit.planning.model import complete
from keras_vit.planning.setup import make

pytestmark = pytest.mark.skipif(
    harness.BACKEND != "jax", reason="it is XLA's account, the same from any backend"
)
TINY = {
    "image_shape": (32, 32, 3),
    "patch_size": 8,
    "hidden_dim": 64,
    "num_layers": 2,
    "num_heads": 4,
    "mlp_dim": 128,
    "num_classes": 10,
}


def account(count=4, images=32, config=TINY, **options):
    planned = make(complete("B/16", **config), DEVICES["H100-80G"], count, batch=images, **options)
    found = check.compile_step(planned)
    assert found["arguments"] == found["planned_arguments"] == check.expected_arguments(planned)
    return found


def test_arguments_and_remat():
    """Weights, optimizer and batch to the byte; remat takes away what it should."""
    plain = account(1, 64)
    remat = account(1, 64, {**TINY, "remat": True})
    # All state is updated in place; the images and labels alone are not.
    assert plain["aliased"] >= plain["planned_arguments"] - 64 * (32 * 32 * 3 * 4 + 4) - 8
    saved = plain["planned_activations"] - remat["planned_activations"]
    assert plain["temporaries"] - remat["temporaries"] > 0.7 * saved > 0


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "float32"},
        {"kind": "fsdp"},
        {"kind": "model", "mesh": (2, 2)},
        {"shard_optimizer": True, "ema": True, "accumulate": 2, "optimizer": "sgd"},
    ],
    ids=str,
)
def test_arguments_over_four_devices(options):
    account(**options, config={**TINY, "dropout_rate": 0.1})


def test_command(capsys):
    command = ["plan", "--model", "vit_b16", "--devices", "2xH100-80G", "--batch", "8", "--check"]
    command += ["--image-size", "32", "--json", "--set", "patch_size=8", "num_layers=1"]
    assert main([*command, "hidden_dim=32", "num_heads=2", "mlp_dim=64"]) == 0
    found = json.loads(capsys.readouterr().out)["check"]
    assert found["arguments"] == found["planned_arguments"]
    assert "as planned" in found["lines"][1]
    assert check.LIMITS in found["lines"]


def test_what_does_not_compile_is_said():
    config = {**TINY, "num_classes": None}
    planned = make(complete("B/16", **config), DEVICES["H100-80G"], batch=8)
    with pytest.raises(ValueError, match=r"could not be compiled for --check: .*num_classes=N"):
        check.compile_step(planned)
