"""What was found as pictures: maps at the size of an image, laid over it, as PNG files."""

from __future__ import annotations

import base64
import math
import struct
import zlib

import numpy as np

_MOST = 0.98
# From no attention to all of it; drawn over a greyed picture.
_HEAT = np.array([(40, 20, 90), (150, 40, 130), (240, 90, 70), (255, 215, 100)], "float32")


def as_rgb(image: np.ndarray) -> np.ndarray:
    """`(height, width, 3)` uint8 of an image with any number of channels."""
    channels = image.shape[-1]
    return image[..., :3] if channels >= 3 else np.repeat(image[..., :1], 3, axis=-1)


def reduce(image: np.ndarray, side: int) -> np.ndarray:
    """Averages squares of pixels until the shorter side is below twice `side`."""
    factor = max(1, min(image.shape[:2]) // side)
    height, width = (length // factor * factor for length in image.shape[:2])
    squares = image[:height, :width].astype("float32")
    squares = squares.reshape(height // factor, factor, width // factor, factor, -1)
    return np.rint(squares.mean(axis=(1, 3))).astype("uint8")


def enlarge(image: np.ndarray, side: int) -> np.ndarray:
    """Repeats pixels until the shorter side has `side` at least."""
    factor = max(1, -(-side // min(image.shape[:2])))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def overlay(image: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Attention over a picture.

    Args:
        image: `(height, width, 3)`, uint8.
        shares: `(rows, columns)`, of the patches.

    Returns:
        `(height, width, 3)`, uint8: the picture in grey where nothing is attended to, warm
        where much is. The two patches in a hundred with the most are alike: where a few
        outshine all others, these are seen too.
    """
    flat = np.sort(shares, axis=None)
    most = flat[math.ceil(_MOST * (len(flat) - 1))]
    heat = stretched(upsampled(np.minimum(shares, most), image.shape[:2]))
    color = heat_colors(heat)
    grey = (image.astype("float32") @ np.array([0.299, 0.587, 0.114], "float32"))[..., None]
    strength = 0.25 + 0.45 * heat[..., None]
    return np.clip(grey * (1 - strength) + color * strength, 0, 255).astype("uint8")


def laid(image: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A map as a picture of the image's size.

    Args:
        image: `(height, width, 3)`, uint8.
        values: `(rows, columns)`, which are laid over the image, or `(rows, columns, 3)` in 0..1,
            which are colours.

    Returns:
        `(height, width, 3)`, uint8.
    """
    if values.ndim == 2:
        return overlay(image, values)
    colors = np.moveaxis(upsampled(np.moveaxis(values, -1, 0), image.shape[:2]), 0, -1)
    return np.rint(255 * np.clip(colors, 0, 1)).astype("uint8")


def stretched(values: np.ndarray) -> np.ndarray:
    """Values from 0 for the lowest to 1 for the highest; zeros where all are alike."""
    low, high = float(values.min()), float(values.max())
    # Without this, rounding errors of a flat map would look like attention.
    spread = high - low if high - low > 1e-6 * max(abs(high), 1e-6) else np.inf
    return (values - low) / spread


def heat_colors(values: np.ndarray) -> np.ndarray:
    """Colours from dark to bright.

    Args:
        values: any shape, 0 to 1.

    Returns:
        The same shape and three channels, float32, 0 to 255.
    """
    positions = values * (len(_HEAT) - 1)
    below = np.minimum(positions.astype(int), len(_HEAT) - 2)
    part = (positions - below)[..., None]
    return _HEAT[below] * (1 - part) + _HEAT[below + 1] * part


def upsampled(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Maps of a grid at the size of a picture, bilinearly.

    The cells' centres lie where they lie on the picture.

    Args:
        maps: `(..., grid_height, grid_width)`.
        size: `(height, width)` in pixels.

    Returns:
        `(..., height, width)`, float32, between the values of the maps.
    """
    values = np.asarray(maps, "float32")
    for axis, length in zip((-2, -1), size, strict=True):
        cells = values.shape[axis]
        positions = np.clip((np.arange(length) + 0.5) * cells / length - 0.5, 0, cells - 1)
        below = np.minimum(positions.astype(int), max(cells - 2, 0))
        part = (positions - below).astype("float32")
        part = part[:, None] if axis == -2 else part
        above = np.minimum(below + 1, cells - 1)
        values = values.take(below, axis) * (1 - part) + values.take(above, axis) * part
    return values


def png(image: np.ndarray) -> bytes:
    """A PNG file.

    Args:
        image: `(height, width, 3)`, uint8.
    """
    height, width, _ = image.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    # Eight bits a channel, RGB; each row begins with its filter: none.
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = np.concatenate([np.zeros((height, 1), "uint8"), image.reshape(height, -1)], axis=1)
    packed = zlib.compress(rows.tobytes(), 9)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def data_url(image: np.ndarray) -> str:
    """A picture as an address that holds it, for a page.

    Args:
        image: `(height, width, 3)`, uint8.
    """
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode('ascii')}"
