"""Poolings, distillation and heads that published checkpoints have, against NumPy."""

import harness
import keras
import numpy as np
import pytest

import keras_vit

VIT = {"image_shape": (14, 21, 3), "patch_size": 7, "hidden_dim": 8, "num_layers": 2}
VIT |= {"num_heads": 2, "mlp_dim": 13, "num_classes": 5}
PATCHES = 6


def build(**changes):
    model = keras_vit.VisionTransformer(**{**VIT, **changes})
    harness.randomize(model)
    return model


@pytest.fixture
def images():
    return harness.pixels((3, 14, 21, 3))


def outputs_of(model, images, *names):
    """The outputs of the named layers, float32."""
    probe = keras.Model(model.input, {name: model.get_layer(name).output for name in names})
    found = probe.predict(images, verbose=0)
    return [found[name] for name in names]


def dense(model, name, features):
    layer = model.get_layer(name)
    outputs = features @ harness.numpy(layer.kernel)
    return outputs + harness.numpy(layer.bias) if layer.use_bias else outputs


def check(actual, expected):
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


# Pooling -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pooling", "pooled_by_hand"),
    [
        ("mean", lambda tokens, prefix: tokens.mean(1)),
        (
            "token_gap",
            lambda tokens, prefix: np.concatenate([tokens[:, 0], tokens[:, prefix:].mean(1)], 1),
        ),
    ],
)
@pytest.mark.parametrize(
    ("changes", "prefix"),
    [
        ({}, 1),
        ({"num_registers": 2}, 3),
        ({"num_registers": 2, "distillation": "token", "representation_size": 6}, 4),
    ],
    ids=["class_token", "registers", "distillation"],
)
def test_pooled_vector(images, pooling, pooled_by_hand, changes, prefix):
    model = build(pooling=pooling, class_token=True, **changes)
    assert model.num_prefix_tokens == prefix
    tokens, pooled, logits = outputs_of(model, images, "encoder_norm", "pooling", "logits")
    assert tokens.shape == (3, prefix + PATCHES, 8)
    expected = pooled_by_hand(tokens, prefix)
    check(pooled, expected)
    if "representation_size" in changes:
        expected = np.tanh(dense(model, "pre_logits", expected))
    check(logits, dense(model, "head", expected))


def test_mean_takes_the_tokens_there_are(images):
    """Without prefix tokens, the mean of all tokens is that of the patches."""
    mean, gap = build(pooling="mean"), build(pooling="gap")
    assert not mean.get_config()["class_token"]
    harness.copy_state(mean, gap)
    harness.assert_same(mean.predict(images, verbose=0), gap.predict(images, verbose=0))


def test_norm_after_the_mean(images):
    model = build(pooling="mean", class_token=True, norm_after_pooling=True, num_classes=None)
    tokens, features = outputs_of(model, images, "encoder_block_1", "features")
    norm = model.get_layer("pooled_norm")
    x = tokens.mean(1)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    check(features, x * harness.numpy(norm.gamma) + harness.numpy(norm.beta))


@pytest.mark.parametrize("changes", [{"pooling": "token_gap"}, {"distillation": "token"}])
def test_the_class_token_comes_unasked(changes):
    model = keras_vit.VisionTransformer(**VIT, **changes)
    assert model.get_config()["class_token"] is True


# Distillation ------------------------------------------------------------------------------


@pytest.mark.parametrize("head_bias", [True, False])
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_two_heads_are_averaged(images, head_bias, activation):
    model = build(
        distillation="head",
        num_registers=2,
        head_bias=head_bias,
        classifier_activation=activation,
    )
    tokens, pooled, logits = outputs_of(model, images, "encoder_norm", "pooling", "logits")
    assert tokens.shape == (3, 4 + PATCHES, 8)
    harness.assert_same(pooled, tokens[:, 0])
    expected = dense(model, "head", tokens[:, 0]) + dense(model, "head_dist", tokens[:, 1])
    expected /= 2
    if activation == "softmax":
        expected = np.exp(expected) / np.exp(expected).sum(1, keepdims=True)
    check(logits, expected)
    assert (model.output_names, model.output_shape) == (["logits"], (None, 5))


def test_two_tokens_are_averaged_without_a_head(images):
    model = build(distillation="head", num_classes=None)
    tokens, features = outputs_of(model, images, "encoder_norm", "features")
    check(features, tokens[:, :2].mean(1))
    assert model.output_names == ["features"]


def test_the_token_alone_is_not_classified(images):
    model = build(distillation="token")
    tokens, logits = outputs_of(model, images, "encoder_norm", "logits")
    assert tokens.shape == (3, 2 + PATCHES, 8)
    check(logits, dense(model, "head", tokens[:, 0]))
    # Yet the class token attends to it.
    token = model.get_layer("patch_encoder").distillation_token
    token.assign(-token)
    assert np.abs(model.predict(images, verbose=0) - logits).max() > 1e-3


