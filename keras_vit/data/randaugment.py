"""RandAugment on 8-bit pictures, with the operations and levels of AutoAugment's TPU code.

Those are the ones that big_vision's and AugReg's recipes mean. Lengths that are pixels there
(100 for translations, 40 for Cutout, at 224 px) scale with the picture's side here, so that small
pictures keep something in view.

References: arXiv 1909.13719; big_vision pp/autoaugment.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit import _deps
from keras_vit.data.decoding import Image

ImageOps: Any = _deps.optional("PIL.ImageOps", "pictures", "RandAugment")
ImageEnhance: Any = _deps.optional("PIL.ImageEnhance", "pictures", "RandAugment")

GREY = 128
MAX_LEVEL = 10.0
_SIDE = 224  # where lengths in pixels are as published


def _fill(image):
    return (GREY,) * len(image.getbands()) if image.mode != "L" else GREY


def _affine(image, *matrix: float):
    """Each pixel (x, y) comes from (a x + b y + c, d x + e y + f), the nearest."""
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=_fill(image)
    )


def _sign(rng: np.random.Generator) -> float:
    return -1.0 if rng.random() < 0.5 else 1.0


def _table(function: Callable[[np.ndarray], np.ndarray]):
    """A table of 256 entries, for `Image.point`."""
    return np.clip(function(np.arange(256)), 0, 255).astype("uint8").tolist()


def autocontrast(image, level, rng):
    """Stretches each channel to 0..255."""
    return ImageOps.autocontrast(image)


def equalize(image, level, rng):
    """Flattens each channel's histogram."""
    return ImageOps.equalize(image)


def invert(image, level, rng):
    """Negates."""
    return ImageOps.invert(image)


def rotate(image, level, rng):
    """Up to 30 degrees at level 10, either way."""
    angle = _sign(rng) * 30.0 * level / MAX_LEVEL
    return image.rotate(angle, Image.Resampling.NEAREST, fillcolor=_fill(image))


def posterize(image, level, rng):
    """Keeps the `level * 0.4` highest bits, at least one."""
    shift = 8 - min(max(int(4 * level / MAX_LEVEL), 1), 8)
    return _points(image, _table(lambda v: v >> shift << shift))


def solarize(image, level, rng):
    """Negates values from `level * 25.6` on: none from level 10 on, as published."""
    threshold = int(256 * level / MAX_LEVEL)
    return _points(image, _table(lambda v: np.where(v < threshold, v, 255 - v)))


def solarize_add(image, level, rng):
    """Adds `level * 11` to values below 128."""
    addition = int(110 * level / MAX_LEVEL)
    return _points(image, _table(lambda v: np.where(v < 128, v + addition, v)))


def _points(image, table):
    return image.point(table * len(image.getbands()))


def _enhance(name: str):
    def operation(image, level, rng):
        return getattr(ImageEnhance, name)(image).enhance(0.1 + 1.8 * level / MAX_LEVEL)

    operation.__name__ = name.lower()
    return operation


def shear_x(image, level, rng):
    """Up to 0.3 at level 10, either way."""
    return _affine(image, 1, _sign(rng) * 0.3 * level / MAX_LEVEL, 0, 0, 1, 0)


def shear_y(image, level, rng):
    """Up to 0.3 at level 10, either way."""
    return _affine(image, 1, 0, 0, _sign(rng) * 0.3 * level / MAX_LEVEL, 1, 0)


def translate_x(image, level, rng):
    """By 100 pixels of 224 at level 10, either way."""
    shift = _sign(rng) * 100 * image.size[0] / _SIDE * level / MAX_LEVEL
    return _affine(image, 1, 0, round(shift), 0, 1, 0)


def translate_y(image, level, rng):
    """By 100 pixels of 224 at level 10, either way."""
    shift = _sign(rng) * 100 * image.size[1] / _SIDE * level / MAX_LEVEL
    return _affine(image, 1, 0, 0, 0, 1, round(shift))


def cutout(image, level, rng):
    """Greys a square of 80 pixels of 224 at level 10; its centre is anywhere, it may stick out."""
    width, height = image.size
    x, y = int(rng.integers(width)), int(rng.integers(height))
    half_x, half_y = (round(40 * side / _SIDE * level / MAX_LEVEL) for side in (width, height))
    box = (max(x - half_x, 0), max(y - half_y, 0), min(x + half_x, width), min(y + half_y, height))
    if box[2] <= box[0] or box[3] <= box[1]:
        return image
    image = image.copy()
    image.paste(_fill(image), box)
    return image


OPERATIONS: tuple[Callable[[Any, float, np.random.Generator], Any], ...] = (
    *(autocontrast, equalize, invert, rotate, posterize, solarize),
    *(_enhance(name) for name in ("Color", "Contrast", "Brightness", "Sharpness")),
    *(shear_x, shear_y, translate_x, translate_y, cutout, solarize_add),
)


def randaugment(image, layers: int, magnitude: float, rng: np.random.Generator):
    """Applies operations drawn at random, one after the other.

    Args:
        image: Pillow image, "RGB" or "L".
        layers: how many.
        magnitude: level of each; 10 is the scale's end in the paper, AugReg goes up to 20.
        rng: draws.

    Returns:
        An image of the same mode and size.
    """
    for operation in rng.integers(len(OPERATIONS), size=layers):
        image = OPERATIONS[operation](image, magnitude, rng)
    return image
