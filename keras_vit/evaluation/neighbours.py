"""Classification by the nearest features."""

from __future__ import annotations

import numpy as np

from keras_vit import _checks
from keras_vit.evaluation.metrics import check_labels

METRICS = ("cosine", "euclidean")
_BLOCK = 1024


def knn(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    features: np.ndarray,
    k: int = 20,
    temperature: float = 0.07,
    metric: str = "cosine",
    *,
    num_classes: int | None = None,
) -> np.ndarray:
    """Weighted votes of the `k` nearest training features.

    A neighbour's vote weighs exp(similarity / temperature): the cosine, or half the squared
    distance taken negative, which on features of length 1 is the same up to a factor.

    Args:
        train_features: `(m, width)`.
        train_labels: `(m,)` integers.
        features: `(n, width)`.
        k: neighbours that vote, at most `m`.
        temperature: how fast a vote fades.
        metric: `"cosine"` or `"euclidean"`.
        num_classes: classes; `None`: as many as the largest label asks for.

    Returns:
        Shares of the votes `(n, num_classes)`, float32; each row sums to 1, `argmax` is the
        prediction.

    Raises:
        ValueError: on arguments out of range or shapes that do not go together.

    Reference:
        arXiv 1805.01978, section 3.4, with the settings of DINO (arXiv 2104.14294, appendix).
    """
    train, points = (
        check_features("train_features", train_features),
        check_features("features", features),
    )
    if train.shape[1] != points.shape[1]:
        raise ValueError(
            "`train_features` and `features` must be of one width. "
            f"Received: {train.shape[1]} and {points.shape[1]}"
        )
    if _checks.positive_int("k", k) > len(train):
        raise ValueError(f"`k` must be at most the {len(train)} training features. Received: k={k}")
    temperature = _checks.positive_float("temperature", temperature)
    _checks.choice("metric", metric, METRICS)
    labels, classes = check_classes(train_labels, len(train), num_classes)
    if metric == "cosine":
        train, points = _unit(train), _unit(points)
    squares = (train**2).sum(axis=1) if metric == "euclidean" else None
    blocks = []
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        similar = block @ train.T  # (block, m)
        if squares is not None:
            # The point's own square is the same for all its neighbours.
            similar = similar - 0.5 * squares
        nearest = np.argpartition(-similar, k - 1, axis=1)[:, :k]
        scores = np.take_along_axis(similar, nearest, axis=1) / temperature
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        rows = np.arange(len(block))[:, None] * classes
        cells = (rows + labels[nearest]).ravel()
        votes = np.bincount(cells, weights.ravel(), minlength=len(block) * classes)
        votes = votes.reshape(len(block), classes)
        blocks.append((votes / votes.sum(axis=1, keepdims=True)).astype("float32"))
    return np.concatenate(blocks)


def check_features(name: str, value: np.ndarray) -> np.ndarray:
    """Features as float32 `(n, width)`; a ValueError unless they are that, finite, and there."""
    value = np.asarray(value, dtype="float32")
    if value.ndim != 2 or not value.size:
        raise ValueError(f"`{name}` must have shape (n, width). Received: shape {value.shape}")
    if not np.isfinite(value).all():
        raise ValueError(f"`{name}` must be finite. Received: NaN or infinity among them")
    return value


def check_classes(labels: np.ndarray, count: int, num_classes: int | None) -> tuple:
    """Labels as `(count,)` int64, and the number of classes."""
    labels = np.asarray(labels)
    if num_classes is not None:
        classes = _checks.positive_int("num_classes", num_classes)
    elif labels.ndim == 2 and labels.shape[1] > 1:
        classes = labels.shape[1]
    else:
        classes = int(labels.max()) + 1 if labels.size and labels.max() >= 0 else 1
    return check_labels(labels, count, classes), classes


def _unit(features: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(lengths, np.finfo("float32").tiny)
