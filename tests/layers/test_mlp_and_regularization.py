"""MLP activations; DropPath, LayerScale and PatchDropout."""

import math

import harness
import keras
import numpy as np
import pytest

from keras_vit import layers


def erf_gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def swiglu(x):
    gate, value = np.split(x, 2, -1)
    return gate * sigmoid(gate) * value


REFERENCES = {
    "gelu": erf_gelu,
    "gelu_tanh": tanh_gelu,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "swiglu": swiglu,
}


@pytest.mark.parametrize("activation", REFERENCES)
def test_mlp_equals_numpy(activation):
    x = harness.noise((3, 7, 5), scale=3.0)
    layer = layers.MLP(13, activation=activation)
    layer.build(x.shape)
    harness.randomize(layer)
    values = {v.path.split("/", 1)[1]: harness.numpy(v).astype("float64") for v in layer.weights}
    hidden = REFERENCES[activation](x @ values["fc1/kernel"] + values["fc1/bias"])
    expected = hidden @ values["fc2/kernel"] + values["fc2/bias"]
    np.testing.assert_allclose(harness.numpy(layer(x)), expected, atol=1e-5)


def test_the_two_gelus_differ():
    x = harness.noise((3, 7, 5), scale=3.0)
    erf, tanh = (layers.MLP(13, activation=name) for name in ("gelu", "gelu_tanh"))
    for layer in (erf, tanh):
        layer.build(x.shape)
    harness.randomize(erf)
    harness.copy_state(erf, tanh)
    difference = np.abs(harness.numpy(erf(x)) - harness.numpy(tanh(x))).max()
    assert 1e-5 < difference < 1e-2


def test_mlp_initial_values():
    layer = layers.MLP(256)
    layer.build((1, 1, 64))
    limit = math.sqrt(6 / (64 + 256))
    for dense in (layer.fc1, layer.fc2):
        kernel = np.abs(harness.numpy(dense.kernel))
        assert 0.98 * limit < kernel.max() <= limit
        assert harness.numpy(dense.bias).std() == pytest.approx(1e-6, rel=0.3)


def test_drop_path_drops_whole_samples_and_keeps_the_expectation():
    x = np.ones((4000, 3, 2), "float32")
    layer = layers.DropPath(0.4)
    outputs = harness.numpy(layer(x, training=True))
    assert (outputs == outputs[:, :1, :1]).all(), "a sample was dropped in part"
    np.testing.assert_allclose(np.unique(outputs), [0, 1 / 0.6], rtol=1e-6)
    deviation = math.sqrt(0.4 / 0.6 / 4000)
    assert abs(outputs[:, 0, 0].mean() - 1) < 5 * deviation
    again = harness.numpy(layer(x, training=True))
    assert (again != outputs).any(), "two calls dropped the same samples"
    harness.assert_same(layer(x, training=False), x)
    harness.assert_same(layer(x), x)
    harness.assert_same(layers.DropPath(0.0)(x, training=True), x)


def test_a_seed_repeats_the_drops():
    x = harness.noise((50, 3))
    first, second = (layers.DropPath(0.5, seed=7)(x, training=True) for _ in range(2))
    harness.assert_same(first, second)


def test_patch_dropout_keeps_prefix_and_order():
    position = np.broadcast_to(np.arange(13, dtype="float32")[None, :, None], (50, 13, 3))
    layer = layers.PatchDropout(0.4, num_prefix_tokens=2)
    outputs = harness.numpy(layer(position.copy(), training=True))
    assert outputs.shape == (50, 2 + 7, 3)  # round(11 * 0.6) patches
    assert (outputs == outputs[:, :, :1]).all(), "values of two tokens were mixed"
    kept = outputs[:, :, 0]
    np.testing.assert_array_equal(kept[:, :2], np.tile([0.0, 1.0], (50, 1)))
    assert (np.diff(kept, axis=1) > 0).all(), "patches changed their order"
    assert len(np.unique(kept, axis=0)) > 30, "samples lose the same patches"
    counts = np.bincount(kept[:, 2:].astype(int).ravel(), minlength=13)[2:]
    assert (np.abs(counts - 50 * 7 / 11) < 5 * math.sqrt(50 * 7 / 11 * 4 / 11)).all()
    harness.assert_same(layer(position, training=False), position)


def test_patch_dropout_keeps_at_least_one():
    x = harness.noise((2, 4, 3))
    assert layers.PatchDropout(0.99, 1)(x, training=True).shape == (2, 2, 3)
    harness.assert_same(layers.PatchDropout(0.0)(x, training=True), x)


def test_layer_scale():
    x = harness.noise((2, 3, 5))
    layer = layers.LayerScale(0.25)
    harness.assert_same(layer(x), x * np.float32(0.25))
    layer.gamma.assign(np.arange(5))
    harness.assert_same(layer(x), x * np.arange(5, dtype="float32"))


@pytest.mark.parametrize("policy", harness.POLICIES)
def test_random_layers_keep_the_dtype(policy):
    for layer in (layers.DropPath(0.5, dtype=policy), layers.PatchDropout(0.5, dtype=policy)):
        outputs = layer(harness.noise((3, 7, 5)), training=True)
        assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
