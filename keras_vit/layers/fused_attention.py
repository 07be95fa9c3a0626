"""The attention kernels of each backend, and the plain product that serves everywhere else."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

_CUDNN_DTYPES = ("bfloat16", "float16")
_CUDNN_MAX_HEAD_DIM = 128


def missing_tokens(tokens, head_dim, dtype) -> int:
    """How many tokens of padding the device's fused kernel wants.

    cuDNN, which JAX calls, trains on even counts only. To pad a layer's input costs nothing, since
    it becomes part of the norm before it; to pad queries, keys and values costs passes over them.

    Args:
        tokens: their count.
        head_dim: width of a head.
        dtype: of the queries.
    """
    return tokens % 2 if keras.backend.backend() == "jax" and _cudnn_can(head_dim, dtype) else 0


def fused_attention(query, key, value, tokens=None):
    """Softmax attention by the device's fused kernel.

    Args:
        query: `(batch, tokens, heads, head_dim)`.
        key: the same shape.
        value: the same shape.
        tokens: how many of them count; what follows is padding, which no token attends to.
            `None` for all.

    Returns:
        `(batch, tokens, heads, head_dim)`, or `None` where plain matmuls are faster: under JAX on
        CPUs, on TensorFlow (XLA fuses them), and for what a kernel cannot do.
    """
    kernel = _KERNELS.get(keras.backend.backend())
    return None if kernel is None else kernel(query, key, value, tokens)


def plain_attention_scores(query, key, bias=None, training=None):
    """Attention probabilities by a matmul and a softmax in float32.

    Args:
        query: `(batch, heads, tokens, head_dim)`.
        key: the same shape.
        bias: added before the softmax; broadcasts to `(batch, heads, tokens, tokens)`.
        training: in training the product is rounded to the compute dtype, half of the memory.

    Returns:
        `(batch, heads, tokens, tokens)`, float32; each row sums to 1.
    """
    # Scaling the query, not the product, keeps float16 in range.
    query = query * ops.cast(1.0 / math.sqrt(query.shape[-1]), query.dtype)
    if not training and keras.backend.backend() != "torch":  # whose float32 is slow on GPUs
        query, key = ops.cast(query, "float32"), ops.cast(key, "float32")
    scores = ops.cast(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    return ops.softmax(scores, axis=-1)


def _torch_kernel(query, key, value, tokens):
    if tokens is not None:
        return None
    from torch.nn.functional import scaled_dot_product_attention

    # PyTorch chooses the kernel, cuDNN's where that is the fastest. Keras' own function would
    # first copy all three to another order, and so would the backward pass.
    heads_first = (x.transpose(1, 2) for x in (query, key, value))
    return scaled_dot_product_attention(*heads_first).transpose(1, 2)


def _jax_kernel(query, key, value, tokens):
    if not _cudnn_can(query.shape[-1], query.dtype):
        return None
    import jax
    import jax.numpy as jnp

    lengths: dict[str, Any] = {}
    if tokens is not None:
        counts = jnp.full((query.shape[0],), tokens, dtype=jnp.int32)
        lengths = {"query_seq_lengths": counts, "key_value_seq_lengths": counts}
    return jax.nn.dot_product_attention(query, key, value, implementation="cudnn", **lengths)


def _cudnn_can(head_dim, dtype) -> bool:
    return (
        jax_on_gpu()
        and keras.backend.standardize_dtype(dtype) in _CUDNN_DTYPES
        and head_dim <= _CUDNN_MAX_HEAD_DIM
        and head_dim % 8 == 0
    )


def jax_on_gpu() -> bool:
    """Whether JAX computes on a GPU unless told otherwise."""
    import jax

    device = getattr(jax.config, "jax_default_device", None)
    platform = getattr(device, "platform", device) or jax.default_backend()
    return platform in ("gpu", "cuda")


_KERNELS = {"torch": _torch_kernel, "jax": _jax_kernel}
