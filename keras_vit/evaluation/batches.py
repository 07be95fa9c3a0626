"""Batches of whatever holds images, and a progress bar over them."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.engines.adoption import engine_for, explained

BATCH_SIZE = 64


def batches(data: Any, batch_size: int = BATCH_SIZE, steps: int | None = None) -> Iterator[tuple]:
    """Yields `(images, labels)` batch by batch, as NumPy arrays.

    Args:
        data: `(images, labels)` arrays, an array of images, a `keras.utils.PyDataset`, or any
            iterable of images or of pairs `(images, labels)` (a `tf.data.Dataset`, a PyTorch
            `DataLoader`, a list, a generator).
        batch_size: images in a batch, where `data` is arrays; the last one may be smaller.
        steps: batches to take; `None` for all.

    Yields:
        Images `(batch, height, width, channels)`, and labels or `None`.

    Raises:
        ValueError: if images and labels do not go together, or `data` is no such thing.
    """
    if steps is not None:
        _checks.positive_int("steps", steps)
    for images, labels in itertools.islice(_pairs(data, batch_size), steps):
        images = as_array(images)
        labels = None if labels is None else as_array(labels)
        if labels is not None and (labels.ndim == 0 or len(labels) != len(images)):
            raise ValueError(
                "Each image needs a label: `images` and `labels` must have the same length. "
                f"Received: images.shape={images.shape}, labels.shape={labels.shape}"
            )
        if len(images):
            yield images, labels


def count_batches(data: Any, batch_size: int = BATCH_SIZE, steps: int | None = None) -> int | None:
    """How many batches `batches` yields, where that is known beforehand."""
    arrays = _as_arrays(data)
    found = None
    if arrays is not None:
        found = -(-len(arrays[0]) // batch_size)
    elif hasattr(data, "__len__"):
        # An endless `tf.data.Dataset` has a `__len__` that raises, a PyDataset may have none.
        with contextlib.suppress(TypeError):
            found = len(data)
    return found if steps is None else min(steps, found or steps)


def as_array(value: Any) -> np.ndarray:
    """A tensor of any backend, or of TensorFlow in a data set, as an array."""
    if isinstance(value, np.ndarray):
        return value
    if keras.backend.backend() == "torch" and keras.ops.is_tensor(value):
        return keras.ops.convert_to_numpy(value)  # also from a device, or with a gradient
    return np.asarray(value)


def _pairs(data: Any, batch_size: int) -> Iterator[tuple]:
    arrays = _as_arrays(data)
    if arrays is not None:
        images, labels = arrays
        if labels is not None and len(labels) != len(images):
            raise ValueError(
                "Each image needs a label: `images` and `labels` must have the same length. "
                f"Received: {len(images)} images, {len(labels)} labels"
            )
        _checks.positive_int("batch_size", batch_size)
        for start in range(0, len(images), batch_size):
            part = slice(start, start + batch_size)
            yield images[part], None if labels is None else labels[part]
        return
    if isinstance(data, keras.utils.PyDataset):
        sequence = data
        data = (sequence[index] for index in range(len(sequence)))
    if not isinstance(data, Iterable):
        raise ValueError(
            "Expected images, (images, labels), or batches of them to iterate over. "
            f"Received: {type(data).__name__}"
        )
    for batch in data:
        if not isinstance(batch, (tuple, list)):
            yield batch, None
        elif len(batch) in (2, 3):  # the third would be sample weights
            yield batch[0], batch[1]
        else:
            raise ValueError(
                "A batch must be images or a pair (images, labels). "
                f"Received: a {type(batch).__name__} of {len(batch)}"
            )


def _as_arrays(data: Any) -> tuple[Any, Any] | None:
    """`data` as (images, labels or None) where it is arrays as a whole."""
    if isinstance(data, np.ndarray):
        return data, None
    if isinstance(data, tuple) and len(data) == 2:
        images, labels = data
        # A pair of batches, `((images, labels), (images, labels))`, is no such thing.
        if isinstance(images, np.ndarray) and not isinstance(labels, tuple) and images.ndim == 4:
            labels = None if labels is None else np.asarray(labels)
            if labels is None or labels.ndim in (1, 2):
                return images, labels
    return None


class Predictor:
    """Runs a model batch by batch; a smaller last batch is filled up, and cut again.

    Every new shape would be compiled anew, and one that several devices do not divide would fail.
    A model's answer for an image does not depend on the others in inference. With several
    processes all must ask for the same images, and each gets all answers.

    Args:
        model: a Keras model.
    """

    def __init__(self, model: keras.Model):
        self.model = model
        self.engine = engine_for(model)
        self._size = 0

    def __call__(self, images: np.ndarray) -> Any:
        """The model's outputs for a batch, as NumPy arrays."""
        count, parts = len(images), self.engine.replicas
        self._size = max(self._size, -(-count // parts) * parts)
        if count < self._size:
            filling = np.repeat(images[-1:], self._size - count, axis=0)
            images = np.concatenate([images, filling])
        with explained(self.engine):
            outputs = self.engine.predict(self.model, images)
        return keras.tree.map_structure(lambda x: as_array(x)[:count], outputs)


class Progress:
    """A line on stderr: images done, images/s and what is left; it moves only on a terminal.

    Args:
        what: what is being done, such as `"evaluating"`.
        steps: batches in all, or `None` where nobody knows.
        shown: whether to write at all.
    """

    INTERVAL = 0.5  # seconds between two lines

    def __init__(self, what: str, steps: int | None, shown: bool = True):
        self.what, self.steps, self.shown = what, steps, shown
        self._done = self._images = 0
        self._started = self._written = time.perf_counter()

    def update(self, images: int) -> None:
        """Counts one more batch, of so many images."""
        self._done += 1
        self._images += images
        now = time.perf_counter()
        if self.shown and sys.stderr.isatty() and now - self._written >= self.INTERVAL:
            self._written = now
            sys.stderr.write(f"\r{self.line(now - self._started):<79}")
            sys.stderr.flush()

    def close(self) -> None:
        """Writes the last line."""
        if self.shown and self._images:
            line = self.line(time.perf_counter() - self._started)
            sys.stderr.write(f"\r{line:<79}\n" if sys.stderr.isatty() else f"{line}\n")
            sys.stderr.flush()

    def line(self, seconds: float) -> str:
        """What is shown after so many seconds."""
        speed = self._images / max(seconds, 1e-9)
        parts = [f"{self.what}: {self._images:,} images", f"{speed:,.0f} images/s"]
        if self.steps and self._done < self.steps:
            left = (self.steps - self._done) * seconds / max(self._done, 1)
            parts += [f"{100 * self._done // self.steps}%", f"{left:,.0f} s left"]
        else:
            parts.append(f"{seconds:,.1f} s")
        return ", ".join(parts)
