"""The paper's few-shot measure: least squares from frozen features, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from keras_vit import _checks
from keras_vit.evaluation.metrics import check_labels
from keras_vit.evaluation.neighbours import check_classes, check_features

SHOTS = (1, 5, 10, 25)
STRENGTHS = tuple(2.0**power for power in range(-10, 21))
# The constant of the bias column: large, so that the penalty hardly touches the bias.
BIAS_COLUMN = 100.0
HELD_OUT = 0.2
_SMALLEST_DEVIATION = 1e-5
_BLOCK = 8192


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """A linear classifier on features.

    Attributes:
        mean: `(width,)`, subtracted from the features.
        deviation: `(width,)`, divides them then.
        kernel: `(width, classes)`.
        bias: `(classes,)`.
        strength: the penalty that it was fitted with.
    """

    mean: np.ndarray
    deviation: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray
    strength: float

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Scores `(n, classes)`, float32; the highest is the prediction."""
        scaled = (np.asarray(features, "float32") - self.mean) / self.deviation
        return (scaled @ self.kernel + self.bias).astype("float32")

    def accuracy(self, features: np.ndarray, labels: np.ndarray) -> float:
        """Part of the features `(n, width)` whose prediction is the label."""
        scores = self(features)
        return float((scores.argmax(axis=1) == check_labels(labels, *scores.shape)).mean())


@dataclass(frozen=True)
class ProbeResult:
    """What a probe reached.

    Attributes:
        shots: training images of each class; `None` for all.
        accuracy: on the test features; mean over the repetitions.
        deviation: standard deviation over the repetitions; 0 if there is one.
        accuracies: of each repetition.
        strengths: the penalty chosen in each repetition.
        train_count: training images used, the mean.
    """

    shots: int | None
    accuracy: float
    deviation: float
    accuracies: tuple[float, ...]
    strengths: tuple[float, ...]
    train_count: float

    def text(self) -> str:
        """One line."""
        name = "all images" if self.shots is None else f"{self.shots}-shot"
        spread = f" ± {self.deviation:.2%}" if len(self.accuracies) > 1 else ""
        return f"{name}: {self.accuracy:.2%}{spread} ({self.train_count:,.0f} training images)"

    def to_dict(self) -> dict[str, Any]:
        """The fields in plain values, for JSON."""
        return asdict(self)


