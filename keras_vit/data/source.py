"""What holds pictures and their labels: the interface, parts of a source, and splitting one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_vit import _checks


class Source:
    """Labelled pictures that can be read in any order.

    Attributes:
        size: examples.
        class_names: in the order of the labels; a class may have no example.
        labels: `(size,)` int32, or `None` where only reading an example tells its label.
        description: one line, the same for the same data.
        encoded: whether `read` gives files' bytes rather than pixels.
        dtype: of the pixels: "uint8", or "float32" for arrays of floats.
    """

    encoded = True
    dtype = "uint8"

    def __init__(
        self, size: int, class_names: Iterable[str], labels: Any, description: str
    ) -> None:
        self.size = size
        self.class_names = tuple(class_names)
        self.labels: Any = None if labels is None else np.asarray(labels, "int32")
        self.description = description

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def read(self, index: int) -> tuple[bytes | np.ndarray, int]:
        """One example: the bytes of a picture's file or pixels `(h, w, c)`, and the label.

        Raises:
            OSError: if it cannot be read.
        """
        raise NotImplementedError

    def read_many(self, indices: np.ndarray) -> np.ndarray:
        """Pixels `(n, h, w, c)` of examples, in an array of their own; only if not `encoded`."""
        raise NotImplementedError

    def names(self, indices: Iterable[int]) -> list[str]:
        """Names of examples: their files', where they have some. Safe to print."""
        return [f"{self.description} #{int(index)}" for index in indices]

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<{self.description}: {self.size} examples, {self.num_classes} classes>"


class Subset(Source):
    """Some examples of a source; the classes stay all.

    Args:
        source: the source.
        indices: which, in their order.
        description: one line.
    """

    def __init__(self, source: Source, indices: Sequence[int] | np.ndarray, description: str):
        self.source = source
        self.indices = np.asarray(indices, "int64")
        if self.indices.size and not (0 <= self.indices.min() and self.indices.max() < source.size):
            raise ValueError(
                f"`indices` must lie in [0, {source.size}), the source's size. "
                f"Received: {self.indices.min()} to {self.indices.max()}"
            )
        labels = None if source.labels is None else source.labels[self.indices]
        super().__init__(len(self.indices), source.class_names, labels, description)
        self.encoded, self.dtype = source.encoded, source.dtype

    def read(self, index: int) -> tuple[bytes | np.ndarray, int]:
        """See `Source.read`."""
        return self.source.read(int(self.indices[index]))

    def read_many(self, indices: np.ndarray) -> np.ndarray:
        """See `Source.read_many`."""
        return self.source.read_many(self.indices[indices])

    def names(self, indices: Iterable[int]) -> list[str]:
        """See `Source.names`."""
        return self.source.names([self.indices[int(index)] for index in indices])


def split_source(source: Source, fraction: float, seed: int = 0) -> tuple[Subset, Subset]:
    """Holds a part out, the same part for the same arguments.

    Where labels are known, each class gives its share (rounded; a class of two or more examples
    keeps at least one on each side if the fraction is not 0). Elsewhere examples are drawn alike.

    Args:
        source: the source.
        fraction: share to hold out, in (0, 1).
        seed: of the draw.

    Returns:
        The rest and the part held out, each in the source's order.

    Raises:
        ValueError: if the fraction is out of range or one side would be empty.
    """
    if not 0.0 < _checks.rate("fraction", fraction) < 1.0:
        raise ValueError(f"`fraction` must lie in (0, 1). Received: fraction={fraction!r}")
    labels = np.zeros(source.size, "int32") if source.labels is None else source.labels
    held = np.zeros(source.size, bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = round(fraction * len(members))
        if len(members) > 1:
            count = min(max(count, 1), len(members) - 1)
        key = np.random.SeedSequence([_checks.non_negative_int("seed", seed), int(label)])
        held[np.random.default_rng(key).permutation(members)[:count]] = True
    if held.all() or not held.any():
        raise ValueError(
            f"`fraction` leaves one side of {source.size} examples empty. "
            f"Received: fraction={fraction}"
        )
    name = f"{source.description}, {fraction:g} held out with seed {seed}"
    return (
        Subset(source, np.flatnonzero(~held), f"{name}: the rest"),
        Subset(source, np.flatnonzero(held), f"{name}: held out"),
    )


def printable(name: str) -> str:
    """A file's name as text that any stream takes: bytes that are no UTF-8 become a mark."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def class_names_from(labels: Sequence[Any], class_names: Sequence[str] | None, where: str):
    """Labels as indices, and the classes' names.

    Args:
        labels: names, or whole numbers from 0 on.
        class_names: the classes in order; otherwise names are sorted, and numbers name themselves.
        where: what holds the labels, for messages.

    Returns:
        `(indices (n,) int32, names)`.

    Raises:
        ValueError: on labels that `class_names` does not know, or numbers below 0.
    """
    texts = [str(label).strip() for label in labels]
    known = None if class_names is None else {name: i for i, name in enumerate(class_names)}
    if known is not None and all(text in known for text in texts):
        return np.asarray([known[text] for text in texts], "int32"), tuple(known)
    if all(text.removeprefix("-").isdecimal() for text in texts):
        numbers = np.asarray([int(text) for text in texts], "int64")
        high = int(numbers.max()) + 1 if class_names is None else len(class_names)
        outside = np.flatnonzero((numbers < 0) | (numbers >= high))
        if outside.size:
            raise ValueError(
                f"Labels of {where} must lie in [0, {high}). Received: "
                f"{numbers[outside[0]]} at example {outside[0]}"
            )
        names = [str(i) for i in range(high)] if class_names is None else class_names
        return numbers.astype("int32"), tuple(names)
    if known is not None:
        strange = sorted({text for text in texts if text not in known})
        raise ValueError(
            f"{where} has classes that `class_names` does not: {strange[:5]}. "
            f"Expected some of {list(known)[:10]}"
        )
    names = tuple(sorted(set(texts)))
    index = {name: i for i, name in enumerate(names)}
    return np.asarray([index[text] for text in texts], "int32"), names
