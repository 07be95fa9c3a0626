"""How far a head looks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from keras_vit.inspection.attention import iter_attention_maps
from keras_vit.inspection.subject import cell_size, check
from keras_vit.models.vit import VisionTransformer


def attention_distance(
    scores: np.ndarray,
    grid_shape: tuple[int, int],
    *,
    num_prefix_tokens: int = 0,
    cell_size: tuple[float, float] = (1.0, 1.0),
) -> np.ndarray:
    """Mean distance between the patches that ask and those that they attend to.

    Prefix tokens lie nowhere: they do not ask, and what is left of each row without them counts
    as a whole.

    Args:
        scores: `(batch, heads, tokens, tokens)`, probabilities of one block.
        grid_shape: `(grid_height, grid_width)`; tokens run row by row behind the prefix.
        num_prefix_tokens: class token, distillation token and registers.
        cell_size: height and width of a patch, in the unit of the result.

    Returns:
        `(batch, heads)`, float64. A patch that attends to prefix tokens alone is left out; `nan`
        where all do.

    Raises:
        ValueError: if the tokens are not those of the grid.

    Reference:
        arXiv 2010.11929, appendix D.7 and figure 7 (right).
    """
    rows, columns = grid_shape
    patches = rows * columns
    if scores.ndim != 4 or scores.shape[-2:] != (num_prefix_tokens + patches,) * 2:
        raise ValueError(
            f"`scores` must have shape (batch, heads, tokens, tokens) with {num_prefix_tokens} "
            f"prefix tokens and {rows} x {columns} patches. Received: scores.shape={scores.shape}"
        )
    among = scores[:, :, num_prefix_tokens:, num_prefix_tokens:].astype("float64")
    total = among.sum(axis=-1)
    looked = (among * _distances(grid_shape, cell_size)).sum(axis=-1)
    counted = total > 0
    each = np.divide(looked, total, out=np.zeros_like(total), where=counted)
    count = counted.sum(axis=-1)
    nowhere = np.full(count.shape, np.nan)
    return np.divide(each.sum(axis=-1), count, out=nowhere, where=count > 0)


def mean_attention_distance(
    model: VisionTransformer, images, layers: Iterable[int] | None = None
) -> np.ndarray:
    """Mean attention distance of each head, over images and patches.

    Args:
        model: a `VisionTransformer`.
        images: `(batch, height, width, channels)`, as the model takes them.
        layers: indices of blocks, negative ones from the end; `None` for all.

    Returns:
        `(layers, heads)`, float64, in pixels of the image.

    Raises:
        ValueError: if the model is no `VisionTransformer`, or has no such block.

    Reference:
        arXiv 2010.11929, figure 7 (right).
    """
    check(model)
    found = [
        attention_distance(
            scores,
            model.grid_shape,
            num_prefix_tokens=model.num_prefix_tokens,
            cell_size=cell_size(model),
        ).mean(axis=0)
        for scores in iter_attention_maps(model, images, layers)
    ]
    return np.array(found).reshape(-1, model.flat_config["num_heads"])


def _distances(grid_shape, cell_size) -> np.ndarray:
    """`(patches, patches)`: between the patches' centres."""
    places = np.indices(grid_shape).reshape(2, -1).T * np.array(cell_size)
    return np.linalg.norm(places[:, None] - places[None], axis=-1)
