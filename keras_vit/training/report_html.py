"""`report.html`: one page that holds all it needs, in the reader's light or dark theme."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.evaluation import Evaluation
from keras_vit.inspection import pictures
from keras_vit.training.report_content import curves
from keras_vit.training.report_matrix import strengths

SIDE = 160
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --card: #f8fafc; --ink: #0f172a; --soft: #64748b;
  --line: #e2e8f0; --right: 37, 99, 235; --wrong: 220, 38, 38; --first: #ea580c; --deep: #fff }
@media (prefers-color-scheme: dark) { :root { --page: #0b1120; --card: #131c2e; --ink: #e2e8f0;
  --soft: #94a3b8; --line: #26324a; --right: 96, 165, 250; --wrong: 248, 113, 113;
  --first: #fb923c; --deep: #fff } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere }
h2 { font-size: 18px; margin: 40px 0 12px }
p { margin: 0 0 8px; color: var(--soft) }
.tiles, .plots, .wrong { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)) }
.tiles { margin-top: 20px }
.plots { grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)) }
.wrong { grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)) }
.wrong.pairs { grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)) }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 14px; min-width: 0 }
.card b { display: block; font-size: 24px; line-height: 1.3 }
.card img { display: block; width: 100%; border-radius: 6px; image-rendering: pixelated }
.card .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 6px; margin-bottom: 8px }
.name { font-weight: 600; overflow-wrap: anywhere }
.said { color: rgb(var(--wrong)); overflow-wrap: anywhere }
.file { font-size: 12px; color: var(--soft); overflow-wrap: anywhere }
svg { display: block; width: 100%; height: auto }
svg text { fill: var(--soft); font-size: 11px }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: left; color: var(--soft); font-weight: 500 }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere }
td.n, th.n { text-align: right; white-space: nowrap }
.bar { height: 8px; min-width: 120px; border-radius: 4px; background: var(--line) }
.bar i { display: block; height: 8px; border-radius: 4px; background: rgb(var(--right)) }
.matrix { width: auto; font-size: 12px }
.matrix td { width: 34px; min-width: 34px; height: 30px; padding: 0; text-align: center;
  border: 1px solid var(--page) }
.matrix th { border: 0; padding: 2px 8px; white-space: nowrap; max-width: 160px;
  overflow: hidden; text-overflow: ellipsis }
.matrix thead th { writing-mode: vertical-rl; transform: rotate(180deg); padding: 8px 2px;
  max-width: none; max-height: 150px }
.matrix .deep { color: var(--deep) }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin: 0 5px 0 12px }
"""
# The page may show what it holds, and load nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def render(
    *,
    title: str,
    history: Sequence[Mapping[str, Any]],
    result: Evaluation,
    mistakes,
    attention: np.ndarray | None,
    classes: Sequence[int],
    facts: Mapping[str, Any],
) -> str:
    """The page.

    Args:
        title: heading.
        history: one dict an epoch.
        result: the evaluation.
        mistakes: the images to show.
        attention: `(n, rows, columns)` shares of their patches, or `None`.
        classes: indices of the classes in the confusion matrix.
        facts: further lines for a table.

    Returns:
        HTML, with all text escaped.
    """
    panels = curves(history)
    sections = [
        _section("Training", f'<div class="plots">{"".join(map(_plot, panels))}</div>', panels),
        _section("Who is taken for whom", _matrix(result, classes), True),
        _section("Worst mistakes", _mistakes(result, mistakes, attention), len(mistakes.images)),
        _section("Classes", _classes(result), True),
        _section("Facts", _facts(facts), facts),
    ]
    name = html.escape(title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{name}</h1>\n{_tiles(result)}\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _section(title: str, content: str, wanted: Any) -> str:
    return f"<h2>{title}</h2>\n{content}\n" if wanted else ""


def _tiles(result: Evaluation) -> str:
    tiles = [("top-1 accuracy", f"{result.top1:.2%}")]
    if len(result.class_names) > result.top_k:
        tiles.append((f"top-{result.top_k} accuracy", f"{result.top5:.2%}"))
    tiles += [
        ("mean of the classes", f"{result.mean_per_class:.2%}"),
        ("loss", f"{result.loss:.4f}"),
        ("images", f"{result.count:,}"),
        ("classes", f"{len(result.class_names):,}"),
    ]
    cards = (f'<div class="card"><b>{value}</b><p>{name}</p></div>' for name, value in tiles)
    return f'<div class="tiles">{"".join(cards)}</div>'


# Curves ------------------------------------------------------------------------------------


def _plot(panel: Mapping[str, Any]) -> str:
    """One panel as SVG, in the page's colours."""
    left, right, top, bottom = 58.0, 312.0, 10.0, 150.0
    lines = panel["lines"]
    xs = [x for points in lines.values() for x in points[0]]
    ys = [y for points in lines.values() for y in points[1]]
    x0, x1 = _range(xs, 0.0)
    y0, y1 = _range(ys, 0.06)
    marks = []
    for value in _ticks(y0, y1):
        y = bottom - (value - y0) / (y1 - y0) * (bottom - top)
        marks.append(
            f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        )
    for value in dict.fromkeys((min(xs), max(xs))):
        x = left + (value - x0) / (x1 - x0) * (right - left)
        marks.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    keys = []
    for label, points in lines.items():
        color = {"training": "var(--first)"}.get(label, "rgb(var(--right))")
        places = [
            (
                left + (x - x0) / (x1 - x0) * (right - left),
                bottom - (y - y0) / (y1 - y0) * (bottom - top),
            )
            for x, y in zip(*points, strict=True)
        ]
        if len(places) == 1:
            marks.append(f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3" ')
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            marks.append(f'<polyline points="{path}" fill="none" stroke-width="2" ')
        marks.append(f'stroke="{color}"/>' if len(places) > 1 else f'fill="{color}"/>')
        last = f"{points[1][-1]:.4g}"
        keys.append(f'<span class="key" style="background:{color}"></span>{label} {last}')
    name = html.escape(str(panel["name"]))
    return (
        f'<div class="card"><span class="name">{name}</span>'
        f'<svg viewBox="0 0 320 172" role="img" aria-label="{name}, by epoch">{"".join(marks)}'
        f"</svg><p>{''.join(keys)}</p></div>"
    )


def _range(values: Sequence[float], margin: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        pad = abs(low) * 0.1 or 0.5
        return low - pad, high + pad
    return low - margin * (high - low), high + margin * (high - low)


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers between two."""
    raw = (high - low) / 4
    power = 10.0 ** np.floor(np.log10(raw))
    step = min((factor * power for factor in (1, 2, 5, 10)), key=lambda s: abs(s - raw))
    first = int(np.ceil(low / step))
    return [number * step for number in range(first, int(np.floor(high / step)) + 1)]


# Tables ------------------------------------------------------------------------------------


def _matrix(result: Evaluation, classes: Sequence[int]) -> str:
    matrix = result.confusion_of(classes)
    counts = np.array([result.classes[index].count for index in classes])
    strength = strengths(matrix, counts)
    names = [html.escape(result.class_names[index]) for index in classes]
    head = "".join(f'<th scope="col" title="{name}">{name}</th>' for name in names)
    rows = []
    for row, name in enumerate(names):
        cells = []
        for column, other in enumerate(names):
            count, depth = int(matrix[row, column]), float(strength[row, column])
            color = "right" if row == column else "wrong"
            deep = ' class="deep"' if depth > 0.55 else ""
            style = f' style="background:rgba(var(--{color}),{depth:.2f})"' if count else ""
            words = f"{count:,} of {int(counts[row]):,} {name}: {other}"
            cells.append(f'<td{deep}{style} title="{words}">{count or ""}</td>')
        rows.append(f'<tr><th scope="row" title="{name}">{name}</th>{"".join(cells)}</tr>')
    some = ""
    if len(classes) < len(result.class_names):
        some = f" The {len(classes)} most confused of {len(result.class_names):,} classes."
    return (
        f"<p>Rows are the true classes, columns what they were taken for.{some}</p>"
        f'<div class="scroll"><table class="matrix"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _classes(result: Evaluation) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(row.name)}</td>"
        f'<td class="n">{row.count:,}</td><td class="n">{row.correct:,}</td>'
        f'<td class="n">{_percent(row.accuracy)}</td>'
        f'<td><div class="bar"><i style="width:{_width(row.accuracy)}%"></i></div></td>'
        f'<td class="n">{_percent(row.precision)}</td></tr>'
        for row in result.classes
    )
    table = (
        '<div class="scroll"><table><thead><tr><th>class</th><th class="n">images</th>'
        '<th class="n">correct</th><th class="n">accuracy</th><th></th>'
        f'<th class="n">precision</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )
    if len(result.classes) <= 50:
        return table
    return f"<details><summary>{len(result.classes):,} classes</summary>{table}</details>"


def _percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2%}"


def _width(value: float) -> str:
    return "0" if np.isnan(value) else f"{100 * value:.1f}"


def _facts(facts: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'


# Mistakes ----------------------------------------------------------------------------------


def _mistakes(result: Evaluation, mistakes, attention) -> str:
    cards = []
    for index, image in enumerate(mistakes.images):
        shown = pictures.enlarge(pictures.reduce(pictures.as_rgb(image), 2 * SIDE), SIDE)
        true, predicted = (
            html.escape(result.class_names[int(labels[index])])
            for labels in (mistakes.true, mistakes.predicted)
        )
        content = _image(shown, true)
        if attention is not None:
            content += _image(pictures.overlay(shown, attention[index]), f"attention, {true}")
            content = f'<div class="pair">{content}</div>'
        name = html.escape(str(mistakes.names[index] or ""))
        cards.append(
            f'<div class="card">{content}<div class="name">{true}</div>'
            f'<div class="said">taken for {predicted}, {mistakes.confidence[index]:.0%}</div>'
            + (f'<div class="file">{name}</div>' if name else "")
            + "</div>"
        )
    words = "" if attention is None else "<p>Right: where the model looked (attention rollout).</p>"
    kind = "wrong pairs" if attention is not None else "wrong"
    return f'{words}<div class="{kind}">{"".join(cards)}</div>'


def _image(image: np.ndarray, words: str) -> str:
    return f'<img alt="{words}" src="{pictures.data_url(image)}">'
