"""From one picture to one example: crop, flip, RandAugment, erasing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit import _checks
from keras_vit.data.decoding import Encoded, Image
from keras_vit.data.geometry import (
    FILTERS,
    Box,
    centre_box,
    inception_box,
    resized,
    resized_array,
)
from keras_vit.data.randaugment import randaugment

CROPS = ("inception", "resize_small", "squash", "none")
# RandomErasing as arXiv 1708.04896 and timm draw it.
_ERASED_AREA = (0.02, 1 / 3)
_ERASED_ASPECT = (0.3, 1 / 0.3)
# About the mean and spread of natural pictures' pixels.
_NOISE = (127.5, 58.0)


@dataclass(frozen=True)
class Preparation:
    """Makes examples of pictures.

    Args:
        image_size: (height, width) of the result.
        channels: of the result; 1 or 3 for files, as they are or from 1 to 3 for arrays.
        crop: "inception": a random part, of random shape; "resize_small": the centre, after
            resizing the smaller side; "squash": the whole picture, its aspect ratio lost; "none":
            pictures have to be of `image_size` already.
        crop_area: least and most share of the picture that "inception" takes.
        crop_fraction: side of the result over the smaller side after "resize_small"; 7/8 resizes
            to 256 for 224.
        interpolation: "bilinear" or "bicubic", both with antialiasing.
        flip: whether half of the examples are mirrored.
        randaugment: `(layers, magnitude)` or `None`.
        erasing: how many examples get a rectangle of noise, as a share.

    Raises:
        ValueError: on arguments out of range.
    """

    image_size: tuple[int, int]
    channels: int = 3
    crop: str = "squash"
    crop_area: tuple[float, float] = (0.05, 1.0)
    crop_fraction: float = 0.875
    interpolation: str = "bilinear"
    flip: bool = False
    randaugment: tuple[int, float] | None = None
    erasing: float = 0.0

    def __post_init__(self):
        def fix(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        fix("image_size", _checks.int_pair("image_size", self.image_size))
        _checks.positive_int("channels", self.channels)
        _checks.choice("crop", self.crop, CROPS)
        _checks.choice("interpolation", self.interpolation, tuple(FILTERS))
        _checks.boolean("flip", self.flip)
        area = _pair("crop_area", self.crop_area)
        if not 0 < area[0] <= area[1] <= 1:
            raise ValueError(
                f"`crop_area` must be 0 < least <= most <= 1. Received: crop_area={area}"
            )
        fix("crop_area", area)
        if not 0 < self.crop_fraction <= 1:
            raise ValueError(
                f"`crop_fraction` must lie in (0, 1]. Received: crop_fraction={self.crop_fraction}"
            )
        if not 0 <= self.erasing <= 1:
            raise ValueError(f"`erasing` must lie in [0, 1]. Received: erasing={self.erasing}")
        if self.randaugment is not None:
            layers, magnitude = _pair("randaugment", self.randaugment)
            _checks.positive_int("randaugment[0]", layers)
            if not 0 <= magnitude <= 30:
                raise ValueError(
                    f"`randaugment[1]` must lie in [0, 30]. Received: randaugment[1]={magnitude}"
                )
            if self.channels not in (1, 3):
                raise ValueError(
                    "`randaugment` works on 1 or 3 channels. "
                    f"Received: channels={self.channels}; leave it None"
                )

    @property
    def random(self) -> bool:
        """Whether anything is drawn."""
        return self.crop == "inception" or self.flip or bool(self.randaugment or self.erasing)

    def __call__(self, picture: Encoded | Any, rng: np.random.Generator) -> np.ndarray:
        """Makes one example.

        Args:
            picture: `Encoded`, a Pillow image, or an array `(h, w, c)`, uint8 or float32.
            rng: all random choices come from it.

        Returns:
            `(height, width, channels)` uint8, or float32 for float arrays.

        Raises:
            BadPicture: if it cannot be decoded.
            ValueError: if it does not fit the arguments.
        """
        if isinstance(picture, np.ndarray):
            picture = self._image_or_array(picture)
        if isinstance(picture, np.ndarray):
            return self._finish(self._array(picture, rng), rng)
        width, height = picture.size
        box = self._box(width, height, rng)
        image = resized(picture, box, self.image_size, self.channels, self.interpolation)
        if self.flip and rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.randaugment is not None:
            image = randaugment(image, *self.randaugment, rng)
        return self._finish(np.asarray(image), rng)

    def _box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        if self.crop == "inception":
            return inception_box(width, height, self.crop_area, rng)
        if self.crop == "resize_small":
            return centre_box(width, height, self.image_size, self.crop_fraction)
        if self.crop == "none" and (height, width) != self.image_size:
            raise ValueError(
                f'`crop="none"` takes pictures of `image_size` {self.image_size} only; choose '
                f"another crop. Received: a picture of height {height}, width {width}"
            )
        return 0, 0, width, height

    def _image_or_array(self, pixels: np.ndarray):
        """Pillow's image, where the pixels are ones that it takes."""
        if pixels.shape[-1] != self.channels and (pixels.shape[-1], self.channels) != (1, 3):
            raise ValueError(
                f"`channels` must be that of the images, {pixels.shape[-1]} (3 does for grey "
                f"ones as well). Received: channels={self.channels}"
            )
        if pixels.dtype != np.uint8:
            if self.randaugment is not None:
                raise ValueError(
                    "`randaugment` needs images of dtype uint8, pixels 0..255. "
                    f"Received: {pixels.dtype}"
                )
            return pixels
        if pixels.shape[-1] == 1:
            image = Image.fromarray(np.ascontiguousarray(pixels[..., 0]))
            return image if self.channels == 1 else image.convert("RGB")
        return Image.fromarray(np.ascontiguousarray(pixels)) if self.channels == 3 else pixels

    def _array(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        box = self._box(pixels.shape[1], pixels.shape[0], rng)
        pixels = resized_array(pixels, box, self.image_size, self.interpolation)
        return pixels[:, ::-1] if self.flip and rng.random() < 0.5 else pixels

    def _finish(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if pixels.ndim == 2:
            pixels = pixels[..., None]
        if pixels.shape[-1] != self.channels:
            pixels = np.repeat(pixels, self.channels, axis=-1)
        if self.erasing and rng.random() < self.erasing:
            pixels = erased(pixels, rng)
        return np.ascontiguousarray(pixels)


def erased(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A copy with a rectangle of noise in it: RandomErasing, arXiv 1708.04896.

    Args:
        pixels: `(height, width, channels)`, 0..255.
        rng: draws; the rectangle takes 2 to 33 percent of the area, its aspect ratio lies between
            0.3 and 3.3.
    """
    height, width, channels = pixels.shape
    for _ in range(10):
        area = rng.uniform(*_ERASED_AREA) * height * width
        ratio = np.exp(rng.uniform(*np.log(_ERASED_ASPECT)))
        h, w = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 1 <= h < height and 1 <= w < width:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            noise = np.clip(rng.normal(*_NOISE, size=(h, w, channels)), 0, 255)
            pixels = pixels.copy()
            pixels[top : top + h, left : left + w] = noise.astype(pixels.dtype)
            return pixels
    return pixels


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"`{name}` must be a pair of numbers. Received: {name}={value!r}")
    return value[0], value[1]
