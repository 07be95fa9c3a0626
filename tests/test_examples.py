"""The examples run, and read their data with care."""

import gzip
import itertools
import json
import sys
from pathlib import Path

import harness
import keras
import numpy as np
import pytest

import keras_vit

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
    assert report["recipe"]["randaugment"] == [2, 10]
    assert 0 <= report["test_accuracy"] <= 1
    assert report["backend"] == keras.backend.backend()
    assert report["device"]
    assert (tmp_path / "out" / "model.keras").exists()


@pytest.mark.slow
@harness.once("what it calls is tested on each backend")
def test_understanding_vit(tmp_path, pictures):
    arguments = ("--data", pictures, "--output", tmp_path / "out")
    printed = run("understanding_vit.py", *arguments, folder=tmp_path)
    assert "test accuracy" in printed
    for name in ("figure_7.png", "looked.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    assert "trousers" in (tmp_path / "out" / "report.html").read_text("utf-8")


@pytest.mark.slow
@harness.once("what it calls is tested on each backend")
def test_understanding_vit_of_a_checkpoint(tmp_path):
    image = pytest.importorskip("PIL.Image").fromarray(harness.pixels((40, 60, 3)).astype("uint8"))
    image.save(tmp_path / "a.png")
    model = keras_vit.VisionTransformer(**{**harness.TINY_VIT, "num_classes": None})
    keras_vit.to_checkpoint(model, tmp_path / "m.npz", format="google")
    arguments = ("--model", tmp_path / "m.npz", "--pictures", tmp_path / "*.png")
    arguments += ("--image-size", "16", "--output", tmp_path / "out")
    printed = run("understanding_vit.py", *arguments, folder=tmp_path)
    assert "test accuracy" not in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("figure_7.png", "looked.png", "report.html"),
    }


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


@pytest.mark.slow
def test_transfer_goes_on_where_it_stopped(tmp_path, pictures):
    arguments = ("--data", pictures, "--output", tmp_path / "out")
    first = run("transfer.py", *arguments, folder=tmp_path)
    assert "scratch, 20 pictures, seed 0" in first and "pre-trained, 20 pictures" in first
    second = run("transfer.py", *arguments, folder=tmp_path)
    assert second.strip() == (tmp_path / "out" / "transfer.md").read_text().strip()
    assert (tmp_path / "out" / "transfer.png").read_bytes().startswith(b"\x89PNG")


LEVELS = np.arange(1, 24)


def feed_of(**fields):
    from _small_picture_feed import SmallPictureFeed

    # Each picture is one grey level, its label.
    images = np.broadcast_to(LEVELS[:, None, None, None], (23, 28, 28, 1)).astype("uint8")
    recipe = keras_vit.training.Recipe(epochs=1, batch_size=5, seed=3, **fields)
    return SmallPictureFeed(images, LEVELS - 1, recipe, 23, "levels")


def test_small_pictures_keep_their_labels_and_all_are_seen():
    feed = feed_of(crop="inception")
    seen = [feed.batch(number, 5) for number in range(46 // 5 + 1)]
    for images, targets in seen:
        np.testing.assert_array_equal(images[:, 14, 14, 0], targets.argmax(-1) + 1)
    order = np.concatenate([targets.argmax(-1) for _, targets in seen])
    # Batches run on across epochs: each epoch shows each picture once.
    assert sorted(order[:23]) == sorted(order[23:46]) == list(range(23))
    assert list(order[:23]) != list(order[23:46])


def test_small_pictures_are_a_function_of_the_batch_number():
    fields = {"randaugment": (2, 15), "mixup": 0.5, "cutmix": 1.0, "erasing": 0.5}
    one, other = feed_of(**fields), feed_of(**fields)
    later = next(itertools.islice(one.batches(2, 5), 1, None))
    for mine, theirs in zip(later, other.batch(3, 5), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    images, targets = later
    np.testing.assert_allclose(targets.sum(-1), 1, rtol=1e-6)
    assert images.shape == (5, 28, 28, 1) and images.dtype == "uint8"


def test_a_picture_seen_through_the_identity_is_the_same():
    from _small_picture_feed import warp

    images = np.random.default_rng(0).uniform(0, 255, (3, 7, 5, 1)).astype("float32")
    eye = np.tile(np.eye(2, dtype="float32"), (3, 1, 1))
    still = warp(images, eye, np.zeros((3, 2), "float32"), 0.0)
    np.testing.assert_allclose(still, images, atol=1e-3)
    moved = warp(images, eye, np.tile(np.float32([[1, 0]]), (3, 1)), 9.0)
    np.testing.assert_allclose(moved[:, :-1], images[:, 1:], atol=1e-3)
    np.testing.assert_allclose(moved[:, -1], 9.0)
