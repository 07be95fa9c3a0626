"""In which order examples come: a pure function of the seed, so that any batch can be found."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

_MOST_EMPTY = 1000  # epochs without a batch, before the search for one is given up


class Order:
    """The order of one process' examples, epoch after epoch.

    All processes share one order; each takes every `count`-th of it. Examples that are known to
    be bad are left out of a process' own stream after that, just as they are when reading finds
    them out, so knowing them beforehand changes no batch.

    Args:
        size: examples of the source.
        seed: of the permutations.
        shuffle: whether each epoch is a new permutation; otherwise the order is the source's.
        shard: `(index, count)` of the process.
        batch_size: examples of a batch.
        remainder: "repeat": batches run on across epochs; "keep": an epoch ends with what is
            left; "drop": what is left is dropped, and all processes have as many examples.
        bad: indices to leave out.
    """

    def __init__(
        self,
        size: int,
        seed: int,
        shuffle: bool,
        shard: tuple[int, int],
        batch_size: int,
        remainder: str,
        bad: Collection[int] = (),
    ):
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self.shard, self.batch_size, self.remainder = shard, batch_size, remainder
        self.bad = np.asarray(sorted(bad), "int64")

    def epoch(self, epoch: int) -> np.ndarray:
        """Indices (n,) int64 of this process in an epoch."""
        mine = self._whole(epoch)
        return mine[~np.isin(mine, self.bad)] if self.bad.size else mine

    def _whole(self, epoch: int) -> np.ndarray:
        if self.shuffle:
            key = np.random.SeedSequence([self.seed, epoch, 0])
            order = np.random.default_rng(key).permutation(self.size)
        else:
            order = np.arange(self.size)
        index, count = self.shard
        if self.remainder == "drop":
            order = order[: self.size // count * count]
        return order[self._first(epoch) :: count]

    def _first(self, epoch: int) -> int:
        """Where in an epoch the process' examples begin: its stride runs on across epochs."""
        index, count = self.shard
        return (index - epoch * self.size) % count if self.remainder == "repeat" else index

    def _examples(self, epoch: int) -> int:
        """Length of `epoch(epoch)`."""
        index, count = self.shard
        if self.bad.size and count > 1:
            return len(self.epoch(epoch))
        if self.remainder == "drop":
            return self.size // count - (self.bad.size if count == 1 else 0)
        return len(range(self._first(epoch), self.size, count)) - self.bad.size

    def batches(self, epoch: int) -> int:
        """Batches of an epoch, where epochs have batches of their own."""
        examples = self._examples(epoch)
        return -(-examples // self.batch_size) if self.remainder == "keep" else (
            examples // self.batch_size
        )  # fmt: skip

    def locate(self, step: int) -> tuple[int, int]:
        """Where a batch begins: (epoch, examples of it that come before)."""
        if not self.shuffle:
            return 0, step * self.batch_size
        if self.remainder == "repeat":
            epoch, left = self._skip(step * self.batch_size, self._examples)
            return epoch, left
        epoch, left = self._skip(step, self.batches)
        return epoch, left * self.batch_size

    def _skip(self, left: int, length) -> tuple[int, int]:
        epoch = 0
        if not self.bad.size or self.shard[1] == 1:
            # Every `count` epochs are alike in length.
            period = self.shard[1] if self.remainder == "repeat" else 1
            total = sum(length(e) for e in range(period))
            epoch, left = left // max(total, 1) * period, left % max(total, 1)
        empty = 0
        while left >= (here := length(epoch)):
            left, epoch, empty = left - here, epoch + 1, 0 if here else empty + 1
            if empty == _MOST_EMPTY:
                raise ValueError(f"No batch of {self.batch_size} readable examples is left.")
        return epoch, left

    def batch(self, step: int) -> np.ndarray:
        """Indices of a batch."""
        epoch, before = self.locate(step)
        found = self.epoch(epoch)[before : before + self.batch_size]
        while self.remainder == "repeat" and self.shuffle and len(found) < self.batch_size:
            epoch += 1
            found = np.concatenate([found, self.epoch(epoch)[: self.batch_size - len(found)]])
        return found
