"""Attention that speaks for a class: finite differences, loops, heads of all kinds."""

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

VIT = {**harness.TINY_VIT, "image_shape": (16, 24, 3), "layer_scale_init": 0.5}
IMAGES = harness.pixels((2, 16, 24, 3))
KINDS = {
    "plain": {},
    "registers and gap": {"num_registers": 2, "pooling": "gap", "class_token": True},
    "relative": {
        "pooling": "gap",
        "norm_after_pooling": True,
        "position_embedding": "relative",
    },
    "every layer": {"pooling": "token_gap", "position_placement": "every_layer", "qk_norm": True},
    "map": {"pooling": "map", "position_placement": "shared"},
    "distilled": {"distillation": "head", "classifier_activation": "softmax"},
    "21k": {"representation_size": 8, "activation": "swiglu", "pre_norm": True},
}
every_kind = pytest.mark.parametrize("options", harness.cases(KINDS, {"map", "distilled"}))


def vit(**options):
    model = keras_vit.VisionTransformer(**{**VIT, **options})
    harness.randomize(model)
    return model


def logits_with(model, gates):
    """Logits with the blocks' attention probabilities multiplied, layer by layer."""
    layers = {layer.name: layer for layer in model.layers}
    config = model.flat_config
    entry = layers.get("pre_norm", layers["patch_encoder"])
    x = keras.Model(model.input, entry.output)(IMAGES, training=False)
    for index, block in enumerate(model.encoder_blocks):
        if config["position_placement"] == "every_layer":
            x = layers[f"position_embedding_{index}"](x)
        elif config["position_placement"] == "shared":
            x = layers["position_embedding"](x)
        x = block.gated(x, keras.ops.convert_to_tensor(gates[index]))
    x = layers["encoder_norm"](x) if "encoder_norm" in layers else x
    pooled = layers["pooling"](x)
    for name in ("pooled_norm", "pre_logits"):
        pooled = layers[name](pooled) if name in layers else pooled
    found = layers["head"](pooled)
    if "head_dist" in layers:
        found = (found + layers["head_dist"](x[:, 1])) / 2
    return harness.numpy(found)


@every_kind
def test_gates_of_one_change_nothing(options):
    model = vit(**options)
    tokens = model.num_prefix_tokens + 6
    gates = np.ones((2, 2, 2, tokens, tokens), "float32")
    activation = model.flat_config["classifier_activation"]
    expected = model(IMAGES, training=False)
    found = logits_with(model, gates)
    if activation:
        found = keras.ops.softmax(found)
    np.testing.assert_allclose(harness.numpy(found), harness.numpy(expected), atol=1e-4)


@every_kind
def test_weights_are_derivatives(options):
    """The weighted map is the logit's derivative by a factor on the probability."""
    model = vit(**options)
    tokens, step = model.num_prefix_tokens + 6, 0.02
    before = harness.snapshot(model)
    maps = inspection.weighted_attention_maps(model, IMAGES, classes=[2, 0])
    harness.assert_same(harness.snapshot(model), before, "looking changed the model")
    assert [m.shape for m in maps] == [(2, 2, tokens, tokens)] * 2
    rng = harness.random_for("places")
    for index, weighted in enumerate(maps):
        largest = np.abs(weighted).max()
        assert weighted.dtype == "float32" and largest > 1e-4
        # A whole direction at once: one entry alone is lost in rounding.
        direction = rng.choice([-1.0, 1.0], weighted.shape).astype("float32")
        sides = []
        for sign in (1.0, -1.0):
            gates = np.ones((2, 2, 2, tokens, tokens), "float32")
            gates[index] += sign * step * direction
            logits = logits_with(model, gates)
            sides.append(np.array([logits[0, 2], logits[1, 0]]))
        expected = (sides[0] - sides[1]) / (2 * step)
        found = (weighted * direction).sum(axis=(1, 2, 3))
        np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02 * largest)


