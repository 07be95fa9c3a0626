"""Cutting an image, or a feature map, into patches."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks


@keras.saving.register_keras_serializable(package="keras_vit")
class Patches(keras.layers.Layer):
    """Cuts images into non-overlapping patches, one flat vector each.

    Patches run row by row over the image; within a vector the order is row, column, channel, so
    a `(height * width * channels, hidden_dim)` projection kernel is a convolution kernel
    `(height, width, channels, hidden_dim)`, reshaped.

    Args:
        patch_size: int or `(height, width)`, in pixels.

    Call arguments:
        inputs: `(batch, height, width, channels)`, any integer or float dtype. Cast to the
            layer's compute dtype, values unchanged.

    Returns:
        `(batch, grid_height * grid_width, patch_height * patch_width * channels)`.

    Raises:
        ValueError: if the patch does not divide the image.

    Reference:
        arXiv 2010.11929, section 3.1.
    """

    def __init__(self, patch_size, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = _checks.int_pair("patch_size", patch_size)

    def _grid(self, input_shape) -> tuple[int | None, int | None]:
        if len(input_shape) != 4:
            raise ValueError(
                "`Patches` expects images of shape (batch, height, width, channels). "
                f"Received: inputs.shape={tuple(input_shape)}"
            )
        grid = []
        for axis, side, patch in zip(
            ("height", "width"), input_shape[1:3], self.patch_size, strict=True
        ):
            if side is not None and side % patch:
                raise ValueError(
                    f"The patch must divide the image. Received: image {axis}={side}, "
                    f"patch {axis}={patch}"
                )
            grid.append(None if side is None else side // patch)
        return grid[0], grid[1]

    def call(self, inputs):
        self._grid(inputs.shape)
        patch_height, patch_width = self.patch_size
        _, height, width, channels = ops.shape(inputs)
        grid_height, grid_width = height // patch_height, width // patch_width
        row = patch_width * channels
        # Four axes are enough, and every runtime, TFLite included, transposes those natively.
        # (B, H, W, C) -> (B * gh, ph, gw, pw * C) -> (B * gh, gw, ph, pw * C)
        x = ops.cast(inputs, self.compute_dtype)
        x = ops.reshape(x, (-1, patch_height, grid_width, row))
        x = ops.transpose(x, (0, 2, 1, 3))
        # -> (B, gh * gw, ph * pw * C)
        return ops.reshape(x, (-1, grid_height * grid_width, patch_height * row))

    def compute_output_shape(self, input_shape):
        grid_height, grid_width = self._grid(input_shape)
        tokens = None
        if grid_height is not None and grid_width is not None:
            tokens = grid_height * grid_width
        channels = input_shape[-1]
        vector = None if channels is None else self.patch_size[0] * self.patch_size[1] * channels
        return (input_shape[0], tokens, vector)

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size}
