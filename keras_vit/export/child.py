"""What the process does in which `isolation` has TensorFlow work."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

from keras_vit._atomic import replacing
from keras_vit.export.isolation import function
from keras_vit.export.preparation import Serving
from keras_vit.models import load_model

# Errors that the parent raises as they are, the first that fits.
_PASSED_ON = ("FileExistsError", "OSError", "ImportError", "ValueError")


def main(folder: Path) -> None:
    """Loads the folder's model, does its job, and writes `result.json` beside it."""
    job = json.loads((folder / "job.json").read_text())
    try:
        model = _load(folder / "model.keras")
        serving = Serving.from_dict(job["serving"])
        found = {"value": function(job["task"])(model, serving, **job["arguments"])}
    except Exception as error:
        traceback.print_exc()
        names = [kind.__name__ for kind in type(error).__mro__]
        known = next((name for name in names if name in _PASSED_ON), names[0])
        # A RuntimeError's message alone may say little.
        message = str(error) if known in _PASSED_ON else f"{type(error).__name__}: {error}"
        found = {"error": known, "message": message}
    with replacing(folder / "result.json") as partial:
        partial.write_text(json.dumps(found))


def _load(path: Path):
    try:
        return load_model(path, compile=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "The model could not be loaded where TensorFlow exports it; layers of your own are "
            f"known there only if Keras runs on TensorFlow (KERAS_BACKEND=tensorflow). {error}"
        ) from error
