"""What a model takes images for."""

from __future__ import annotations

import keras
import numpy as np


def probabilities(model: keras.Model, images) -> np.ndarray:
    """Probabilities of the classes, by softmax unless the model gives them itself.

    Args:
        model: a model of this package with a head.
        images: `(batch, height, width, channels)`, as the model takes them.

    Returns:
        `(batch, num_classes)`, float32.
    """
    outputs = model.predict(images, verbose=0)
    if model.flat_config["classifier_activation"] is not None:
        return outputs
    return keras.ops.convert_to_numpy(keras.ops.softmax(outputs, axis=-1))
