"""--devices and its like: what is refused, in the options' own names, before anything is read."""

import harness
import pytest

from keras_vit.cli.main import main

ASK = ["train", "--data", ".", "--model", "vit_ti16", "--output", "nowhere"]


def refused(capsys, *options):
    status = main([*ASK, *options])
    assert status == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("value", ["2", "2x", "x2", "0x2", "2x2x2", "axb"])
def test_no_mesh(capsys, value):
    with pytest.raises(SystemExit) as stop:
        main([*ASK, "--mesh", value])
    assert stop.value.code == 2
    assert f"invalid BxM value: '{value}'" in capsys.readouterr().err


def test_more_devices_than_there_are(capsys):
    words = {
        "tensorflow": "64 devices were asked for",
        "jax": "64 devices were asked for",
        "torch": "torchrun --nproc-per-node 64 -m keras_vit train",
    }
    assert words[harness.BACKEND] in refused(capsys, "--devices", "64")


@pytest.mark.skipif(harness.BACKEND == "jax", reason="JAX cuts weights")
@pytest.mark.parametrize(
    "options", [["--distribution", "fsdp"], ["--mesh", "1x2"], ["--shard-optimizer"]]
)
def test_only_jax_cuts_weights(capsys, options):
    assert "--backend jax" in refused(capsys, *options)


@pytest.mark.skipif(harness.BACKEND == "tensorflow", reason="TPUStrategy is TensorFlow's")
def test_a_tpu_is_tensorflows(capsys):
    assert "tpu is TensorFlow's" in refused(capsys, "--tpu", "local")


@pytest.mark.parametrize(
    "variable",
    {
        "tensorflow": ["TF_CONFIG"],
        "jax": ["KERAS_DISTRIBUTION_NUM_PROCESSES"],
        "torch": ["WORLD_SIZE"],
    }[harness.BACKEND],
)
def test_a_senseless_environment(capsys, monkeypatch, variable):
    monkeypatch.setenv(variable, "many")
    assert f"{variable}" in refused(capsys)
