"""Runs that are killed at random moments end as those that are not."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
import numpy as np
import pytest
from harness import BACKEND

import keras_vit
from keras_vit.checkpoints.files import open_checkpoint

pytest.importorskip("tensorflow", reason="keras_vit.data reads through tf.data")
pytest.importorskip("PIL", reason="keras_vit.data decodes with Pillow")

# More of them for a thorough trial.
KILLS = int(os.environ.get("KERAS_VIT_KILLS", "1"))

SETTINGS = (
    *("image_size=16", "patch_size=4", "hidden_dim=16", "num_layers=2", "num_heads=2"),
    *("mlp_dim=32", "epochs=6", "batch_size=8", "accumulation_steps=2", "warmup_steps=4"),
    *("dropout_rate=0.1", "drop_path_rate=0.1", "ema_decay=0.9", "layer_decay=0.8"),
    *("mixup=0.2", "cutmix=1.0", "randaugment=(2, 10)", "erasing=0.2", "seed=3"),
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three classes of 40 pictures; one file is none, one is cut short."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    for label in range(3):
        (folder / f"class {label}").mkdir()
        for index in range(40):
            pixels = harness.pixels((20, 18, 3), f"{label} {index}").astype("uint8")
            pixels[:, :, label] //= 2
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{index:02d}.png")
    (folder / "class 0" / "07.png").write_bytes(b"no picture")
    path = folder / "class 1" / "11.png"
    path.write_bytes(path.read_bytes()[:300])
    return folder


def command(pictures, output):
    return [
        *(sys.executable, "-m", "keras_vit", "train", "--data", pictures, "--model", "vit_ti16"),
        *("--recipe", "scratch", "--set", *SETTINGS, "--held-out", "0.2", "--no-report"),
        *("--checkpoint-minutes", "1e-9", "--output", output),
    ]


def start(pictures, output, **streams):
    environment = {**os.environ, "KERAS_BACKEND": BACKEND, "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["PYTHONPATH"] = str(harness.ROOT)
    return subprocess.Popen(
        list(map(str, command(pictures, output))), env=environment, cwd=output.parent, **streams
    )


def finish(pictures, output):
    process = start(pictures, output, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed, _ = process.communicate(timeout=250)
    assert process.returncode == 0, printed
    return printed


def states(output):
    folder = output / "checkpoints"
    return sorted(folder.glob("step-*.safetensors")) if folder.is_dir() else []


def kill_at_a_random_moment(pictures, output, chance):
    """Kills a run a while after it saved a new state; what lies there must be readable."""
    before = set(states(output))
    process = start(pictures, output, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 250
    while process.poll() is None and not set(states(output)) - before:
        assert time.monotonic() < deadline, "the run saved nothing"
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.wait()
    for path in states(output):
        with open_checkpoint(path) as store:
            for name in store.entries:
                store.read(name)


def losses(output):
    with open(output / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    timing = ("seconds", "images_per_second")
    return [{k: v for k, v in row.items() if k not in timing} for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(900 + 60 * KILLS)
def test_killed_runs_end_like_whole_ones(pictures, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(pictures, whole)
    chance = random.Random(f"{BACKEND} {KILLS}")
    for _ in range(KILLS):
        kill_at_a_random_moment(pictures, killed, chance)
    printed = finish(pictures, killed)
    assert "07.png" in printed and "11.png" in printed
    assert losses(killed) == losses(whole)
    assert len(losses(whole)) == 6
    one, other = (keras_vit.load_model(path / "model.keras") for path in (whole, killed))
    weights, expected = harness.parameters(other), harness.parameters(one)
    assert weights.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(harness.numpy(weights[path]), harness.numpy(value), path)
    assert not list((killed / "checkpoints").glob(".*"))
    # A run that is through is left as it is.
    again = (killed / "metrics.csv").read_bytes()
    finish(pictures, killed)
    assert (killed / "metrics.csv").read_bytes() == again
    assert np.isfinite([float(row["loss"]) for row in losses(killed)]).all()


def test_the_names_are_those_of_the_folders(pictures):
    source = keras_vit.data.open_source(pictures)
    assert source.class_names == ("class 0", "class 1", "class 2")
    assert Path(source.names([0])[0]).name == "00.png"
