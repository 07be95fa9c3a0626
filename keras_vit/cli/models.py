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
    known = _facts(path / CONFIG_FILE)
    if known or (path / MODEL_FILE).exists():
        path = path / MODEL_FILE
        if not known:
            raise ValueError(
                f"{path.parent / CONFIG_FILE} is damaged or missing, which says what the classes "
                f"are. {path} can be read without it."
            )
        if not path.exists():
            raise ValueError(
                f"The run {source} is not through: it has no {MODEL_FILE} yet. The command that "
                "began it goes on with it."
            )
    if path.suffix != ".keras" or "://" in source:
        model = from_checkpoint(source, **arguments)
        names = getattr(model.source, "class_names", None)
        return model, {"class_names": list(names)} if names else {}
    if path.name == MODEL_FILE:
        known = _facts(path.parent / CONFIG_FILE)
    if arguments:
        raise ValueError(f"{path} says everything itself: leave out {', '.join(arguments)}.")
    return load_model(path), known


def load_to_look(source: str, image_size: tuple[int, int] | None) -> tuple[Any, dict[str, Any]]:
    """Loads a Vision Transformer to look into, and what its run says about it.

    Args:
        source: as in `load`.
        image_size: height and width to look at pictures in; `None`: the model's own.

    Returns:
        The model, and a dict with `class_names` and `evaluation` where they are known.

    Raises:
        ValueError: if there is no such model, it is of another kind, or takes scaled pixels.
    """
    from keras_vit.inspection.page import check_pixels
    from keras_vit.models import resize

    model, known = load(source)
    check_pixels(model)
    if image_size is not None:
        _check_size(model, image_size)
        model = resize(model, (*image_size, model.flat_config["image_shape"][2]))
    return model, known


def _check_size(model, image_size: tuple[int, int]) -> None:
    """Raises a ValueError with sizes that would do; a hybrid's stem takes any."""
    if model.flat_config["stem"] is not None:
        return
    for side, patch in zip(image_size, model.flat_config["patch_size"], strict=True):
        if side % patch:
            near = sorted({max(side // patch, 1) * patch, -(-side // patch) * patch})
            raise ValueError(
                f"--image-size must be a multiple of the patch, {patch} pixels, such as "
                f"{' or '.join(map(str, near))}. Received: {side}"
            )


def _facts(config: Path) -> dict[str, Any]:
    """What the directory of a run says; empty where that is none, or its file is damaged."""
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
        return {
            "class_names": found["data"]["class_names"],
            "evaluation": found["recipe"]["evaluation"],
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def open_data(spec: str, known: dict[str, Any]) -> Any:
    """Opens labelled pictures, their classes numbered as the model's.

    Args:
        spec: of `open_source`.
        known: of `load`.

    Raises:
        ValueError: if the pictures are of other classes than those that the model was trained on.
    """
    from keras_vit.data import open_source

    names = known.get("class_names")
    if not names or spec.startswith(("tfds:", "tfrecord:")):
        return open_source(spec)
    try:
        return open_source(spec, class_names=names)
    except ValueError:
        if "evaluation" in known:
            raise
        return open_source(spec)  # published models have other words for their classes
