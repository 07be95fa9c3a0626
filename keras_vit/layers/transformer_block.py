"""One pre-norm Transformer encoder block."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks, _compiling
from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.mlp import MLP
from keras_vit.layers.regularization import DropPath, LayerScale
from keras_vit.layers.remat import recompute


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(keras.layers.Layer):
    """LayerNorm, attention, residual; LayerNorm, MLP, residual.

    Args:
        num_heads: heads; must divide the input's width.
        mlp_dim: width of the MLP.
        activation: the MLP's, see `MLP`.
        dropout_rate: dropout after the attention and inside the MLP.
        attention_dropout_rate: dropout of the attention probabilities.
        drop_path_rate: probability that a sample skips a residual branch.
        layer_scale_init: initial LayerScale of both branches; `None` for no LayerScale.
        norm_epsilon: epsilon of the LayerNorms.
        qkv_bias: whether the fused projection has a bias.
        qk_norm: whether queries and keys are normalised.
        relative_position: whether relative positions bias the attention.
        num_prefix_tokens: tokens before the patches.
        remat: whether training computes the inside again in the backward pass instead of
            keeping it: less memory for about a third more work.

    Call arguments:
        inputs: `(batch, tokens, hidden_dim)`.
        training: whether dropout and DropPath are active.

    Returns:
        `(batch, tokens, hidden_dim)`.

    Raises:
        ValueError: on arguments out of range, or if `num_heads` does not divide `hidden_dim`.

    Reference:
        arXiv 2010.11929, equations 2 and 3.
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        *,
        activation="gelu_tanh",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.0,
        layer_scale_init=None,
        norm_epsilon=1e-6,
        qkv_bias=True,
        qk_norm=False,
        relative_position=False,
        num_prefix_tokens=0,
        remat=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.remat = _checks.boolean("remat", remat)
        self.dropout_rate = _checks.rate("dropout_rate", dropout_rate)
        self.drop_path_rate = _checks.rate("drop_path_rate", drop_path_rate)
        self.norm_epsilon = _checks.positive_float("norm_epsilon", norm_epsilon)
        if layer_scale_init is not None:
            layer_scale_init = _checks.positive_float("layer_scale_init", layer_scale_init)
        self.layer_scale_init = layer_scale_init

        self.attention_norm = self._norm("attention_norm")
        self.attention = MultiHeadSelfAttention(
            num_heads,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            norm_epsilon=self.norm_epsilon,
            dropout_rate=_checks.rate("attention_dropout_rate", attention_dropout_rate),
            relative_position=relative_position,
            num_prefix_tokens=num_prefix_tokens,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.dropout = keras.layers.Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name="dropout"
        )
        self.attention_scale = self._scale("attention_scale")
        self.attention_drop_path = self._drop_path("attention_drop_path")
        self.mlp_norm = self._norm("mlp_norm")
        self.mlp = MLP(
            mlp_dim,
            activation=activation,
            dropout_rate=self.dropout_rate,
            dtype=self.dtype_policy,
            name="mlp",
        )
        self.mlp_scale = self._scale("mlp_scale")
        self.mlp_drop_path = self._drop_path("mlp_drop_path")

    def _norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def _scale(self, name):
        if self.layer_scale_init is None:
            return None
        return LayerScale(self.layer_scale_init, dtype=self.dtype_policy, name=name)

    def _drop_path(self, name):
        return DropPath(self.drop_path_rate, dtype=self.dtype_policy, name=name)

    def build(self, input_shape):
        _checks.divides("num_heads", self.attention.num_heads, "hidden_dim", input_shape[-1])
        for layer in (
            self.attention_norm,
            self.attention,
            self.attention_scale,
            self.mlp_norm,
            self.mlp,
            self.mlp_scale,
        ):
            if layer is not None:
                layer.build(input_shape)
        self.built = True

    def call(self, inputs, training=None):
        # What is recorded for PyTorch is told of remat when it is compiled.
        if self.remat and training and _compiling.current().recording is None:
            return recompute(self, lambda x: self._forward(x, training=True), inputs)
        return self._forward(inputs, training)

    def _forward(self, inputs, training, gates=None):
        # The stream is (batch * tokens, width): XLA, left to itself, makes the batch the last
        # axis of a stream of three, and turns it around every norm.
        _, tokens, dim = ops.shape(inputs)

        def flat(x):
            return ops.reshape(x, (-1, dim))

        def whole(x):
            return ops.reshape(x, (-1, tokens, dim))

        def dropped(drop_path, branch):
            if not training or not drop_path.rate:
                return branch
            return flat(drop_path(whole(branch), training=True))

        x = flat(inputs)
        y = whole(self.attention_norm(x))
        if gates is None:
            y = flat(self.attention(y, training=training))
        else:
            y = flat(self.attention.gated(y, gates))
        y = self.dropout(y, training=training)
        if self.attention_scale is not None:
            y = self.attention_scale(y)
        x = x + dropped(self.attention_drop_path, y)

        y = self.mlp(self.mlp_norm(x), training=training)
        if self.mlp_scale is not None:
            y = self.mlp_scale(y)
        return whole(x + dropped(self.mlp_drop_path, y))

    def attention_scores(self, inputs):
        """The block's attention probabilities for its inputs.

        Args:
            inputs: `(batch, tokens, hidden_dim)`.

        Returns:
            `(batch, num_heads, tokens, tokens)`, float32; each row sums to 1.
        """
        normed = self.attention_norm(inputs)
        return self.attention(normed, training=False, return_attention_scores=True)[1]

    def gated(self, inputs, gates):
        """The block in inference, with its attention probabilities multiplied by gates.

        Args:
            inputs: `(batch, tokens, hidden_dim)`.
            gates: `(batch, num_heads, tokens, tokens)`, float32.

        Returns:
            `(batch, tokens, hidden_dim)`.
        """
        return self._forward(inputs, False, gates)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        attention = self.attention
        return {
            **super().get_config(),
            "num_heads": attention.num_heads,
            "mlp_dim": self.mlp.mlp_dim,
            "activation": self.mlp.activation,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": attention.dropout_rate,
            "drop_path_rate": self.drop_path_rate,
            "layer_scale_init": self.layer_scale_init,
            "norm_epsilon": self.norm_epsilon,
            "qkv_bias": attention.qkv_bias,
            "qk_norm": attention.qk_norm,
            "relative_position": attention.use_relative_position,
            "num_prefix_tokens": attention.num_prefix_tokens,
            "remat": self.remat,
        }
