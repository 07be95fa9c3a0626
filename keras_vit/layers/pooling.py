"""From tokens to one vector an image: one token, a mean, both side by side, or attention."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers.dense import Dense
from keras_vit.layers.fused_attention import plain_attention_scores
from keras_vit.layers.mlp import MLP


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(keras.layers.Layer):
    """Takes one token: the class token, unless told otherwise.

    Args:
        index: place of the token in the sequence; DeiT's distillation token has 1.

    Call arguments:
        inputs: `(batch, tokens, hidden_dim)`, class token first.

    Returns:
        `(batch, hidden_dim)`.
    """

    def __init__(self, index=0, **kwargs):
        super().__init__(**kwargs)
        self.index = _checks.non_negative_int("index", index)

    def call(self, inputs):
        return inputs[:, self.index]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[2])

    def get_config(self):
        return {**super().get_config(), "index": self.index}


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchAveragePooling(keras.layers.Layer):
    """Averages the patch tokens; class token and registers are left out.

    Args:
        num_prefix_tokens: tokens before the patches; 0 averages all tokens.

    Call arguments:
        inputs: `(batch, num_prefix_tokens + patches, hidden_dim)`.

    Returns:
        `(batch, hidden_dim)`.
    """

    def __init__(self, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.num_prefix_tokens = _checks.non_negative_int("num_prefix_tokens", num_prefix_tokens)

    def call(self, inputs):
        return ops.mean(inputs[:, self.num_prefix_tokens :], axis=1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[2])

    def get_config(self):
        return {**super().get_config(), "num_prefix_tokens": self.num_prefix_tokens}


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenAveragePooling(keras.layers.Layer):
    """Puts the class token and the mean of the patch tokens side by side.

    Args:
        num_prefix_tokens: tokens before the patches, at least the class token.

    Call arguments:
        inputs: `(batch, num_prefix_tokens + patches, hidden_dim)`, class token first.

    Returns:
        `(batch, 2 * hidden_dim)`.

    Reference:
        arXiv 2304.07193, the linear evaluation of DINOv2.
    """

    def __init__(self, num_prefix_tokens=1, **kwargs):
        super().__init__(**kwargs)
        self.num_prefix_tokens = _checks.positive_int("num_prefix_tokens", num_prefix_tokens)

    def call(self, inputs):
        mean = ops.mean(inputs[:, self.num_prefix_tokens :], axis=1)
        return ops.concatenate([inputs[:, 0], mean], axis=-1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], None if input_shape[2] is None else 2 * input_shape[2])

    def get_config(self):
        return {**super().get_config(), "num_prefix_tokens": self.num_prefix_tokens}


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(keras.layers.Layer):
    """Multi-head attention pooling (MAP): a learned probe attends to all tokens, then an MLP.

    There is no residual around the attention, and one around the MLP.

    Args:
        num_heads: heads; must divide the input's width.
        mlp_dim: width of the MLP.
        activation: the MLP's, see `MLP`.
        norm_epsilon: epsilon of the LayerNorm before the MLP.

    Call arguments:
        inputs: `(batch, tokens, hidden_dim)`.
        return_attention_scores: whether to return the probe's probabilities too.

    Returns:
        `(batch, hidden_dim)`; with scores, a pair of that and `(batch, num_heads, 1, tokens)`
        in float32.

    Raises:
        ValueError: on arguments out of range, or if `num_heads` does not divide `hidden_dim`.

    Reference:
        arXiv 2106.04560, section 3.3; big_vision's `MAPHead`.
    """

    def __init__(self, num_heads, mlp_dim, *, activation="gelu_tanh", norm_epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = _checks.positive_int("num_heads", num_heads)
        self.norm_epsilon = _checks.positive_float("norm_epsilon", norm_epsilon)
        self.mlp = MLP(mlp_dim, activation=activation, dtype=self.dtype_policy, name="mlp")
        self.mlp_dim = self.mlp.mlp_dim
        self.activation = self.mlp.activation
        self.norm = keras.layers.LayerNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name="norm"
        )

    def build(self, input_shape):
        dim = input_shape[-1]
        _checks.divides("num_heads", self.num_heads, "hidden_dim", dim)
        self.probe = self.add_weight(name="probe", shape=(1, 1, dim), initializer="glorot_uniform")
        self.query = Dense(dim, dtype=self.dtype_policy, name="query")
        self.key_value = Dense(
            2 * dim,
            # Glorot's variance for each of the two square kernels, not for the fused one.
            kernel_initializer=keras.initializers.VarianceScaling(1.5, "fan_avg", "uniform"),
            dtype=self.dtype_policy,
            name="key_value",
        )
        self.out = Dense(dim, dtype=self.dtype_policy, name="out")
        for layer in (self.query, self.key_value, self.out, self.norm, self.mlp):
            layer.build((input_shape[0], 1, dim))
        self.built = True

    def call(self, inputs, return_attention_scores=False):
        scores, value = self._attended(inputs)
        outputs = self._read(scores, value)
        return (outputs, scores) if return_attention_scores else outputs

    def gated(self, inputs, gates):
        """The pooling with its attention probabilities multiplied by gates.

        Args:
            inputs: `(batch, tokens, hidden_dim)`.
            gates: `(batch, num_heads, 1, tokens)`, float32.

        Returns:
            `(batch, hidden_dim)`.
        """
        scores, value = self._attended(inputs)
        return self._read(scores * gates, value)

    def _attended(self, inputs):
        """The probe's probabilities `(B, H, 1, T)`, and the values `(B, H, T, d)`."""
        _, tokens, dim = ops.shape(inputs)
        query = self._heads(self.query(ops.reshape(self.probe, (1, dim))), 1)
        fused = self.key_value(ops.reshape(inputs, (-1, dim)))
        key, value = (self._heads(part, tokens) for part in ops.split(fused, 2, axis=-1))
        return plain_attention_scores(query, key), value

    def _read(self, scores, value):
        x = ops.matmul(ops.cast(scores, value.dtype), value)  # (B, H, 1, d)
        x = self.out(ops.reshape(x, (-1, self.probe.shape[-1])))
        x = ops.expand_dims(x, 1)
        return ops.squeeze(x + self.mlp(self.norm(x)), 1)

    def _heads(self, x, tokens):
        x = ops.reshape(x, (-1, tokens, self.num_heads, x.shape[-1] // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))  # (B, H, T, d)

    def compute_output_spec(self, inputs, return_attention_scores=False):
        batch, tokens, dim = inputs.shape
        outputs = keras.KerasTensor((batch, dim), dtype=self.compute_dtype)
        if not return_attention_scores:
            return outputs
        return outputs, keras.KerasTensor((batch, self.num_heads, 1, tokens), dtype="float32")

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[2])

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "activation": self.activation,
            "norm_epsilon": self.norm_epsilon,
        }
