"""How many batches a run has, and how `fit` is called for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from keras_vit.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """The run in batches. A batch is one forward pass; `accumulation_steps` of them an update.

    Attributes:
        batch_size: images a batch.
        batches_per_epoch: batches an epoch, whole updates.
        total_batches: batches of the run.
        accumulation_steps: batches an update.
        schedule: learning rate from the number of a batch.
    """

    batch_size: int
    batches_per_epoch: int
    total_batches: int
    accumulation_steps: int
    schedule: Callable

    @property
    def epochs(self) -> int:
        """Epochs, the last of which may not be whole."""
        return math.ceil(self.total_batches / self.batches_per_epoch)

    def learning_rate(self, batch: int) -> float:
        """The rate that a batch's update has."""
        return float(self.schedule(batch))

    def segments(self, position: int) -> Iterator[tuple[int, int, int]]:
        """(first epoch, end epoch, batches an epoch) of each `fit`, from batch `position` on."""
        whole = self.total_batches // self.batches_per_epoch
        epoch, done = divmod(position, self.batches_per_epoch)
        if done and epoch < whole:  # the rest of an epoch that was broken off
            yield epoch, epoch + 1, self.batches_per_epoch - done
            epoch, done = epoch + 1, 0
        if epoch < whole:
            yield epoch, whole, self.batches_per_epoch
            epoch = whole
        rest = self.total_batches - epoch * self.batches_per_epoch - done
        if rest > 0:  # a last epoch that is not whole
            yield epoch, epoch + 1, rest


def updates_per_epoch(recipe: Recipe, size: int) -> int:
    """Whole batches in `size` examples; at least 1, as the stream runs on across epochs."""
    return max(1, size // recipe.batch_size)


def plan_of(recipe: Recipe, size: int, schedule: Callable) -> Plan:
    """The plan of a recipe on `size` examples."""
    updates, accumulation = updates_per_epoch(recipe, size), recipe.accumulation_steps
    return Plan(
        batch_size=recipe.batch_size // accumulation,
        batches_per_epoch=updates * accumulation,
        total_batches=recipe.total_steps(updates) * accumulation,
        accumulation_steps=accumulation,
        schedule=schedule,
    )
