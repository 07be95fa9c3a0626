"""What a page knows of a model and of a picture, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.inspection import pictures
from keras_vit.inspection.attention import (
    attention_rollout,
    iter_attention_maps,
    pooling_attention,
)
from keras_vit.inspection.distance import attention_distance
from keras_vit.inspection.features import iter_patch_features, principal_components, token_norms
from keras_vit.inspection.filters import patch_filters
from keras_vit.inspection.page.encoding import packed, rows, shares
from keras_vit.inspection.positions import position_similarity
from keras_vit.inspection.predictions import probabilities
from keras_vit.inspection.relevance import class_relevance
from keras_vit.inspection.subject import cell_size, prefix_names, reads, values_at
from keras_vit.models.vit import VisionTransformer

# What one patch attends to: of each head of each block, of the mean of the heads of each block, of
# the last block's, of none. A page has the first of them that fits into its budget.
HOVERS = ("heads", "mean", "last", "none")
TOP_CLASSES = 5
_SIDE = 224  # what a smaller picture is enlarged to
_FILTERS = 28


class NotFiniteError(ValueError):
    """A model that gives no numbers."""


def hover_bytes(model: VisionTransformer, hover: str) -> int:
    """About how many bytes of a page one picture takes."""
    config = model.flat_config
    tokens = len(reads(model))
    layers = {"heads": config["num_layers"], "mean": config["num_layers"], "last": 1, "none": 0}
    heads = config["num_heads"] if hover == "heads" else 1
    return layers[hover] * heads * tokens * (tokens + 2)


def of_model(model: VisionTransformer) -> dict[str, Any]:
    """What a page shows of a model whatever the pictures.

    Args:
        model: a `VisionTransformer`.
    """
    config = model.flat_config
    height, width, _ = config["image_shape"]
    patch = " x ".join(map(str, config["patch_size"]))
    grid = model.grid_shape
    facts = {
        "Input": f"{height} x {width} pixels",
        "Patches": f"{grid[0]} x {grid[1]}"
        + (f", of {patch} pixels" if config["stem"] is None else f", of {patch} cells of the stem"),
        "Blocks": f"{config['num_layers']}, of {config['num_heads']} heads",
        "Width": f"{config['hidden_dim']:,}",
        "Pooling": config["pooling"] or "none",
        "Parameters": f"{model.count_params():,}",
    }
    return {
        "grid": list(grid),
        "cell": list(cell_size(model)),
        "prefix": prefix_names(model),
        "layers": config["num_layers"],
        "heads": config["num_heads"],
        "reader": _reader(model),
        "facts": facts,
        "similarity": _similarity(model),
        "filters": _filters(model),
    }


def of_picture(
    model: VisionTransformer,
    image: np.ndarray,
    shown: np.ndarray,
    name: str,
    *,
    class_names: Sequence[str] | None = None,
    hover: str = "heads",
) -> dict[str, Any]:
    """What a page shows of one picture.

    Args:
        model: a `VisionTransformer`.
        image: `(height, width, channels)`, as the model takes it.
        shown: `(height, width, channels)`, uint8: the picture to show.
        name: its name.
        class_names: names of the model's classes; `None` for numbers.
        hover: one of `HOVERS`.

    Raises:
        NotFiniteError: if the model gives NaNs or infinities.
    """
    images = np.asarray(image)[None]
    (outputs,) = values_at(model, [model.output], images)
    if not np.isfinite(keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))).all():
        raise NotFiniteError(
            f"The model's outputs for {name} are not finite: it has diverged, or its file is "
            "damaged."
        )
    shown = pictures.enlarge(pictures.as_rgb(shown), _SIDE)
    found: dict[str, Any] = {
        "name": name,
        "url": pictures.data_url(shown),
        "size": [shown.shape[1], shown.shape[0]],
        **_attention(model, images, hover),
        **_features(model, images),
        "rollout": packed(rows(attention_rollout(model, images).reshape(-1))),
    }
    if model.flat_config["pooling"] == "map":
        found["pooling"] = packed(rows(pooling_attention(model, images)[0]))
    if model.flat_config["num_classes"] is not None:
        found["classes"] = _classes(model, images, class_names)
    return found


def _reader(model) -> str:
    """What becomes the output, in words."""
    pooling = model.flat_config["pooling"]
    read = np.flatnonzero(reads(model))
    prefix = model.num_prefix_tokens
    if len(read) == 1:
        return "class token"
    if prefix and len(read) == 2 and read[-1] < prefix:
        return "class and distillation token"
    return "all tokens" if pooling in ("mean", "map") else "all patches"


def _attention(model, images, hover) -> dict[str, Any]:
    weights, last = reads(model), model.flat_config["num_layers"] - 1
    read, blocks, distances = [], [], []
    for index, scores in enumerate(iter_attention_maps(model, images)):
        read.append(rows((weights @ scores)[0]))
        distances.append(
            attention_distance(
                scores,
                model.grid_shape,
                num_prefix_tokens=model.num_prefix_tokens,
                cell_size=cell_size(model),
            )[0]
        )
        if hover == "heads":
            blocks.append(packed(rows(scores[0])))
        elif hover == "mean" or (hover == "last" and index == last):
            blocks.append(packed(rows(scores[0].mean(axis=0))))
    return {
        "read": packed(np.stack(read)),
        "hover": {"kind": hover, "blocks": blocks},
        "distances": [[_number(value) for value in row] for row in distances],
    }


def _number(value: float) -> float | None:
    return round(float(value), 3) if math.isfinite(value) else None


def _range(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in (values.min(), values.max())]


def _features(model, images) -> dict[str, Any]:
    components, norms, ranges = [], [], []
    for features in iter_patch_features(model, images):
        count = min(3, features.shape[-1], math.prod(features.shape[:3]))
        found = principal_components(features, count)[0]
        found = np.pad(found, ((0, 0), (0, 0), (0, 3 - count)))
        components.append(np.rint(255 * found).astype("uint8"))
        lengths = token_norms(features)[0]
        norms.append(shares(lengths))
        ranges.append(_range(lengths))
    return {
        "components": packed(np.stack(components)),
        "norms": packed(np.stack(norms)),
        "lengths": ranges,
    }


def _classes(model, images, class_names) -> list[dict[str, Any]]:
    """The likeliest classes, and what speaks for them."""
    found = probabilities(model, images)[0]
    order = np.argsort(-found, kind="stable")[:TOP_CLASSES]
    classes: list[dict[str, Any]] = [
        {
            "name": str(index) if class_names is None else str(class_names[index]),
            "probability": round(float(found[index]), 6),
        }
        for index in order
    ]
    maps = class_relevance(model, np.repeat(images, len(order), axis=0), order)
    for entry, values in zip(classes, maps, strict=True):
        entry["relevance"] = packed(shares(values))
        entry["range"] = _range(values)
    return classes


def _similarity(model) -> str | None:
    if model.flat_config["position_embedding"] in ("none", "relative"):
        return None
    found = position_similarity(model)
    return packed(np.rint(127.5 * (np.clip(found, -1, 1) + 1)).astype("uint8"))


def _filters(model) -> list[str]:
    if model.flat_config["stem"] is not None:
        return []
    kernel = model.get_layer("patch_encoder").projection.kernel
    found = patch_filters(model, min(_FILTERS, *kernel.shape))
    images = (np.rint(255 * pictures.stretched(values)).astype("uint8") for values in found)
    return [pictures.data_url(pictures.as_rgb(image)) for image in images]