class _Ridge:
    """Least squares to {-1, 1} targets for all penalties at once, by one eigendecomposition.

    Minimises |[Z, c] W - Y|^2 + strength * |W|^2 for standardised features Z and a column of the
    constant c. Z is centred, so the column is orthogonal to it and has a solution of its own.
    """

    def __init__(self, features: np.ndarray, labels: np.ndarray, classes: int):
        count, width = features.shape
        self.mean = features.mean(axis=0, dtype="float64")
        deviation = features.std(axis=0, dtype="float64")
        self.deviation = np.maximum(deviation, _SMALLEST_DEVIATION)
        targets = np.full((count, classes), -1.0)
        targets[np.arange(count), labels] = 1.0
        self._sums = targets.sum(axis=0)
        self._count = count
        if count < width:
            z = self.scale(features)
            values, vectors = np.linalg.eigh(z @ z.T)
            self.basis = z.T @ vectors  # (width, count)
            self._right = vectors.T @ targets
        else:
            gram, right = np.zeros((width, width)), np.zeros((width, classes))
            for start in range(0, count, _BLOCK):
                z = self.scale(features[start : start + _BLOCK])
                gram += z.T @ z
                right += z.T @ targets[start : start + _BLOCK]
            values, self.basis = np.linalg.eigh(gram)
            self._right = self.basis.T @ right
        self._values = np.maximum(values, 0.0)

    def scale(self, features: np.ndarray) -> np.ndarray:
        return (features.astype("float64") - self.mean) / self.deviation

    def weights(self, strength: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights on `basis`, and the bias."""
        kernel = self._right / (self._values[:, None] + strength)
        square = BIAS_COLUMN**2
        return kernel, square * self._sums / (square * self._count + strength)

    def probe(self, strength: float) -> LinearProbe:
        kernel, bias = self.weights(strength)
        return LinearProbe(
            mean=self.mean.astype("float32"),
            deviation=self.deviation.astype("float32"),
            kernel=(self.basis @ kernel).astype("float32"),
            bias=bias.astype("float32"),
            strength=strength,
        )

    def best(self, features, labels, strengths) -> float:
        """The penalty of the highest accuracy; of several the one in the middle."""
        projected = self.scale(features) @ self.basis
        scores = []
        for strength in strengths:
            kernel, bias = self.weights(strength)
            scores.append(((projected @ kernel + bias).argmax(axis=1) == labels).mean())
        ties = np.flatnonzero(np.isclose(scores, max(scores), rtol=0, atol=1e-12))
        return strengths[ties[len(ties) // 2]]


def fit_probe(
    features: np.ndarray, labels: np.ndarray, strength: float, num_classes: int | None = None
) -> LinearProbe:
    """L2-regularised least squares from features to {-1, 1} targets, in closed form.

    Args:
        features: `(n, width)`; they are standardised.
        labels: `(n,)` integers.
        strength: factor of the squared weights, above 0.
        num_classes: classes; `None`: as many as the largest label asks for.

    Returns:
        The classifier.

    Raises:
        ValueError: on arguments out of range or shapes that do not go together.

    Reference:
        arXiv 2010.11929, section 4.1.
    """
    features = check_features("features", features)
    labels, classes = check_classes(labels, len(features), num_classes)
    return _Ridge(features, labels, classes).probe(_checks.positive_float("strength", strength))


def choose_strength(
    train: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    num_classes: int,
    strengths: Sequence[float] = STRENGTHS,
) -> float:
    """The penalty with which a probe of some features does best on others.

    Args:
        train: features `(m, width)` and labels to fit.
        validation: features `(n, width)` and labels to judge by.
        num_classes: classes.
        strengths: penalties to choose from.

    Returns:
        One of them: of several equally good ones the one in the middle.
    """
    fitted = check_features("train", train[0])
    judged = check_features("validation", validation[0])
    ridge = _Ridge(fitted, check_labels(train[1], len(fitted), num_classes), num_classes)
    strengths = _check_strengths(strengths)
    return ridge.best(judged, check_labels(validation[1], len(judged), num_classes), strengths)


def _check_strengths(strengths: Sequence[float]) -> list[float]:
    checked = [_checks.positive_float("strengths", value) for value in strengths]
    if not checked:
        raise ValueError("`strengths` must hold at least one penalty. Received: none")
    return checked


def few_shot_probe(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
    shots: Sequence[int | None] = SHOTS,
    repeats: int = 1,
    seed: int = 0,
    strengths: Sequence[float] = STRENGTHS,
    num_classes: int | None = None,
) -> list[ProbeResult]:
    """Accuracy of `fit_probe` with few training images of each class.

    The penalty is chosen on the validation features. Where none are given, on the training
    features that were not drawn; where fewer than a fifth of all were left, on a fifth of the
    drawn ones, and the probe is then fitted to all of them.

    Args:
        train_features: `(m, width)`.
        train_labels: `(m,)` integers.
        features: `(n, width)`, to measure on.
        labels: `(n,)` integers.
        validation: features and labels to choose the penalty by; never those to measure on.
        shots: images of each class to draw; a class that has fewer gives all, `None` takes all.
        repeats: draws, each with another seed.
        seed: of the first draw.
        strengths: penalties to choose from.
        num_classes: classes; `None`: as many as the largest training label asks for.

    Returns:
        A result for each entry of `shots`.

    Raises:
        ValueError: on arguments out of range or shapes that do not go together.

    Reference:
        arXiv 2010.11929, section 4.1: standardised features, a bias column and a grid from 2^-10
        to 2^20, as its authors' evaluator has it.
    """
    train, points = (
        check_features("train_features", train_features),
        check_features("features", features),
    )
    train_labels, classes = check_classes(train_labels, len(train), num_classes)
    labels = check_labels(labels, len(points), classes)
    strengths = _check_strengths(strengths)
    if validation is not None:
        chosen_by = check_features("validation", validation[0])
        validation = chosen_by, check_labels(validation[1], len(chosen_by), classes)
    results = []
    for shot in shots:
        if shot is not None:
            _checks.positive_int("shots", shot)
        runs = []
        for repeat in range(_checks.positive_int("repeats", repeats)):
            rng = np.random.default_rng([seed, repeat, shot or 0])
            drawn = draw(train_labels, shot, rng)
            probe = _fit(train, train_labels, drawn, classes, validation, strengths, rng)
            runs.append((probe.accuracy(points, labels), probe.strength, len(drawn)))
        accuracies, chosen, counts = zip(*runs, strict=True)
        results.append(
            ProbeResult(
                shots=shot,
                accuracy=float(np.mean(accuracies)),
                deviation=float(np.std(accuracies)),
                accuracies=accuracies,
                strengths=chosen,
                train_count=float(np.mean(counts)),
            )
        )
    return results


def draw(labels: np.ndarray, shots: int | None, rng: np.random.Generator) -> np.ndarray:
    """Indices of `shots` examples of each class, ascending; of all where that is `None`."""
    if shots is None:
        return np.arange(len(labels))
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[np.arange(len(order)) - starts < shots])


def _fit(train, labels, drawn, classes, validation, strengths, rng) -> LinearProbe:
    """The probe of the drawn examples, its penalty chosen by others."""
    ridge = _Ridge(train[drawn], labels[drawn], classes)
    if len(strengths) == 1:
        return ridge.probe(strengths[0])
    if validation is not None:
        return ridge.probe(ridge.best(validation[0], validation[1], strengths))
    rest = np.setdiff1d(np.arange(len(labels)), drawn)
    if len(rest) >= HELD_OUT * len(labels):
        return ridge.probe(ridge.best(train[rest], labels[rest], strengths))
    mixed = rng.permutation(drawn)
    held_out = mixed[: max(1, round(HELD_OUT * len(mixed)))]
    kept = np.setdiff1d(drawn, held_out)
    if not len(kept):
        return ridge.probe(strengths[len(strengths) // 2])
    chooser = _Ridge(train[kept], labels[kept], classes)
    return ridge.probe(chooser.best(train[held_out], labels[held_out], strengths))
