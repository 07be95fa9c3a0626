"""Pictures that are arrays already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.data.source import Source


class ArraySource(Source):
    """Images and labels in memory, or memory-mapped.

    Args:
        images: `(n, height, width)` or `(n, height, width, channels)`, pixels 0..255; uint8, or
            floats, which stay floats.
        labels: `(n,)` whole numbers, or `(n, 1)`.
        class_names: names in the order of the labels; their numbers by default.
        description: one line.

    Raises:
        ValueError: on shapes or dtypes other than these, or labels out of range.
    """

    encoded = False

    def __init__(
        self,
        images: Any,
        labels: Any,
        class_names: Sequence[str] | None = None,
        description: str | None = None,
    ):
        images, labels = np.asanyarray(images), np.asarray(labels)
        if images.ndim == 3:
            images = images[..., None]
        if images.ndim != 4 or 0 in images.shape or images.dtype.kind not in "uif":
            raise ValueError(
                "`images` must be numbers of shape (n, height, width, channels), n at least 1. "
                f"Received: shape {images.shape}, dtype {images.dtype}"
            )
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "ui":
            raise ValueError(
                f"`labels` must be whole numbers of shape ({len(images)},), one for each image. "
                f"Received: shape {labels.shape}, dtype {labels.dtype}"
            )
        classes = int(labels.max()) + 1 if class_names is None else len(class_names)
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if wrong.size:
            raise ValueError(
                f"`labels` must lie in [0, {classes}). Received: {labels[wrong[0]]} at {wrong[0]}"
            )
        names = [str(i) for i in range(classes)] if class_names is None else class_names
        shape = "x".join(map(str, images.shape))
        super().__init__(len(images), names, labels, description or f"array {shape}")
        self.images = images
        self.dtype = "uint8" if images.dtype == np.uint8 else "float32"

    def read(self, index: int) -> tuple[np.ndarray, int]:
        """Pixels `(height, width, channels)`, uint8 or float32, and the label."""
        return self.read_many(np.asarray([index]))[0], int(self.labels[index])

    def read_many(self, indices: np.ndarray) -> np.ndarray:
        """Pixels `(n, height, width, channels)`, uint8 or float32."""
        return np.asarray(self.images[indices]).astype(self.dtype, copy=False)
