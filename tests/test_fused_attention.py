"""Fused attention: taken where a kernel answers, equal to the plain product where a GPU is."""

import harness
import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import MultiHeadSelfAttention, attention
from keras_vit.layers.fused_attention import fused_attention, plain_attention_scores


def _on_gpu() -> bool:
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.is_available()
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() == "gpu"
    return False


needs_gpu = pytest.mark.skipif(
    not _on_gpu(), reason="fused kernels run on a GPU under JAX or torch only"
)


def _heads(tokens, seed=0, dim=64):
    rng = np.random.default_rng(seed)
    return [
        ops.convert_to_tensor(rng.normal(size=(2, tokens, 3, dim)), dtype="bfloat16")
        for _ in range(3)
    ]


def _plain(query, key, value):
    query, key, value = (
        ops.transpose(ops.cast(x, "float32"), (0, 2, 1, 3)) for x in (query, key, value)
    )
    outputs = ops.matmul(plain_attention_scores(query, key), value)
    return ops.transpose(outputs, (0, 2, 1, 3))


def test_no_kernel_on_cpu():
    if _on_gpu():
        pytest.skip("this process computes on a GPU")
    if keras.backend.backend() == "torch":
        pytest.skip("PyTorch has a kernel for CPUs")
    assert fused_attention(*_heads(5)) is None


def test_pytorch_has_a_kernel_on_cpu():
    if keras.backend.backend() != "torch":
        pytest.skip("it is PyTorch's")
    heads = [ops.cast(x, "float32") for x in _heads(5)]
    outputs, expected = (harness.numpy(f(*heads)) for f in (fused_attention, _plain))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_kernel_is_taken_and_scores_do_not_change_its_output(monkeypatch):
    layer = MultiHeadSelfAttention(2)
    x = np.random.default_rng(0).normal(size=(2, 7, 6)).astype("float32")
    plain, scores = layer(x, return_attention_scores=True)
    monkeypatch.setattr(attention, "fused_attention", lambda q, k, value, tokens: value * 3.0)
    fused = ops.convert_to_numpy(layer(x))
    again, scores_beside = layer(x, return_attention_scores=True)
    assert np.abs(fused - ops.convert_to_numpy(plain)).max() > 1e-3
    np.testing.assert_array_equal(fused, ops.convert_to_numpy(again))
    np.testing.assert_array_equal(ops.convert_to_numpy(scores), ops.convert_to_numpy(scores_beside))


@pytest.mark.parametrize("options", [{"relative_position": True}, {"dropout_rate": 0.5}])
def test_what_a_kernel_cannot_do_is_done_plainly(monkeypatch, options):
    def refuse(query, key, value, tokens):
        raise AssertionError("the fused kernel was asked")

    layer = MultiHeadSelfAttention(2, **options)
    monkeypatch.setattr(attention, "fused_attention", refuse)
    layer(np.ones((2, 7, 6), "float32"), training=True)


def _masked(query, key, value, tokens):
    """As a kernel that is told how many tokens count, and leaves rubbish behind them."""
    outputs = _plain(query[:, :tokens], key[:, :tokens], value[:, :tokens])
    rest = query[:, tokens:] * key[:, tokens:] + value[:, tokens:] + 7.0
    return ops.concatenate([ops.cast(outputs, query.dtype), rest], axis=1)


def test_padding_that_a_kernel_wants_changes_nothing(monkeypatch):
    layer = MultiHeadSelfAttention(2, qk_norm=True)
    x = harness.noise((2, 7, 6))
    layer.build(x.shape)
    harness.randomize(layer)
    expected = harness.numpy(layer(x)), harness.gradients(layer, x)
    monkeypatch.setattr(attention, "missing_tokens", lambda tokens, head_dim, dtype: tokens % 2)
    monkeypatch.setattr(attention, "fused_attention", _masked)
    outputs, gradients = harness.numpy(layer(x)), harness.gradients(layer, x)
    np.testing.assert_allclose(outputs, expected[0], atol=1e-5)
    assert gradients.keys() == expected[1].keys()
    for path, gradient in expected[1].items():
        np.testing.assert_allclose(gradients[path], gradient, atol=1e-4, err_msg=path)


@needs_gpu
@pytest.mark.parametrize("tokens", [196, 197])
def test_kernel_equals_plain_attention(tokens):
    layer, plain = (MultiHeadSelfAttention(3, dtype=d) for d in ("mixed_bfloat16", "float32"))
    x = harness.noise((2, tokens, 3 * 64))
    for one in (layer, plain):
        one.build(x.shape)
    harness.randomize(plain)
    harness.copy_state(plain, layer)
    difference = harness.numpy(layer(x)) - harness.numpy(plain(x))
    assert np.abs(difference).max() < 2e-2 * np.abs(harness.numpy(plain(x))).max()
    expected = harness.gradients(plain, x)
    for path, gradient in harness.gradients(layer, x).items():
        assert np.isfinite(gradient).all(), path
        if "bias" in path:  # of keys: rounding alone
            continue
        largest = np.abs(expected[path]).max()
        assert np.abs(gradient - expected[path]).max() < 3e-2 * largest, path
