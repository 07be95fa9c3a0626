"""What a run does beside fitting: it guards, records, checkpoints and shows itself."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable

import keras

from keras_vit._progress import ProgressLine, duration
from keras_vit.engines.engine import Engine
from keras_vit.training.plan import Plan
from keras_vit.training.randomness import random_arrays, restore_random
from keras_vit.training.record import Record
from keras_vit.training.state import Checkpoints, NonFiniteLossError


class StopOnNonFinite(keras.callbacks.Callback):
    """Stops with the step and the batch's file names where the loss is no finite number.

    The loss is looked at two steps late, when it is there in any case: looking at once would keep
    an accelerator from working ahead.

    Args:
        names_of_batch: names of the examples, from the number of a batch.
        first_batch: number of the first batch of the next `fit`.
    """

    _LAG = 2

    def __init__(self, names_of_batch: Callable[[int], list[str]], first_batch: int = 0):
        super().__init__()
        self.names_of_batch = names_of_batch
        self.next_batch = first_batch
        self._pending: collections.deque = collections.deque()

    def on_train_batch_end(self, batch, logs=None):
        """Notes the loss, and looks at an earlier one."""
        self._pending.append((self.next_batch, (logs or {}).get("loss")))
        self.next_batch += 1
        if len(self._pending) > self._LAG:
            self._check(*self._pending.popleft())

    def on_epoch_end(self, epoch, logs=None):
        """Looks at what is left."""
        self.look()

    def look(self) -> None:
        """Looks at all losses so far."""
        while self._pending:
            self._check(*self._pending.popleft())

    def _check(self, batch, loss):
        if loss is None or math.isfinite(float(loss)):
            return
        names = self.names_of_batch(batch)
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise NonFiniteLossError(
            f"The loss became {float(loss)} at step {batch + 1}. The batch held: {shown or '?'}. "
            "Usual causes: a learning rate that is too high (halve it, or warm up for longer), no "
            "clip_norm, float16 (take bfloat16), or pixels out of range. The checkpoints of the "
            "run are from before."
        )


class Keeper(keras.callbacks.Callback):
    """Records each epoch and saves the run's state, so that a killed run goes on where it was.

    Args:
        plan: of the run.
        record: history so far; written at each epoch's end.
        checkpoints: where states go; `None` for none.
        position: number of batches fitted so far.
        minutes: minutes after which a state is saved inside of an epoch.
        note: what else a state has to hold.
        guard: is called before a state is saved, and raises if it must not be.
        engine: of several devices.
    """

    # Batches after which several processes ask each other whether it is time to save, or to stop.
    _ASKED = 16

    def __init__(
        self,
        plan: Plan,
        record: Record,
        checkpoints: Checkpoints | None,
        *,
        position: int,
        minutes: float,
        note: Callable[[], dict],
        guard: Callable[[], None] = lambda: None,
        engine: Engine | None = None,
    ):
        super().__init__()
        self.plan = plan
        self.record = record
        self.checkpoints = checkpoints
        self.position = position
        self.minutes = minutes
        self.note = note
        self.guard = guard
        self.engine = engine or Engine()
        # Values of the metrics' variables to go on from, in the first epoch after a restart.
        self.metric_values: list | None = None
        # What Keras draws between two epochs (PyTorch's loaders do, a time for each `fit`) must
        # not count: the first batch finds the generators as the last state has them.
        self._random: dict | None = random_arrays()
        self._saved = time.monotonic()
        self._epoch_start = (0.0, 0)
        # Whether a callback of this process wants to end a fit that several processes share.
        self._wants_end = False

    def on_epoch_begin(self, epoch, logs=None):
        """Puts back the metrics of an epoch that was broken off; Keras has just reset them."""
        self._epoch_start = (time.perf_counter(), self.position)
        if self.metric_values is not None:
            for variable, value in zip(
                self.model.metrics_variables, self.metric_values, strict=True
            ):
                self.engine.assign(variable, value, summed=True)
            self.metric_values = None

    def on_train_batch_begin(self, batch, logs=None):
        """Puts back the generators before the first batch of an epoch or a restart."""
        if self._random is not None:
            restore_random(self._random)
            self._random = None

    def on_train_batch_end(self, batch, logs=None):
        """Counts, and saves the state when it is time."""
        self.position += 1
        between = self.position % self.plan.batches_per_epoch  # at 0 the epoch's end saves
        late = time.monotonic() - self._saved > 60 * self.minutes
        if self.engine.processes > 1:
            late = self._agree(late, ask=between > 0 and self.position % self._ASKED == 0)
        if between and late:
            self._save()

    def _agree(self, late: bool, *, ask: bool) -> bool:
        """Whether all processes save now: all do or none, and so they stop.

        Clocks differ, so the chief's counts. If a callback of any process stops the training, all
        stop when they are next asked: one that left alone would leave the others waiting.
        """
        self._wants_end |= self.model.stop_training
        self.model.stop_training = False
        if not ask:
            return False
        chief = late and self.engine.is_chief
        found = self.engine.total(chief + 2 * self._wants_end)
        self.model.stop_training = found >= 2
        return found % 2 == 1

    def on_epoch_end(self, epoch, logs=None):
        """Adds a line to the record, and saves the state."""
        start, first = self._epoch_start
        seconds = time.perf_counter() - start
        row = {
            "epoch": epoch + 1,
            "step": self.position // self.plan.accumulation_steps,
            **{name: float(value) for name, value in (logs or {}).items()},
            "learning_rate": self.plan.learning_rate(self.position - 1),
            "images_per_second": round((self.position - first) * self.plan.batch_size / seconds, 1),
            "seconds": round(seconds, 2),
        }
        self.record.add(row)
        self._random = random_arrays()
        if self.engine.processes > 1:
            self._agree(False, ask=True)
        self._save()

    def _save(self):
        if self.checkpoints is not None:
            self.guard()
            note = {**self.note(), "position": self.position, "history": self.record.rows}
            self.checkpoints.save(self.model, self.position, note)
        self._saved = time.monotonic()


class Progress(keras.callbacks.Callback):
    """A moving line in each epoch, and a plain one after it.

    Args:
        plan: of the run.
        record: its last row is the plain line; place this callback behind `Keeper`.
        position: number of batches fitted so far.
    """

    def __init__(self, plan: Plan, record: Record, position: int = 0):
        super().__init__()
        self.plan = plan
        self.record = record
        self.position = position
        self._line: ProgressLine | None = None
        self._fitted = 0

    def on_epoch_begin(self, epoch, logs=None):
        """Begins a line."""
        title = f"epoch {epoch + 1}/{self.plan.epochs}"
        self._line = ProgressLine(self.plan.batches_per_epoch, title)
        self._fitted = 0

    def on_train_batch_end(self, batch, logs=None):
        """Draws it."""
        self.position += 1
        self._fitted += 1
        if self._line is None or not self._line.due():
            return
        words = "  ".join(f"{name} {float(value):.4f}" for name, value in (logs or {}).items())
        words += f"  lr {self.plan.learning_rate(self.position - 1):.2e}"
        done = (self.position - 1) % self.plan.batches_per_epoch + 1
        self._line.update(done, self._fitted * self.plan.batch_size, words)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the plain line."""
        if self._line is not None:
            self._line.close()
        row, epochs = self.record.rows[-1], self.plan.epochs
        words = [f"epoch {row['epoch']}/{epochs}"]
        words += [f"{name} {value:.4f}" for name, value in (logs or {}).items()]
        words += [f"lr {row['learning_rate']:.2e}", f"{row['images_per_second']:,.0f} images/s"]
        left = (epochs - row["epoch"]) * row["seconds"]
        print("  ".join(words) + (f"  {duration(left)} left" if left else ""), flush=True)
