"""The end of a run: its model is measured, and the report written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.engines.engine import Engine
from keras_vit.evaluation import metrics, predict_all
from keras_vit.recipe import Recipe
from keras_vit.training.result import Result


def report_run(
    result: Result, folder: Path, validation: Any, recipe: Recipe, feed: Any, engine: Engine
) -> None:
    """Writes `report.html` and `report.png` into the run's directory.

    Without matplotlib it says so and writes nothing: the run itself is whole.

    Args:
        result: of the run.
        folder: its directory.
        validation: labelled batches.
        recipe: the recipe.
        feed: the training data.
        engine: the devices it was trained on.
    """
    from keras_vit.training.report import worst_mistakes, write_report

    names = getattr(feed, "class_names", None)
    logits, labels = predict_all(result.model, validation)
    evaluation = metrics(logits, np.asarray(labels), names)
    facts = {
        "model": f"{result.model.name}, {result.model.count_params():,} parameters",
        "recipe": recipe.name,
        "data": f"{feed.description}, {feed.size:,} examples",
        "backend": f"{keras.backend.backend()}, Keras {keras.version()}",
        "devices": engine.description,
        "seed": recipe.seed,
        "training time": f"{sum(row['seconds'] for row in result.history):,.0f} s",
    }
    try:
        write_report(
            folder,
            result.history,
            evaluation,
            worst_mistakes(result.model, validation, 12),
            model=result.model,
            title=f"{result.model.name}: {recipe.name}",
            facts=facts,
        )
    except ImportError as error:
        print(f"no report: {error}")
