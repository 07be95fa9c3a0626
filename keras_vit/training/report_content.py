"""What a report shows, whatever draws it: the lines of its plots, and the classes of its matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.evaluation import Evaluation

MATRIX_CLASSES = 24


def shown_classes(result: Evaluation, limit: int = MATRIX_CLASSES) -> list[int]:
    """The classes whose confusion is drawn: all, or those that are confused most.

    Args:
        result: the evaluation.
        limit: how many at most.

    Returns:
        Their indices: in order, or with the classes of a common mistake next to each other.
    """
    size = len(result.class_names)
    if size <= limit:
        return list(range(size))
    chosen: dict[int, None] = {}
    for true, predicted, _ in result.most_confused(limit**2):
        missing = [index for index in (true, predicted) if index not in chosen]
        if len(chosen) + len(missing) <= limit:
            chosen.update(dict.fromkeys(missing))
    by_count = sorted(range(size), key=lambda index: -result.classes[index].count)
    for index in by_count:
        if len(chosen) >= limit:
            break
        chosen.setdefault(index)
    return list(chosen)


def curves(history: Sequence[Mapping[str, Any]], limit: int = 3) -> list[dict[str, Any]]:
    """What there is to plot.

    Args:
        history: one dict an epoch.
        limit: metrics at most, loss and accuracy first; the learning rate comes on top.

    Returns:
        For each panel "name" and "lines": label -> (epochs, values), finite ones alone. A panel
        without a line is left out.
    """
    passed_over = ("epoch", "step", "seconds", "time", "images_per_second", "learning_rate", "lr")
    keys = list(dict.fromkeys(key for row in history for key in row))
    bases = list(dict.fromkeys(re.sub("^val_", "", key) for key in keys if key not in passed_over))
    first = {"loss": 0, "accuracy": 1}
    bases.sort(key=lambda base: first.get(base, 2))
    panels = []
    for base in bases:
        lines = {
            label: _line(history, key)
            for label, key in (("training", base), ("validation", f"val_{base}"))
        }
        lines = {label: line for label, line in lines.items() if line[0]}
        if lines:
            panels.append({"name": base.replace("_", " "), "lines": lines})
    panels = panels[:limit]
    for key in ("learning_rate", "lr"):
        line = _line(history, key)
        if line[0]:
            panels.append({"name": "learning rate", "lines": {"learning rate": line}})
            break
    return panels


def _line(history, key: str) -> tuple[list[float], list[float]]:
    points = []
    for number, row in enumerate(history, 1):
        try:
            value, epoch = float(row[key]), float(row.get("epoch", number))
        except (KeyError, TypeError, ValueError):
            continue
        if np.isfinite(value) and np.isfinite(epoch):
            points.append((epoch, value))
    return [x for x, _ in points], [y for _, y in points]
