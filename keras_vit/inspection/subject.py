"""What is looked at: a Vision Transformer, and how its tokens lie in the image."""

from __future__ import annotations

import numpy as np

from keras_vit.models.vit import VisionTransformer


def check(model) -> None:
    """Raises a ValueError unless the model is one that can be looked into."""
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"`model` must be a VisionTransformer. Received: {type(model).__name__}")


def cell_size(model: VisionTransformer) -> tuple[float, float]:
    """Height and width in pixels of the image that a token of the grid stands for.

    Of a hybrid: those of the image over the tokens of the stem's map.
    """
    height, width, _ = model.flat_config["image_shape"]
    rows, columns = model.grid_shape
    return height / rows, width / columns


def on_grid(model: VisionTransformer, values: np.ndarray) -> np.ndarray:
    """`(batch, patches, ...)` as `(batch, grid_height, grid_width, ...)`."""
    return values.reshape(len(values), *model.grid_shape, *values.shape[2:])
