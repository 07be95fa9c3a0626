"""Relative positions through attention."""

from __future__ import annotations

import math

import keras
from keras import ops

from keras_vit import _checks


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePosition(keras.layers.Layer):
    """Attention of queries to embeddings of the offset between two patches.

    For a pair of patches p and q in row-by-row order the offset `p - q` picks one of
    `2 * patches - 1` embeddings, the largest offset first, shared by the heads. The query's
    product with it, scaled as the content scores are, is added to them before the softmax. Pairs
    with a prefix token (class token, registers) get 0.

    Args:
        num_prefix_tokens: tokens before the patches.

    Call arguments:
        query: `(batch, heads, tokens, head_dim)`.

    Returns:
        `(batch, heads, tokens, tokens)`: a bias of the attention scores.

    Reference:
        arXiv 2010.11929, appendix D.4.
    """

    def __init__(self, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.num_prefix_tokens = _checks.non_negative_int("num_prefix_tokens", num_prefix_tokens)

    def build(self, query_shape):
        patches = query_shape[2] - self.num_prefix_tokens
        self.embedding = self.add_weight(
            name="embedding",
            shape=(2 * patches - 1, query_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self.built = True

    def call(self, query):
        prefix = self.num_prefix_tokens
        head_dim = query.shape[-1]
        patches = (self.embedding.shape[0] + 1) // 2
        heads = query.shape[1]
        content = query[:, :, prefix:] * ops.cast(1.0 / math.sqrt(head_dim), query.dtype)
        # One product with every offset, N - 1 first: (B, H, N, 2N - 1). Row p wants the columns
        # from N - 1 - p on. With a column added, those start at p * (2N - 1) + N - 1 of the flat
        # row-major values, so reading rows one shorter lines them up: no gather.
        by_offset = ops.matmul(content, ops.transpose(ops.cast(self.embedding, query.dtype)))
        flat = ops.pad(by_offset, ((0, 0), (0, 0), (0, 0), (0, 1)))
        flat = ops.reshape(flat, (-1, heads, patches * 2 * patches))
        flat = flat[:, :, patches - 1 : patches - 1 + patches * (2 * patches - 1)]
        bias = ops.reshape(flat, (-1, heads, patches, 2 * patches - 1))[..., :patches]
        return ops.pad(bias, ((0, 0), (0, 0), (prefix, 0), (prefix, 0)))

    def compute_output_shape(self, query_shape):
        return (*query_shape[:3], query_shape[2])

    def get_config(self):
        return {**super().get_config(), "num_prefix_tokens": self.num_prefix_tokens}
