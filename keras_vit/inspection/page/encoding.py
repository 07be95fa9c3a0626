"""Attention as a page holds it: a byte a value, packed, as text.

A row of probabilities is two bytes for its largest value (of 65535) and one for each value: the
root of its share of the largest, of 255. So small values keep their digits, and a picture of one
row looks the same.
"""

from __future__ import annotations

import base64
import zlib

import numpy as np

_SMALLEST = np.finfo("float32").tiny


def rows(values: np.ndarray) -> np.ndarray:
    """Rows of probabilities as bytes.

    Args:
        values: `(..., tokens)`, 0 to 1.

    Returns:
        `(..., 2 + tokens)`, uint8.
    """
    values = np.clip(np.asarray(values, "float32"), 0.0, 1.0)
    largest = values.max(axis=-1, keepdims=True)
    levels = np.rint(255 * np.sqrt(values / np.maximum(largest, _SMALLEST))).astype("uint8")
    whole = np.rint(65535 * largest).astype("uint16")
    high, low = (whole >> 8).astype("uint8"), (whole & 255).astype("uint8")
    return np.concatenate([high, low, levels], axis=-1)


def shares(values: np.ndarray) -> np.ndarray:
    """Any values as bytes from 0 for the lowest to 255 for the highest of all.

    Args:
        values: any shape.

    Returns:
        The same shape, uint8; zeros where all values are alike.
    """
    low, high = float(values.min()), float(values.max())
    return np.rint(255 * (values - low) / max(high - low, _SMALLEST)).astype("uint8")


def printable(text: str) -> str:
    """Text that UTF-8 can hold: halves of surrogate pairs become U+FFFD, as names of files have."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def packed(values: np.ndarray) -> str:
    """Bytes, deflated (zlib), in base64.

    Args:
        values: any shape, uint8.
    """
    return base64.b64encode(zlib.compress(values.tobytes(), 6)).decode("ascii")
