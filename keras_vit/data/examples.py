"""Reads and prepares single examples, for the threads of tf.data."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Collection
from contextlib import contextmanager

import numpy as np

from keras_vit.data.decoding import BadPicture, Encoded, Image, open_picture
from keras_vit.data.framework import tf
from keras_vit.data.source import Source
from keras_vit.data.transforms import Preparation

_LISTED = 20


class BadExamples:
    """What could not be read so far.

    Args:
        source: the source.
        known: indices that are left out beforehand.
        least: how many readable examples there have to be.

    Attributes:
        items: `(index, name, reason)` of each, in the order in which they were met.
    """

    def __init__(self, source: Source, known: Collection[int] = (), least: int = 1):
        self.items: list[tuple[int, str, str]] = []
        self._source, self._least = source, least
        self._reasons = dict.fromkeys(known, "known to be bad")
        self._lock = threading.Lock()

    def add(self, index: int, reason: str) -> None:
        """Notes an example, once."""
        with self._lock:
            if index not in self._reasons:
                self._reasons[index] = reason
                self.items.append((index, self._source.names([index])[0], reason))

    def check(self) -> None:
        """Raises a ValueError if fewer than `least` examples of the source are left."""
        left = self._source.size - len(self._reasons)
        if left < self._least:
            raise ValueError(
                f"{left or 'No'} pictures of {self._source.description} can be read; at least "
                f"{self._least} must be.\n{self.report()}"
            )

    def __contains__(self, index: int) -> bool:
        return index in self._reasons

    def __len__(self) -> int:
        return len(self.items)

    @property
    def indices(self) -> set[int]:
        """All of them, those known beforehand included."""
        return set(self._reasons)

    def report(self, most: int = _LISTED) -> str:
        """The list in words; empty if there are none.

        Args:
            most: how many are named.
        """
        if not self.items:
            return ""
        items = sorted(self.items)
        count = f"{len(items)} pictures" if len(items) > 1 else "1 picture"
        lines = [f"{count} of {self._source.size} could not be read and were left out:"]
        lines += [f"  {name}: {reason}" for _, name, reason in items[:most]]
        if len(items) > most:
            lines.append(f"  and {len(items) - most} more")
        return "\n".join(lines)


class Examples:
    """Makes examples of a source's pictures; safe to call from several threads.

    Args:
        source: the source.
        prepare: makes pixels of pictures.
        bad: takes what cannot be read.
        seed: of the run. What is drawn for an example depends on it, the epoch and the index.
        num_classes: labels have to lie below it.
        on_bad: "skip" or "raise".
        max_pixels: larger pictures are bad.
        cache_bytes: how many bytes of decoded pictures may be kept.
    """

    def __init__(
        self,
        source: Source,
        prepare: Preparation,
        bad: BadExamples,
        *,
        seed: int,
        num_classes: int,
        on_bad: str,
        max_pixels: int,
        cache_bytes: int,
    ):
        self.source, self.prepare, self.bad = source, prepare, bad
        self.seed, self.num_classes, self.on_bad = seed, num_classes, on_bad
        self.max_pixels = max_pixels
        self.dtype = source.dtype
        self._cache: dict[int, tuple[np.ndarray, int]] | None = {} if cache_bytes else None
        self._left = cache_bytes
        self._lock = threading.Lock()

    def one(self, epoch: int, index: int) -> tuple[np.ndarray, np.int32, bool]:
        """An example: pixels, label, and whether it could be read (zeros, if not)."""
        if index not in self.bad:
            try:
                picture, label = self._picture(index)
                return self.prepare(picture, self._rng(epoch, index)), np.int32(label), True
            except (BadPicture, OSError) as error:
                if self.on_bad == "raise":
                    name = self.source.names([index])[0]
                    raise ValueError(
                        f'{name} cannot be read: {error}. (`on_bad="skip"` leaves such files out.)'
                    ) from error
                self.bad.add(index, str(error))
            except ValueError as error:
                raise ValueError(f"{self.source.names([index])[0]}: {error}") from error
        # Not only once: a batch has to end for its errors to be seen.
        self.bad.check()
        shape = (*self.prepare.image_size, self.prepare.channels)
        return np.zeros(shape, self.dtype), np.int32(0), False

    def many(self, epochs: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels `(n, h, w, c)` and labels `(n,)` int32 of a source of arrays."""
        labels = self.source.labels[indices]
        prepare, images = self.prepare, self.source.read_many(indices)
        plain = images.shape[1:3] == prepare.image_size and (
            prepare.crop in ("none", "squash") and not (prepare.randaugment or prepare.erasing)
        )
        if not plain or images.shape[-1] != prepare.channels:
            pairs = zip(images, epochs, indices, strict=True)
            return np.stack([prepare(x, self._rng(e, i)) for x, e, i in pairs]), labels
        if prepare.flip:
            drawn = [self._rng(e, i).random() for e, i in zip(epochs, indices, strict=True)]
            mirrored = np.asarray(drawn) < 0.5
            images[mirrored] = images[mirrored][:, :, ::-1]
        return images, labels

    def _rng(self, epoch: int, index: int) -> np.random.Generator:
        if not self.prepare.random:
            return _NOTHING_DRAWN
        return np.random.default_rng([self.seed, int(epoch), int(index), 2])

    def _picture(self, index: int):
        """The picture, decoded only if it is kept, and the label."""
        if self._cache is not None and index in self._cache:
            pixels, label = self._cache[index]
            return Image.fromarray(pixels), label
        data, label = self.source.read(index)
        label = self._checked(index, label)
        picture = data if isinstance(data, np.ndarray) else open_picture(data, self.max_pixels)
        if self._cache is not None and isinstance(picture, Encoded):
            picture = picture.decode(self.prepare.channels)
            pixels = np.asarray(picture)
            with self._lock:
                if index not in self._cache and pixels.nbytes <= self._left:
                    self._cache[index] = pixels, label
                    self._left -= pixels.nbytes
        return picture, label

    def _checked(self, index: int, label: int) -> int:
        check_label(self.source, index, int(label), self.num_classes)
        return int(label)


