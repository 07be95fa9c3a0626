"""Dense is Keras' Dense, also where PyTorch adds the bias inside of the product."""

import harness
import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, layers
from keras_vit.layers import dense
from keras_vit.layers.mlp import ACTIVATIONS

RANKS = [(5, 3), (2, 5, 3)]


def pair(**options):
    options = {"units": 7, **options}
    return layers.Dense(name="dense", **options), keras.layers.Dense(name="dense", **options)


@pytest.mark.parametrize("shape", RANKS, ids=str)
@pytest.mark.parametrize("policy", harness.POLICIES)
@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"activation": "tanh"}], ids=str)
def test_outputs_and_gradients_are_those_of_keras(shape, policy, options):
    x, found = harness.noise(shape), []
    for layer in pair(**options, dtype=policy):
        layer.build(shape)
        harness.randomize(layer)
        outputs = layer(x)
        assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
        found.append({"outputs": harness.numpy(outputs), **harness.gradients(layer, x)})
    rough = 1e-5 if policy == "float32" else 2e-2
    assert found[0].keys() == found[1].keys()
    for name, expected in found[1].items():
        np.testing.assert_allclose(found[0][name], expected, rtol=rough, atol=rough, err_msg=name)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="Keras' own layer there")
def test_bias_is_added_before_rounding():
    """On GPUs under JAX, and in training under JAX, it is not."""
    x, layer = harness.noise((64, 48)), layers.Dense(32, dtype="mixed_bfloat16")
    layer.build(x.shape)
    harness.randomize(layer)
    layer.bias.assign(harness.noise((32,), "bias", 3.0))
    half = [harness.numpy(keras.ops.cast(v, "bfloat16")) for v in (x, layer.kernel, layer.bias)]
    exact = half[0] @ half[1] + half[2]
    found = harness.numpy(layer(x, training=False))
    # 8 bits: the nearest number is off by 2 ** -8 of the value at most.
    np.testing.assert_array_less(np.abs(found - exact), np.abs(exact) * 2.0**-8 * 1.01 + 1e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX on GPUs")
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_jax_keeps_the_product_alone(monkeypatch, activation):
    import jax

    x, found, kept = harness.noise((5, 3)), [], []
    layer = layers.Dense(8, activation=ACTIVATIONS[activation])
    layer.build(x.shape)
    harness.randomize(layer)
    weights = [variable.value for variable in layer.variables]
    for on_gpu in (True, False):
        monkeypatch.setattr(dense, "jax_on_gpu", lambda on_gpu=on_gpu: on_gpu)

        def loss(x, *weights):
            return layer.stateless_call(weights, [], x)[0].sum()

        found.append(jax.grad(loss, argnums=(0, 1, 2))(jax.numpy.asarray(x), *weights))
        _, backward = jax.vjp(loss, jax.numpy.asarray(x), *weights)
        kept.append([leaf.shape for leaf in jax.tree.leaves(backward) if leaf.shape[:1] == (5,)])
    for mine, plain in zip(*found, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)
    assert sorted(kept[0]) == [(5, 3), (5, 8)]
    assert len(kept[1]) > 2


@pytest.mark.parametrize("change", [lambda layer: layer.enable_lora(2), lambda layer: None])
def test_what_is_set_later_counts(change):
    x, found = harness.noise((5, 3)), []
    for layer in pair():
        layer.build(x.shape)
        change(layer)
        layer.activation = None
        harness.randomize_by_order(layer)
        found.append(harness.numpy(layer(x)))
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_model_is_quantized_in_all_dense_layers():
    model = VisionTransformer(
        image_shape=(8, 12, 3),
        patch_size=4,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        mlp_dim=24,
        num_classes=5,
    )
    harness.randomize(model)
    x = harness.pixels((2, 8, 12, 3))
    before = harness.numpy(model(x))
    block = model.encoder_blocks[0]
    for layer in (block.attention.qkv, block.attention.out, block.mlp.fc1, block.mlp.fc2):
        layer.quantize("int8")
        assert keras.backend.standardize_dtype(layer._kernel.dtype) == "int8"
    after = harness.numpy(model(x))
    assert 0 < np.abs(after - before).max() < 0.1 * np.abs(before).max()
