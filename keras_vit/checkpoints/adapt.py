"""Fits weights to a new image size: the lossy step, kept apart from renaming and assigning."""

from __future__ import annotations

import numpy as np


def resample_positions(
    table: np.ndarray, old_grid: tuple[int, int], new_grid: tuple[int, int]
) -> np.ndarray:
    """Resamples a table of learned positions, as the official code does.

    Patch rows go through a corner-aligned bilinear zoom of the grid (what `scipy.ndimage.zoom`
    does with order 1): the vectors at the four corners stay as they are. Prefix rows are copied.

    Args:
        table: `(prefix + old_height * old_width, hidden_dim)`, float.
        old_grid: `(height, width)` of the table.
        new_grid: `(height, width)` wanted.

    Returns:
        `(prefix + new_height * new_width, hidden_dim)` in the table's dtype; the table itself
        if the grids are equal.

    Raises:
        ValueError: if the table has fewer rows than the old grid.

    Reference:
        arXiv 2010.11929, section 3.2; vit_jax `checkpoint.py`.
    """
    if tuple(old_grid) == tuple(new_grid):
        return table
    prefix = table.shape[0] - old_grid[0] * old_grid[1]
    if prefix < 0:
        raise ValueError(
            "A position table has a row for each patch, after those of prefix tokens. "
            f"Received: {table.shape[0]} rows for a grid of {old_grid[0]} x {old_grid[1]}"
        )
    grid = table[prefix:].reshape(*old_grid, -1)
    grid = resample_axis(resample_axis(grid, 0, new_grid[0]), 1, new_grid[1])
    rows = grid.reshape(new_grid[0] * new_grid[1], -1).astype(table.dtype)
    return np.concatenate([table[:prefix], rows])


def resample_axis(values: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Corner-aligned linear interpolation along one axis.

    Args:
        values: array, float.
        axis: the axis to resample.
        size: its new length.

    Returns:
        float64 array with that length on the axis; first and last entries are kept exactly.
    """
    old = values.shape[axis]
    position = np.linspace(0.0, old - 1.0, size) if size > 1 else np.zeros(1)
    low = np.minimum(position.astype(int), max(old - 2, 0))
    high = np.minimum(low + 1, old - 1)
    shape = [1] * values.ndim
    shape[axis] = size
    part = (position - low).reshape(shape)
    below = np.take(values, low, axis).astype("float64")
    above = np.take(values, high, axis).astype("float64")
    return below * (1.0 - part) + above * part
