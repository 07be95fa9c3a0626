"""Multi-head self-attention."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers.dense import Dense
from keras_vit.layers.fused_attention import (
    fused_attention,
    missing_tokens,
    plain_attention_scores,
)
from keras_vit.layers.relative_position import RelativePosition


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(keras.layers.Layer):
    """Self-attention with one fused projection for queries, keys and values.

    Args:
        num_heads: heads; must divide the input's width.
        qkv_bias: whether the fused projection has a bias.
        qk_norm: whether queries and keys pass a LayerNorm over each head's width
            (arXiv 2302.05442).
        norm_epsilon: epsilon of those norms.
        dropout_rate: dropout of the attention probabilities.
        relative_position: whether 1-D relative positions bias the scores; see
            `RelativePosition`.
        num_prefix_tokens: tokens before the patches; relative positions leave them out.

    Call arguments:
        inputs: `(batch, tokens, hidden_dim)`.
        training: whether dropout is active.
        return_attention_scores: whether to return the probabilities too. The output is the same
            to the bit either way.

    Returns:
        `(batch, tokens, hidden_dim)`; with scores, a pair of that and the probabilities before
        dropout, `(batch, num_heads, tokens, tokens)` in float32.

    Raises:
        ValueError: on arguments out of range, or if `num_heads` does not divide `hidden_dim`.

    Reference:
        arXiv 2010.11929, appendix A.
    """

    def __init__(
        self,
        num_heads,
        *,
        qkv_bias=True,
        qk_norm=False,
        norm_epsilon=1e-6,
        dropout_rate=0.0,
        relative_position=False,
        num_prefix_tokens=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = _checks.positive_int("num_heads", num_heads)
        self.qkv_bias = _checks.boolean("qkv_bias", qkv_bias)
        self.qk_norm = _checks.boolean("qk_norm", qk_norm)
        self.norm_epsilon = _checks.positive_float("norm_epsilon", norm_epsilon)
        self.dropout_rate = _checks.rate("dropout_rate", dropout_rate)
        self.use_relative_position = _checks.boolean("relative_position", relative_position)
        self.num_prefix_tokens = _checks.non_negative_int("num_prefix_tokens", num_prefix_tokens)
        self.dropout = keras.layers.Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name="dropout"
        )

    def build(self, input_shape):
        dim = input_shape[-1]
        _checks.divides("num_heads", self.num_heads, "hidden_dim", dim)
        self.head_dim = dim // self.num_heads
        self.qkv = Dense(
            3 * dim,
            use_bias=self.qkv_bias,
            # Glorot's variance for each of the three square kernels, not for the fused one.
            kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_avg", "uniform"),
            dtype=self.dtype_policy,
            name="qkv",
        )
        self.out = Dense(dim, dtype=self.dtype_policy, name="out")
        self.qkv.build(input_shape)
        self.out.build(input_shape)
        if self.qk_norm:
            self.query_norm = self._head_norm("query_norm")
            self.key_norm = self._head_norm("key_norm")
        self.relative_position = None
        if self.use_relative_position:
            if input_shape[1] is None:
                raise ValueError(
                    "Relative positions need a known number of tokens. "
                    f"Received: inputs.shape={tuple(input_shape)}"
                )
            self.relative_position = RelativePosition(
                self.num_prefix_tokens, dtype=self.dtype_policy, name="relative_position"
            )
            self.relative_position.build(
                (input_shape[0], self.num_heads, input_shape[1], self.head_dim)
            )
        self.built = True

    def _head_norm(self, name):
        norm = keras.layers.LayerNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )
        norm.build((None, None, None, self.head_dim))
        return norm

    def call(self, inputs, training=None, return_attention_scores=False):
        _, tokens, dim = ops.shape(inputs)
        needs_scores = self.relative_position is not None or (self.dropout_rate and training)
        missing = 0
        if not needs_scores:
            missing = missing_tokens(tokens, self.head_dim, inputs.dtype)
        query, key, value = self._projected(inputs, tokens, missing)

        scores = outputs = None
        if not needs_scores:
            valid = tokens if missing else None
            outputs = fused_attention(query, key, value, tokens=valid)
        if outputs is None or return_attention_scores:
            query, key = (x[:, :tokens] if missing else x for x in (query, key))
            scores = self._scores(query, key, training)
        if outputs is None:
            outputs = self._mixed(scores, value, training)
        outputs = self.out(ops.reshape(outputs, (-1, dim)))
        outputs = ops.reshape(outputs, (-1, tokens + missing, dim))
        outputs = outputs[:, :tokens] if missing else outputs
        return (outputs, scores) if return_attention_scores else outputs

    def _projected(self, inputs, tokens, missing):
        """Queries, keys and values, each `(batch, tokens + missing, heads, head_dim)`."""
        if missing:
            inputs = ops.pad(inputs, ((0, 0), (0, missing), (0, 0)))
        # Matmuls run on (batch * tokens, width): no transposes on any backend.
        fused = self.qkv(ops.reshape(inputs, (-1, inputs.shape[-1])))
        if missing:
            # Nor do gradients of the padding reach the bias, whatever the kernel leaves there.
            fused = ops.reshape(fused, (-1, tokens + missing, fused.shape[-1]))
            valid = ops.reshape(ops.arange(tokens + missing) < tokens, (1, -1, 1))
            fused = ops.where(valid, fused, ops.zeros_like(fused))
            fused = ops.reshape(fused, (-1, fused.shape[-1]))
        query, key, value = (
            ops.reshape(part, (-1, tokens + missing, self.num_heads, self.head_dim))
            for part in ops.split(fused, 3, axis=-1)
        )
        if self.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value

    def _scores(self, query, key, training):
        query = ops.transpose(query, (0, 2, 1, 3))  # (B, H, T, d)
        key = ops.transpose(key, (0, 2, 1, 3))
        bias = None if self.relative_position is None else self.relative_position(query)
        return plain_attention_scores(query, key, bias, training)

    def _mixed(self, scores, value, training):
        kept = self.dropout(ops.cast(scores, value.dtype), training=training)
        outputs = ops.matmul(kept, ops.transpose(value, (0, 2, 1, 3)))  # (B, H, T, d)
        return ops.transpose(outputs, (0, 2, 1, 3))

    def gated(self, inputs, gates):
        """Attention whose probabilities are multiplied by gates, as in inference.

        With gates of one the derivative by a gate is that by the probability times the
        probability, whatever kernel the layer uses else.

        Args:
            inputs: `(batch, tokens, hidden_dim)`.
            gates: `(batch, num_heads, tokens, tokens)`, float32.

        Returns:
            `(batch, tokens, hidden_dim)`.
        """
        _, tokens, dim = ops.shape(inputs)
        query, key, value = self._projected(inputs, tokens, 0)
        outputs = self._mixed(self._scores(query, key, False) * gates, value, False)
        return ops.reshape(self.out(ops.reshape(outputs, (-1, dim))), (-1, tokens, dim))

    def compute_output_spec(self, inputs, training=None, return_attention_scores=False):
        outputs = keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return outputs
        batch, tokens, _ = inputs.shape
        scores = keras.KerasTensor((batch, self.num_heads, tokens, tokens), dtype="float32")
        return outputs, scores

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            "norm_epsilon": self.norm_epsilon,
            "dropout_rate": self.dropout_rate,
            "relative_position": self.use_relative_position,
            "num_prefix_tokens": self.num_prefix_tokens,
        }
