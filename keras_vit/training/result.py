"""What a run comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_vit.models.base import FlatModel


@dataclass
class Result:
    """What a run came to.

    Attributes:
        model: the trained model, on its averaged weights where the recipe averages them, freshly
            compiled; low-rank updates are merged.
        history: one row an epoch: epoch, step, loss, accuracy, val_loss, val_accuracy,
            learning_rate, images_per_second, seconds.
        folder: the run's directory, or `None`.
        unreadable: the examples that could not be read, in words.
    """

    model: FlatModel
    history: list[dict[str, Any]] = field(default_factory=list)
    folder: Path | None = None
    unreadable: str = ""
