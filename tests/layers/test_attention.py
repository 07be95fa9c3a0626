"""Attention, relative positions, pooling by attention: against NumPy in float64."""

import harness
import keras
import numpy as np
import pytest

from keras_vit import layers


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def norm(x, layer):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer.epsilon)
    return x * harness.numpy(layer.gamma) + harness.numpy(layer.beta)


def dense(x, layer):
    bias = 0 if layer.bias is None else harness.numpy(layer.bias)
    return x @ harness.numpy(layer.kernel).astype("float64") + bias


def relative_bias(query, table, prefix):
    """The bias for every pair of patches by a loop; row r of the table is offset N - 1 - r."""
    batch, heads, tokens, dim = query.shape
    patches = tokens - prefix
    bias = np.zeros((batch, heads, tokens, tokens))
    for p in range(patches):
        for q in range(patches):
            row = table[patches - 1 - (p - q)]
            bias[:, :, prefix + p, prefix + q] = query[:, :, prefix + p] @ row / np.sqrt(dim)
    return bias


def attention(layer, x):
    """(outputs, probabilities) of a `MultiHeadSelfAttention`."""
    batch, tokens, dim = x.shape

    def heads(part):
        return part.reshape(batch, tokens, layer.num_heads, -1).transpose(0, 2, 1, 3)

    query, key, value = map(heads, np.split(dense(x, layer.qkv), 3, -1))
    if layer.qk_norm:
        query, key = norm(query, layer.query_norm), norm(key, layer.key_norm)
    scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(dim // layer.num_heads)
    if layer.relative_position is not None:
        table = harness.numpy(layer.relative_position.embedding)
        scores = scores + relative_bias(query, table, layer.num_prefix_tokens)
    scores = softmax(scores)
    out = (scores @ value).transpose(0, 2, 1, 3).reshape(batch, tokens, dim)
    return dense(out, layer.out), scores


OPTIONS = {
    "plain": {},
    "no_bias": {"qkv_bias": False},
    "qk_norm": {"qk_norm": True, "norm_epsilon": 1e-3},
    "relative": {"relative_position": True, "num_prefix_tokens": 2},
    "all": {"qk_norm": True, "qkv_bias": False, "relative_position": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_equal_to_numpy(name):
    layer, x = layers.MultiHeadSelfAttention(2, **OPTIONS[name]), harness.noise((3, 7, 10))
    layer.build(x.shape)
    harness.randomize(layer)
    expected, probabilities = attention(layer, x)
    outputs, scores = layer(x, return_attention_scores=True)
    np.testing.assert_allclose(harness.numpy(outputs), expected, atol=1e-5)
    np.testing.assert_allclose(harness.numpy(scores), probabilities, atol=1e-6)


@pytest.mark.parametrize("policy", harness.POLICIES)
def test_scores_are_probabilities_and_change_nothing(policy):
    layer, x = layers.MultiHeadSelfAttention(5, dtype=policy), harness.noise((2, 11, 15))
    layer.build(x.shape)
    harness.randomize(layer)
    outputs, scores = layer(x, return_attention_scores=True)
    harness.assert_same(layer(x), outputs)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    assert scores.shape == (2, 5, 11, 11)
    np.testing.assert_allclose(harness.numpy(scores).sum(-1), 1.0, atol=1e-6)
    symbolic = layer(keras.KerasTensor((None, 11, 15)), return_attention_scores=True)
    assert [tuple(t.shape) for t in symbolic] == [(None, 11, 15), (None, 5, 11, 11)]
    assert [t.dtype for t in symbolic] == [layer.compute_dtype, "float32"]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_large_values_stay_finite_in_half_precision(policy):
    layer = layers.MultiHeadSelfAttention(2, dtype=policy)
    x = harness.noise((1, 7, 10), scale=50.0)
    layer.build(x.shape)
    harness.randomize(layer)
    assert np.isfinite(harness.numpy(layer(x))).all()


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_relative_position_is_a_loop_over_pairs(prefix):
    query = harness.noise((2, 3, prefix + 7, 5))
    layer = layers.RelativePosition(prefix)
    bias = harness.numpy(layer(query))
    table = harness.numpy(layer.embedding)
    assert table.shape == (13, 5)
    np.testing.assert_allclose(bias, relative_bias(query, table, prefix), atol=1e-6)
    assert not bias[:, :, :prefix].any()
    assert not bias[:, :, :, :prefix].any()


def test_relative_position_needs_a_known_length():
    layer = layers.MultiHeadSelfAttention(2, relative_position=True)
    with pytest.raises(ValueError, match="known number of tokens"):
        layer.build((None, None, 10))


def test_dropout_is_in_the_probabilities_and_in_training_only():
    x = harness.noise((2, 7, 10))
    layer = layers.MultiHeadSelfAttention(2, dropout_rate=0.5)
    layer.build(x.shape)
    harness.randomize(layer)
    once, twice = (harness.numpy(layer(x, training=True)) for _ in range(2))
    assert np.abs(once - twice).max() > 1e-3
    expected, _ = attention(layer, x)
    np.testing.assert_allclose(harness.numpy(layer(x, training=False)), expected, atol=1e-5)


def test_an_encoder_without_positions_is_permutation_equivariant():
    x = harness.noise((2, 11, 10))
    order = harness.random_for("order").permutation(11)
    for relative in (False, True):
        block = layers.TransformerBlock(2, 13, relative_position=relative)
        block.build(x.shape)
        harness.randomize(block)
        after = harness.numpy(harness.run(block, x))[:, order]
        before = harness.numpy(harness.run(block, x[:, order]))
        assert np.allclose(after, before, atol=1e-5) is not relative


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_attention_pooling_equals_numpy():
    layer, x = layers.AttentionPooling(2, 13, norm_epsilon=1e-3), harness.noise((3, 7, 10))
    layer.build(x.shape)
    harness.randomize(layer)
    query = dense(harness.numpy(layer.probe), layer.query).reshape(1, 1, 2, 5)
    key, value = np.split(dense(x, layer.key_value), 2, -1)
    key, value = (part.reshape(3, 7, 2, 5).transpose(0, 2, 1, 3) for part in (key, value))
    scores = softmax(query.transpose(0, 2, 1, 3) @ key.transpose(0, 1, 3, 2) / np.sqrt(5))
    y = dense((scores @ value).transpose(0, 2, 1, 3).reshape(3, 10), layer.out)
    hidden = gelu_tanh(dense(norm(y, layer.norm), layer.mlp.fc1))
    expected = y + dense(hidden, layer.mlp.fc2)
    outputs, found = layer(x, return_attention_scores=True)
    np.testing.assert_allclose(harness.numpy(found), scores, atol=1e-6)
    np.testing.assert_allclose(harness.numpy(outputs), expected, atol=1e-5)
    harness.assert_same(layer(x), outputs)
    symbolic = layer(keras.KerasTensor((None, 7, 10)), return_attention_scores=True)
    assert [tuple(t.shape) for t in symbolic] == [(None, 10), (None, 2, 1, 7)]


def test_other_poolings():
    x = harness.noise((3, 7, 5))
    harness.assert_same(layers.TokenPooling()(x), x[:, 0])
    mean = harness.numpy(layers.PatchAveragePooling(2)(x))
    np.testing.assert_allclose(mean, x[:, 2:].mean(1), atol=1e-6)


def test_a_block_is_the_papers_equations():
    x = harness.noise((2, 7, 10))
    block = layers.TransformerBlock(2, 13, layer_scale_init=0.3, norm_epsilon=1e-3)
    block.build(x.shape)
    harness.randomize(block)
    y, scores = attention(block.attention, norm(x, block.attention_norm))
    y = x + y * harness.numpy(block.attention_scale.gamma)
    hidden = gelu_tanh(dense(norm(y, block.mlp_norm), block.mlp.fc1))
    expected = y + dense(hidden, block.mlp.fc2) * harness.numpy(block.mlp_scale.gamma)
    np.testing.assert_allclose(harness.numpy(harness.run(block, x)), expected, atol=2e-5)
    found = harness.numpy(block.attention_scores(keras.ops.convert_to_tensor(x)))
    np.testing.assert_allclose(found, scores, atol=1e-5)


def test_initial_values_are_those_of_square_kernels():
    layer = layers.MultiHeadSelfAttention(2, relative_position=True)
    layer.build((1, 30, 64))
    pool = layers.AttentionPooling(2, 13)
    pool.build((1, 30, 64))
    limit = np.sqrt(6 / (64 + 64))
    for dense_layer in (layer.qkv, layer.out, pool.query, pool.key_value, pool.out):
        kernel = np.abs(harness.numpy(dense_layer.kernel))
        assert 0.98 * limit < kernel.max() <= limit, dense_layer.path
        assert not harness.numpy(dense_layer.bias).any()
    assert harness.numpy(layer.relative_position.embedding).std() == pytest.approx(0.02, rel=0.1)
