"""How far what an artifact gives is from what its model gives."""

from __future__ import annotations

import numpy as np

_FEW = 8  # images, over which nothing is said to vary


def relative_error(values: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square of the differences, by that of how each output varies over the images."""
    varies = expected - expected.mean(axis=0)
    if len(expected) < _FEW or not varies.any():
        varies = expected
    scale = float(np.sqrt(np.mean(varies.astype("float64") ** 2)))
    error = float(np.sqrt(np.mean((values - expected).astype("float64") ** 2)))
    return error / scale if scale else (0.0 if error == 0 else float("inf"))


def probabilities_of(logits: np.ndarray, kind: str) -> np.ndarray:
    """What softmax or sigmoid make of logits `(n, classes)`."""
    if kind == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def accuracy(values: np.ndarray, labels: np.ndarray | None) -> float | None:
    """The part of the rows whose first class is their label; `None` without labels."""
    return None if labels is None else float(np.mean(values.argmax(-1) == labels))
