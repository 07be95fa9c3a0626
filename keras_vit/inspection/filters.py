"""What the first layer looks for."""

from __future__ import annotations

import keras
import numpy as np

from keras_vit.inspection.subject import check
from keras_vit.models.vit import VisionTransformer


def patch_filters(model: VisionTransformer, count: int = 28) -> np.ndarray:
    """Principal components of the filters that embed patches.

    Args:
        model: a `VisionTransformer` that reads pixels, not a stem's map.
        count: how many.

    Returns:
        `(count, patch_height, patch_width, channels)`, float32, of unit length, those that
        explain most first.

    Raises:
        ValueError: if the model is no `VisionTransformer`, is a hybrid, or has not so many.

    Reference:
        arXiv 2010.11929, figure 7 (left).
    """
    check(model)
    config = model.flat_config
    if config["stem"] is not None:
        raise ValueError(
            "`patch_filters` shows filters of pixels; a hybrid's read the map of its stem. "
            "Received: a model with a stem"
        )
    kernel = keras.ops.convert_to_numpy(model.get_layer("patch_encoder").projection.kernel)
    if not 1 <= count <= min(kernel.shape):
        raise ValueError(
            f"`count` must be 1 to {min(kernel.shape)}, the smaller of a patch's values and "
            f"hidden_dim. Received: {count}"
        )
    filters = kernel.astype("float64").T
    _, _, components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)
    shape = (*config["patch_size"], config["image_shape"][-1])
    return components[:count].reshape(count, *shape).astype("float32")
