"""The papers' two losses and their metrics, on integer labels or shares of classes alike."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.recipe import LOSSES


def shares(labels, num_classes: int):
    """Labels as shares of the classes.

    Args:
        labels: integers `(batch,)` or `(batch, 1)`, or shares `(batch, num_classes)`.
        num_classes: classes.

    Returns:
        `(batch, num_classes)`, float32.
    """
    labels = ops.convert_to_tensor(labels)
    if len(labels.shape) == 2 and labels.shape[-1] == num_classes:
        return ops.cast(labels, "float32")
    return ops.one_hot(ops.cast(ops.reshape(labels, (-1,)), "int32"), num_classes, dtype="float32")


@keras.saving.register_keras_serializable(package="keras_vit")
class Crossentropy(keras.losses.Loss):
    """Cross-entropy from logits, over softmax or over a sigmoid for each class.

    Args:
        kind: `"softmax"`, or `"sigmoid"`: binary cross-entropies, summed over the classes as
            big_vision does (Keras averages them).
        label_smoothing: share of the labels' mass that is spread over all classes.
        reduction: as in `keras.losses.Loss`.
        name: name of the loss.
        dtype: as in `keras.losses.Loss`.

    Call arguments:
        y_true: integers `(batch,)` or `(batch, 1)`, or shares `(batch, num_classes)`.
        y_pred: logits `(batch, num_classes)`.

    Raises:
        ValueError: on arguments out of range.

    Reference:
        arXiv 2010.11929, appendix B.1 (both losses).
    """

    def __init__(
        self,
        kind="softmax",
        label_smoothing=0.0,
        reduction="sum_over_batch_size",
        name="crossentropy",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.kind = _checks.choice("kind", kind, LOSSES)
        self.label_smoothing = _checks.rate("label_smoothing", label_smoothing)

    def call(self, y_true, y_pred):
        logits = ops.cast(y_pred, "float32")
        classes = logits.shape[-1]
        target = shares(y_true, classes)
        target = target * (1.0 - self.label_smoothing) + self.label_smoothing / classes
        if self.kind == "softmax":
            return -ops.sum(target * ops.log_softmax(logits, axis=-1), axis=-1)
        each = ops.relu(logits) - logits * target + ops.log1p(ops.exp(-ops.abs(logits)))
        return ops.sum(each, axis=-1)

    def get_config(self):
        return {
            "kind": self.kind,
            "label_smoothing": self.label_smoothing,
            "reduction": self.reduction,
            "name": self.name,
            "dtype": self.dtype,
        }


def _true_class(y_true, classes: int):
    return ops.argmax(shares(y_true, classes), axis=-1)


@keras.saving.register_keras_serializable(package="keras_vit")
def accuracy(y_true, y_pred):
    """1 where the highest logit is the class (of mixed labels: the one of most mass), else 0."""
    found = ops.argmax(y_pred, axis=-1)
    return ops.cast(ops.equal(found, _true_class(y_true, y_pred.shape[-1])), "float32")
