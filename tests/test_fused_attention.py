"""Fused attention: taken where a kernel answers, equal to the plain product where a GPU is."""

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
    assert fused_attention(*_heads(5)) is None


def test_kernel_is_taken_and_scores_do_not_change_its_output(monkeypatch):
    layer = MultiHeadSelfAttention(2)
    x = np.random.default_rng(0).normal(size=(2, 7, 6)).astype("float32")
    plain, scores = layer(x, return_attention_scores=True)
    monkeypatch.setattr(attention, "fused_attention", lambda query, key, value: value * 3.0)
    fused = ops.convert_to_numpy(layer(x))
    again, scores_beside = layer(x, return_attention_scores=True)
    assert np.abs(fused - ops.convert_to_numpy(plain)).max() > 1e-3
    np.testing.assert_array_equal(fused, ops.convert_to_numpy(again))
    np.testing.assert_array_equal(ops.convert_to_numpy(scores), ops.convert_to_numpy(scores_beside))


@pytest.mark.parametrize("options", [{"relative_position": True}, {"dropout_rate": 0.5}])
def test_what_a_kernel_cannot_do_is_done_plainly(monkeypatch, options):
    def refuse(query, key, value):
        raise AssertionError("the fused kernel was asked")

    layer = MultiHeadSelfAttention(2, **options)
    monkeypatch.setattr(attention, "fused_attention", refuse)
    layer(np.ones((2, 7, 6), "float32"), training=True)


@needs_gpu
@pytest.mark.parametrize("tokens", [196, 197])
def test_kernel_equals_plain_attention(tokens):
    query, key, value = _heads(tokens)
    outputs = fused_attention(query, key, value)
    assert outputs is not None
    assert tuple(outputs.shape) == (2, tokens, 3, 64)
    difference = ops.abs(ops.cast(outputs, "float32") - _plain(query, key, value))
    assert float(ops.max(difference)) < 2e-2  # bfloat16 has 8 bits: outputs are below 4


@needs_gpu
@pytest.mark.parametrize("tokens", [196, 197])
def test_kernel_has_the_gradients_of_plain_attention(tokens):
    heads = _heads(tokens)
    fused, plain = (_gradients(function, heads) for function in (fused_attention, _plain))
    for ours, reference in zip(fused, plain, strict=True):
        assert np.isfinite(ours).all()
        assert np.abs(ours - reference).max() < 3e-2 * np.abs(reference).max()


def _gradients(function, heads):
    def loss(*inputs):
        return ops.sum(ops.square(ops.cast(function(*inputs), "float32")))

    if keras.backend.backend() == "jax":
        import jax

        gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*heads)
    else:
        inputs = [head.detach().clone().requires_grad_() for head in heads]
        loss(*inputs).backward()
        gradients = [x.grad for x in inputs]
    return [ops.convert_to_numpy(ops.cast(g, "float32")) for g in gradients]
