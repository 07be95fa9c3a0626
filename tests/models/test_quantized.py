"""Quantized models: saved and loaded as they are, and refused where floats are needed."""

import functools

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import AdamW, swap_averages

BLOCKS = r"(qkv|out|fc1|fc2)$"
X = harness.pixels((4, 16, 16, 3))
Y = np.arange(4) % 3
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")


@functools.cache
def quantized(mode):
    model = keras_vit.VisionTransformer(**harness.TINY_VIT)
    harness.randomize(model)
    model.quantize(mode, filters=BLOCKS)
    return model


@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_saved_and_loaded(mode, tmp_path):
    model = quantized(mode)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load_model(tmp_path / "model.keras")
    kinds = [v.dtype for v in model.encoder_blocks[1].variables]
    assert [v.dtype for v in loaded.encoder_blocks[1].variables] == kinds
    assert loaded.get_layer("head").quantization_mode is None
    np.testing.assert_array_equal(*(harness.numpy(m(X)) for m in (loaded, model)))


@pytest.mark.parametrize(
    ("name", "do"),
    [
        (
            "to_checkpoint",
            lambda model, path: keras_vit.to_checkpoint(model, path, format="timm"),
        ),
        ("rebuild", lambda model, path: keras_vit.replace_head(model, 7)),
        ("rebuild", lambda model, path: keras_vit.resize(model, (32, 32, 3))),
    ],
    ids=["to_checkpoint", "replace_head", "resize"],
)
def test_what_needs_floats_says_so(name, do, tmp_path):
    path = tmp_path / "file.safetensors"
    with pytest.raises(ValueError, match=rf"{name}.* 8 layers .* to int8.*before `quantize`"):
        do(quantized("int8"), path)
    assert not path.exists()


def test_float8_trains():
    """Scales, whose next values come as gradients, are neither clipped nor averaged over."""
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(**harness.TINY_VIT)
    harness.randomize(model)
    model.quantize("float8", filters=BLOCKS)
    model.compile(
        AdamW(3e-3, clip_norm=0.5, ema_decay=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    losses = model.fit(X, Y, 4, epochs=8, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    dense = model.encoder_blocks[0].mlp.fc1
    # What its inputs came to at their largest, and the scale of that.
    largest = float(harness.numpy(dense.inputs_amax_history).max())
    assert 0.5 < largest < 10.0
    assert float(harness.numpy(dense.inputs_scale)) == pytest.approx(largest / 448.0, rel=0.3)
    pairs = zip(model.trainable_variables, model.optimizer.averages, strict=True)
    known = {variable.path: average for variable, average in pairs}
    assert known[dense.inputs_scale.path] is None and known[dense.kernel.path] is not None
    before = harness.numpy(model(X))
    swap_averages(model)
    assert np.abs(harness.numpy(model(X)) - before).max() > 1e-4
