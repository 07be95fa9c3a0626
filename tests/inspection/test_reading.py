"""What the output reads, and maps at the size of a picture."""

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

VIT = {**harness.TINY_VIT, "image_shape": (16, 24, 3)}
IMAGES = harness.pixels((2, 16, 24, 3))


def vit(**options):
    model = keras_vit.VisionTransformer(**{**VIT, **options})
    harness.randomize(model)
    return model


@pytest.mark.parametrize(
    "options",
    harness.cases(
        {"plain": {}, "registers": {"num_registers": 3}, "distilled": {"distillation": "head"}},
        {"plain", "distilled"},
    ),
)
@pytest.mark.parametrize("layer", [None, 0])
def test_class_token(options, layer):
    model = vit(**options)
    found = inspection.output_attention(model, IMAGES, layer)
    scores = inspection.attention_maps(model, IMAGES)[-1 if layer is None else layer]
    assert found.shape == (2, 2, 2, 3)
    prefix = model.num_prefix_tokens
    for y, x in np.ndindex(2, 3):
        # DeiT's second head reads the distillation token.
        rows = scores[:, :, :2] if options.get("distillation") else scores[:, :, :1]
        expected = rows.mean(2)[..., prefix + 3 * y + x]
        np.testing.assert_allclose(found[:, :, y, x], expected, atol=1e-6)


def test_mean_of_patches():
    model = vit(pooling="gap", class_token=False)
    found = inspection.output_attention(model, IMAGES)
    scores = inspection.attention_maps(model, IMAGES)[-1]
    np.testing.assert_allclose(found.reshape(2, 2, 6), scores.mean(2), atol=1e-6)
    np.testing.assert_allclose(found.sum((2, 3)), 1, atol=1e-5)


def test_pooling_that_attends():
    model = vit(pooling="map", class_token=False)
    found = inspection.output_attention(model, IMAGES)
    tokens = keras.Model(model.input, model.get_layer("pooling").input)(IMAGES, training=False)
    _, scores = model.get_layer("pooling")(tokens, return_attention_scores=True)
    np.testing.assert_allclose(found.reshape(2, 2, 6), harness.numpy(scores)[:, :, 0], atol=1e-6)
    np.testing.assert_allclose(found.sum((2, 3)), 1, atol=1e-5)
    last = inspection.output_attention(model, IMAGES, -1)
    assert np.abs(last - found).max() > 1e-3
