"""Position embeddings, and the encoder that makes tokens of patches."""

import math

import harness
import numpy as np
import pytest

from keras_vit import layers


def added(layer, x):
    """What the layer adds, without the batch; `x` is zero, so nothing is rounded away."""
    outputs = harness.numpy(layer(x))
    assert (outputs == outputs[:1]).all()
    return outputs[0]


def test_learned_is_a_table_over_the_sequence():
    layer = layers.PositionEmbedding(
        grid_shape=(3, 5), num_prefix_tokens=3, class_token_position=True
    )
    rows = added(layer, np.zeros((2, 18, 7), "float32"))
    table = harness.numpy(layer.embedding)
    assert table.shape == (16, 7)
    np.testing.assert_array_equal(rows, np.concatenate([table[:1], np.zeros((2, 7)), table[1:]]))


def test_a_distillation_token_has_the_row_after_the_class_token():
    layer = layers.PositionEmbedding(
        grid_shape=(3, 5), num_prefix_tokens=4, class_token_position=True, distillation_token=True
    )
    rows = added(layer, np.zeros((2, 19, 7), "float32"))
    table = harness.numpy(layer.embedding)
    assert table.shape == (17, 7)
    np.testing.assert_array_equal(rows, np.concatenate([table[:2], np.zeros((2, 7)), table[2:]]))


def test_a_distillation_token_in_two_dimensions():
    layer = layers.PositionEmbedding(
        "learned_2d",
        grid_shape=(3, 5),
        num_prefix_tokens=3,
        class_token_position=True,
        distillation_token=True,
    )
    rows = added(layer, np.zeros((2, 18, 14), "float32"))
    entries = harness.numpy(layer.class_embedding)
    assert entries.shape == (2, 14)
    np.testing.assert_array_equal(rows[:3], np.concatenate([entries, np.zeros((1, 14))]))


@pytest.mark.parametrize("distillation_token", [True, False])
def test_without_a_class_entry_prefix_tokens_get_nothing(distillation_token):
    layer = layers.PositionEmbedding(
        grid_shape=(3, 5), num_prefix_tokens=2, distillation_token=distillation_token
    )
    rows = added(layer, np.zeros((2, 17, 7), "float32"))
    assert not rows[:2].any()
    np.testing.assert_array_equal(rows[2:], harness.numpy(layer.embedding))


def test_learned_2d_is_column_then_row():
    layer = layers.PositionEmbedding(
        "learned_2d", grid_shape=(3, 5), num_prefix_tokens=2, class_token_position=True
    )
    rows = added(layer, np.zeros((2, 17, 14), "float32"))
    x, y = harness.numpy(layer.x_embedding), harness.numpy(layer.y_embedding)
    assert (x.shape, y.shape) == ((5, 7), (3, 7))
    np.testing.assert_array_equal(rows[0], harness.numpy(layer.class_embedding)[0])
    assert not rows[1].any()
    for row in range(3):
        for column in range(5):
            expected = np.concatenate([x[column], y[row]])
            np.testing.assert_array_equal(rows[2 + row * 5 + column], expected)


def test_sincos2d_is_the_formula():
    layer = layers.PositionEmbedding("sincos2d", grid_shape=(3, 5), num_prefix_tokens=1)
    rows = added(layer, np.zeros((2, 16, 12), "float32"))
    assert layer.weights == []
    assert not rows[0].any()
    for y in range(3):
        for x in range(5):
            angles = [10_000 ** -(k / 2) for k in range(3)]  # k / (dim / 4 - 1)
            expected = [
                *(math.sin(x * w) for w in angles),
                *(math.cos(x * w) for w in angles),
                *(math.sin(y * w) for w in angles),
                *(math.cos(y * w) for w in angles),
            ]
            np.testing.assert_allclose(rows[1 + y * 5 + x], expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["learned", "learned_2d"])
def test_tables_start_small(kind):
    layer = layers.PositionEmbedding(kind, grid_shape=(20, 20))
    layer.build((1, 400, 64))
    for table in layer.weights:
        assert harness.numpy(table).std() == pytest.approx(0.02, rel=0.1), table.path


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos2d", "none"])
@pytest.mark.parametrize("special", [(), ("class_token",), ("class_token", "distillation_token")])
def test_the_encoder_is_projection_prefix_and_positions(kind, special):
    patches = harness.noise((2, 15, 11))
    layer = layers.PatchEncoder(
        12,
        grid_shape=(3, 5),
        position_embedding=kind,
        class_token="class_token" in special,
        distillation_token="distillation_token" in special,
        num_registers=2,
    )
    layer.build(patches.shape)
    harness.randomize(layer)
    kernel, bias = (harness.numpy(w) for w in layer.projection.weights)
    prefix = [getattr(layer, name) for name in (*special, "registers")]
    prefix = [np.tile(harness.numpy(w), (2, 1, 1)) for w in prefix]
    expected = np.concatenate([*prefix, patches @ kernel + bias], 1)
    if kind != "none":
        expected += added(layer.position_embedding, np.zeros_like(expected))
    np.testing.assert_allclose(harness.numpy(layer(patches)), expected, atol=1e-5)


def test_encoder_initial_values():
    layer = layers.PatchEncoder(256, distillation_token=True, num_registers=8)
    layer.build((None, 16, 64))
    assert not harness.numpy(layer.class_token).any()
    assert not harness.numpy(layer.distillation_token).any()
    assert harness.numpy(layer.registers).std() == pytest.approx(0.02, rel=0.1)
    assert not harness.numpy(layer.projection.bias).any()
    assert harness.numpy(layer.projection.kernel).std() == pytest.approx(1 / 8, rel=0.1)


def test_configs_from_before_the_distillation_token():
    for cls, config in {
        layers.PatchEncoder: {"hidden_dim": 7},
        layers.PositionEmbedding: {"grid_shape": (3, 5), "num_prefix_tokens": 1},
    }.items():
        old = cls(**config).get_config()
        del old["distillation_token"]
        assert cls.from_config(old).get_config() == {**old, "distillation_token": False}


def test_patches_of_no_square_need_a_grid():
    with pytest.raises(ValueError, match="grid_shape.*patches=15"):
        layers.PatchEncoder(8).build((None, 15, 11))
