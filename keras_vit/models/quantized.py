"""Models after `model.quantize`: what a config says of it, and what cannot be done any more."""

from __future__ import annotations

from typing import Any

import keras

_Record = dict[str, dict[str, Any]]


def quantized_layers(model: keras.Model) -> _Record:
    """Path of a quantized layer -> its mode, and how it was to be done if that was said."""
    found: _Record = {}
    for layer in model._flatten_layers(include_self=False):
        mode = getattr(layer, "quantization_mode", None)
        if mode is not None:
            config = getattr(layer, "quantization_config", None)
            config = None if config is None else keras.saving.serialize_keras_object(config)
            found[layer.path] = {"mode": mode, "config": config}
    return found


def quantize_again(model: keras.Model, record: _Record) -> None:
    """Gives a new model the variables that `quantized_layers` told of; values come with weights.

    Args:
        model: built, in floats.
        record: of another model of the same architecture.
    """
    for layer in model._flatten_layers(include_self=False):
        if layer.path in record:
            about = record[layer.path]
            config = about["config"]
            if config is not None:
                config = keras.saving.deserialize_keras_object(config)
            layer.quantize(about["mode"], config=config)


def check_in_floats(model: keras.Model, what: str) -> None:
    """Raises a ValueError if a model is quantized.

    Args:
        model: any.
        what: is to be done with its weights.
    """
    layers = quantized_layers(model)
    if layers:
        path, about = next(iter(layers.items()))
        raise ValueError(
            f"{what} needs weights in floats, but {len(layers)} layers of model {model.name!r} "
            f"are quantized, such as {path!r} to {about['mode']}. Do it before `quantize`."
        )
