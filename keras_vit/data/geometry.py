"""Which part of a picture is taken, and resizing it."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_vit.data.decoding import Encoded, Image

ASPECT = (3 / 4, 4 / 3)
_ATTEMPTS = 100
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

Box = tuple[float, float, float, float]  # left, top, right, bottom


def inception_box(
    width: int,
    height: int,
    area: tuple[float, float],
    rng: np.random.Generator,
    aspect: tuple[float, float] = ASPECT,
) -> Box:
    """A random part of a picture, drawn as `tf.image.sample_distorted_bounding_box` does.

    The aspect ratio is uniform, then the height is uniform among the whole numbers that keep the
    area in its range and the box in the picture, then the position is uniform.

    Args:
        width: the picture's.
        height: the picture's.
        area: least and most share of the picture.
        rng: draws.
        aspect: least and most width over height.

    Returns:
        The box; the whole picture if 100 attempts found none.
    """
    least, most = area[0] * width * height, area[1] * width * height
    for _ in range(_ATTEMPTS):
        ratio = rng.uniform(*aspect)
        low = round((least / ratio) ** 0.5)
        high = min(round((most / ratio) ** 0.5), height, int((width + 0.5) / ratio))
        if high < 1:
            continue
        low = max(min(low, high), 1)
        h = int(rng.integers(low, high + 1))
        w = round(h * ratio)
        if 1 <= w <= width and least <= w * h <= most:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    return 0, 0, width, height


def centre_box(width: int, height: int, size: tuple[int, int], fraction: float) -> Box:
    """The centre that is left when a picture is resized to cover `size / fraction`.

    Args:
        width: the picture's.
        height: the picture's.
        size: (height, width) of the result.
        fraction: share of the resized picture's covered side that the result keeps.
    """
    scale = max(size[0] / height, size[1] / width) / fraction
    w, h = min(size[1] / scale, width), min(size[0] / scale, height)
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def resized(picture: Encoded | Any, box: Box, size: tuple[int, int], channels: int, filter: str):
    """The part of a picture, resized with an antialiasing filter.

    Args:
        picture: `Encoded`, or a Pillow image.
        box: the part.
        size: (height, width) of the result.
        channels: 3 or 1, of the result.
        filter: one of `FILTERS`.

    Returns:
        A Pillow image, "RGB" or "L".
    """
    height, width = size
    if isinstance(picture, Encoded):
        across, down = picture.size
        wanted = (across * width / (box[2] - box[0]), down * height / (box[3] - box[1]))
        image = picture.decode(channels, wanted)
        scale, left, top = picture.place(image)
        box = (
            *(box[0] / scale + left, box[1] / scale + top),
            *(box[2] / scale + left, box[3] / scale + top),
        )
    else:
        image = picture
    if image.size == (width, height) == (box[2] - box[0], box[3] - box[1]):
        return image
    return image.resize((width, height), FILTERS[filter], box=box)


def resized_array(pixels: np.ndarray, box: Box, size: tuple[int, int], filter: str) -> np.ndarray:
    """As `resized`, for float pixels or any number of channels, a channel at a time.

    Args:
        pixels: `(height, width, channels)`, uint8 or float32; the dtype stays.
        box: the part.
        size: (height, width) of the result.
        filter: one of `FILTERS`.
    """
    if pixels.shape[:2] == size and box == (0, 0, size[1], size[0]):
        return pixels
    planes = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(pixels[..., c])).resize(
                size[::-1], FILTERS[filter], box=box
            )
        )
        for c in range(pixels.shape[-1])
    ]
    return np.stack(planes, axis=-1)
