"""A model's logits for a whole data set."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.evaluation.batches import BATCH_SIZE, Predictor, Progress, batches, count_batches
from keras_vit.models.base import FlatModel

OUTPUTS = ("logits", "softmax", "sigmoid")
_SMALLEST = np.finfo("float32").tiny


def predict_all(
    model: keras.Model,
    dataset: Any,
    steps: int | None = None,
    progress: bool = True,
    *,
    batch_size: int = BATCH_SIZE,
    outputs: str | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Logits and labels of all images of a data set, in its order, none left out.

    Args:
        model: any Keras model that gives `(batch, classes)`.
        dataset: `(images, labels)` arrays, or an iterable of such batches, see `batches`.
        steps: batches to take; `None` for all. An endless data set needs it.
        progress: whether a line on stderr shows images/s and the time left.
        batch_size: where `dataset` is arrays.
        outputs: what the model gives: `"logits"`, or probabilities by `"softmax"` or `"sigmoid"`,
            which are turned into logits; `None`: what a model of this package says, or "logits".

    Returns:
        Logits `(n, classes)`, float32, and labels: `(n,)` or `(n, classes)` as they came, or
        `None` where the data set has none.

    Raises:
        ValueError: if there is no image, or the model gives something else.
    """
    kind = outputs
    if kind is None:
        config = model.flat_config if isinstance(model, FlatModel) else {}
        kind = config.get("classifier_activation") or "logits"
    _checks.choice("outputs", kind, OUTPUTS)
    predictor, logits, labels = Predictor(model), [], []
    bar = Progress("evaluating", count_batches(dataset, batch_size, steps), progress)
    for images, expected in batches(dataset, batch_size, steps):
        found = predictor(images)
        if not isinstance(found, np.ndarray) or found.ndim != 2:
            raise ValueError(
                "`model` must give logits of shape (batch, classes). Received: outputs of shape "
                f"{keras.tree.map_structure(lambda x: x.shape, found)}"
            )
        logits.append(_logits(found.astype("float32"), kind))
        if (expected is None) != (not labels) and len(logits) > 1:
            raise ValueError("`dataset` must give labels with all batches, or with none.")
        if expected is not None:
            labels.append(expected)
        bar.update(len(images))
    bar.close()
    if not logits:
        raise ValueError("`dataset` holds no image: there is nothing to evaluate.")
    return np.concatenate(logits), np.concatenate(labels) if labels else None


def _logits(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "logits":
        return values
    known = np.log(np.maximum(values, _SMALLEST))
    if kind == "softmax":
        return known
    return known - np.log(np.maximum(1 - values, _SMALLEST))