def test_the_sequence_starts_with_class_and_distillation_token(images):
    model = build(distillation="token", num_registers=2)
    encoder = model.get_layer("patch_encoder")
    (tokens,) = outputs_of(model, images, "patch_encoder")
    assert tokens.shape == (3, 4 + PATCHES, 8)
    table = harness.numpy(encoder.position_embedding.embedding)
    assert len(table) == 2 + PATCHES
    parts = [encoder.class_token, encoder.distillation_token, encoder.registers]
    prefix = np.concatenate([harness.numpy(part)[0] for part in parts])
    prefix[:2] += table[:2]
    np.testing.assert_allclose(tokens[:, :4], np.tile(prefix, (3, 1, 1)), atol=1e-6)


def test_patch_dropout_keeps_all_prefix_tokens():
    model = build(distillation="head", num_registers=2, patch_dropout_rate=0.5)
    tokens = harness.noise((3, 4 + PATCHES, 8))
    kept = harness.numpy(model.get_layer("patch_dropout")(tokens, training=True))
    assert kept.shape == (3, 4 + PATCHES // 2, 8)
    np.testing.assert_array_equal(kept[:, :4], tokens[:, :4])


def test_relative_positions_are_those_of_patches(images):
    """Scores of class token, distillation token and registers do not depend on the table."""
    model = build(distillation="token", num_registers=2, position_embedding="relative")
    block = model.encoder_blocks[0]
    tokens = keras.ops.convert_to_tensor(harness.noise((2, 4 + PATCHES, 8)))
    before = harness.numpy(block.attention_scores(tokens))
    table = next(v for v in block.weights if v.path.endswith("relative_position/embedding"))
    assert tuple(table.shape) == (2 * PATCHES - 1, 4)
    table.assign(-table)
    change = np.abs(harness.numpy(block.attention_scores(tokens)) - before)
    assert change[:, :, :4].max() == 0
    assert change[:, :, 4:].max() > 1e-3


def test_initial_values():
    model = keras_vit.VisionTransformer(**VIT, distillation="head")
    values = {v.path: harness.numpy(v) for v in model.weights}
    for path in ("patch_encoder/distillation_token", "head_dist/kernel", "head_dist/bias"):
        assert not values[path].any(), path


# Surgery and files -------------------------------------------------------------------------


def test_both_heads_are_fresh(images):
    model = build(distillation="head", head_bias=False)
    before = harness.snapshot(model)
    new = keras_vit.replace_head(model, 3)
    assert {key: new.get_config()[key] for key in ("distillation", "head_bias")} == {
        "distillation": "head",
        "head_bias": False,
    }
    after = harness.snapshot(new)
    for name in ("head/kernel", "head_dist/kernel"):
        assert after.pop(name).shape == (8, 3)
        assert before.pop(name).any()
    harness.assert_same(after, before)
    assert not new.predict(images, verbose=0).any()
    for head in ("head", "head_dist"):
        new.get_layer(head).kernel.assign(np.full((8, 3), 0.5))
    assert np.abs(new.predict(images, verbose=0)).max() > 0.1


def test_features_of_a_distilled_model(images):
    model = build(distillation="head")
    features = keras_vit.replace_head(model, None)
    (tokens,) = outputs_of(model, images, "encoder_norm")
    check(features.predict(images, verbose=0), tokens[:, :2].mean(1))
    again = keras_vit.replace_head(features, 3)
    assert again.get_layer("head_dist").kernel.shape == (8, 3)


def test_one_head_of_two():
    """Classified by the class token alone, the model keeps its token."""
    model = build(distillation="head")
    new = keras_vit.replace_head(model, 3, distillation="token")
    assert "head_dist/kernel" not in harness.snapshot(new)
    path = "patch_encoder/distillation_token"
    np.testing.assert_array_equal(harness.snapshot(new)[path], harness.snapshot(model)[path])
    with pytest.raises(ValueError, match="distillation_token|position_embedding"):
        keras_vit.replace_head(model, 3, distillation=None)
    with pytest.raises(ValueError, match="representation_size=6"):
        keras_vit.replace_head(model, 3, representation_size=6)


@pytest.mark.parametrize("pooling", ["mean", "token_gap"])
def test_a_new_head_on_another_pooling(images, pooling):
    model = build(pooling=pooling, class_token=True)
    (pooled,) = outputs_of(model, images, "pooling")
    check(keras_vit.replace_head(model, None).predict(images, verbose=0), pooled)
    new = keras_vit.replace_head(model, 3)
    assert new.get_layer("head").kernel.shape == (pooled.shape[1], 3)


def test_configs_from_before_these_options():
    config = keras_vit.VisionTransformer(**VIT).get_config()
    old = {k: v for k, v in config.items() if k not in ("distillation", "head_bias")}
    assert keras_vit.VisionTransformer.from_config(old).get_config() == config


def test_two_heads_learn():
    model = keras_vit.VisionTransformer(**VIT, distillation="head", dtype="mixed_bfloat16")
    harness.check_training(model, steps=3)
    for head in ("head", "head_dist"):
        assert harness.numpy(model.get_layer(head).kernel).any()
