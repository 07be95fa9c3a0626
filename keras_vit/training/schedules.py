"""Learning rates over the run: a linear warm-up, then one of four courses."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from keras_vit import _checks

# name -> factor of the peak, from (update, updates of the warm-up, updates in all).
# `progress` runs from 0 at the end of the warm-up to 1 at the end of the run.
_COURSES: dict[str, Callable] = {
    "constant": lambda progress, step, warmup: ops.ones_like(progress),
    "linear": lambda progress, step, warmup: 1.0 - progress,
    "cosine": lambda progress, step, warmup: 0.5 * (1.0 + ops.cos(3.141592653589793 * progress)),
    "rsqrt": lambda progress, step, warmup: ops.rsqrt(ops.maximum(step / max(warmup, 1), 1.0)),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up from 0 to the peak, then cosine, linear, rsqrt or constant.

    Update `warmup_steps` is the first at the peak; the one after the last would be at
    `final_learning_rate` (cosine and linear). The rsqrt course is `peak * sqrt(warmup / step)`.

    Args:
        learning_rate: the peak.
        total_steps: updates in all.
        warmup_steps: updates of the warm-up.
        course: `"cosine"`, `"linear"`, `"rsqrt"` or `"constant"`.
        final_learning_rate: where cosine and linear end.
        accumulation_steps: calls of the optimizer an update.

    Call arguments:
        step: calls of the optimizer so far.

    Returns:
        The learning rate, a float32 scalar.

    Raises:
        ValueError: on arguments out of range.

    Reference:
        arXiv 2010.11929, appendix B.1; rsqrt: arXiv 2106.04560.
    """

    def __init__(
        self,
        learning_rate,
        total_steps,
        *,
        warmup_steps=0,
        course="cosine",
        final_learning_rate=0.0,
        accumulation_steps=1,
    ):
        super().__init__()
        self.learning_rate = _checks.positive_float("learning_rate", learning_rate)
        self.total_steps = _checks.positive_int("total_steps", total_steps)
        self.warmup_steps = _checks.non_negative_int("warmup_steps", warmup_steps)
        self.course = _checks.choice("course", course, tuple(_COURSES))
        self.final_learning_rate = _checks.number("final_learning_rate", final_learning_rate)
        self.accumulation_steps = _checks.positive_int("accumulation_steps", accumulation_steps)

    def __call__(self, step):
        # Whole updates, counted before they turn into float32.
        step = ops.cast(ops.floor_divide(step, self.accumulation_steps), "float32")
        length = max(self.total_steps - self.warmup_steps, 1)
        progress = ops.clip((step - self.warmup_steps) / length, 0.0, 1.0)
        factor = _COURSES[self.course](progress, step, self.warmup_steps)
        end = self.final_learning_rate if self.course in ("cosine", "linear") else 0.0
        rate = end + (self.learning_rate - end) * factor
        if not self.warmup_steps:
            return rate
        return ops.where(
            step < self.warmup_steps, self.learning_rate * step / self.warmup_steps, rate
        )

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "course": self.course,
            "final_learning_rate": self.final_learning_rate,
            "accumulation_steps": self.accumulation_steps,
        }
