"""What is looked at: a Vision Transformer, and how its tokens lie in the image."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.engines.gradients import untracked
from keras_vit.models.vit import VisionTransformer


def check(model) -> None:
    """Raises a ValueError unless the model is one that can be looked into."""
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"`model` must be a VisionTransformer. Received: {type(model).__name__}")


def block_index(name: str, index: int, count: int) -> int:
    """An index of a block, counted from the first.

    Args:
        name: the argument, for the message.
        index: it; negative ones count from the end.
        count: how many blocks there are.

    Raises:
        ValueError: if there is no such block.
    """
    try:
        place = operator.index(index)
    except TypeError:
        place = count
    if not -count <= place < count:
        raise ValueError(
            f"`{name}` must be an index of the model's {count} blocks. Received: {index!r}"
        )
    return place % count


def block_indices(layers: Iterable[int] | None, count: int) -> list[int]:
    """Indices of blocks, counted from the first; all for `None`.

    Raises:
        ValueError: if `layers` is no collection of indices, or there is no such block.
    """
    if layers is not None and not isinstance(layers, Iterable):
        raise ValueError(f"`layers` must be a list of indices, or None. Received: {layers!r}")
    return [block_index("layers", i, count) for i in (range(count) if layers is None else layers)]


def values_at(model: VisionTransformer, tensors: Sequence[Any], images) -> list[Any]:
    """What tensors inside of a model are for images, in inference.

    Args:
        model: a `VisionTransformer`.
        tensors: symbolic ones, such as `layer.output`.
        images: `(batch, height, width, channels)`, as the model takes them.

    Returns:
        Their values, backend tensors that keep nothing for a backward pass.

    Raises:
        ValueError: if the images are of another shape, or not finite.
    """
    images = images.detach() if hasattr(images, "detach") else images
    expected = model.flat_config["image_shape"]
    shape = tuple(getattr(images, "shape", None) or np.shape(images))
    if len(shape) != 4 or shape[1:] != expected or not shape[0]:
        raise ValueError(
            f"`images` must have shape (batch, {', '.join(map(str, expected))}), one at least. "
            f"Received: images.shape={shape}"
        )
    with untracked():
        images = keras.ops.convert_to_tensor(images, dtype="float32")
        check_finite("images", images)
        found = keras.Model(model.input, list(tensors))(images, training=False)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def check_finite(name: str, values) -> None:
    """Raises a ValueError if there are NaNs or infinities."""
    if not keras.ops.convert_to_numpy(keras.ops.all(keras.ops.isfinite(values))):
        raise ValueError(f"`{name}` must be finite. Received: NaN or infinite values")


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


def prefix_names(model: VisionTransformer) -> list[str]:
    """What the tokens before the patches are, in their order."""
    config = model.flat_config
    names = ["class token"] if config["class_token"] else []
    names += ["distillation token"] if config["distillation"] else []
    return names + [f"register {number + 1}" for number in range(config["num_registers"])]


def reads(model: VisionTransformer) -> np.ndarray:
    """How much of each token of the last block becomes the output.

    Returns:
        `(tokens,)`, float32, which sum to 1: the class token (and DeiT's distillation token where
        both have a head), or all patches alike, or all tokens. Of a model that puts the class token
        and the mean of patches side by side: the class token. Of attention pooling, whose weights
        depend on the image: all tokens alike.
    """
    config, prefix = model.flat_config, model.num_prefix_tokens
    weights = np.zeros(prefix + int(np.prod(model.grid_shape)), "float32")
    if config["distillation"] == "head":
        weights[:2] = 1.0
    elif config["class_token"] and config["pooling"] in ("token", "token_gap", None):
        weights[0] = 1.0
    else:
        weights[prefix if config["pooling"] in ("gap", None) else 0 :] = 1.0
    return weights / weights.sum()
