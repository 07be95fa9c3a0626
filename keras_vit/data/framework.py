"""TensorFlow, which pipelines and TFRecord files need; pictures alone are read without it."""

from __future__ import annotations

from typing import Any

from keras_vit import _deps

tf: Any = _deps.optional("tensorflow", "data", "A pipeline of pictures")


def leave_accelerators() -> None:
    """Keeps TensorFlow off the GPU where another backend needs it."""
    import keras

    if keras.backend.backend() != "tensorflow":
        try:
            tf.config.set_visible_devices([], "GPU")
        except (RuntimeError, ValueError):
            return  # TensorFlow already runs, as its user has set it up


leave_accelerators()
