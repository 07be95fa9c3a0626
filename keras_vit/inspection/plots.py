"""Figures of what was found: the three of the paper's figure 7, and maps over images.

Each function draws what the functions of this package return, and gives a matplotlib figure, which
`figure.savefig(path)` writes and notebooks show.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from keras_vit._deps import optional
from keras_vit.inspection import pictures
from keras_vit.inspection.distance import mean_attention_distance
from keras_vit.inspection.figure_style import BLUE, STYLE
from keras_vit.inspection.filters import patch_filters
from keras_vit.inspection.positions import position_similarity

__all__ = ["attention_distance", "figure_7", "filters", "maps", "similarity"]
# Small pictures in a grid of similarities, along each side at most.
MOST_PLACES = 8
_INCH = 1.5


def filters(found: np.ndarray, columns: int = 6):
    """The principal filters, each stretched from its darkest to its brightest value.

    Args:
        found: `(count, patch_height, patch_width, channels)`, see `patch_filters`.
        columns: filters in a row.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ImportError: if matplotlib is missing; the message says what to install.

    Reference:
        arXiv 2010.11929, figure 7 (left).
    """
    rows = -(-len(found) // columns)
    with _figure((0.8 * columns, 0.8 * rows + 0.4)) as figure:
        draw_filters(figure, found, columns)
    return figure


def similarity(found: np.ndarray):
    """For places of the grid, the similarity of their position embedding to all.

    Args:
        found: `(grid_height, grid_width, grid_height, grid_width)`, see `position_similarity`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ImportError: if matplotlib is missing; the message says what to install.

    Reference:
        arXiv 2010.11929, figure 7 (centre).
    """
    with _figure((5.2, 4.6)) as figure:
        draw_similarity(figure, found)
    return figure


def attention_distance(found: np.ndarray):
    """Mean attention distance of each head, by depth.

    Args:
        found: `(layers, heads)`, in pixels, see `mean_attention_distance`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ImportError: if matplotlib is missing; the message says what to install.

    Reference:
        arXiv 2010.11929, figure 7 (right).
    """
    with _figure((4.6, 4.2)) as figure:
        draw_distance(figure, found)
    return figure


def figure_7(model, images):
    """The paper's figure 7: filters, position similarity, attention distance.

    What a model has not is left out: a hybrid has no filters of pixels, and a model with relative
    positions or none has no position embeddings.

    Args:
        model: a `VisionTransformer`.
        images: `(batch, height, width, channels)`, as the model takes them; the distance is the
            mean over them.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ImportError: if matplotlib is missing; the message says what to install.
        ValueError: if the model is no `VisionTransformer`, or on images of another shape.

    Reference:
        arXiv 2010.11929, figure 7.
    """
    distance = mean_attention_distance(model, images)
    parts: list[tuple[Any, np.ndarray, float]] = []
    if model.flat_config["stem"] is None:
        kernel = model.get_layer("patch_encoder").projection.kernel
        count = min(28, *kernel.shape)
        parts.append((draw_filters, patch_filters(model, count), 1.0))
    if model.flat_config["position_embedding"] not in ("none", "relative"):
        parts.append((draw_similarity, position_similarity(model), 1.15))
    parts.append((draw_distance, distance, 1.0))
    widths = [width for _, _, width in parts]
    with _figure((4.4 * sum(widths), 4.2)) as figure:
        blocks = np.atleast_1d(figure.subfigures(1, len(parts), width_ratios=widths))
        for block, (draw, found, _) in zip(blocks, parts, strict=True):
            draw(block, found)
    return figure


def maps(
    images: np.ndarray, found: Sequence[np.ndarray], titles: Sequence[str] | None = None
) -> Any:
    """Images, and maps beside them: attention over the image, components as colours.

    Args:
        images: `(n, height, width, channels)`, pixels 0..255.
        found: arrays of n maps each: `(n, rows, columns)`, as attention, rollout, relevance or
            norms, is laid over the image; `(n, rows, columns, 3)` in 0..1, as components, is shown
            by itself.
        titles: one for the images and one for each of `found`; `None` for none.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ImportError: if matplotlib is missing; the message says what to install.
        ValueError: if images, maps and titles do not go together.

    Example:
        ```python
        rollout = inspection.attention_rollout(model, images)
        plots.maps(images, [rollout], ["image", "rollout"]).savefig("looked.png")
        ```
    """
    images = np.asarray(images)
    shapes = [np.shape(values) for values in found]
    if images.ndim != 4 or any(
        len(shape) not in (3, 4) or shape[0] != len(images) or shape[3:] not in ((), (3,))
        for shape in shapes
    ):
        raise ValueError(
            "`found` must hold maps (n, rows, columns) or (n, rows, columns, 3) of as many images "
            f"(n, height, width, channels). Received: images of shape {images.shape}, "
            f"maps of shapes {shapes}"
        )
    if titles is not None and len(titles) != len(found) + 1:
        raise ValueError(
            f"`titles` must be {len(found) + 1}: the images' and one for each of the maps. "
            f"Received: {list(titles)}"
        )
    shown = np.clip(np.rint(images), 0, 255).astype("uint8")
    columns = 1 + len(found)
    height = _INCH * images.shape[1] / images.shape[2]
    with _figure((_INCH * columns, height * len(images) + 0.3)) as figure:
        grid = figure.subplots(len(images), columns, squeeze=False)
        for row, image in zip(grid, shown, strict=True):
            for axes in row:
                axes.set_axis_off()
            row[0].imshow(pictures.as_rgb(image))
        for row, image, *values in zip(grid, shown, *found, strict=True):
            for axes, value in zip(row[1:], values, strict=True):
                axes.imshow(pictures.laid(pictures.as_rgb(image), np.asarray(value)))
        for axes, title in zip(grid[0], titles or [], strict=False):
            axes.set_title(title, parse_math=False, fontsize=9)
    return figure


@contextmanager
def _figure(size: tuple[float, float]):
    matplotlib = optional("matplotlib", "plots", "Drawing figures")
    figures = optional("matplotlib.figure", "plots", "Drawing figures")
    with matplotlib.rc_context(STYLE):
        yield figures.Figure(figsize=size, layout="constrained", dpi=120)


def draw_filters(figure, found: np.ndarray, columns: int = 6) -> None:
    """Draws filters into a figure or a part of one; see `filters`."""
    rows = -(-len(found) // columns)
    figure.suptitle("Filters of the patch embedding", fontsize=11, weight="bold")
    for axes in (grid := figure.subplots(rows, columns, squeeze=False)).ravel():
        axes.set_axis_off()
    for axes, kernel in zip(grid.ravel(), found, strict=False):
        image = np.rint(255 * pictures.stretched(kernel)).astype("uint8")
        axes.imshow(pictures.as_rgb(image))


def draw_similarity(figure, found: np.ndarray) -> None:
    """Draws similarities into a figure or a part of one; see `similarity`."""
    rows, columns = (_spread(size) for size in found.shape[:2])
    figure.suptitle("Similarity of positions", fontsize=11, weight="bold")
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    drawn = None
    for y, x in np.ndindex(grid.shape):
        axes = grid[y, x]
        axes.set_xticks([])
        axes.set_yticks([])
        drawn = axes.imshow(found[rows[y], columns[x]], vmin=-1, vmax=1, cmap="viridis")
        if y == len(rows) - 1:
            axes.set_xlabel(columns[x] + 1, fontsize=7)
        if x == 0:
            axes.set_ylabel(rows[y] + 1, fontsize=7)
    figure.colorbar(drawn, ax=grid, label="cosine similarity", shrink=0.9)
    figure.supxlabel("column", fontsize=8)
    figure.supylabel("row", fontsize=8)


def draw_distance(figure, found: np.ndarray) -> None:
    """Draws attention distances into a figure or a part of one; see `attention_distance`."""
    figure.suptitle("Attention distance", fontsize=11, weight="bold")
    axes = figure.subplots()
    depth = np.repeat(np.arange(1, len(found) + 1), found.shape[1])
    axes.scatter(depth, found.ravel(), s=14, color=BLUE, alpha=0.75, linewidths=0)
    axes.grid(True, axis="y")
    axes.set_ylim(0, 1.06 * np.nanmax(found, initial=1e-6))
    axes.set_xlabel("block")
    axes.set_ylabel("mean distance of a head (pixels)")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _spread(size: int) -> np.ndarray:
    """Places along a side, evenly; all where they are few."""
    count = min(size, MOST_PLACES)
    return np.unique(np.rint(np.linspace(0, size - 1, count)).astype(int))
