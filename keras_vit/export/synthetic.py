"""Pictures that nobody took, for comparisons where none are given."""

from __future__ import annotations

import numpy as np

_BLOBS = 6


def pictures(count: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """Smooth shapes and noise: always the same for the same arguments.

    Args:
        count: how many.
        shape: (height, width, channels).
        seed: of the random numbers.

    Returns:
        `(count, height, width, channels)` float32, whole numbers 0..255.
    """
    rng = np.random.default_rng(seed)
    height, width, channels = shape
    rows = np.linspace(0, 1, height, dtype="float32")[:, None, None]
    columns = np.linspace(0, 1, width, dtype="float32")[None, :, None]
    found = np.empty((count, *shape), "float32")
    for image in found:
        start, slope = rng.uniform(0, 255, channels), rng.uniform(-160, 160, (2, channels))
        image[:] = start + rows * slope[0] + columns * slope[1]
        for _ in range(_BLOBS):
            y, x = rng.uniform(0, 1, 2)
            radius, colour = rng.uniform(0.03, 0.4), rng.uniform(-220, 220, channels)
            distance = ((rows - y) ** 2 + (columns - x) ** 2) / radius**2
            image += colour * np.exp(-(distance ** rng.uniform(0.5, 4)))
        image += rng.normal(0, rng.uniform(0, 24), shape)
    return np.clip(np.round(found), 0, 255)
