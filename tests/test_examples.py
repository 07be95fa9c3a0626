"""The examples run, and read their data with care."""

import gzip
import json
import sys
from pathlib import Path

import harness
import keras
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
from _fashion_mnist_data import load, read_idx  # noqa: E402


def run(script, *arguments, folder):
    return harness.run_interpreter(EXAMPLES / script, "--smoke", *arguments, folder=folder)


def idx(array):
    dimensions = np.array([0x800 + array.ndim, *array.shape], ">u4")
    return dimensions.tobytes() + array.astype("uint8").tobytes()


@pytest.fixture
def pictures(tmp_path):
    """A folder as Debian's: 70 training and 66 test pictures, gzipped or not."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    for split, count in (("train", 70), ("t10k", 66)):
        images, labels = rng.integers(0, 256, (count, 28, 28)), rng.integers(0, 10, count)
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder


@pytest.mark.slow
def test_quickstart(tmp_path):
    printed = run("quickstart.py", "--output", tmp_path, folder=tmp_path)
    assert "test accuracy" in printed
    assert "digits the model never saw" in printed
    assert (tmp_path / "quickstart_digits.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "quickstart_digits.keras").stat().st_size > 100_000


@pytest.mark.slow
def test_fashion_mnist(tmp_path, pictures):
    run("fashion_mnist.py", "--data", pictures, "--output", tmp_path / "out", folder=tmp_path)
    report = json.loads((tmp_path / "out" / "fashion_mnist.json").read_text())
    assert report["parameters"] < 2_000_000
    assert 0 <= report["test_accuracy"] <= 1
    assert report["backend"] == keras.backend.backend()
    assert report["device"]
    assert (tmp_path / "out" / "fashion_mnist.keras").exists()


@pytest.mark.slow
def test_position_ablation_goes_on_where_it_stopped(tmp_path, pictures):
    arguments = ("--data", pictures, "--output", tmp_path / "out")
    first = run("position_ablation.py", *arguments, "--kinds", "none", folder=tmp_path)
    assert "none, seed 0" in first
    second = run("position_ablation.py", *arguments, "--kinds", "none", "relative", folder=tmp_path)
    assert "none, seed 0" not in second
    assert "relative, seed 0" in second
    assert second.endswith((tmp_path / "out" / "positions.md").read_text())
    assert len(second.split("| relative |")) == 2


def test_reads_idx_files(pictures):
    (images, labels), (test_images, _) = load(pictures)
    assert images.shape == (70, 28, 28, 1)
    assert (images.dtype, labels.dtype) == ("uint8", "int32")
    assert test_images.shape == (66, 28, 28, 1)


def test_damaged_idx_files_are_named(pictures):
    path = pictures / "train-images-idx3-ubyte.gz"
    whole = gzip.decompress(path.read_bytes())
    damages = {
        b"not gzip": "no whole gzip file",
        path.read_bytes()[:-20]: "no whole gzip file",
        gzip.compress(whole[:-5]): "should hold",
        gzip.compress(whole[:7]): "no IDX file",
        gzip.compress(b"\x00" * 100): "no IDX file",
    }
    for damaged, message in damages.items():
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{path.name}.*{message}"):
            read_idx(pictures, "train-images-idx3-ubyte", 3)
    path.unlink()
    with pytest.raises(ValueError, match="No file train-images-idx3-ubyte"):
        load(pictures)


def test_images_and_labels_must_agree(pictures):
    (pictures / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(3)))
    with pytest.raises(ValueError, match="70 images in train-images.*3 labels"):
        load(pictures)


def test_augmentation_keeps_pictures_and_labels_together():
    from fashion_mnist import Augmented

    # Each picture is one grey level, its label; noise boxes are off.
    levels = np.arange(1, 24)
    images = np.broadcast_to(levels[:, None, None, None], (23, 28, 28, 1)).astype("uint8")
    batches = Augmented(images, levels, batch_size=5, seed=0, shift=2, box=1)
    assert len(batches) == 5
    seen = [batches[index] for index in range(len(batches))]
    for pictures_, labels in seen:
        np.testing.assert_array_equal(pictures_.max((1, 2, 3)), labels)
        np.testing.assert_array_equal(pictures_[:, 14, 14, 0], labels)
    assert sorted(np.concatenate([labels for _, labels in seen])) == list(levels)
