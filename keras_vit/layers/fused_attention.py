"""The attention kernels of each backend, and the plain product that serves everywhere else."""

from __future__ import annotations

import math

import keras
from keras import ops

_CUDNN_DTYPES = ("bfloat16", "float16")
_CUDNN_MAX_HEAD_DIM = 128


def fused_attention(query, key, value):
    """Softmax attention by the device's fused kernel.

    Args:
        query: `(batch, tokens, heads, head_dim)`.
        key: the same shape.
        value: the same shape.

    Returns:
        `(batch, tokens, heads, head_dim)`, or `None` where plain matmuls are faster: on CPUs (on
        all three backends), on TensorFlow (XLA fuses them), and for what a kernel cannot do.
    """
    kernel = _KERNELS.get(keras.backend.backend())
    return None if kernel is None else kernel(query, key, value)


def plain_attention_scores(query, key, bias=None):
    """Attention probabilities by a matmul and a softmax in float32.

    Args:
        query: `(batch, heads, tokens, head_dim)`.
        key: the same shape.
        bias: added before the softmax; broadcasts to `(batch, heads, tokens, tokens)`.

    Returns:
        `(batch, heads, tokens, tokens)`, float32; each row sums to 1.
    """
    # Scaling the query, not the product, keeps float16 in range.
    query = query * ops.cast(1.0 / math.sqrt(query.shape[-1]), query.dtype)
    scores = ops.cast(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    return ops.softmax(scores, axis=-1)


def _torch_kernel(query, key, value):
    if query.device.type != "cuda":
        return None
    # `flash_attention=False` leaves the choice to PyTorch, which takes cuDNN's kernel where that
    # is faster; True would pin FlashAttention-2.
    return ops.dot_product_attention(query, key, value, flash_attention=False)


def _jax_kernel(query, key, value):
    if not _jax_on_gpu() or keras.backend.standardize_dtype(query.dtype) not in _CUDNN_DTYPES:
        return None
    if query.shape[-1] > _CUDNN_MAX_HEAD_DIM or query.shape[-1] % 8:
        return None
    import jax
    import jax.numpy as jnp

    # cuDNN trains on even token counts only. One padded token, masked by the sequence length,
    # costs next to nothing; the fallback costs a third of the speed.
    batch, tokens = query.shape[:2]
    padding = ((0, 0), (0, tokens % 2), (0, 0), (0, 0))
    if tokens % 2:
        query, key, value = (jnp.pad(x, padding) for x in (query, key, value))
    lengths = jnp.full((batch,), tokens, dtype=jnp.int32)
    outputs = jax.nn.dot_product_attention(
        query,
        key,
        value,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        implementation="cudnn",
    )
    return outputs[:, :tokens]


def _jax_on_gpu() -> bool:
    import jax

    device = getattr(jax.config, "jax_default_device", None)
    platform = getattr(device, "platform", device) or jax.default_backend()
    return platform in ("gpu", "cuda")


_KERNELS = {"torch": _torch_kernel, "jax": _jax_kernel}