def check_label(source: Source, index: int, label: int, num_classes: int) -> None:
    """Raises a ValueError that names the example unless its label lies below `num_classes`."""
    if not 0 <= label < num_classes:
        raise ValueError(
            f"The label of {source.names([index])[0]} is {label}, out of range for {num_classes} "
            f"classes: labels must lie in [0, {num_classes})."
        )


_NOTHING_DRAWN = np.random.default_rng(0)  # never drawn from

# When the interpreter ends, a thread of tf.data that waits for it would hang the process. So calls
# from then on give zeros at once, buffers fill up, and the end waits until no call comes any more.
_ENDING = threading.Event()
_WAIT = 10.0  # seconds, at most
_QUIET = 0.05
_running = 0
_last = 0.0
_count_lock = threading.Lock()


@contextmanager
def _counted():
    global _running, _last
    with _count_lock:
        _running += 1
    try:
        yield
    finally:
        with _count_lock:
            _running -= 1
            _last = time.monotonic()


def for_tf_data(function: Callable, at_end: Callable) -> Callable:
    """Makes a function safe for `tf.numpy_function` while the interpreter ends.

    Args:
        function: the function.
        at_end: called instead of it, with the same arguments, once the interpreter ends.
    """

    def call(*arguments):
        with _counted():
            return (at_end if _ENDING.is_set() else function)(*arguments)

    return tf.autograph.experimental.do_not_convert(call)


@atexit.register
def _drain() -> None:
    _ENDING.set()
    start = time.monotonic()
    while time.monotonic() - start < _WAIT:
        if not _running and time.monotonic() - max(_last, start) >= _QUIET:
            return
        time.sleep(_QUIET / 5)
