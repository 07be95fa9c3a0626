"""Pixels in, network range out: part of the model, so that no caller can get it wrong."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks

# name -> (mean, standard deviation) of pixel values in 0..255; one entry counts for all channels.
PIXEL_RANGES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    # [-1, 1]: Google's ViT, AugReg, BiT and SigLIP.
    "inception": ((127.5,), (127.5,)),
    # DINO, DINOv2, DeiT, torchvision.
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    # OpenAI's and LAION's CLIP towers.
    "clip": (
        (122.7709383, 116.7460125, 104.09373615),
        (68.5005327, 66.6321579, 70.32316305),
    ),
    # [0, 1].
    "unit": ((0.0,), (255.0,)),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class PixelScaling(keras.layers.Layer):
    """Maps pixels 0..255 to the range that a network was trained on.

    Args:
        pixel_range: `"inception"` for [-1, 1], `"imagenet"` or `"clip"` for the statistics of
            those data sets, `"unit"` for [0, 1].

    Call arguments:
        inputs: `(batch, height, width, channels)`, uint8 or float, values 0..255.

    Returns:
        The same shape in the layer's compute dtype; computed in float32.

    Raises:
        ValueError: if the range is unknown, or needs three channels and gets another number.
    """

    def __init__(self, pixel_range="inception", **kwargs):
        super().__init__(**kwargs)
        self.pixel_range = _checks.choice("pixel_range", pixel_range, tuple(PIXEL_RANGES))
        # Whole pixels are exact in float32, and no half precision holds them scaled by far.
        self.autocast = False

    def build(self, input_shape):
        check_channels(self.pixel_range, input_shape[-1])
        self.built = True

    def call(self, inputs):
        mean, deviation = PIXEL_RANGES[self.pixel_range]
        x = ops.cast(inputs, "float32")
        x = (x - ops.convert_to_tensor(mean, "float32")) / ops.convert_to_tensor(
            deviation, "float32"
        )
        return ops.cast(x, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "pixel_range": self.pixel_range}


def check_channels(pixel_range: str, channels: int | None) -> None:
    """Raises a ValueError if statistics of three channels meet another number of channels."""
    wanted = len(PIXEL_RANGES[pixel_range][0])
    if wanted > 1 and channels is not None and channels != wanted:
        raise ValueError(
            f"pixel_range={pixel_range!r} has statistics for {wanted} channels; use "
            f"'inception' or 'unit' for other images. Received: channels={channels}"
        )