def pooling_by_differences(model, label, step=0.02):
    """Derivatives of a class's logit by factors on the pooling's probabilities: (2, heads, T)."""
    pooling, head = model.get_layer("pooling"), model.get_layer("head")
    x = keras.Model(model.input, pooling.input)(IMAGES, training=False)
    found = np.zeros((2, 2, x.shape[1]))
    for index in np.ndindex(found.shape[1:]):
        sides = []
        for sign in (1.0, -1.0):
            gates = np.ones((2, 2, 1, x.shape[1]), "float32")
            gates[:, index[0], 0, index[1]] += sign * step
            gated = pooling.gated(x, keras.ops.convert_to_tensor(gates))
            sides.append(harness.numpy(head(gated)).astype("float64")[:, label])
        found[:, index[0], index[1]] = (sides[0] - sides[1]) / (2 * step)
    return found


@every_kind
def test_relevance_equals_a_loop(options):
    model = vit(**options)
    found = inspection.class_relevance(model, IMAGES, classes=1)
    assert found.shape == (2, 2, 3) and found.dtype == "float32" and (found >= 0).all()
    prefix = model.num_prefix_tokens
    tokens = prefix + 6
    maps = inspection.weighted_attention_maps(model, IMAGES, classes=1)
    rows = {"token": [0], "token_gap": [0]}.get(
        options.get("pooling", "token"), range(prefix, tokens)
    )
    rows = [0, 1] if options.get("distillation") else rows
    read = pooling_by_differences(model, 1) if options.get("pooling") == "map" else None
    for sample in range(2):
        relevance = np.eye(tokens)
        for weighted in maps:
            spoken = np.maximum(weighted[sample].astype("float64"), 0).mean(0)
            relevance = relevance + spoken @ relevance
        if read is not None:
            expected = np.maximum(read[sample], 0).mean(0) @ relevance
            largest = expected.max()
            np.testing.assert_allclose(
                found[sample].ravel(), expected[prefix:], atol=0.02 * largest
            )
            continue
        expected = (relevance - np.eye(tokens))[list(rows)].mean(0)[prefix:]
        np.testing.assert_allclose(found[sample].ravel(), expected, rtol=1e-4, atol=1e-7)


def test_the_class_that_an_image_is_taken_for():
    model = vit()
    taken = harness.numpy(model(IMAGES, training=False)).argmax(-1)
    np.testing.assert_array_equal(
        inspection.class_relevance(model, IMAGES),
        inspection.class_relevance(model, IMAGES, classes=taken),
    )


def test_some_layers():
    model = vit()
    every = inspection.weighted_attention_maps(model, IMAGES, classes=0)
    some = inspection.weighted_attention_maps(model, IMAGES, classes=0, layers=[-1, 0, 1])
    for found, index in zip(some, (1, 0, 1), strict=True):
        np.testing.assert_allclose(found, every[index], atol=1e-6)


def test_a_fresh_head_says_nothing():
    found = inspection.class_relevance(keras_vit.VisionTransformer(**VIT), IMAGES)
    np.testing.assert_array_equal(found, np.zeros((2, 2, 3)))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision(dtype):
    model, exact = vit(dtype=dtype), vit()
    found, expected = (inspection.class_relevance(m, IMAGES, classes=1) for m in (model, exact))
    np.testing.assert_allclose(found, expected, atol=0.1 * expected.max())


@pytest.mark.parametrize(
    "classes", [3, -1, [0, 1, 2], 0.5, "cat", [[0], [1]], [[0], 1], [True, 0.5]]
)
def test_classes_that_there_are_not(classes):
    with pytest.raises(ValueError, match="classes.*0 to 2.*2 images"):
        inspection.class_relevance(vit(), IMAGES, classes=classes)


def test_a_model_without_a_head():
    with pytest.raises(ValueError, match="head"):
        inspection.class_relevance(
            keras_vit.VisionTransformer(**{**VIT, "num_classes": None}), IMAGES
        )


@pytest.mark.parametrize("shape", [(2, 24, 16, 3), (16, 24, 3), (0, 16, 24, 3)])
def test_images_of_another_shape(shape):
    for look in (inspection.class_relevance, inspection.attention_maps, inspection.patch_features):
        with pytest.raises(ValueError, match=r"\(batch, 16, 24, 3\).*Received"):
            look(vit(), np.zeros(shape, "float32"))
