"""Pictures of a report as arrays: displayable images, attention laid over them, matrices."""

from __future__ import annotations

import struct
import zlib

import numpy as np

RIGHT = (37, 99, 235)
WRONG = (220, 38, 38)
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
        where much is.
    """
    heat = _stretched(shares.astype("float32"), image.shape[:2])
    low, high = float(heat.min()), float(heat.max())
    # Without this, rounding errors of a flat map would look like attention.
    spread = high - low if high - low > 1e-6 * max(high, 1e-6) else np.inf
    heat = (heat - low) / spread
    positions = heat * (len(_HEAT) - 1)
    below = np.minimum(positions.astype(int), len(_HEAT) - 2)
    part = (positions - below)[..., None]
    color = _HEAT[below] * (1 - part) + _HEAT[below + 1] * part
    grey = (image.astype("float32") @ np.array([0.299, 0.587, 0.114], "float32"))[..., None]
    strength = 0.25 + 0.45 * heat[..., None]
    return np.clip(grey * (1 - strength) + color * strength, 0, 255).astype("uint8")


def _stretched(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Bilinear, with the cells' centres where they lie on the picture."""
    for axis, size in enumerate(shape):
        cells = values.shape[axis]
        positions = np.clip((np.arange(size) + 0.5) * cells / size - 0.5, 0, cells - 1)
        below = np.minimum(positions.astype(int), max(cells - 2, 0))
        part = positions - below
        above = np.minimum(below + 1, cells - 1)
        shape_of_part = [-1 if i == axis else 1 for i in range(2)]
        part = part.reshape(shape_of_part).astype("float32")
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


def strengths(matrix: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How strongly each cell of a confusion matrix is coloured.

    Args:
        matrix: `(size, size)`; rows are true classes.
        counts: `(size,)`, all images of each true class, also those taken for other classes.

    Returns:
        `(size, size)`, 0 to 1: the share of the row; of mistakes its root, so that one in a
        hundred can be seen.
    """
    shares = matrix / np.maximum(counts, 1)[:, None]
    mistakes = np.sqrt(shares)
    np.fill_diagonal(mistakes, np.diagonal(shares))
    return mistakes
