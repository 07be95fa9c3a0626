"""What a model has learned of places."""

from __future__ import annotations

import keras
import numpy as np

from keras_vit.inspection.subject import block_index, check
from keras_vit.layers import PositionEmbedding
from keras_vit.models.vit import VisionTransformer


def position_similarity(model: VisionTransformer, layer: int = 0) -> np.ndarray:
    """Cosine similarity of the patches' position embeddings.

    Args:
        model: a `VisionTransformer`.
        layer: of a model with positions at every layer, before which block they are added.

    Returns:
        `(grid_height, grid_width, grid_height, grid_width)`, float32 in -1..1: entry
        `[y, x]` is the picture of how alike the place (y, x) is to all places.

    Raises:
        ValueError: if the model is no `VisionTransformer`, or adds no positions.

    Reference:
        arXiv 2010.11929, figure 7 (centre) and figure 10.
    """
    table = _position_layer(model, layer).patch_table()
    rows = keras.ops.convert_to_numpy(keras.ops.cast(table, "float32")).astype("float64")
    rows = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), np.finfo("float64").tiny)
    return (rows @ rows.T).reshape(*model.grid_shape, *model.grid_shape).astype("float32")


def _position_layer(model, layer) -> PositionEmbedding:
    check(model)
    config = model.flat_config
    kind, placement = config["position_embedding"], config["position_placement"]
    if kind in ("none", "relative"):
        raise ValueError(
            "`position_similarity` needs positions that are added to tokens. "
            f"Received: a model with position_embedding={kind!r}"
        )
    if placement == "stem":
        return model.get_layer("patch_encoder").position_embedding
    if placement == "shared":
        return model.get_layer("position_embedding")
    place = block_index("layer", layer, config["num_layers"])
    return model.get_layer(f"position_embedding_{place}")
