"""What a model makes of images before it classifies them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_vit.evaluation.batches import BATCH_SIZE, Predictor, Progress, batches, count_batches
from keras_vit.models.base import FlatModel

_HEADS = ("head", "head_dist")


def extract_features(
    model: keras.Model,
    data: Any,
    *,
    batch_size: int = BATCH_SIZE,
    steps: int | None = None,
    progress: bool = True,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The features of all images, in their order.

    Args:
        model: a model of this package, which gives what its head reads (the mean of both, where
            a distillation token has a head of its own), or any other Keras model whose output is
            `(batch, width)`. It is not touched.
        data: images, `(images, labels)`, or an iterable of batches, see `batches`.
        batch_size: where `data` is arrays.
        steps: batches to take; `None` for all.
        progress: whether a line on stderr shows images/s and the time left.

    Returns:
        Features `(n, width)`, float32, and labels as they came, or `None` where there are none.

    Raises:
        ValueError: if there is no image, or the features have another shape.
    """
    extractor, features, labels = FeatureExtractor(model), [], []
    bar = Progress("features", count_batches(data, batch_size, steps), progress)
    for images, expected in batches(data, batch_size, steps):
        features.append(extractor.batch(images))
        if expected is not None:
            labels.append(expected)
        bar.update(len(images))
    bar.close()
    if not features:
        raise ValueError("`data` holds no image: there are no features.")
    if labels and len(labels) != len(features):
        raise ValueError("`data` must give labels with all batches, or with none.")
    return np.concatenate(features), np.concatenate(labels) if labels else None


class FeatureExtractor:
    """Features of one array of images after the other, by one compiled function.

    Args:
        model: see `extract_features`.
        batch_size: images at once.
    """

    def __init__(self, model: keras.Model, batch_size: int = BATCH_SIZE):
        self.batch_size = batch_size
        self._predictor = Predictor(headless(model))

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Features `(n, width)`, float32, of images `(n, height, width, channels)`."""
        return np.concatenate([self.batch(part) for part, _ in batches(images, self.batch_size)])

    def batch(self, images: np.ndarray) -> np.ndarray:
        """The same for images that fit in one batch."""
        found = self._predictor(images)
        parts = found if isinstance(found, (list, tuple)) else [found]
        mean = np.mean([part.astype("float32") for part in parts], axis=0)
        if mean.ndim != 2:
            raise ValueError(
                "`model` must give features of shape (batch, width): build it with a `pooling`. "
                f"Received: outputs of shape {mean.shape}"
            )
        return mean


def headless(model: keras.Model) -> keras.Model:
    """A model of the same layers that ends before the head.

    Args:
        model: a model of this package; others, and those without a head, come back as they are.

    Returns:
        A model whose output is what the head reads; two outputs where there are two heads.
    """
    if not isinstance(model, FlatModel) or model.flat_config["num_classes"] is None:
        return model
    names = {layer.name for layer in model.layers}
    read = [model.get_layer(name).input for name in _HEADS if name in names]
    return keras.Model(model.input, read if len(read) > 1 else read[0])
