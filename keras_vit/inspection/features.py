"""What patches have become: components and lengths of their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import keras
import numpy as np

from keras_vit.inspection.subject import (
    block_index,
    block_indices,
    check,
    check_finite,
    on_grid,
    values_at,
)
from keras_vit.models.vit import VisionTransformer


def iter_patch_features(
    model: VisionTransformer, images, layers: Iterable[int] | None = None
) -> Iterator[np.ndarray]:
    """The patches' tokens behind each block, one block after the other.

    Args:
        model: a `VisionTransformer`.
        images: `(batch, height, width, channels)`, as the model takes them.
        layers: indices of blocks, negative ones from the end; `None` for all.

    Yields:
        For each of the blocks `(batch, grid_height, grid_width, hidden_dim)`, float32.

    Raises:
        ValueError: if the model is no `VisionTransformer`, or has no such block.
    """
    check(model)
    blocks = model.encoder_blocks
    outputs = [blocks[place].output for place in block_indices(layers, len(blocks))]
    return _features(model, images, outputs)


def _features(model, images, outputs) -> Iterator[np.ndarray]:
    for tokens in values_at(model, outputs, images) if outputs else ():
        values = keras.ops.convert_to_numpy(keras.ops.cast(tokens, "float32"))
        yield on_grid(model, values[:, model.num_prefix_tokens :])


def patch_features(model: VisionTransformer, images, layer: int = -1) -> np.ndarray:
    """The patches' tokens behind a block.

    Args:
        model: a `VisionTransformer`.
        images: `(batch, height, width, channels)`, as the model takes them.
        layer: index of the block, negative ones from the end.

    Returns:
        `(batch, grid_height, grid_width, hidden_dim)`, float32.

    Raises:
        ValueError: if the model is no `VisionTransformer`, or has no such block.
    """
    check(model)
    place = block_index("layer", layer, len(model.encoder_blocks))
    return next(iter_patch_features(model, images, [place]))


def token_norms(features: np.ndarray) -> np.ndarray:
    """Lengths of patches' tokens; outliers among them are artefacts that registers take in.

    Args:
        features: `(batch, grid_height, grid_width, hidden_dim)`, see `patch_features`.

    Returns:
        `(batch, grid_height, grid_width)`, float32.

    Reference:
        arXiv 2309.16588.
    """
    return np.linalg.norm(features, axis=-1).astype("float32")


def principal_components(features: np.ndarray, count: int = 3) -> np.ndarray:
    """Patches' tokens along the directions in which those of all images differ most.

    Args:
        features: `(batch, grid_height, grid_width, hidden_dim)`, see `patch_features`.
        count: how many; 3 make a picture, one colour each.

    Returns:
        `(batch, grid_height, grid_width, count)`, float32, each component between 0 and 1 over
        all images; the sign is such that the entry of a direction that is largest is positive.

    Raises:
        ValueError: if there are not so many components, or features are not finite.

    Reference:
        arXiv 2304.07193, figure 1.
    """
    check_finite("features", features)
    flat = features.reshape(-1, features.shape[-1]).astype("float64")
    if not 1 <= count <= min(flat.shape):
        raise ValueError(
            f"`count` must be 1 to {min(flat.shape)}, the smaller of patches and hidden_dim. "
            f"Received: {count}"
        )
    flat = flat - flat.mean(axis=0)
    _, _, directions = np.linalg.svd(flat, full_matrices=False)
    directions = directions[:count]
    largest = np.abs(directions).argmax(axis=1)
    directions = directions * np.sign(directions[np.arange(count), largest])[:, None]
    found = flat @ directions.T
    low, high = found.min(axis=0), found.max(axis=0)
    found = (found - low) / np.maximum(high - low, np.finfo("float64").tiny)
    return found.reshape(*features.shape[:-1], count).astype("float32")
