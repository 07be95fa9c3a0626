"""The weights' average: evaluated during a run, and what the run leaves."""

from __future__ import annotations

import keras

from keras_vit.optimizers import inner_optimizer


def swap_averages(model: keras.Model) -> None:
    """Exchanges the trainable weights and their averages, to the bit; once more to get them back.

    Before the first update there are no averages, and nothing happens.

    Args:
        model: compiled with an optimizer of this package that has `ema_decay`.

    Raises:
        ValueError: if the optimizer keeps no averages.
    """
    optimizer = inner_optimizer(model)
    if getattr(optimizer, "ema_decay", None) is None:
        raise ValueError(
            "The model's optimizer keeps no averages: compile it with keras_vit.training.AdamW or "
            f"SGD and `ema_decay`. Received: {type(optimizer).__name__}"
        )
    if not optimizer.built or int(optimizer.iterations) == 0:
        return
    for variable, average in zip(model.trainable_variables, optimizer.averages, strict=True):
        if average is None:
            continue
        value = keras.ops.copy(variable)
        variable.assign(keras.ops.copy(average))
        average.assign(value)


class EvaluateAverages(keras.callbacks.Callback):
    """Evaluates a model on its averaged weights, during `fit` and in `evaluate`.

    After `fit` the weights are the trained ones; `swap_averages` brings the averages in.
    """

    def on_test_begin(self, logs=None):
        """Brings the averages in."""
        swap_averages(self.model)

    def on_test_end(self, logs=None):
        """Brings the trained weights back."""
        swap_averages(self.model)
