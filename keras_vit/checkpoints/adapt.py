"""Fits weights to a new image size: the lossy step, kept apart from renaming and assigning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - np.abs(distance), 0.0)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution; `a` is the slope at distance 1."""
    x = np.abs(distance)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = a * (((x - 5.0) * x + 8.0) * x - 4.0)
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


class Method(NamedTuple):
    """How values between cells are found.

    Attributes:
        kernel: weight of a cell by its distance, in cells.
        radius: the distance from which on that is zero.
        antialias: whether the kernel widens when the grid shrinks.
        align_corners: whether the centres of the first and last cells stay in place, rather than
            the outer edges of the grid.
    """

    kernel: Callable[[np.ndarray], np.ndarray]
    radius: int
    antialias: bool
    align_corners: bool


# The slopes of the two cubics are PyTorch's: -0.75, and -0.5 (as Pillow) where it antialiases.
_CUBIC, _CUBIC_ANTIALIAS = partial(_cubic, a=-0.75), partial(_cubic, a=-0.5)
METHODS: dict[str, Method] = {
    # Google: `scipy.ndimage.zoom` with order 1.
    "bilinear_align_corners": Method(_linear, 1, antialias=False, align_corners=True),
    # timm's reader of Google's files; the resizing of images that FlexiViT counts on.
    "bilinear": Method(_linear, 1, antialias=False, align_corners=False),
    "bilinear_antialias": Method(_linear, 1, antialias=True, align_corners=False),
    # transformers: ViT, DeiT, DINOv2, CLIP, SigLIP.
    "bicubic": Method(_CUBIC, 2, antialias=False, align_corners=False),
    # timm; transformers: DINOv2 with registers.
    "bicubic_antialias": Method(_CUBIC_ANTIALIAS, 2, antialias=True, align_corners=False),
    # torchvision.
    "bicubic_align_corners": Method(_CUBIC, 2, antialias=False, align_corners=True),
}
OFFICIAL = "bilinear_align_corners"


def resample_positions(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    method: str = OFFICIAL,
) -> np.ndarray:
    """Resamples a table of learned positions, as the official code does or as another project.

    Patch rows are the cells of a grid, resampled along both axes. The default is a corner-aligned
    bilinear zoom: the vectors at the four corners stay as they are. Prefix rows are copied.

    Args:
        table: `(prefix + old_height * old_width, hidden_dim)`, float.
        old_grid: `(height, width)` of the table.
        new_grid: `(height, width)` wanted.
        method: key of `METHODS`.

    Returns:
        `(prefix + new_height * new_width, hidden_dim)` in the table's dtype; the table itself
        if the grids are equal.

    Raises:
        ValueError: if the table has fewer rows than the old grid, or the method is unknown.

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
    grid = resample_axis(resample_axis(grid, 0, new_grid[0], method), 1, new_grid[1], method)
    rows = grid.reshape(new_grid[0] * new_grid[1], -1).astype(table.dtype)
    return np.concatenate([table[:prefix], rows])


def resample_axis(values: np.ndarray, axis: int, size: int, method: str = OFFICIAL) -> np.ndarray:
    """Resamples one axis.

    Args:
        values: array, float.
        axis: the axis to resample.
        size: its new length.
        method: key of `METHODS`. By default the first and last entries are kept exactly.

    Returns:
        float64 array with that length on the axis.

    Raises:
        ValueError: if the method is unknown.
    """
    return _apply(resize_matrix(values.shape[axis], size, method), values, axis)


def resize_matrix(old: int, new: int, method: str = OFFICIAL) -> np.ndarray:
    """What each old cell gives to each new one, along one axis.

    Beyond the edges, methods without antialiasing repeat the outermost cell, and those with it
    leave out what is missing and scale the rest to sum 1: as `torch.nn.functional.interpolate`.

    Args:
        old: number of cells.
        new: number of cells wanted.
        method: key of `METHODS`.

    Returns:
        `(new, old)`, float64; each row sums to 1.

    Raises:
        ValueError: if the method is unknown.
    """
    if method not in METHODS:
        raise ValueError(f"Unknown method. Expected one of {list(METHODS)}. Received: {method!r}")
    kernel, radius, antialias, align_corners = METHODS[method]
    if align_corners:
        # Of a single new cell, both corners are the first: so do SciPy and PyTorch.
        centre = np.linspace(0.0, old - 1.0, new) if new > 1 else np.zeros(1)
    else:
        centre = (np.arange(new) + 0.5) * (old / new) - 0.5
    if antialias:
        weights = kernel((np.arange(old) - centre[:, None]) / max(old / new, 1.0))
        return weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((new, old))
    row, low = np.arange(new), np.floor(centre).astype(int)
    for cell in (low + step for step in range(1 - radius, 1 + radius)):
        matrix[row, np.clip(cell, 0, old - 1)] += kernel(cell - centre)
    return matrix


def resample_patch_kernel(
    kernel: np.ndarray, old_patch: tuple[int, int], new_patch: tuple[int, int], channels: int
) -> np.ndarray:
    """Fits the kernel of the patch embedding to another patch size, as FlexiViT does.

    The new kernel is the one that, on patches resized from the old size to the new by bilinear
    interpolation without antialiasing, gives tokens nearest to the old ones: equal, if the patch
    grows.

    Args:
        kernel: `(patch_height * patch_width * channels, hidden_dim)`, float, row-major.
        old_patch: `(height, width)` of the kernel's patch.
        new_patch: `(height, width)` wanted.
        channels: channels of the image.

    Returns:
        The kernel for the new patch, in the old one's dtype; the kernel itself if the sizes are
        equal.

    Raises:
        ValueError: if the kernel does not have a row for each number of a patch.

    Reference:
        arXiv 2212.08013, section 3.4; big_vision `models/proj/flexi/vit.py`.
    """
    if tuple(old_patch) == tuple(new_patch):
        return kernel
    if kernel.shape[0] != old_patch[0] * old_patch[1] * channels:
        raise ValueError(
            "A patch kernel has a row for each number of a patch. "
            f"Received: {kernel.shape[0]} rows for a patch of {old_patch[0]} x {old_patch[1]} "
            f"pixels with {channels} channels"
        )
    values = kernel.reshape(*old_patch, channels, -1)
    # Resizing a patch is the Kronecker product of a matrix an axis, and the pseudo-inverse of
    # such a product is the product of the pseudo-inverses.
    for axis, (old, new) in enumerate(zip(old_patch, new_patch, strict=True)):
        values = _apply(np.linalg.pinv(resize_matrix(old, new, "bilinear").T), values, axis)
    return values.reshape(new_patch[0] * new_patch[1] * channels, -1).astype(kernel.dtype)


def _apply(matrix: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    """Multiplies one axis by a matrix, in float64."""
    product = np.tensordot(matrix, values.astype("float64"), axes=(1, axis))
    return np.moveaxis(product, 0, axis)
