"""Accuracy, loss, a table of the classes and who is taken for whom, from logits and labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

# A matrix of more classes is left out of JSON: 200 make 40,000 numbers.
MATRIX_IN_JSON = 200
_BLOCK = 4096


@dataclass(frozen=True)
class ClassRow:
    """One class of the table.

    Attributes:
        name: name of the class.
        count: images of it.
        correct: how many of them were recognised.
        predicted: images that were taken for it, rightly or not.
    """

    name: str
    count: int
    correct: int
    predicted: int

    @property
    def accuracy(self) -> float:
        """Part of the class' images that was recognised; NaN for a class without images."""
        return self.correct / self.count if self.count else float("nan")

    @property
    def recall(self) -> float:
        """The same as `accuracy`: for one class they are one number."""
        return self.accuracy

    @property
    def precision(self) -> float:
        """Part of the images taken for the class that are of it; NaN if there is none."""
        return self.correct / self.predicted if self.predicted else float("nan")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model did on a data set.

    Attributes:
        count: images.
        top1: part of the images whose class has the highest logit.
        top5: part whose class is among the `top_k` highest.
        top_k: 5, or the number of classes if that is smaller.
        loss: mean softmax cross-entropy.
        class_names: names of all classes.
        labels: `(count,)`, int64.
        predictions: `(count,)`, int64.
        confidences: `(count,)`, float32; softmax probability of the prediction.
        losses: `(count,)`, float32; cross-entropy of each image.
    """

    count: int
    top1: float
    top5: float
    top_k: int
    loss: float
    class_names: tuple[str, ...]
    labels: np.ndarray
    predictions: np.ndarray
    confidences: np.ndarray
    losses: np.ndarray

    @cached_property
    def classes(self) -> tuple[ClassRow, ...]:
        """A row for each class, in their order."""
        size = len(self.class_names)
        counts = np.bincount(self.labels, minlength=size)
        predicted = np.bincount(self.predictions, minlength=size)
        correct = np.bincount(self.labels[self.labels == self.predictions], minlength=size)
        columns = (counts.tolist(), correct.tolist(), predicted.tolist())
        return tuple(ClassRow(*row) for row in zip(self.class_names, *columns, strict=True))

    @property
    def mean_per_class(self) -> float:
        """Mean accuracy of the classes that have images: each class counts the same."""
        return float(np.mean([row.accuracy for row in self.classes if row.count]))

    @cached_property
    def confusion(self) -> np.ndarray:
        """`(classes, classes)`, int64: rows are the true classes, columns the predicted ones."""
        return self.confusion_of(range(len(self.class_names)))

    def confusion_of(self, classes: Sequence[int]) -> np.ndarray:
        """The part of the confusion matrix that some classes make.

        Args:
            classes: their indices, in the wanted order.

        Returns:
            `(len(classes), len(classes))`, int64.
        """
        size = len(classes)
        places = np.full(len(self.class_names), -1)
        places[np.asarray(classes, dtype=int)] = np.arange(size)
        rows, columns = places[self.labels], places[self.predictions]
        inside = (rows >= 0) & (columns >= 0)
        cells = rows[inside] * size + columns[inside]
        return np.bincount(cells, minlength=size * size).reshape(size, size)

    def most_confused(self, count: int = 10) -> list[tuple[int, int, int]]:
        """The commonest mistakes.

        Args:
            count: how many at most.

        Returns:
            `(true class, predicted class, images)`, the commonest first.
        """
        wrong = self.labels != self.predictions
        pairs = np.stack([self.labels[wrong], self.predictions[wrong]])
        pairs, counts = np.unique(pairs, axis=1, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:count]
        return [(int(pairs[0, i]), int(pairs[1, i]), int(counts[i])) for i in order]

    def summary(self) -> str:
        """One line: top-1, top-5, loss, images."""
        top = f", top-{self.top_k} {self.top5:.2%}" if self.top_k > 1 else ""
        return f"top-1 {self.top1:.2%}{top}, loss {self.loss:.4f}, {self.count:,} images"

    def text(self, rows: int | None = None) -> str:
        """The summary, the table of the classes and the commonest mistakes.

        Args:
            rows: classes to list, those of the lowest accuracy; `None` for all, in their order.
        """
        shown = list(self.classes)
        if rows is not None and len(shown) > rows:
            shown = sorted((row for row in shown if row.count), key=lambda row: row.accuracy)[:rows]
        width = max([5, *(len(row.name) for row in shown)])
        lines = [self.summary(), "", f"{'class':<{width}}  images  correct  accuracy  precision"]
        for row in shown:
            lines.append(
                f"{row.name:<{width}}  {row.count:>6}  {row.correct:>7}  "
                f"{_percent(row.accuracy):>8}  {_percent(row.precision):>9}"
            )
        if len(shown) < len(self.classes):
            lines.append(f"the {len(shown)} lowest of {len(self.classes)} classes")
        lines.append(f"mean accuracy of the classes {_percent(self.mean_per_class)}")
        mistakes = self.most_confused(5)
        if mistakes:
            lines += ["", "commonest mistakes"]
        for true, predicted, count in mistakes:
            lines.append(f"{count:>6}  {self.class_names[true]} -> {self.class_names[predicted]}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain values; what cannot be computed is `None`.

        The confusion matrix is left out beyond 200 classes, the pairs most confused stay.
        """
        names = self.class_names
        classes = [
            asdict(row)
            | {key: _or_none(getattr(row, key)) for key in ("accuracy", "precision", "recall")}
            for row in self.classes
        ]
        return {
            "count": self.count,
            "top1": self.top1,
            "top5": self.top5,
            "top_k": self.top_k,
            "loss": self.loss,
            "mean_per_class": self.mean_per_class,
            "classes": classes,
            "most_confused": [
                {"true": names[true], "predicted": names[predicted], "count": count}
                for true, predicted, count in self.most_confused()
            ],
            "confusion": self.confusion.tolist() if len(names) <= MATRIX_IN_JSON else None,
        }

    def json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


