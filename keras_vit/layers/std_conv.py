"""Convolution with weight standardisation."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import feature_maps

STD_CONV_MODES = ("std", "variance")


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(keras.layers.Conv2D):
    """A bias-free convolution whose kernel has mean 0 and variance 1 for each output channel.

    Args:
        filters: output channels.
        kernel_size: int or `(height, width)`.
        strides: int or `(height, width)`.
        padding: `"same"` (asymmetric at stride 2, as TensorFlow and Flax pad), `"symmetric"`
            (`(kernel - 1) // 2` zeros on each side, as PyTorch and the published BiT pad) or
            `"valid"`.
        epsilon: keeps the division finite.
        mode: `"std"` divides by `std + epsilon` (official Flax code), `"variance"` by
            `sqrt(variance + epsilon)` (timm, transformers, published BiT).

    Call arguments:
        inputs: `(batch, height, width, channels)`.

    Returns:
        `(batch, new_height, new_width, filters)`.

    Raises:
        ValueError: on an unknown padding or mode, an epsilon that is not positive, or inputs that
            are no maps.

    Reference:
        arXiv 1903.10520.
    """

    def __init__(
        self, filters, kernel_size, strides=1, padding="same", epsilon=1e-5, mode="std", **kwargs
    ):
        self.padding_kind = _checks.choice("padding", padding, feature_maps.PADDINGS)
        kwargs.setdefault("use_bias", False)
        kwargs.setdefault("kernel_initializer", "lecun_normal")
        super().__init__(
            filters,
            kernel_size,
            strides=strides,
            padding="same" if padding == "same" else "valid",
            data_format="channels_last",
            **kwargs,
        )
        self.epsilon = _checks.positive_float("epsilon", epsilon)
        self.mode = _checks.choice("mode", mode, STD_CONV_MODES)

    def _margins(self):
        if self.padding_kind != "symmetric":
            return 0, 0
        height, width = self.kernel_size
        return (height - 1) // 2, (width - 1) // 2

    def build(self, input_shape):
        if len(input_shape) != 4:
            raise ValueError(
                "`StdConv2D` expects maps of shape (batch, height, width, channels). "
                f"Received: inputs.shape={tuple(input_shape)}"
            )
        super().build(input_shape)
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: input_shape[-1]})

    def convolution_op(self, inputs, kernel):
        kernel = self.standardized(kernel)
        return feature_maps.conv(
            inputs, kernel, self.strides, self.padding_kind, self.dilation_rate
        )

    def standardized(self, kernel):
        """The kernel `(height, width, in, out)` with mean 0 and variance 1 for each output."""
        wide = ops.cast(kernel, "float32")
        centred = wide - ops.mean(wide, axis=(0, 1, 2), keepdims=True)
        variance = ops.mean(ops.square(centred), axis=(0, 1, 2), keepdims=True)
        if self.mode == "std":
            scaled = centred / (ops.sqrt(variance) + self.epsilon)
        else:
            scaled = centred / ops.sqrt(variance + self.epsilon)
        return ops.cast(scaled, kernel.dtype)

    def compute_output_shape(self, input_shape):
        rows, columns = self._margins()
        batch, height, width, channels = input_shape
        height = None if height is None else height + 2 * rows
        width = None if width is None else width + 2 * columns
        return super().compute_output_shape((batch, height, width, channels))

    def get_config(self):
        config = super().get_config()
        config.pop("data_format")
        return {
            **config,
            "padding": self.padding_kind,
            "epsilon": self.epsilon,
            "mode": self.mode,
        }
