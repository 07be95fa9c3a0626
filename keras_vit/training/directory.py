"""The directory of a run: what it was started with, and that nothing else goes on in it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import keras

from keras_vit._atomic import replacing

CONFIG_FILE = "config.json"
MODEL_FILE = "model.keras"
BAD_FILE = "unreadable.txt"


def describe_run(model, recipe, feed, validation: str) -> dict[str, Any]:
    """What decides a run, as JSON values."""
    data = {
        "training": feed.description,
        "examples": feed.size,
        "validation": validation,
        "class_names": getattr(feed, "class_names", None),
    }
    return {
        "recipe": recipe.to_dict(),
        "model": {"class": type(model).__name__, **_plain(dict(model.flat_config))},
        "data": data,
        "backend": keras.backend.backend(),
    }


def digest(config: dict[str, Any]) -> int:
    """A number of a run's description, below 2**32, that others hardly share."""
    return zlib.crc32(json.dumps(config, sort_keys=True).encode())


def check(folder: Path, config: dict[str, Any]) -> None:
    """Checks that the directory is the run's, or free; writes nothing.

    Args:
        folder: the directory.
        config: of `describe_run`.

    Raises:
        ValueError: if it is the directory of another run, or no directory.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected a directory, or a name that is free.")
    if not folder.exists():
        return
    path = folder / CONFIG_FILE
    if path.exists():
        _compare(path, config)
        return
    foreign = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
    if foreign:
        raise ValueError(
            f"{folder} holds no run, but other files ({', '.join(sorted(foreign)[:5])}): name an "
            "empty or new directory."
        )


def claim(folder: Path, config: dict[str, Any]) -> None:
    """Makes a directory that `check` has passed that of the run."""
    path = folder / CONFIG_FILE
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({**config, "keras": keras.version()}, indent=2) + "\n")


def _compare(path: Path, config: dict[str, Any]) -> None:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        differences = [
            f"{group}.{name}: {known[group].get(name)!r} there, {config[group].get(name)!r} now"
            for group in ("recipe", "model", "data")
            for name in known[group].keys() | config[group].keys()
            if known[group].get(name) != config[group].get(name)
        ]
        if known["backend"] != config["backend"]:
            differences.append(f"backend: {known['backend']} there, {config['backend']} now")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}): name a new directory.") from error
    if differences:
        raise ValueError(
            f"{path.parent} holds another run, which differs in: {'; '.join(sorted(differences))}. "
            "Give the same arguments to go on with it, or name another directory."
        )


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