def metrics(
    logits: np.ndarray, labels: np.ndarray, class_names: Sequence[str] | None = None
) -> Evaluation:
    """Measures predictions.

    Ties go to the lower class, in top-1 as in top-5: a model that gives all classes the same is
    right for the first class alone.

    Args:
        logits: `(n, classes)`, finite.
        labels: `(n,)` integers, or `(n, classes)`: one-hot, or shares that sum to 1, of which the
            largest counts as the class.
        class_names: names of the classes; `None` for their numbers.

    Returns:
        The `Evaluation`.

    Raises:
        ValueError: on shapes that do not go together, labels out of range or logits that are not
            finite.
    """
    logits, targets = np.asarray(logits), np.asarray(labels)
    if logits.ndim != 2 or not logits.size:
        raise ValueError(
            f"`logits` must have shape (n, classes). Received: logits.shape={logits.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if len(bad):
        raise ValueError(
            f"`logits` must be finite. Received: NaN or infinity in {len(bad)} of {len(logits)} "
            f"rows, the first is row {bad[0]}. The model's weights or the images may hold NaN."
        )
    indices = check_labels(targets, *logits.shape)
    names = tuple(map(str, range(logits.shape[1]) if class_names is None else class_names))
    if len(names) != logits.shape[1]:
        raise ValueError(
            f"`class_names` must have a name for each of the {logits.shape[1]} classes. "
            f"Received: {len(names)} names"
        )
    shares = targets if targets.ndim == 2 else None
    blocks = [
        _measure(
            logits[s : s + _BLOCK],
            indices[s : s + _BLOCK],
            None if shares is None else shares[s : s + _BLOCK],
        )
        for s in range(0, len(logits), _BLOCK)
    ]
    predictions, ranks, confidences, losses = (
        np.concatenate(parts) for parts in zip(*blocks, strict=True)
    )
    top_k = min(5, logits.shape[1])
    return Evaluation(
        count=len(logits),
        top1=float((ranks < 1).mean()),
        top5=float((ranks < top_k).mean()),
        top_k=top_k,
        loss=float(losses.mean()),
        class_names=names,
        labels=indices,
        predictions=predictions,
        confidences=confidences.astype("float32"),
        losses=losses.astype("float32"),
    )


def check_labels(labels: np.ndarray, count: int, classes: int) -> np.ndarray:
    """Labels as class indices.

    Args:
        labels: `(count,)` integers, `(count, 1)`, or `(count, classes)`.
        count: images.
        classes: number of classes.

    Returns:
        `(count,)`, int64.

    Raises:
        ValueError: if the shape is another, or a label is out of range.
    """
    labels = np.asarray(labels)
    if labels.shape == (count, classes) and classes > 1:
        return labels.argmax(axis=1)
    if labels.shape not in ((count,), (count, 1)):
        raise ValueError(
            f"`labels` must have shape ({count},) or ({count}, {classes}). "
            f"Received: labels.shape={labels.shape}"
        )
    flat = labels.reshape(-1)
    whole = flat.astype("int64")
    wrong = np.flatnonzero((whole != flat) | (whole < 0) | (whole >= classes))
    if len(wrong):
        raise ValueError(
            f"`labels` must be integers from 0 to {classes - 1}: the model has {classes} classes. "
            f"Received: {len(wrong)} others, the first is {flat[wrong[0]]!r} at {wrong[0]}"
        )
    return whole


def _measure(logits, labels, shares):
    """Predictions, ranks of the right class, confidences and losses of one block."""
    logits = logits.astype("float64")
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    before = np.arange(logits.shape[1]) < labels[:, None]
    ranks = ((logits > own) | ((logits == own) & before)).sum(axis=1)
    logits -= logits.max(axis=1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    predictions = logs.argmax(axis=1)
    confidences = np.exp(logs.max(axis=1))
    if shares is None:
        losses = -np.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
    else:
        losses = -(shares * logs).sum(axis=1)
    return predictions, ranks, confidences, losses


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2%}"


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
