"""Transforms that the user brings: layers and functions, applied to batches inside tf.data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from keras_vit.data.framework import tf

_MIXERS = ("MixUp", "CutMix")


def flatten(transforms: Any) -> list[Callable]:
    """The transforms one by one: models and pipelines of layers are taken apart.

    A `keras.Sequential` cannot run inside tf.data where the backend is not TensorFlow, though
    preprocessing layers by themselves can.

    Raises:
        ValueError: on what is no layer and no function, or a layer that mixes labels.
    """
    if callable(transforms) or not isinstance(transforms, Iterable):
        transforms = [transforms]
    found: list[Callable] = []
    for transform in transforms:
        layers = getattr(transform, "layers", None)
        if isinstance(layers, (list, tuple)) and layers:
            found += flatten([x for x in layers if type(x).__name__ != "InputLayer"])
        elif not callable(transform):
            raise ValueError(
                "`transforms` must be layers, or functions of images. "
                f"Received: {type(transform).__name__}"
            )
        elif type(transform).__name__ in _MIXERS:
            name = type(transform).__name__
            raise ValueError(
                f"`transforms` must leave labels alone; instead of {name} use the argument "
                f"`{name.lower()}`."
            )
        else:
            found.append(transform)
    return found


def apply(transforms: list[Callable], images: Any, seed: Any):
    """Applies transforms to a batch, in a graph of TensorFlow's.

    Args:
        transforms: see `flatten`.
        images: `(batch, height, width, channels)`.
        seed: (2,) int32, for functions that have an argument `seed`.

    Returns:
        Images float32, their shape as before.

    Raises:
        ValueError: if the shape changes.
    """
    images = tf.cast(images, tf.float32)
    for position, transform in enumerate(transforms):
        before = images.shape
        own = tf.random.fold_in(seed, position)
        images = _call(transform, images, own)
        images = tf.cast(tf.convert_to_tensor(images), tf.float32)
        if not images.shape.is_compatible_with(before):
            raise ValueError(
                f"`transforms[{position}]` must keep the shape {tuple(before)}. "
                f"Received: {tuple(images.shape)}"
            )
        images = tf.ensure_shape(images, before)
    return images


def _call(transform: Callable, images, seed):
    if _is_layer(transform):
        return transform(images, training=True)
    if "seed" in _parameters(transform):
        return transform(images, seed=seed)
    return transform(images)


def _is_layer(transform: Any) -> bool:
    import keras

    return isinstance(transform, keras.layers.Layer)


def _parameters(function: Callable) -> Iterable[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # built-in
        return ()
