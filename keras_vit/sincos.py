"""Fixed sines and cosines: what both layers and checkpoints know of positions."""

from __future__ import annotations

import numpy as np


def sincos2d(grid_shape: tuple[int, int], dim: int, temperature: float = 10_000.0) -> np.ndarray:
    """Fixed 2-D embeddings: sin x, cos x, sin y, cos y, a quarter of the width each.

    Args:
        grid_shape: `(grid_height, grid_width)`.
        dim: width, divisible by 4 and at least 8.
        temperature: the longest wavelength is `2 pi temperature` patches.

    Returns:
        `(grid_height * grid_width, dim)`, float32.
    """
    quarter = dim // 4
    frequency = temperature ** -(np.arange(quarter) / max(quarter - 1, 1))
    y, x = np.mgrid[: grid_shape[0], : grid_shape[1]].reshape(2, -1, 1) * frequency
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], 1).astype("float32")
