"""Patches' tokens, their lengths and their principal components."""

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

VIT = {**harness.TINY_VIT, "image_shape": (16, 24, 3)}


@pytest.mark.parametrize(
    "options",
    harness.cases(
        {"plain": {}, "registers": {"num_registers": 2}, "gap": {"pooling": "gap"}}, {"registers"}
    ),
)
@pytest.mark.parametrize("layer", [0, -1])
def test_features_are_the_blocks_outputs(options, layer):
    model = keras_vit.VisionTransformer(**VIT, **options)
    harness.randomize(model)
    images = harness.pixels((2, 16, 24, 3))
    found = inspection.patch_features(model, images, layer)
    block = model.encoder_blocks[layer]
    tokens = harness.numpy(keras.Model(model.input, block.output)(images, training=False))
    assert found.shape == (2, 2, 3, 16) and found.dtype == "float32"
    prefix = model.num_prefix_tokens
    np.testing.assert_array_equal(found[1, 1, 2], tokens[1, prefix + 5])
    np.testing.assert_array_equal(found.reshape(2, 6, 16), tokens[:, prefix:])


def test_a_layer_that_is_not_there():
    model = keras_vit.VisionTransformer(**VIT)
    with pytest.raises(ValueError, match="2 blocks.*Received: -3"):
        inspection.patch_features(model, harness.pixels((1, 16, 24, 3)), -3)


def test_norms():
    features = harness.noise((2, 3, 4, 5))
    found = inspection.token_norms(features)
    assert found.dtype == "float32" and found.shape == (2, 3, 4)
    assert found[1, 2, 3] == pytest.approx(np.sqrt((features[1, 2, 3] ** 2).sum()))


def test_components_find_the_directions():
    """Two directions, the second one a third as strong, under a constant."""
    axes = np.linalg.qr(harness.noise((8, 8)).astype("float64"))[0][:2]
    where = np.array(list(np.ndindex(2, 4, 4)), "float64")
    where -= where.mean(0)
    features = (3.0 * where[:, 1:2] * axes[0] + where[:, 2:3] * axes[1] + 7.0).reshape(2, 4, 4, 8)
    found = inspection.principal_components(features.astype("float32"), 2)
    assert found.shape == (2, 4, 4, 2) and found.min() == 0 and found.max() == 1
    for component, axis in ((0, 1), (1, 2)):
        line = np.moveaxis(found[..., component], axis, 0).reshape(4, -1)
        steps = np.abs(np.diff(line, axis=0))
        np.testing.assert_allclose(steps, 1 / 3, atol=1e-5)
        assert np.ptp(line, axis=1).max() < 1e-5


def test_components_do_not_turn_over():
    features = harness.noise((1, 4, 4, 6))
    found = inspection.principal_components(features)
    np.testing.assert_allclose(
        inspection.principal_components(features[:, ::-1]), found[:, ::-1], atol=1e-5
    )


@pytest.mark.parametrize("count", [0, 5])
def test_components_that_are_not_there(count):
    with pytest.raises(ValueError, match=rf"1 to 4.*Received: {count}"):
        inspection.principal_components(harness.noise((1, 2, 2, 6)), count)


def test_features_that_are_not_finite():
    features = np.ones((1, 2, 2, 6), "float32")
    features[0, 0, 1, 3] = np.nan
    with pytest.raises(ValueError, match="features.*finite"):
        inspection.principal_components(features)


def test_equal_features_have_no_components():
    found = inspection.principal_components(np.ones((1, 3, 3, 4), "float32"))
    assert np.isfinite(found).all()
