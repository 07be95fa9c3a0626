"""`train` as users call it: what a run comes to, what stops it, and that it goes on afterwards."""

import csv
import json
import shutil

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint

pytest.importorskip("tensorflow", reason="keras_vit.data reads through tf.data")
pytest.importorskip("PIL", reason="keras_vit.data decodes with Pillow")

from keras_vit.training import NonFiniteLossError, Recipe, train

CONFIG = {
    "image_shape": (16, 16, 3),
    "patch_size": 8,
    "hidden_dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 32,
    "num_classes": 3,
}
LABELS = np.arange(24) % 3
RECIPE = Recipe(epochs=2, batch_size=8, crop="squash", flip=False)


def pictures():
    """24 pictures of 3 classes, each class in a colour of its own."""
    images = harness.pixels((24, 16, 16, 3), high=80.0)
    images[np.arange(24), :, :, LABELS] += 150
    return images.astype("uint8")


IMAGES = pictures()


def model_of(**changes):
    """A model whose weights its own paths decide."""
    model = keras_vit.VisionTransformer(**{**CONFIG, **changes})
    harness.randomize(model)
    return model


def fit(recipe=RECIPE, output=None, model=None, data=(IMAGES, LABELS), **options):
    model = model_of() if model is None else model
    return train(model, data, recipe, output, verbose=False, report=False, **options)


def weights(model):
    return {path: harness.numpy(v) for path, v in harness.parameters(model).items()}


def assert_same_weights(model, expected):
    harness.assert_same(weights(model), weights(expected))


def crossentropy(logits, labels):
    shifted = logits - logits.max(-1, keepdims=True)
    return -(shifted[np.arange(len(labels)), labels] - np.log(np.exp(shifted).sum(-1)))


def measured(result):
    """The rows of the history, without times."""
    times = ("seconds", "images_per_second")
    return [{k: v for k, v in row.items() if k not in times} for row in result.history]


@pytest.fixture(scope="module")
def plain():
    """What the recipe comes to; treat as read-only."""
    return fit()


class StopAt(keras.callbacks.Callback):
    """Interrupts before batch `number` of the process."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def on_train_batch_begin(self, batch, logs=None):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1


class Pixels:
    """A feed of the user's own; batch `broken` has pixels that are no numbers."""

    size = 24
    description = "pixels"

    def __init__(self, broken=None):
        self.broken = broken

    def batches(self, start, batch_size):
        number = start
        while True:
            chosen = self._indices(number, batch_size)
            images = IMAGES[chosen].astype("float32")
            if number == self.broken:
                images[0] = np.nan
            yield images, LABELS[chosen].astype("int32")
            number += 1

    def _indices(self, number, batch_size):
        return (number * batch_size + np.arange(batch_size)) % self.size

    def names_of_batch(self, number, batch_size):
        return [f"picture {index}" for index in self._indices(number, batch_size)]

    def note(self):
        return {}

    def restore(self, note):
        pass


# What a run comes to ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, steps",
    [
        ({"epochs": 1.4}, [3, 4]),
        ({"steps": 5, "accumulation_steps": 2}, [3, 5]),
        ({"batch_size": 100}, [1, 2]),
    ],
)
def test_steps_of_each_epoch(changes, steps):
    result = fit(RECIPE.replace(**changes))
    assert [row["step"] for row in result.history] == steps
    assert [row["epoch"] for row in result.history] == [1, 2][: len(steps)]
    assert np.isfinite([row["loss"] for row in result.history]).all()


