"""Gradient checkpointing changes memory and time, and nothing else."""

import harness
import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, layers

RANDOM = {"dropout_rate": 0.2, "attention_dropout_rate": 0.3, "drop_path_rate": 0.4}
VIT = {"image_shape": (8, 12, 3), "patch_size": 4, "hidden_dim": 10, "num_layers": 2}
VIT |= {"num_heads": 2, "mlp_dim": 13, "num_classes": 5}


def blocks(policy="float32", freeze=False):
    """A block with and one without, with the same weights and random states."""
    pair = [
        layers.TransformerBlock(
            2, 13, layer_scale_init=0.5, remat=remat, dtype=policy, name="block", **RANDOM
        )
        for remat in (True, False)
    ]
    for block in pair:
        block.build((7, 3, 10))
        if freeze:
            block.mlp.trainable = False
            block.attention_norm.trainable = False
    harness.randomize(pair[1])
    harness.copy_state(pair[1], pair[0])
    return pair


def seeded_gradients(block, x):
    keras.utils.set_random_seed(3)  # PyTorch's dropout draws from the global state.
    return harness.gradients(block, x, training=True)


@pytest.mark.parametrize(
    ("policy", "freeze"), [*((policy, False) for policy in harness.POLICIES), ("float32", True)]
)
def test_gradients_and_random_states_are_equal(policy, freeze):
    x = harness.noise((7, 3, 10))
    with_remat, without = blocks(policy, freeze)
    # Reductions in half precision depend on how a compiler fuses them.
    tolerance = {"float32": 1e-5, "mixed_float16": 5e-3, "mixed_bfloat16": 4e-2}[policy]
    for _ in range(2):
        actual, expected = (seeded_gradients(block, x) for block in (with_remat, without))
        assert actual.keys() == expected.keys()
        for path, gradient in expected.items():
            size = max(np.abs(gradient).max(), 1.0)
            np.testing.assert_allclose(actual[path], gradient, atol=tolerance * size, err_msg=path)
        harness.assert_same(harness.snapshot(with_remat), harness.snapshot(without))
    if freeze:
        assert not any("mlp/" in path or "attention_norm" in path for path in actual)


def test_random_states_move_on():
    x = harness.noise((7, 3, 10))
    block = blocks()[0]
    before = harness.snapshot(block)
    first = seeded_gradients(block, x)
    moved = [
        name
        for name, value in harness.snapshot(block).items()
        if name.startswith("random") and (value != before[name]).any()
    ]
    assert moved or harness.BACKEND == "torch"  # there, the state is PyTorch's own
    second = harness.gradients(block, x, training=True)
    assert any(np.abs(first[path] - second[path]).max() > 1e-4 for path in first)


def test_weights_are_equal_after_training():
    images = harness.pixels((6, *VIT["image_shape"]))
    labels = np.arange(6) % 5
    trained = []
    for remat in (True, False):
        keras.utils.set_random_seed(1)
        model = VisionTransformer(**VIT, **RANDOM, remat=remat)
        model.get_layer("encoder_block_0").mlp.trainable = False
        harness.randomize(model)
        model.compile(keras.optimizers.SGD(0.1), model.loss)
        keras.utils.set_random_seed(2)
        model.fit(images, labels, batch_size=3, epochs=2, shuffle=False, verbose=0)
        trained.append(harness.snapshot(model))
    assert trained[0].keys() == trained[1].keys()
    for path, value in trained[1].items():
        np.testing.assert_allclose(trained[0][path], value, atol=2e-5, err_msg=path)


@pytest.mark.skipif(harness.BACKEND == "jax", reason="JAX recomputes without calling Python")
def test_the_backward_pass_runs_the_block_again(monkeypatch):
    calls = []
    forward = layers.MLP.call

    def counting(self, *args, **kwargs):
        calls.append(self)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(layers.MLP, "call", counting)
    x = harness.noise((7, 3, 10))
    for block, expected in zip(blocks(), (2, 1), strict=True):
        calls.clear()
        harness.gradients(block, x, training=True)
        assert len(calls) == expected
        calls.clear()
        block(x, training=False)
        assert len(calls) == 1


@pytest.mark.skipif(harness.BACKEND != "jax", reason="reads JAX's program")
def test_the_program_recomputes():
    import jax

    def program(block):
        values = [v.value for v in block.trainable_variables]
        states = [v.value for v in block.non_trainable_variables]

        def function(values, x):
            outputs, _ = block.stateless_call(values, states, x, training=True)
            return outputs.sum()

        return str(jax.make_jaxpr(jax.grad(function))(values, harness.noise((7, 3, 10))))

    with_remat, without = map(program, blocks())
    assert "remat" in with_remat or "checkpoint" in with_remat
    assert "remat" not in without and "checkpoint" not in without
