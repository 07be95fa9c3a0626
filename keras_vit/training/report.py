"""The final report of a run: `report.png` to show, `report.html` to read; both work offline."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit import _checks
from keras_vit._atomic import replacing
from keras_vit._deps import optional
from keras_vit.evaluation import Evaluation, metrics
from keras_vit.evaluation.batches import BATCH_SIZE, batches
from keras_vit.evaluation.prediction import predict_all
from keras_vit.models.base import FlatModel
from keras_vit.models.vit import VisionTransformer

PNG_FILE = "report.png"
HTML_FILE = "report.html"


class Mistakes(NamedTuple):
    """Images that a model got wrong.

    Attributes:
        images: `(n, height, width, channels)`, uint8.
        true: `(n,)`, their classes.
        predicted: `(n,)`, what they were taken for.
        confidence: `(n,)`, softmax probabilities of the predictions.
        names: a name for each image, such as its file's; empty ones are not shown.
    """

    images: np.ndarray
    true: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    names: Sequence[str]


def worst_mistakes(
    model: keras.Model,
    dataset: Any,
    count: int = 12,
    *,
    names: Sequence[str] | None = None,
    steps: int | None = None,
    batch_size: int = BATCH_SIZE,
) -> Mistakes:
    """The wrongly classified images of the highest loss, worst first.

    Args:
        model: any Keras model that gives logits, or one of this package.
        dataset: labelled images, see `keras_vit.evaluation.predict_all`.
        count: images at most.
        names: names of all images of the data set, in its order; `None` for none.
        steps: batches to look at; `None` for all.
        batch_size: where `dataset` is arrays.

    Returns:
        The images as they can be shown, and what the model said.

    Raises:
        ValueError: if there are no labels, or logits and labels do not go together.
    """
    _checks.positive_int("count", count)
    kept: list[tuple] = []
    seen = 0
    for images, labels in batches(dataset, batch_size, steps):
        if labels is None:
            raise ValueError("`dataset` must give labels: without them nothing is a mistake.")
        logits, _ = predict_all(model, [images], progress=False)
        found = metrics(logits, labels)
        for index in np.flatnonzero(found.labels != found.predictions):
            # The first of equal losses stays.
            entry = (float(found.losses[index]), -(seen + int(index)))
            if len(kept) < count or entry > kept[0][:2]:
                answers = (found.labels[index], found.predictions[index], found.confidences[index])
                push = heapq.heappush if len(kept) < count else heapq.heapreplace
                push(kept, (*entry, images[index].copy(), *answers))
        seen += len(images)
    kept.sort(key=lambda entry: entry[:2], reverse=True)
    scaled = isinstance(model, FlatModel) and not model.flat_config["include_rescaling"]
    pictures = [_displayed(entry[2], scaled) for entry in kept]
    true, predicted, confidence = (
        np.array([entry[column] for entry in kept], kind)
        for column, kind in ((3, "int64"), (4, "int64"), (5, "float32"))
    )
    return Mistakes(
        images=np.stack(pictures) if pictures else np.zeros((0, 1, 1, 3), "uint8"),
        true=true,
        predicted=predicted,
        confidence=confidence,
        names=[str(names[-entry[1]]) if names is not None else "" for entry in kept],
    )


def _displayed(image: np.ndarray, scaled: bool) -> np.ndarray:
    """An image as uint8: pixels 0..255 as they are, scaled ones stretched to that range."""
    image = image.astype("float32")
    if scaled:
        low, high = float(image.min()), float(image.max())
        image = (image - low) * (255.0 / max(high - low, 1e-6))
    return np.clip(np.rint(image), 0, 255).astype("uint8")


def write_report(
    folder: str | Path,
    history: Sequence[Mapping[str, Any]],
    result: Evaluation,
    mistakes: Mistakes | tuple | None = None,
    *,
    model: keras.Model | None = None,
    title: str = "Training report",
    facts: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Writes `report.png` and `report.html`.

    The page holds all its pictures, follows the reader's light or dark theme, and loads nothing.

    Args:
        folder: directory for both; it must be there.
        history: one dict an epoch: "epoch", "loss", "val_loss", "accuracy", "learning_rate" and
            the like; empty for none.
        result: the evaluation to show.
        mistakes: what `worst_mistakes` gave; `None` for none.
        model: a `VisionTransformer` whose attention is drawn over the mistakes; others, and
            those that want scaled pixels, are passed over.
        title: heading.
        facts: further lines for a table, such as recipe, data, seed and time.

    Returns:
        Paths of the picture and the page. Both are written in full, or an error leaves old ones
        as they were.

    Raises:
        ImportError: if matplotlib is missing; the message says what to install.
        ValueError: if there is no such directory, or the mistakes do not go together.
    """
    optional("matplotlib.figure", "plots", "A training report")
    from keras_vit.training import report_figures, report_html
    from keras_vit.training.report_content import shown_classes

    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"`folder` must be a directory. Received: folder={str(folder)!r}")
    shown = _check_mistakes(mistakes, result)
    attention = _attention(model, shown.images)
    rows = [dict(row) for row in history]
    content = {
        "title": str(title),
        "history": rows,
        "result": result,
        "mistakes": shown,
        "attention": attention,
        "classes": shown_classes(result),
    }
    png, page = folder / PNG_FILE, folder / HTML_FILE
    with replacing(png) as picture, replacing(page) as text:
        report_figures.draw(picture, **content)
        text.write_text(report_html.render(facts=dict(facts or {}), **content), "utf-8")
    return png, page


def _check_mistakes(mistakes, result: Evaluation) -> Mistakes:
    if mistakes is None:
        nothing = np.zeros(0, "int64")
        return Mistakes(np.zeros((0, 1, 1, 3), "uint8"), nothing, nothing, nothing, [])
    shown = Mistakes(*mistakes)
    lengths = {name: len(value) for name, value in shown._asdict().items()}
    if len(set(lengths.values())) != 1 or np.ndim(shown.images) != 4:
        raise ValueError(
            "`mistakes` must hold images (n, height, width, channels), and n of each of the "
            f"others. Received: {lengths}, images of shape {np.shape(shown.images)}"
        )
    size = len(result.class_names)
    for name in ("true", "predicted"):
        values = np.asarray(getattr(shown, name))
        if values.size and not (0 <= values.min() and values.max() < size):
            raise ValueError(
                f"`mistakes.{name}` must be classes from 0 to {size - 1}. Received: {values}"
            )
    if np.asarray(shown.images).dtype != np.uint8:
        raise ValueError(
            f"`mistakes.images` must be uint8. Received: dtype {np.asarray(shown.images).dtype}"
        )
    return shown


def _attention(model, images: np.ndarray) -> np.ndarray | None:
    """Shares of the patches `(n, rows, columns)`, or None where there are none to show."""
    if not isinstance(model, VisionTransformer) or not len(images):
        return None
    if not model.flat_config["include_rescaling"]:
        return None
    if tuple(images.shape[1:]) != tuple(model.flat_config["image_shape"]):
        return None
    from keras_vit.inspection import attention_rollout

    return attention_rollout(model, images)
