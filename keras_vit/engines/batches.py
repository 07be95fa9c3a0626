"""Finds batches that cannot be divided, before any step, where data tell their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

_KERAS_BATCH = 32  # what `fit` takes by default


def check_batches(x: Any, batch_size: int | None, parts: int, where: str, *, last: bool) -> None:
    """Raises a ValueError if a known batch of `x` is no multiple of `parts`.

    Args:
        x: as in `fit`: arrays, a `tf.data.Dataset`, or anything else, of which nothing is known.
        batch_size: as in `fit`.
        parts: replicas that this process feeds.
        where: the devices, in words.
        last: whether the last, smaller batch counts.
    """
    for name, size in _sizes(x, batch_size, last):
        if size % parts:
            raise ValueError(
                f"Each batch must be a multiple of the {parts} replicas of {where}. Received: "
                f"{name} of {size}. Choose another batch size, batch with drop_remainder=True for "
                "training, or evaluate by keras_vit.evaluation.predict_all, which fills up."
            )


def _sizes(x: Any, batch_size: int | None, last: bool) -> Iterator[tuple[str, int]]:
    spec = getattr(x, "element_spec", None)
    if spec is not None:
        shapes = [part.shape for part in keras.tree.flatten(spec) if part.shape.rank]
        if shapes and shapes[0][0] is not None:
            yield "batches", int(shapes[0][0])
        return
    arrays = [part for part in keras.tree.flatten(x) if hasattr(part, "shape")]
    if not arrays or not len(arrays[0].shape):
        return
    count, batch = len(arrays[0]), batch_size or _KERAS_BATCH
    if count >= batch:
        yield "batches", batch
    if last and count % batch:
        yield "a last batch", count % batch
