"""`report.png`: curves, confusion matrix, classes and worst mistakes, in one picture."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._deps import optional
from keras_vit.inspection import pictures
from keras_vit.inspection.figure_style import BLUE, INK, MUTED, ORANGE, RED, STYLE
from keras_vit.training.report_content import curves
from keras_vit.training.report_matrix import RIGHT, WRONG, strengths

WIDTH = 13.0
BARS = 24
BARS_COLOR = "#93b4f7"


def draw(path: Path, *, title, history, result, mistakes, attention, classes) -> None:
    """Draws the report.

    Args:
        path: the `.png` file to write.
        title: heading.
        history: one dict an epoch.
        result: the evaluation.
        mistakes: the images to show.
        attention: `(n, rows, columns)` shares of their patches, or `None`.
        classes: indices of the classes in the confusion matrix.
    """
    matplotlib = optional("matplotlib", "plots", "A training report")
    figures = optional("matplotlib.figure", "plots", "A training report")
    panels = curves(history)
    rows, columns = _grid_of(mistakes, attention)
    matrix = 0.9 + WIDTH * 0.45 * (1.0 if len(classes) > 6 else 0.7)
    heights = {"header": 1.0, "curves": 2.9 if panels else 0, "classes": matrix}
    cell = WIDTH / columns * (0.5 if attention is not None else 1.0) * _aspect(mistakes)
    heights["mistakes"] = 0.5 + rows * (min(cell, 3.0) + 0.5) if rows else 0
    parts = [name for name, height in heights.items() if height]
    sizes = [heights[name] for name in parts]
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Names in scripts that the font lacks become boxes; the page shows them.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure = figures.Figure(figsize=(WIDTH, sum(sizes)), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
        blocks = figure.subfigures(len(parts), 1, height_ratios=sizes)
        blocks = dict(zip(parts, np.atleast_1d(blocks), strict=True))
        _header(blocks["header"], title, result)
        if panels:
            _curves(blocks["curves"], panels)
        left, right = blocks["classes"].subfigures(1, 2, width_ratios=[1.25, 1])
        _matrix(left, result, classes)
        _classes(right, result)
        if rows:
            _mistakes(blocks["mistakes"], rows, columns, result, mistakes, attention)
        figure.savefig(path, dpi=110)


def _text(target, *arguments, **options):
    """Text as it is: a dollar sign in a name is no formula."""
    return target.text(*arguments, parse_math=False, **options)


def _labels(axis, names, **options) -> None:
    axis.set_ticks(range(len(names)), names, parse_math=False, **options)


def shorten(name: str, length: int = 22) -> str:
    """A name cut to a length, with an ellipsis."""
    name = " ".join(name.split())
    return name if len(name) <= length else name[: length - 1] + "…"


def _header(block, title, result) -> None:
    _text(block, 0.012, 0.7, shorten(title, 70), size=19, weight="bold", va="center")
    count = f"{result.count:,} images, {len(result.class_names):,} classes"
    _text(block, 0.012, 0.27, f"measured on {count}", size=10, color=MUTED, va="center")
    tiles = [("top-1", f"{result.top1:.2%}", BLUE), ("loss", f"{result.loss:.3f}", INK)]
    if result.top_k > 1 and len(result.class_names) > result.top_k:
        tiles.insert(1, (f"top-{result.top_k}", f"{result.top5:.2%}", INK))
    for place, (name, value, color) in enumerate(reversed(tiles)):
        x = 0.985 - 0.105 * place
        _text(block, x, 0.66, value, size=17, weight="bold", color=color, ha="right", va="center")
        _text(block, x, 0.27, name, size=10, color=MUTED, ha="right", va="center")


def _curves(block, panels) -> None:
    grid = block.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(grid, panels, strict=True):
        axes.set_title(panel["name"].capitalize(), parse_math=False)
        axes.grid(True, axis="y")
        axes.set_xlabel("epoch")
        axes.tick_params(length=0)
        percent = "accuracy" in panel["name"]
        for label, (x, y) in panel["lines"].items():
            color = {"training": ORANGE, "validation": BLUE}.get(label, MUTED)
            shown = [100 * value for value in y] if percent else y
            marker = "o" if len(x) < 2 else None
            axes.plot(x, shown, color=color, linewidth=1.8, label=label, marker=marker)
            if label == "validation" and percent and len(x) > 1:
                _mark_best(axes, x, shown, color)
        if len(panel["lines"]) > 1:
            axes.legend(loc="best", fontsize=8)
        if percent:
            axes.yaxis.set_major_formatter("{x:g}%")
        elif panel["name"] == "learning rate":
            axes.yaxis.set_major_formatter("{x:.2g}")
            axes.set_ylim(bottom=0)
        epochs = sorted({value for x, _ in panel["lines"].values() for value in x})
        if len(epochs) > 1:
            axes.xaxis.get_major_locator().set_params(integer=True)
        else:
            axes.set_xticks(epochs)
        axes.margins(x=0.03)


def _mark_best(axes, x, y, color) -> None:
    best = int(np.argmax(y))
    axes.plot(x[best], y[best], "o", color=color, markersize=6, zorder=3)
    side = -1 if best > len(x) / 2 else 1
    axes.annotate(
        f"best {y[best]:.2f}%",
        (x[best], y[best]),
        xytext=(2 * side, -9),
        textcoords="offset points",
        ha="right" if side < 0 else "left",
        va="top",
        color=color,
        fontsize=8,
        weight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
    )


def _matrix(block, result, classes) -> None:
    axes = block.subplots()
    matrix = result.confusion_of(classes)
    counts = np.array([result.classes[index].count for index in classes])
    strength = strengths(matrix, counts)[..., None]
    hue = np.where(np.eye(len(classes), dtype=bool)[..., None], RIGHT, WRONG)
    cells = (255 * (1 - strength) + hue * strength) / 255
    axes.imshow(cells, aspect="equal")
    names = [shorten(result.class_names[index], 18) for index in classes]
    small = 8 if len(classes) <= 14 else 6.5
    flat = len(classes) <= 4
    turned = {"rotation": 0 if flat else 45, "ha": "center" if flat else "right"}
    _labels(axes.xaxis, names, fontsize=small, rotation_mode="anchor", **turned)
    _labels(axes.yaxis, names, fontsize=small)
    axes.set_xticks(np.arange(len(classes) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(classes) + 1) - 0.5, minor=True)
    axes.grid(True, which="minor", color="#f3f4f6", linewidth=1)
    axes.tick_params(which="both", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    whole = len(classes) == len(result.class_names)
    some = "" if whole else f": {len(classes)} most confused of {len(result.class_names):,}"
    axes.set_title(f"Who is taken for whom{some}")
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(classes) > 14 or matrix.max() > 99_999:
        return
    for row, column in zip(*np.nonzero(matrix), strict=True):
        axes.text(
            column,
            row,
            f"{matrix[row, column]:,}" if len(classes) <= 8 else str(matrix[row, column]),
            ha="center",
            va="center",
            fontsize=8,
            color="white" if strength[row, column, 0] > 0.55 else INK,
        )


def _classes(block, result) -> None:
    rows = sorted((row for row in result.classes if row.count), key=lambda row: row.accuracy)
    some = f": the {BARS} lowest of {len(rows):,}" if len(rows) > BARS else ""
    rows = rows[:BARS][::-1]
    axes = block.subplots()
    values = [100 * row.accuracy for row in rows]
    axes.barh(range(len(rows)), [100] * len(rows), color="#f3f4f6", height=0.62)
    axes.barh(range(len(rows)), values, color=BARS_COLOR, height=0.62)
    small = 8.5 if len(rows) <= 14 else 7
    _labels(axes.yaxis, [shorten(row.name, 22) for row in rows], fontsize=small)
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        inside = value > 30
        axes.text(
            value + (-1.5 if inside else 1.5),
            place,
            f"{value:.1f}%   {row.correct:,} of {row.count:,}",
            ha="right" if inside else "left",
            va="center",
            fontsize=small - 0.5,
            color=INK,
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(min(0, len(rows) - 6) - 0.5, len(rows) - 0.5)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(f"Accuracy of the classes{some}")


def _grid_of(mistakes, attention) -> tuple[int, int]:
    count = len(mistakes.images)
    columns = 4 if attention is not None else 6
    return -(-count // columns), columns


def _aspect(mistakes) -> float:
    return mistakes.images.shape[1] / mistakes.images.shape[2]


def _mistakes(block, rows, columns, result, mistakes, attention) -> None:
    block.suptitle(
        "Worst mistakes" + ("" if attention is None else ", and where the model looked"),
        x=0.012,
        ha="left",
        size=11,
        weight="bold",
    )
    grid: Any = block.subplots(rows, columns, squeeze=False)
    for axes in grid.ravel():
        axes.set_axis_off()
    for index, axes in zip(range(len(mistakes.images)), grid.ravel(), strict=False):
        axes.imshow(picture(mistakes.images[index], attention, index))
        true, predicted = (
            shorten(result.class_names[int(labels[index])], 104 // columns - 6)
            for labels in (mistakes.true, mistakes.predicted)
        )
        said = f"taken for {predicted}, {mistakes.confidence[index]:.0%}"
        for words, height, style in (
            (true, 15, {"weight": "bold"}),
            (said, 4, {"color": RED, "size": 8.5}),
        ):
            axes.annotate(
                words,
                (0, 1),
                xycoords="axes fraction",
                xytext=(0, height),
                textcoords="offset points",
                parse_math=False,
                **style,
            )


def picture(image: np.ndarray, attention: np.ndarray | None, index: int) -> np.ndarray:
    """An image, with its attention beside it where there is some.

    Args:
        image: `(height, width, channels)`, uint8.
        attention: `(n, rows, columns)`, or `None`.
        index: which of them.

    Returns:
        `(height, width, 3)`, uint8, enlarged where it is small.
    """
    large = pictures.enlarge(pictures.as_rgb(image), 160)
    if attention is None:
        return large
    gap = np.full((large.shape[0], max(2, large.shape[1] // 24), 3), 255, "uint8")
    return np.concatenate([large, gap, pictures.overlay(large, attention[index])], axis=1)
