"""Files' bytes become pictures: JPEG, PNG, GIF, BMP, WebP.

Pillow decodes. Measured on two cores, 500 x 375 JPEGs to 224 px with crop, flip and RandAugment:
all-Pillow takes 2.2 ms of processor time a picture. TensorFlow's decoding of the crop alone saves
0.3 ms of it and loses most of that to the way back into Pillow, whose operations on 8-bit pixels
are 3 to 15 times faster than the same in TensorFlow's. Python's lock is held for about 0.3 ms of
it, so one process gives some 3,000 pictures a second at most, however many cores it has.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit import _deps

Image: Any = _deps.optional("PIL.Image", "pictures", "Decoding pictures")

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".webp")
# Pillow's own limit; at twice as many pixels it refuses on its own account.
MAX_PIXELS = 89_478_485
# What shows through transparent pixels.
BACKGROUND = (255, 255, 255)
_ORIENTATION = 0x0112
# EXIF orientation -> how the stored picture becomes upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Orientations whose upright left, and whose upright top, is the stored picture's right or bottom.
_MIRRORED = ((2, 3, 6, 7), (3, 4, 7, 8))


class BadPicture(ValueError):
    """A picture that cannot be read; the message says why."""


@dataclass
class Encoded:
    """A picture whose header is read, and whose pixels are not.

    Attributes:
        image: Pillow's lazy image.
        orientation: EXIF's, 1 to 8.
        size: (width, height) of the upright picture.
    """

    image: Any
    orientation: int
    size: tuple[int, int]

    def decode(self, channels: int, wanted: tuple[float, float] | None = None):
        """The upright picture as 8-bit RGB (3 channels) or grey (1).

        Args:
            channels: 3 or 1.
            wanted: (width, height) that is enough: a JPEG of twice that or more is decoded at a
                half, a quarter or an eighth, never below twice `wanted`.

        Raises:
            BadPicture: if the data is damaged.
        """
        image = self.image
        try:
            if wanted is not None and image.format == "JPEG":
                width, height = wanted if self.orientation < 5 else wanted[::-1]
                image.draft(None, (int(2 * width) + 1, int(2 * height) + 1))
            image.load()
            image = _plain(image, "RGB" if channels == 3 else "L")
        except Exception as error:  # Pillow's decoders raise nearly anything on damaged data
            raise BadPicture(_reason(error)) from error
        if self.orientation in _UPRIGHT:
            image = image.transpose(_UPRIGHT[self.orientation])
        return image

    def place(self, image: Any) -> tuple[float, float, float]:
        """Where the picture lies in what `decode` gave.

        A JPEG of 1003 columns decoded at a quarter has 251, the last of which is mostly padding.

        Returns:
            `(scale, left, top)`: a point (x, y) of the picture is at (x / scale + left,
            y / scale + top).
        """
        scale = 2 ** round(math.log2(max(self.size) / max(image.size)))
        left, top = (
            found - whole / scale if self.orientation in mirrored else 0.0
            for found, whole, mirrored in zip(image.size, self.size, _MIRRORED, strict=True)
        )
        return scale, left, top


def open_picture(data: bytes, max_pixels: int = MAX_PIXELS) -> Encoded:
    """Reads a picture's header.

    Args:
        data: the file's bytes.
        max_pixels: pictures that declare more pixels are refused, before anything is decoded.

    Raises:
        BadPicture: if it is empty, no picture of `FORMATS`, or too large.
    """
    if not data:
        raise BadPicture("the file is empty")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadPicture(f"declares more than {max_pixels:,} pixels") from error
    except Image.UnidentifiedImageError as error:
        raise BadPicture(f"not a picture ({', '.join(FORMATS)})") from error
    except Exception as error:
        raise BadPicture(_reason(error)) from error
    width, height = image.size
    if width * height > max_pixels:
        raise BadPicture(f"declares {width} x {height} pixels, more than {max_pixels:,} in all")
    if not width * height:
        raise BadPicture(f"declares {width} x {height} pixels")
    orientation = _orientation(image)
    size = (width, height) if orientation < 5 else (height, width)
    return Encoded(image, orientation, size)


def decode(data: bytes, channels: int = 3, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decodes a whole picture.

    The first frame of several; EXIF's orientation applied; 16-bit samples cut to their high
    bytes; transparent pixels over white; colour profiles are not applied.

    Args:
        data: the file's bytes.
        channels: 3 for RGB, 1 for grey.
        max_pixels: most pixels that are decoded.

    Returns:
        `(height, width, channels)` uint8.

    Raises:
        BadPicture: if it is none of `FORMATS`, damaged or too large.
    """
    pixels = np.asarray(open_picture(data, max_pixels).decode(channels))
    return pixels if channels == 3 else pixels[..., None]


def _plain(image, mode: str):
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):  # 16 bits a sample, which Pillow's `convert` would clip
        high = np.clip(np.asarray(image).astype("int32") >> 8, 0, 255).astype("uint8")
        image = Image.fromarray(high)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        below = Image.new("RGBA", image.size, (*BACKGROUND, 255))
        image = Image.alpha_composite(below, image)
    return image.convert(mode)


def _orientation(image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged metadata of a picture that may be sound
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _reason(error: Exception) -> str:
    return f"{error or 'damaged'} ({type(error).__name__})"
