"""A VTAB-1k-style protocol: adapt to each of many data sets with 1,000 pictures, and test."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from keras_vit import _checks
from keras_vit.evaluation.batches import BATCH_SIZE
from keras_vit.evaluation.metrics import Evaluation, metrics

Examples = tuple[np.ndarray, np.ndarray]
Predict = Callable[[np.ndarray], np.ndarray]
Adapt = Callable[[Examples, Examples, int], Predict]

_TEST_SPLITS = ("test", "validation", "valid", "val")


@dataclass(frozen=True)
class VtabRow:
    """One data set.

    Attributes:
        name: what it was called.
        accuracy: top-1 on the test pictures; `None` if it could not be had.
        mean_per_class: mean accuracy of the classes, or `None`.
        classes: number of classes.
        train: pictures to adapt with.
        validation: pictures to choose settings by.
        test: pictures to test on.
        tested_on: where those are from.
        seconds: time taken.
        reason: why it could not be had, or `None`.
    """

    name: str
    accuracy: float | None = None
    mean_per_class: float | None = None
    classes: int = 0
    train: int = 0
    validation: int = 0
    test: int = 0
    tested_on: str = ""
    seconds: float = 0.0
    reason: str | None = None

    def text(self, width: int = 0) -> str:
        """One line; the name takes `width` places at least."""
        if self.accuracy is None:
            return f"{self.name:<{width}}  left out: {self.reason}"
        return (
            f"{self.name:<{width}}  {self.accuracy:>8.2%}  {self.mean_per_class:>9.2%}  "
            f"{self.classes:>7,}  {self.train + self.validation:>8,}  {self.test:>7,}  "
            f"{self.seconds:>7,.0f}"
        )


@dataclass(frozen=True)
class VtabResult:
    """The table.

    Attributes:
        rows: one for each data set, in their order.
    """

    rows: tuple[VtabRow, ...]

    @property
    def mean(self) -> float | None:
        """Mean accuracy of the data sets that could be had; `None` if none could."""
        found = [row.accuracy for row in self.rows if row.accuracy is not None]
        return float(np.mean(found)) if found else None

    def text(self) -> str:
        """The table, and the mean with how many data sets it is of."""
        width = max([8, *(len(row.name) for row in self.rows)])
        head = f"{'data set':<{width}}  accuracy  per class  classes  pictures     test  seconds"
        done = sum(row.accuracy is not None for row in self.rows)
        mean = "-" if self.mean is None else f"{self.mean:.2%}"
        last = f"{'mean':<{width}}  {mean:>8}  of {done} of {len(self.rows)} data sets"
        return "\n".join([head, *(row.text(width) for row in self.rows), last])

    def to_dict(self) -> dict[str, Any]:
        """The rows and the mean in plain values."""
        return {"mean": self.mean, "rows": [asdict(row) for row in self.rows]}

    def json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


class _Missing(Exception):
    """A data set that cannot be opened or read."""


def run_vtab(
    datasets: Sequence[Any] | Mapping[str, Any],
    adapt: Adapt,
    image_size: int | tuple[int, int],
    *,
    channels: int = 3,
    train: int = 800,
    validation: int = 200,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: bool = True,
) -> VtabResult:
    """Adapts to each data set with few pictures, and measures on all its test pictures.

    The pictures to adapt with are drawn from the training split at random, whatever their class,
    and resized to the given size without cropping. The test pictures are the test split, or the
    validation split, or what is left of the training split.

    Args:
        datasets: what `keras_vit.data.open_source` takes, such as "tfds:cifar100"; or pairs of
            those: what to adapt with and what to test on. By name in a mapping.
        adapt: takes `(images, labels)` to train on, the same to choose settings by, and the
            number of classes; returns a function from images to scores `(n, classes)`. It should
            end with training on both, as the protocol does. Images are uint8 or float32
            `(n, height, width, channels)`, pixels 0..255. See `adapters`.
        image_size: (height, width), or one number.
        channels: of the images.
        train: pictures to train on; a smaller training split gives four fifths.
        validation: pictures to choose settings by; a smaller one gives a fifth.
        seed: of the draw.
        batch_size: test pictures at once.
        progress: whether each data set's line is shown on stderr.

    Returns:
        The table. A data set that cannot be opened or read is in it with its reason.

    Raises:
        ValueError: on arguments out of range. What `adapt` raises goes through.

    Reference:
        arXiv 1910.04867, section 3, with the 1,000 examples of VTAB-1k.
    """
    counts = (_checks.positive_int("train", train), _checks.positive_int("validation", validation))
    size = _checks.int_pair("image_size", image_size)
    _checks.positive_int("batch_size", batch_size)
    _checks.non_negative_int("seed", seed)
    if isinstance(datasets, (str, bytes)):
        raise ValueError(f"`datasets` must be a list of data sets. Received: {datasets!r}")
    named = datasets if isinstance(datasets, Mapping) else _names(datasets)
    if not named:
        raise ValueError("`datasets` must hold at least one data set. Received: none")
    options = {"image_size": size, "channels": channels, "batch_size": batch_size}
    rows = []
    for name, spec in named.items():
        started = time.perf_counter()
        try:
            row = _run(name, spec, adapt, counts, seed, options, started)
        except _Missing as error:
            row = VtabRow(name, reason=str(error))
        rows.append(row)
        if progress:
            print(f"vtab {len(rows)}/{len(named)}: {row.text()}", file=sys.stderr, flush=True)
    return VtabResult(tuple(rows))


def _names(datasets: Sequence[Any]) -> dict[str, Any]:
    """Names for a list: the text itself, or a number for arrays; a second one counts up."""
    found: dict[str, Any] = {}
    for number, spec in enumerate(datasets, 1):
        first = spec[0] if isinstance(spec, (tuple, list)) and len(spec) == 2 else spec
        description = getattr(spec, "description", None)
        name = first if isinstance(first, str) else description or f"data set {number}"
        while name in found:
            name += f" ({number})"
        found[name] = spec
    return found


def _run(name, spec, adapt, counts, seed, options, started) -> VtabRow:
    training, test, tested_on = _sources(spec, counts, seed)
    parts = [_load(source, options) for source in training]
    classes = training[0].num_classes
    predict = adapt(parts[0], parts[1], classes)
    found = _test(predict, test, options)
    return VtabRow(
        name=name,
        accuracy=found.top1,
        mean_per_class=found.mean_per_class,
        classes=classes,
        train=len(parts[0][1]),
        validation=len(parts[1][1]),
        test=found.count,
        tested_on=tested_on,
        seconds=time.perf_counter() - started,
    )


def _sources(spec, counts, seed):
    """Sources to train on and to choose by, the one to test on, and where that is from."""
    try:
        from keras_vit.data import Subset

        training, test, tested_on = _open(spec)
        total = min(sum(counts), training.size if test is not None else training.size - 1)
        first = counts[0] if total == sum(counts) else round(0.8 * total)
        if not 0 < first < total:
            raise ValueError(f"{training.size} pictures are too few to train, choose and test")
        order = np.random.default_rng(seed).permutation(training.size)
        pieces = (order[:first], order[first:total], order[total:])
        words = ("to train on", "to choose by", "what is left")
        parts = [
            # In the source's order, so that files are read one after the other.
            Subset(training, np.sort(piece), f"{training.description}: {word}")
            for piece, word in zip(pieces, words, strict=True)
        ]
        return parts[:2], parts[2] if test is None else test, tested_on
    except Exception as error:
        raise _Missing(_reason(error)) from error


def _open(spec):
    """Training source, test source or `None`, and where that is from."""
    from keras_vit.data import open_source, open_splits

    if isinstance(spec, (tuple, list)) and len(spec) == 2 and not isinstance(spec[0], np.ndarray):
        training, test = open_source(spec[0]), open_source(spec[1])
        if test.num_classes > training.num_classes:
            raise ValueError(
                f"{test.description} has {test.num_classes} classes, {training.description} "
                f"{training.num_classes}"
            )
        return training, test, test.description
    if isinstance(spec, str) and spec.startswith("tfds:"):
        from keras_vit.data import tfds_source

        if tfds_source.parse(spec)[2] is None:
            known = tfds_source.splits(spec)
            split = next((name for name in _TEST_SPLITS if name in known), None)
            training = open_source(spec, "train" if "train" in known else None)
            if split is not None:
                return training, open_source(spec, split), split
            return training, None, "rest of the training split"
    training, test = open_splits(spec, held_out=0.0)
    where = "rest of the training pictures" if test is None else test.description
    return training, test, where


def _batches(source, options) -> Iterator[Examples]:
    """Batches of a source; what fails there is the data set's fault."""
    try:
        from keras_vit.data import Pipeline

        pipeline = Pipeline(source, training=False, crop="squash", **options)
        stream: Iterable = iter(pipeline.dataset)
    except Exception as error:
        raise _Missing(_reason(error)) from error
    while True:
        try:
            images, labels = next(stream)  # type: ignore[call-overload]
        except StopIteration:
            return
        except Exception as error:
            raise _Missing(_reason(error)) from error
        yield np.asarray(images), np.asarray(labels)


def _load(source, options) -> Examples:
    found = list(_batches(source, options))
    if not found:
        raise _Missing(f"no picture of {source.description} can be read")
    images, labels = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return images, labels


def _test(predict: Predict, source, options) -> Evaluation:
    scores, labels = [], []
    for images, expected in _batches(source, options):
        scores.append(np.asarray(predict(images)))
        labels.append(expected)
    if not scores:
        raise _Missing(f"no picture of {source.description} can be read")
    return metrics(np.concatenate(scores), np.concatenate(labels))


def _reason(error: Exception) -> str:
    """The first line of an error: some of TensorFlow's are pages long."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
