"""What a model takes images for."""

from __future__ import annotations

import keras
import numpy as np

from keras_vit.inspection.subject import check, values_at
from keras_vit.models.base import FlatModel
from keras_vit.models.vit import VisionTransformer


def probabilities(model: VisionTransformer, images) -> np.ndarray:
    """Probabilities of the classes, by softmax unless the model gives them itself.

    Unlike `model.predict` it leaves the model and the backend's random state as they are.

    Args:
        model: a `VisionTransformer` with a head.
        images: `(batch, height, width, channels)`, as the model takes them.

    Returns:
        `(batch, num_classes)`, float32.

    Raises:
        ValueError: if the model is no `VisionTransformer` or has no head, or on images of another
            shape.
    """
    check(model)
    if model.flat_config["num_classes"] is None:
        raise ValueError("Probabilities need a model with a head. Received: num_classes=None")
    (outputs,) = values_at(model, [model.output], images)
    return as_probabilities(model, outputs)


def as_probabilities(model: FlatModel, outputs) -> np.ndarray:
    """What a model with a head gives, as probabilities.

    Args:
        model: a model of this package.
        outputs: `(batch, num_classes)`, its outputs.

    Returns:
        `(batch, num_classes)`, float32.
    """
    if model.flat_config["classifier_activation"] is None:
        outputs = keras.ops.softmax(outputs, axis=-1)
    return keras.ops.convert_to_numpy(outputs)
