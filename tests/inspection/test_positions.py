"""Similarity of positions, and filters of patches."""

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

VIT = {**harness.TINY_VIT, "image_shape": (16, 24, 3)}
# What no backend has a part in runs once.
anywhere = harness.once("no backend has a part in it")


def vit(**options):
    model = keras_vit.VisionTransformer(**{**VIT, **options})
    harness.randomize(model)
    return model


def similar(rows, shape):
    rows = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return (rows @ rows.T).reshape(*shape, *shape)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_registers": 2, "distillation": "head"},
        {"class_token_position": False},
        {"position_placement": "shared"},
    ],
    ids=str,
)
def test_learned_positions(options):
    model = vit(**options)
    name = "position_embedding/embedding"
    (table,) = (harness.numpy(v) for v in model.weights if v.path.endswith(name))
    found = inspection.position_similarity(model)
    assert found.shape == (2, 3, 2, 3) and found.dtype == "float32"
    np.testing.assert_allclose(found, similar(table[-6:], (2, 3)), atol=1e-5)
    np.testing.assert_allclose([found[y, x, y, x] for y, x in np.ndindex(2, 3)], 1, atol=1e-6)


def test_positions_of_rows_and_columns():
    model = vit(position_embedding="learned_2d")
    x, y = (
        harness.numpy(v)
        for axis in ("x_embedding", "y_embedding")
        for v in model.weights
        if v.path.endswith(axis)
    )
    rows = np.array([[*x[j], *y[i]] for i, j in np.ndindex(2, 3)])
    np.testing.assert_allclose(
        inspection.position_similarity(model), similar(rows, (2, 3)), atol=1e-5
    )


@anywhere
def test_fixed_positions_are_alike_where_places_are_near():
    found = inspection.position_similarity(
        vit(position_embedding="sincos2d", image_shape=(72, 72, 3))
    )
    line = found[4, 4, 4, 4:]
    assert line[0] > line[1] > line[2]


@anywhere
def test_each_layer_has_its_own():
    model = vit(position_placement="every_layer")
    first, last = (inspection.position_similarity(model, layer) for layer in (0, -1))
    assert np.abs(first - last).max() > 1e-3
    np.testing.assert_array_equal(inspection.position_similarity(model, 1), last)
    with pytest.raises(ValueError, match="2 blocks.*Received: 2"):
        inspection.position_similarity(model, 2)


@pytest.mark.parametrize("kind", ["none", "relative"])
@anywhere
def test_models_without_added_positions(kind):
    with pytest.raises(ValueError, match=f"added to tokens.*{kind!r}"):
        inspection.position_similarity(vit(position_embedding=kind))


def test_filters_are_the_components_of_the_projection():
    model = vit()
    filters = inspection.patch_filters(model, 5)
    assert filters.shape == (5, 8, 8, 3) and filters.dtype == "float32"
    flat = filters.reshape(5, -1).astype("float64")
    np.testing.assert_allclose(flat @ flat.T, np.eye(5), atol=1e-6)
    kernel = harness.numpy(model.get_layer("patch_encoder").projection.kernel).astype("float64")
    covariance = np.cov(kernel, bias=True)  # of values over filters
    explained = np.linalg.eigvalsh(covariance)[::-1]
    np.testing.assert_allclose(
        [component @ covariance @ component for component in flat], explained[:5], rtol=1e-4
    )


@pytest.mark.parametrize("count", [0, 17])
@anywhere
def test_filters_that_are_not_there(count):
    with pytest.raises(ValueError, match=rf"1 to 16.*Received: {count}"):
        inspection.patch_filters(vit(), count)


@anywhere
def test_filters_of_a_hybrid_read_no_pixels():
    stem = {"block_counts": (1,), "width": 32}
    with pytest.raises(ValueError, match="hybrid"):
        inspection.patch_filters(vit(image_shape=(64, 96, 3), patch_size=1, stem=stem))


@anywhere
def test_models_of_another_kind():
    resnet = keras_vit.BiTResNet(
        image_shape=(14, 21, 3), block_counts=(1,), width_factor=0.125, groups=4
    )
    images = harness.pixels((1, 14, 21, 3))
    looks = [
        lambda: inspection.position_similarity(resnet),
        lambda: inspection.patch_filters(resnet),
        lambda: inspection.patch_features(resnet, images),
        lambda: inspection.mean_attention_distance(resnet, images),
        lambda: inspection.iter_attention_maps(resnet, images),
    ]
    for look in looks:
        with pytest.raises(ValueError, match="VisionTransformer.*Received: BiTResNet"):
            look()
