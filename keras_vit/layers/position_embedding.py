"""Position embeddings: learned in one or two dimensions, or fixed sines and cosines."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.sincos import sincos2d

ADDED_KINDS = ("learned", "learned_2d", "sincos2d")


@keras.saving.register_keras_serializable(package="keras_vit")
class PositionEmbedding(keras.layers.Layer):
    """Adds to every token an embedding of its position.

    Tokens are prefix tokens (class token first, then a distillation token, then registers), then
    patches row by row. Only patches have positions, and class and distillation token where
    `class_token_position` says so.

    Args:
        kind: `"learned"`, one table over the sequence (the paper's default); `"learned_2d"`, a
            table for the column and one for the row, half the width each, concatenated in that
            order; `"sincos2d"`, fixed (no weights).
        grid_shape: `(grid_height, grid_width)`, patches along each side.
        num_prefix_tokens: tokens before the patches.
        class_token_position: whether the first prefix token has an entry of its own; with
            `"sincos2d"` that entry is zero.
        distillation_token: whether the second prefix token is a distillation token, which has an
            entry wherever the class token has one.

    Call arguments:
        inputs: `(batch, num_prefix_tokens + grid_height * grid_width, hidden_dim)`.

    Returns:
        The same shape.

    Raises:
        ValueError: if the kind is unknown, the tokens are not those of the grid, or `hidden_dim`
            is not divisible by 2 (`"learned_2d"`) or 4 (`"sincos2d"`).

    Reference:
        arXiv 2010.11929, appendix D.4; "sincos2d" arXiv 2205.01580.
    """

    def __init__(
        self,
        kind="learned",
        *,
        grid_shape,
        num_prefix_tokens=0,
        class_token_position=False,
        distillation_token=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.kind = _checks.choice("kind", kind, ADDED_KINDS)
        self.grid_shape = _checks.int_pair("grid_shape", grid_shape)
        self.num_prefix_tokens = _checks.non_negative_int("num_prefix_tokens", num_prefix_tokens)
        self.class_token_position = _checks.boolean("class_token_position", class_token_position)
        self.distillation_token = _checks.boolean("distillation_token", distillation_token)
        if self.class_token_position and not self.num_prefix_tokens:
            raise ValueError(
                "`class_token_position=True` needs a class token. Received: num_prefix_tokens=0"
            )
        if self.distillation_token and self.num_prefix_tokens < 2:
            raise ValueError(
                "`distillation_token=True` needs a class token before it. "
                f"Received: num_prefix_tokens={self.num_prefix_tokens}"
            )

    @property
    def _prefix_rows(self) -> int:
        """Entries of the class token and, behind it, the distillation token."""
        return 1 + int(self.distillation_token) if self.class_token_position else 0

    def build(self, input_shape):
        grid_height, grid_width = self.grid_shape
        patches = grid_height * grid_width
        tokens, dim = input_shape[-2], input_shape[-1]
        if tokens is not None and tokens != self.num_prefix_tokens + patches:
            raise ValueError(
                f"`PositionEmbedding` expects {self.num_prefix_tokens} prefix tokens and "
                f"{grid_height} x {grid_width} patches. Received: inputs.shape="
                f"{tuple(input_shape)}"
            )
        check_width(self.kind, dim)
        if self.kind == "learned":
            self.embedding = self._table("embedding", (self._prefix_rows + patches, dim))
        elif self.kind == "learned_2d":
            self.x_embedding = self._table("x_embedding", (grid_width, dim // 2))
            self.y_embedding = self._table("y_embedding", (grid_height, dim // 2))
            if self.class_token_position:
                self.class_embedding = self._table("class_embedding", (self._prefix_rows, dim))
        else:
            self._sincos = sincos2d(self.grid_shape, dim)
        self.built = True

    def _table(self, name, shape):
        return self.add_weight(
            name=name, shape=shape, initializer=keras.initializers.RandomNormal(stddev=0.02)
        )

    def _tables(self):
        """The prefix tokens' rows, or None, and the patches' rows."""
        if self.kind == "learned":
            split = self._prefix_rows
            return (self.embedding[:split] if split else None), self.embedding[split:]
        if self.kind == "learned_2d":
            (height, width), half = self.grid_shape, self.x_embedding.shape[-1]
            x = ops.broadcast_to(ops.expand_dims(self.x_embedding, 0), (height, width, half))
            y = ops.broadcast_to(ops.expand_dims(self.y_embedding, 1), (height, width, half))
            patches = ops.reshape(ops.concatenate([x, y], -1), (height * width, 2 * half))
            return (self.class_embedding if self.class_token_position else None), patches
        return None, ops.convert_to_tensor(self._sincos, dtype=self.compute_dtype)

    def patch_table(self):
        """The patches' embeddings, row by row of the grid: `(patches, hidden_dim)`."""
        return self._tables()[1]

    def call(self, inputs):
        prefix_rows, patch_rows = self._tables()
        dim = inputs.shape[-1]
        rows = [] if prefix_rows is None else [ops.cast(prefix_rows, inputs.dtype)]
        missing = self.num_prefix_tokens - (0 if prefix_rows is None else self._prefix_rows)
        if missing:
            rows.append(ops.zeros((missing, dim), dtype=inputs.dtype))
        rows.append(ops.cast(patch_rows, inputs.dtype))
        table = ops.concatenate(rows, axis=0) if len(rows) > 1 else rows[0]
        return inputs + ops.expand_dims(table, 0)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "kind": self.kind,
            "grid_shape": self.grid_shape,
            "num_prefix_tokens": self.num_prefix_tokens,
            "class_token_position": self.class_token_position,
            "distillation_token": self.distillation_token,
        }


def check_width(kind: str, hidden_dim: int) -> None:
    """Raises a ValueError unless embeddings of `kind` can have `hidden_dim` entries."""
    divisor = {"learned_2d": 2, "sincos2d": 4}.get(kind, 1)
    if hidden_dim % divisor:
        raise ValueError(
            f"Position embeddings {kind!r} need a `hidden_dim` divisible by {divisor}. "
            f"Received: hidden_dim={hidden_dim}"
        )
