"""Pictures without labels, and how fast batches come."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit import _checks
from keras_vit._progress import ProgressLine
from keras_vit.data.decoding import MAX_PIXELS, open_picture
from keras_vit.data.transforms import Preparation


def read_images(
    paths: Sequence[str | os.PathLike],
    image_size: int | tuple[int, int],
    channels: int = 3,
    crop: str = "squash",
    interpolation: str = "bilinear",
    max_pixels: int = MAX_PIXELS,
) -> tuple[np.ndarray, list[int], list[tuple[str, str]]]:
    """Reads files as evaluation does.

    Args:
        paths: the files.
        image_size: (height, width), or one number.
        channels: 3 for RGB, 1 for grey.
        crop: "squash", "resize_small" or "none", see `Preparation`.
        interpolation: see `Preparation`.
        max_pixels: pictures that declare more are not decoded.

    Returns:
        Images `(n, height, width, channels)` uint8; which of the paths they are; and
        `(path, reason)` of those that could not be read.
    """
    size = _checks.int_pair("image_size", image_size)
    options = {"crop": crop, "interpolation": interpolation, "max_pixels": max_pixels}
    check_reading(channels, crop)
    images, read, problems = [], [], []
    for position, path in enumerate(paths):
        try:
            with open(path, "rb") as file:
                images.append(decode_image(file.read(), size, channels, **options))
            read.append(position)
        except (ValueError, OSError) as error:  # BadPicture, or of another size than crop="none"
            problems.append((os.fspath(path), str(error)))
    shape = (0, *size, channels)
    return (np.stack(images) if images else np.zeros(shape, "uint8")), read, problems


def decode_image(
    data: bytes,
    image_size: int | tuple[int, int],
    channels: int = 3,
    crop: str = "squash",
    interpolation: str = "bilinear",
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """Decodes a file's bytes as evaluation does.

    Args:
        data: the file's bytes.
        image_size: (height, width), or one number.
        channels: 3 for RGB, 1 for grey.
        crop: "squash", "resize_small" or "none", see `Preparation`.
        interpolation: see `Preparation`.
        max_pixels: a picture that declares more is not decoded.

    Returns:
        `(height, width, channels)`, uint8.

    Raises:
        BadPicture: if it is no picture, damaged or too large.
    """
    check_reading(channels, crop)
    size = _checks.int_pair("image_size", image_size)
    prepare = Preparation(size, channels, crop=crop, interpolation=interpolation)
    rng = np.random.default_rng(0)  # nothing is drawn
    return prepare(open_picture(data, max_pixels), rng)


def check_reading(channels: int, crop: str) -> None:
    """Raises a ValueError unless pictures can be read so without chance."""
    _checks.choice("crop", crop, ("squash", "resize_small", "none"))
    _checks.choice("channels", channels, (1, 3))


def throughput(pipe: Any, batches: int = 30, warm_up: int = 2, progress: bool = True) -> float:
    """Measures how fast batches come.

    Args:
        pipe: a `Pipeline`, or any iterable of (images, labels).
        batches: how many are timed; fewer if no more come.
        warm_up: batches before the clock starts.
        progress: whether a line on stderr shows how far it is.

    Returns:
        Images a second.

    Raises:
        ValueError: if there are no batches beyond the warm-up.
    """
    batches = _checks.positive_int("batches", batches)
    iterator = iter(getattr(pipe, "dataset", pipe))
    for _ in range(_checks.non_negative_int("warm_up", warm_up)):
        next(iterator, None)
    bar = ProgressLine(batches, "reading") if progress else None
    images, start = 0, time.perf_counter()
    for done, (batch, *_) in zip(range(1, batches + 1), iterator, strict=False):
        images += len(batch)
        if bar is not None:
            bar.update(done, images)
    seconds = time.perf_counter() - start
    if bar is not None:
        bar.close()
    if not images:
        raise ValueError(f"There are no more than the {warm_up} batches of the warm-up to time.")
    return images / seconds
