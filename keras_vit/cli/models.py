"""Models that a command line names: a run's directory, a `.keras` file, or a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load(source: str, **arguments) -> tuple[Any, dict[str, Any]]:
    """Loads a model, and what its run says about it.

    Args:
        source: directory of a run, `.keras` file, or any source of `from_checkpoint`.
        **arguments: of `from_checkpoint`; a `.keras` file takes none.

    Returns:
        The model, and a dict with `class_names` and `evaluation` where they are known.

    Raises:
        ValueError: if there is no such model, or it takes no arguments.
    """
    from keras_vit.models import from_checkpoint, load_model
    from keras_vit.training.directory import CONFIG_FILE, MODEL_FILE

    path = Path(source).expanduser()
    config = path / CONFIG_FILE
    known: dict[str, Any] = {}
    if _is_run(config):
        known = _facts(json.loads(config.read_text(encoding="utf-8")))
        path = path / MODEL_FILE
        if not path.exists():
            raise ValueError(f"The run {source} is not through: it has no {MODEL_FILE} yet.")
    if path.suffix != ".keras" or "://" in source:
        model = from_checkpoint(source, **arguments)
        names = getattr(model.source, "class_names", None)
        return model, {"class_names": list(names)} if names else {}
    if arguments:
        raise ValueError(f"{path} says everything itself: leave out {', '.join(arguments)}.")
    return load_model(path), known


def _is_run(config: Path) -> bool:
    try:
        return "recipe" in json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def _facts(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "class_names": config["data"].get("class_names"),
        "evaluation": config["recipe"]["evaluation"],
    }
