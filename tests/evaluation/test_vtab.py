"""The VTAB-style protocol: which pictures go where, what is in the table, what is left out."""

import json

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation import fine_tune_adapter, probe_adapter, run_vtab

pytest.importorskip("tensorflow", reason="keras_vit.data is made of tf.data")

SHADES = np.array([30, 120, 220])
VIT = {"image_shape": (8, 8, 3), "patch_size": 4, "hidden_dim": 12, "num_layers": 1}
VIT |= {"num_heads": 2, "mlp_dim": 13, "num_classes": 4}


def shades(count, name, spread=20):
    """Pictures whose brightness tells the class; the first pixel numbers them."""
    rng = harness.random_for(name)
    labels = rng.integers(0, 3, count)
    images = SHADES[labels][:, None, None, None] + rng.normal(0, spread, (count, 8, 8, 3))
    images = np.clip(images, 0, 255).astype("uint8")
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(count) // 250, np.arange(count) % 250
    return images, labels


def numbers(images):
    return images[:, 0, 0, 0].astype(int) * 250 + images[:, 0, 0, 1]


TRAIN, TEST = shades(90, "train"), shades(60, "test")


class Recorder:
    """Adapts to nothing: gives the class by brightness, and remembers what it was given."""

    def __init__(self):
        self.calls, self.tested = [], []

    def __call__(self, train, validation, num_classes):
        self.calls.append((train, validation, num_classes))
        self.tested.append([])

        def predict(images):
            self.tested[-1].append(numbers(images))
            distance = images.mean((1, 2, 3))[:, None] - SHADES
            return -np.abs(distance)

        return predict


def run(datasets, adapt=None, **options):
    options = {"train": 40, "validation": 10, "progress": False, **options}
    return run_vtab(datasets, adapt or Recorder(), 8, **options)


def test_pictures_are_drawn_once_and_tested_whole():
    recorder = Recorder()
    result = run({"shades": (TRAIN, TEST)}, recorder, batch_size=25)
    (row,) = result.rows
    (train, validation, classes) = recorder.calls[0]
    assert classes == 3 and len(train[1]) == 40 and len(validation[1]) == 10
    drawn = np.concatenate([numbers(train[0]), numbers(validation[0])])
    assert len(set(drawn)) == 50
    for images, labels in (train, validation):
        np.testing.assert_array_equal(images, TRAIN[0][numbers(images)])
        np.testing.assert_array_equal(labels, TRAIN[1][numbers(images)])
    np.testing.assert_array_equal(np.concatenate(recorder.tested[0]), np.arange(60))
    right = np.abs(TEST[0].mean((1, 2, 3))[:, None] - SHADES).argmin(1) == TEST[1]
    assert row.accuracy == pytest.approx(right.mean())
    assert (row.train, row.validation, row.test, row.classes) == (40, 10, 60, 3)


def test_seeds():
    draws = []
    for seed in (0, 0, 1):
        recorder = Recorder()
        run([(TRAIN, TEST)], recorder, seed=seed)
        draws.append(numbers(recorder.calls[0][0][0]))
    np.testing.assert_array_equal(draws[0], draws[1])
    assert set(draws[0]) != set(draws[2])


def test_without_a_test_split_the_rest_is_tested():
    recorder = Recorder()
    result = run([TRAIN], recorder)
    drawn = np.concatenate([numbers(part[0]) for part in recorder.calls[0][:2]])
    tested = np.concatenate(recorder.tested[0])
    assert sorted([*drawn, *tested]) == list(range(90))
    assert result.rows[0].tested_on == "rest of the training pictures"


def test_a_small_training_split_is_parted_in_five():
    small = tuple(part[:20] for part in TRAIN)
    (row,) = run([(small, TEST)]).rows
    assert (row.train, row.validation) == (16, 4)


def test_what_cannot_be_had_is_named_and_the_rest_goes_on(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    datasets = {
        "first": (TRAIN, TEST),
        "gone": str(tmp_path / "gone"),
        "empty": str(tmp_path / "empty"),
        "not prepared": "tfds:no_such_data_set_at_all",
        "too few": tuple(part[:2] for part in TRAIN),
        "more classes": (TRAIN, (TEST[0], TEST[1] + 1)),
        "last": TRAIN,
    }
    result = run(datasets, progress=True)
    assert [row.name for row in result.rows] == list(datasets)
    done = [row for row in result.rows if row.accuracy is not None]
    assert [row.name for row in done] == ["first", "last"]
    assert result.mean == pytest.approx(np.mean([row.accuracy for row in done]))
    text = result.text()
    for row in result.rows:
        assert row.name in text
        if row.accuracy is None:
            assert row.reason and f"left out: {row.reason}" in text
    assert "gone" in result.rows[1].reason and "too few" in result.rows[4].reason
    assert text.splitlines()[-1].split()[:3] == ["mean", f"{result.mean:.2%}", "of"]
    assert text.endswith("of 2 of 7 data sets")
    loaded = json.loads(result.json())
    assert loaded["mean"] == result.mean and loaded["rows"][1]["accuracy"] is None
    assert capsys.readouterr().err.count("vtab ") == 7
    assert run({"gone": str(tmp_path / "gone")}).mean is None


def test_a_folder_of_pictures_with_a_broken_one(tmp_path):
    import keras

    for split, (images, labels) in {"train": TRAIN, "test": TEST}.items():
        for index, (image, label) in enumerate(zip(images[:60], labels, strict=False)):
            folder = tmp_path / split / f"class {label}"
            folder.mkdir(parents=True, exist_ok=True)
            keras.utils.save_img(folder / f"{index:03d}.png", image, scale=False)
    (tmp_path / "test" / "class 0" / "broken.png").write_bytes(b"\x89PNG")
    recorder = Recorder()
    (row,) = run([str(tmp_path)], recorder).rows
    assert row.name == str(tmp_path)
    assert (row.train, row.validation, row.test) == (40, 10, 60)
    assert row.accuracy > 0.9


def test_an_error_of_adapt_goes_through():
    def adapt(train, validation, num_classes):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run([TRAIN], adapt)


@pytest.fixture(scope="module")
def model():
    model = keras_vit.VisionTransformer(**VIT)
    harness.randomize(model)
    return model


def test_the_probe(model):
    before = harness.snapshot(model)
    (row,) = run([(TRAIN, TEST)], probe_adapter(model, batch_size=20)).rows
    assert row.accuracy > 0.8
    harness.assert_same(harness.snapshot(model), before)


def test_fine_tuning(model):
    before = harness.snapshot(model)
    rates = (1e-6, 0.03)
    adapter = fine_tune_adapter(model, learning_rates=rates, steps=30, batch_size=20)
    (row,) = run([(TRAIN, TEST)], adapter).rows
    # The lower rate learns nothing from a head of zeros: the other must have been chosen.
    assert row.accuracy > 0.8
    harness.assert_same(harness.snapshot(model), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": []}, "`datasets`.*none"),
        ({"datasets": "tfds:mnist"}, "list of data sets"),
        ({"train": 0}, "`train`"),
        ({"validation": -1}, "`validation`"),
        ({"seed": -1}, "`seed`"),
        ({"batch_size": 0}, "`batch_size`"),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        run(**{"datasets": [TRAIN], **options})


def test_adapters_check(model):
    with pytest.raises(ValueError, match="`learning_rates`"):
        fine_tune_adapter(model, learning_rates=())
    with pytest.raises(ValueError, match="`steps`"):
        fine_tune_adapter(model, steps=0)
