"""The pictures that a quantisation is fitted to, and the ranges of values that they lead to."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import _checks, _deps
from keras_vit.evaluation.batches import batches, count_batches
from keras_vit.export import tflite_graph

IMAGES = 128  # beyond that the ranges hardly change
LOOKED_AT = 2048  # of a stream whose length nobody knows
_NOTHING = -1e30


def calibration_images(
    data: Any,
    image_shape: tuple[int, ...],
    pixels: bool = True,
    count: int = IMAGES,
    argument: str = "calibration",
) -> np.ndarray:
    """Picks images spread over data.

    Args:
        data: images `(n, height, width, channels)`, `(images, labels)`, an iterable of batches of
            either (such as a `tf.data.Dataset`), or a `keras_vit.data.Pipeline`.
        image_shape: (height, width, channels) that the model takes.
        pixels: whether it takes pixels 0..255.
        count: how many to pick at most. Of a stream without a known length they are spread over
            its first 2,048.
        argument: what `data` is called where it comes from, for errors.

    Returns:
        `(at most count, height, width, channels)`, float32.

    Raises:
        ValueError: if there is no image, or they are not what the model takes.
    """
    count = _checks.positive_int("calibration_size", count)
    if getattr(data, "training", False) is True and hasattr(data, "dataset"):
        raise ValueError(
            f"`{argument}` must be pictures as the model will see them, without augmentation: "
            "make the Pipeline with training=False."
        )
    data = getattr(data, "dataset", data)
    chosen = list(_spread(data, count, argument))
    if not chosen:
        raise ValueError(f"`{argument}` holds no image: give some 100 typical pictures.")
    for images in chosen:
        if images.shape != tuple(image_shape):
            raise ValueError(
                f"`{argument}` must hold images of shape {tuple(image_shape)}, in batches, as the "
                f"model takes them. Received: an image of shape {images.shape}"
            )
    found = np.stack(chosen)
    if found.dtype.kind not in "fiu":
        raise ValueError(f"`{argument}` must hold numbers. Received: dtype={found.dtype}")
    found = found.astype("float32")
    check_values(found, pixels, argument)
    return found


def _spread(data: Any, count: int, argument: str) -> Iterator[np.ndarray]:
    """Single images, spread over arrays, over batches, or over the beginning of a stream."""
    if isinstance(data, str | bytes | os.PathLike):
        raise ValueError(f"`{argument}` must be images, not a path. Received: {data!r}")
    if hasattr(data, "__array__") and not isinstance(data, np.ndarray):
        data = np.asarray(data)
    if isinstance(data, tuple) and len(data) == 2 and np.ndim(data[1]) == 4:
        raise ValueError(
            f"`{argument}`: the second of a pair is taken for labels; pass batches in a list."
        )
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], np.ndarray):
        data = data[0]
    if isinstance(data, np.ndarray):
        if data.ndim != 4:
            raise ValueError(
                f"`{argument}` must be images (n, height, width, channels). "
                f"Received: an array of shape {data.shape}"
            )
        yield from data[_evenly(len(data), count)]
        return
    length = count_batches(data)
    if length is None:
        yield from _of_stream(data, count)
        return
    numbers = set(_evenly(length, count).tolist())
    each = math.ceil(count / max(len(numbers), 1))
    left = count
    for number, (images, _) in enumerate(batches(data, steps=max(numbers, default=0) + 1)):
        if number in numbers:
            part = images[_evenly(len(images), min(each, left))]
            left -= len(part)
            yield from part


def _of_stream(data: Any, count: int) -> Iterator[np.ndarray]:
    seen: list[np.ndarray] = []
    for images, _ in batches(data):
        # Views of large batches would keep them whole.
        seen.extend(image.copy() for image in images[: LOOKED_AT - len(seen)])
        if len(seen) >= LOOKED_AT:
            break
    yield from (seen[index] for index in _evenly(len(seen), count))


def _evenly(length: int, count: int) -> np.ndarray:
    """`count` of `length` indices, or all of them, spread evenly."""
    return np.unique(np.linspace(0, length - 1, min(length, count)).round().astype(int))


def check_values(images: np.ndarray, pixels: bool, argument: str) -> None:
    """Raises a ValueError unless values are finite, and pixels 0..255 where they should be."""
    low, high = float(images.min()), float(images.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"`{argument}` holds values that are not finite numbers.")
    if not pixels:  # the model has no scaling of its own, and any range may be right
        return
    if low < 0 or high > 255:
        raise ValueError(
            f"`{argument}` must hold pixels 0..255, which the model scales itself. "
            f"Received: values from {low:g} to {high:g}"
        )
    if high <= 1:
        raise ValueError(
            f"`{argument}` must hold pixels 0..255, which the model scales itself, and these look "
            f"like shares of 1: multiply them by 255. Received: values from {low:g} to {high:g}"
        )


def activation_ranges(
    content: bytes, images: np.ndarray, value_range: Sequence[float]
) -> dict[str, dict]:
    """The least and the greatest value of each tensor, over images.

    Args:
        content: of a float32 .tflite file with one input, `images`.
        images: `(n, height, width, channels)`, float32.
        value_range: of the input, whatever the images have of it.

    Returns:
        name of tensor -> `{"min": array, "max": array}`, of shape `(1,) * rank`; without constants.
    """
    module = _deps.optional("ai_edge_litert.interpreter", "export", "Quantising TFLite models")
    with warnings.catch_warnings():
        # It warns that keeping all tensors takes memory.
        warnings.simplefilter("ignore")
        interpreter = module.Interpreter(
            model_content=content, experimental_preserve_all_tensors=True
        )
    source = interpreter.get_input_details()[0]
    interpreter.resize_tensor_input(source["index"], (1, *images.shape[1:]))
    interpreter.allocate_tensors()
    # A range of a weight as a whole would take the place of its channels' own.
    names = {
        index: name
        for index, name in tflite_graph.variables(tflite_graph.parse(content)).items()
        if name
    }
    found: dict[str, dict] = {}
    for image in images:
        interpreter.set_tensor(source["index"], image[None])
        interpreter.invoke()
        for index, name in names.items():
            _widen(found, name, interpreter.get_tensor(index))
    for bound, value in zip(("min", "max"), value_range, strict=True):
        found[source["name"]][bound] = np.full((1, 1, 1, 1), value, "float32")
    return found


def _widen(found: dict[str, dict], name: str, values: np.ndarray) -> None:
    if not values.size:
        return
    rank = values.ndim
    if values.min() < _NOTHING:  # what pads the input of a maximum: the least integer will do
        values = values[values >= _NOTHING]
    low, high = (np.reshape(v, (1,) * rank) for v in (values.min(), values.max()))
    if name in found:
        low, high = np.minimum(low, found[name]["min"]), np.maximum(high, found[name]["max"])
    found[name] = {"min": low, "max": high}


def save_images(images: np.ndarray, folder: Path) -> str:
    """Writes images where another process reads them; returns the file's path."""
    path = folder / "images.npy"
    np.save(path, images)
    return str(path)