@pytest.mark.parametrize("ema", [None, 0.5])
def test_it_learns_and_validation_is_that_of_the_model_that_comes_out(tmp_path, ema):
    recipe = RECIPE.replace(epochs=6, learning_rate=3e-3, ema_decay=ema)
    result = fit(recipe, tmp_path / "run", validation=(IMAGES, LABELS))
    logits = result.model.predict(IMAGES, verbose=0, batch_size=24)
    last = result.history[-1]
    assert last["val_accuracy"] == pytest.approx((logits.argmax(-1) == LABELS).mean(), abs=1e-6)
    assert last["val_loss"] == pytest.approx(crossentropy(logits, LABELS).mean(), rel=1e-4)
    assert last["val_loss"] < 0.5 * result.history[0]["val_loss"]
    saved = keras_vit.load_model(tmp_path / "run" / "model.keras")
    assert_same_weights(saved, result.model)
    with open(tmp_path / "run" / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    assert rows == result.history


def test_accumulated_batches_are_one():
    recipe = RECIPE.replace(optimizer="sgd", learning_rate=0.05, weight_decay=0.1, clip_norm=1.0)
    whole, parts = fit(recipe).model, fit(recipe.replace(accumulation_steps=4)).model
    for path, value in weights(whole).items():
        np.testing.assert_allclose(weights(parts)[path], value, atol=2e-5, err_msg=path)


@pytest.mark.parametrize("blocks", [0, 1])
def test_only_the_last_blocks_change(blocks):
    before = weights(model_of())
    result = fit(RECIPE.replace(train_blocks=blocks, weight_decay=0.1))
    after = weights(result.model)
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    above = ("head/", "encoder_norm/") if blocks else ("head/",)
    names = [*above, *(f"encoder_block_{1 - i}/" for i in range(blocks))]
    assert changed == {path for path in before if any(name in path for name in names)}
    assert all(layer.trainable for layer in result.model.layers)


def test_low_rank_updates_are_merged():
    before = weights(model_of())
    after = weights(fit(RECIPE.replace(lora_rank=2, learning_rate=1e-2)).model)
    assert after.keys() == before.keys()
    for path, old in before.items():
        moved = after[path] - old
        if "head/" in path:
            assert moved.any(), path
        elif path.endswith("kernel") and "encoder_block" in path and "attention" not in path:
            assert np.linalg.matrix_rank(moved, tol=1e-5) == 2, path
        elif not path.endswith("kernel") or "encoder_block" not in path:
            assert not moved.any(), path


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_distillation(kind):
    teacher, student = model_of(), model_of()
    for variable in teacher.weights:
        variable.assign(variable * 1.3)
    # The loss of the first update is that of the weights at the beginning.
    logits, wanted = (m.predict(IMAGES, verbose=0, batch_size=24) for m in (student, teacher))
    recipe = RECIPE.replace(
        distillation=kind, distillation_weight=0.3, steps=1, batch_size=24, temperature=2.0
    )
    result = fit(recipe, model=student, teacher=teacher)
    if kind == "hard":
        term = crossentropy(logits, wanted.argmax(-1)).mean()
    else:
        goal, mine = (
            np.exp(x / 2) / np.exp(x / 2).sum(-1, keepdims=True) for x in (wanted, logits)
        )
        term = 4 * (goal * np.log(goal / mine)).sum(-1).mean()
    expected = 0.7 * crossentropy(logits, LABELS).mean() + 0.3 * term
    assert result.history[0]["loss"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "dtype", ["mixed_bfloat16", "bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)]
)
def test_half_precision(plain, dtype, tmp_path):
    recipe = RECIPE.replace(dtype=dtype, ema_decay=0.9, clip_norm=1.0, epochs=1)
    result = fit(recipe, tmp_path / "run", model_of(dtype=dtype))
    kernel = next(v for v in result.model.weights if v.path.endswith("fc1/kernel"))
    stored = keras.backend.standardize_dtype(kernel.dtype)
    assert stored == ("bfloat16" if dtype == "bfloat16" else "float32")
    assert result.history[0]["loss"] == pytest.approx(plain.history[0]["loss"], rel=0.1)
    if dtype == "mixed_bfloat16":
        return
    again = fit(recipe, tmp_path / "run", model_of(dtype=dtype))  # from the state in half precision
    assert_same_weights(again.model, result.model)


def test_one_class():
    result = fit(model=model_of(num_classes=1), data=(IMAGES, LABELS * 0))
    assert [row["loss"] for row in result.history] == [0.0, 0.0]
    assert result.history[-1]["accuracy"] == 1.0


# What cannot be trained ---------------------------------------------------------------------


def resnet():
    return keras_vit.BiTResNet(
        image_shape=(32, 32, 3), block_counts=(1,), width_factor=1, num_classes=3
    )


@pytest.mark.parametrize(
    "make, recipe, options, words",
    [
        (model_of, {}, {"data": (IMAGES, LABELS + 1)}, "label .* is 3.* 3 classes"),
        (model_of, {}, {"data": (IMAGES, LABELS - 1)}, r"`labels` must lie in \[0, 2\).*-1"),
        (model_of, {}, {"validation": (IMAGES, LABELS + 1)}, "label .* is 3.* 3 classes"),
        (model_of, {"train_blocks": 3}, {}, "2 blocks"),
        (model_of, {"image_size": 32}, {}, "image_shape"),
        (model_of, {"distillation": "hard"}, {}, "`teacher`"),
        (model_of, {}, {"keep": 0}, "`keep`"),
        (model_of, {}, {"checkpoint_minutes": 0}, "`checkpoint_minutes`"),
        (resnet, {"layer_decay": 0.8}, {}, "VisionTransformer.*BiTResNet"),
        (resnet, {"lora_rank": 2}, {}, "VisionTransformer.*BiTResNet"),
        (resnet, {"train_blocks": 1}, {}, "VisionTransformer.*BiTResNet"),
        (lambda: model_of(num_classes=None), {}, {}, "num_classes=None"),
        (lambda: model_of(classifier_activation="softmax"), {}, {}, "'softmax'"),
    ],
)
def test_what_does_not_fit_leaves_nothing(tmp_path, make, recipe, options, words):
    with pytest.raises(ValueError, match=words):
        fit(RECIPE.replace(**recipe), tmp_path / "run", make(), **options)
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_other_classes(tmp_path):
    recipe = RECIPE.replace(distillation="soft")
    with pytest.raises(ValueError, match="`teacher`.*3"):
        fit(recipe, tmp_path / "run", teacher=model_of(num_classes=4))
    assert not (tmp_path / "run").exists()


def test_the_directory_of_another_run(tmp_path):
    fit(output=tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    kept = config.read_text(encoding="utf-8")
    model = (tmp_path / "run" / "model.keras").read_bytes()
    for changes, words in (
        ({"recipe": RECIPE.replace(seed=3)}, "recipe.seed: 0 there, 3 now"),
        ({"data": (IMAGES[:20], LABELS[:20])}, "data.examples: 24 there, 20 now"),
        ({"model": model_of(mlp_dim=48)}, "model.mlp_dim: 32 there, 48 now"),
        ({"validation": (IMAGES, LABELS)}, "data.validation"),
    ):
        with pytest.raises(ValueError, match=words):
            fit(output=tmp_path / "run", **changes)
    other = json.loads(kept)
    other["backend"] = "abacus"
    for text in (kept[:60], "[]", "{}", '{"recipe": 3}', "\xff", json.dumps(other)):
        config.write_text(text, encoding="latin1")
        words = "backend: abacus there" if "abacus" in text else "config.json cannot be read"
        with pytest.raises(ValueError, match=words):
            fit(output=tmp_path / "run")
        assert config.read_text(encoding="latin1") == text
    assert (tmp_path / "run" / "model.keras").read_bytes() == model


def test_a_directory_with_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"other files \(notes.txt\)"):
        fit(output=tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        fit(output=tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


# Going on -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"lora_rank": 2}, pytest.param({"ema_decay": 0.8, "mixup": 0.2}, marks=pytest.mark.slow)],
)
def test_an_interrupted_run_goes_on(tmp_path, changes):
    recipe = RECIPE.replace(accumulation_steps=2, clip_norm=1.0, **changes)
    options = {"checkpoint_minutes": 1e-9}
    whole = fit(recipe, **options)
    with pytest.raises(KeyboardInterrupt):
        fit(recipe, tmp_path / "run", callbacks=[StopAt(4)], **options)
    result = fit(recipe, tmp_path / "run", **options)
    assert measured(result) == measured(whole)
    assert_same_weights(result.model, whole.model)


def test_damaged_states(plain, tmp_path):
    fit(output=tmp_path / "run")
    older, newest = sorted((tmp_path / "run" / "checkpoints").iterdir())
    shutil.rmtree(tmp_path / "run" / "logs", ignore_errors=True)
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=f"Went back to .*{older.name}.*{newest.name}"):
        result = fit(output=tmp_path / "run")
    assert measured(result) == measured(plain)
    assert_same_weights(result.model, plain.model)
    for path in (older, newest):
        path.write_bytes(b"no state")
    with pytest.raises(CheckpointError, match="No state in .*another output"):
        fit(output=tmp_path / "run")


def assert_finite(folder):
    paths = list((folder / "checkpoints").iterdir())
    for path in paths:
        with open_checkpoint(path) as store:
            for name in store.entries:
                value = store.read(name).astype("float64")
                assert "random" in name or np.isfinite(value).all(), (path.name, name)
    return sorted(path.name for path in paths)


def test_broken_pixels_stop_a_run_and_it_goes_on_without_them(tmp_path):
    whole = fit(data=Pixels())
    options = {"checkpoint_minutes": 1e-9, "keep": 9}
    with pytest.raises(NonFiniteLossError) as caught:
        fit(output=tmp_path / "run", data=Pixels(broken=4), **options)
    message = str(caught.value)
    assert "nan at step 5." in message and "learning rate" in message
    assert all(f"picture {index}," in message for index in range(8, 15))
    assert assert_finite(tmp_path / "run")[-1] == "step-000000004.safetensors"
    assert not (tmp_path / "run" / "model.keras").exists()
    result = fit(output=tmp_path / "run", data=Pixels(), **options)
    assert measured(result) == measured(whole)
    assert_same_weights(result.model, whole.model)


def test_a_learning_rate_that_is_too_high(tmp_path):
    recipe = RECIPE.replace(learning_rate=1e38, epochs=4)
    with pytest.raises(NonFiniteLossError, match="learning rate"):
        fit(recipe, tmp_path / "run", checkpoint_minutes=1e-9)
    assert_finite(tmp_path / "run")
    assert not (tmp_path / "run" / "model.keras").exists()
