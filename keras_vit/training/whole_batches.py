"""Evaluation data whose batches are all of one size: filled up by images of no weight.

Several devices cannot take a smaller last batch, and all processes must have as many batches.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from keras_vit.engines.engine import Engine


def fill_up(validation: Any, size: int, batch_size: int, engine: Engine) -> Any:
    """`validation_data` for `fit`, in this process: (images, labels, weights).

    Args:
        validation: this process' `tf.data.Dataset` of a `Pipeline`, in batches of
            `batch_size // engine.shard[1]`, or `(images, labels)` arrays of all examples.
        size: examples in all processes.
        batch_size: images of a global batch.
        engine: the engine.

    Returns:
        A `tf.data.Dataset`, or arrays to be cut into batches by `batch_size // engine.shard[1]`.

    Raises:
        ValueError: if `validation` is neither.
    """
    steps, local = math.ceil(size / batch_size), batch_size // engine.shard[1]
    if hasattr(validation, "element_spec"):
        return _fill_dataset(validation, steps, local)
    if isinstance(validation, (tuple, list)) and len(validation) == 2:
        index, count = engine.shard
        images, labels = (np.asarray(part)[index::count] for part in validation)
        missing = steps * local - len(images)
        weights = np.concatenate([np.ones(len(images), "float32"), np.zeros(missing, "float32")])
        return _lengthen(images, missing), _lengthen(labels, missing), weights
    raise ValueError(
        f"On {engine.description}, `validation` must be a source or (images, labels) arrays. "
        f"Received: {type(validation).__name__}"
    )


def _lengthen(array: np.ndarray, missing: int) -> np.ndarray:
    filling = np.zeros((missing, *array.shape[1:]), array.dtype)
    return np.concatenate([array, filling])


def _fill_dataset(data, steps: int, size: int):
    import tensorflow as tf

    def fill(images, labels):
        count = tf.shape(images)[0]
        weights = tf.cast(tf.range(size) < count, tf.float32)
        filled = [
            tf.ensure_shape(
                tf.pad(part, [[0, size - count]] + [[0, 0]] * (part.shape.rank - 1)),
                (size, *part.shape[1:]),
            )
            for part in (images, labels)
        ]
        return *filled, weights

    filled = data.map(fill, num_parallel_calls=tf.data.AUTOTUNE)
    empty = [tf.zeros((size, *spec.shape[1:]), spec.dtype) for spec in data.element_spec]
    rest = tf.data.Dataset.from_tensors((*empty, tf.zeros(size))).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return filled.concatenate(rest).take(steps).with_options(options).prefetch(2)


class WholeLoss(keras.callbacks.Callback):
    """Corrects the loss of an evaluation that was filled up.

    Keras divides the weighted sum of the losses by the number of images, those without weight
    among them; the metric counts weights alone.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: Engine):
        super().__init__()
        self.engine = engine
        self.factor = 1.0

    def on_test_end(self, logs=None):
        """Finds by what the loss is too small."""
        arrays = self.engine.arrays(self.model.metrics_variables, summed=True)
        # (sum, count) of the loss, then of the accuracy.
        self.factor = float(arrays[1]) / float(arrays[3])

    def on_epoch_end(self, epoch, logs=None):
        """Corrects the epoch's, for all callbacks behind this one."""
        if logs and "val_loss" in logs:
            logs["val_loss"] *= self.factor
