"""From patches to the token sequence that the Transformer reads."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers.dense import Dense
from keras_vit.layers.position_embedding import ADDED_KINDS, PositionEmbedding


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEncoder(keras.layers.Layer):
    """Projects patches, puts class token and registers in front, adds positions at the stem.

    Args:
        hidden_dim: width of a token.
        grid_shape: `(grid_height, grid_width)` of the patches; `None` for a square grid.
        position_embedding: `"learned"`, `"learned_2d"`, `"sincos2d"` (see `PositionEmbedding`)
            or `"none"`. Relative positions, and positions added at every layer, are no business
            of this layer: take `"none"` here.
        class_token: whether a learnable token, zero at first, comes first.
        class_token_position: whether the class token has a position entry (the paper: yes;
            DeiT-3 and big_vision: no).
        distillation_token: whether a second learnable token, zero at first, follows the class
            token, with a position entry where that has one (arXiv 2012.12877).
        num_registers: learnable tokens after those, without positions (arXiv 2309.16588).
        use_bias: whether the projection has a bias.
        dropout_rate: dropout after the positions are added.

    Call arguments:
        inputs: patches `(batch, patches, patch_height * patch_width * channels)`.
        training: whether dropout is active.

    Returns:
        `(batch, prefix + patches, hidden_dim)`.

    Raises:
        ValueError: on arguments out of range, or patches that do not fill the grid.

    Reference:
        arXiv 2010.11929, equation 1.
    """

    def __init__(
        self,
        hidden_dim,
        *,
        grid_shape=None,
        position_embedding="learned",
        class_token=True,
        class_token_position=True,
        distillation_token=False,
        num_registers=0,
        use_bias=True,
        dropout_rate=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_dim = _checks.positive_int("hidden_dim", hidden_dim)
        self.grid_shape = None if grid_shape is None else _checks.int_pair("grid_shape", grid_shape)
        self.position_embedding_kind = _checks.choice(
            "position_embedding", position_embedding, (*ADDED_KINDS, "none")
        )
        self.use_class_token = _checks.boolean("class_token", class_token)
        self.class_token_position = _checks.boolean("class_token_position", class_token_position)
        self.use_distillation_token = _checks.boolean("distillation_token", distillation_token)
        if self.use_distillation_token and not self.use_class_token:
            raise ValueError(
                "`distillation_token=True` needs a class token. Received: class_token=False"
            )
        self.num_registers = _checks.non_negative_int("num_registers", num_registers)
        self.use_bias = _checks.boolean("use_bias", use_bias)
        self.dropout_rate = _checks.rate("dropout_rate", dropout_rate)
        self.num_prefix_tokens = (
            int(self.use_class_token) + int(self.use_distillation_token) + self.num_registers
        )

        self.projection = Dense(
            self.hidden_dim,
            use_bias=self.use_bias,
            kernel_initializer="lecun_normal",
            dtype=self.dtype_policy,
            name="projection",
        )
        self.dropout = keras.layers.Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name="dropout"
        )
        self.position_embedding: PositionEmbedding | None = None

    def _square_grid(self, patches) -> tuple[int, int]:
        side = round((patches or 0) ** 0.5)
        if side * side != patches:
            raise ValueError(
                "`grid_shape` must be given where the patches are not a square. "
                f"Received: grid_shape=None, patches={patches}"
            )
        return side, side

    def build(self, input_shape):
        if len(input_shape) != 3:
            raise ValueError(
                "`PatchEncoder` expects patches of shape (batch, patches, values). "
                f"Received: inputs.shape={tuple(input_shape)}"
            )
        self.projection.build(input_shape)
        if self.use_class_token:
            self.class_token = self.add_weight(
                name="class_token", shape=(1, 1, self.hidden_dim), initializer="zeros"
            )
        if self.use_distillation_token:
            self.distillation_token = self.add_weight(
                name="distillation_token", shape=(1, 1, self.hidden_dim), initializer="zeros"
            )
        if self.num_registers:
            self.registers = self.add_weight(
                name="registers",
                shape=(1, self.num_registers, self.hidden_dim),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        if self.position_embedding_kind != "none":
            self.position_embedding = PositionEmbedding(
                self.position_embedding_kind,
                grid_shape=self.grid_shape or self._square_grid(input_shape[1]),
                num_prefix_tokens=self.num_prefix_tokens,
                class_token_position=self.use_class_token and self.class_token_position,
                distillation_token=self.use_distillation_token,
                dtype=self.dtype_policy,
                name="position_embedding",
            )
            self.position_embedding.build(self.compute_output_shape(input_shape))
        self.built = True

    def call(self, inputs, training=None):
        # Matmuls run on (batch * patches, values): no transposes on any backend.
        _, patches, values = ops.shape(inputs)
        x = self.projection(ops.reshape(inputs, (-1, values)))
        x = ops.reshape(x, (-1, patches, self.hidden_dim))
        prefix = [self.class_token] if self.use_class_token else []
        prefix += [self.distillation_token] if self.use_distillation_token else []
        prefix += [self.registers] if self.num_registers else []
        if prefix:
            batch = ops.shape(x)[0]
            prefix = [
                ops.broadcast_to(ops.cast(p, x.dtype), (batch, p.shape[1], self.hidden_dim))
                for p in prefix
            ]
            x = ops.concatenate([*prefix, x], axis=1)
        if self.position_embedding is not None:
            x = self.position_embedding(x)
        return self.dropout(x, training=training)

    def compute_output_shape(self, input_shape):
        batch, patches, _ = input_shape
        tokens = None if patches is None else self.num_prefix_tokens + patches
        return (batch, tokens, self.hidden_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "grid_shape": self.grid_shape,
            "position_embedding": self.position_embedding_kind,
            "class_token": self.use_class_token,
            "class_token_position": self.class_token_position,
            "distillation_token": self.use_distillation_token,
            "num_registers": self.num_registers,
            "use_bias": self.use_bias,
            "dropout_rate": self.dropout_rate,
        }
