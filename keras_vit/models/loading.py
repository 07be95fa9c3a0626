"""Loading `.keras` files, whichever backend wrote them."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import keras

# An optimizer that never made a step has no state but step count, learning rate and loss scale.
# Keras warns that the fresh optimizer has more; nothing is lost.
_NEVER_TRAINED = r"Skipping variable loading for optimizer .* saved optimizer has [1-4] variables\."


def load_model(path, *, compile: bool = True, safe_mode: bool = True, custom_objects=None):  # noqa: A002
    """Loads a `.keras` file saved under any backend, optimizer state included.

    Keras writes PyTorch's own optimizer classes into files saved on that backend, and then fails
    to find them on the others; here all optimizers are resolved by their public names.

    Args:
        path: the `.keras` file.
        compile: whether to restore loss, metrics, optimizer and its state.
        safe_mode: whether to refuse files that would run code of their own.
        custom_objects: further names and their classes or functions.

    Returns:
        The model.

    Raises:
        ValueError: if the file is missing, is no `.keras` file, or is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"No such file; expected a '.keras' file. Received: path={str(path)!r}")
    if path.suffix != ".keras":
        raise ValueError(
            "`load_model` reads '.keras' files, as `model.save` writes them. "
            f"Received: path={str(path)!r}"
        )
    _check_archive(path)
    objects = {**_optimizers(), **(custom_objects or {})}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _NEVER_TRAINED)
        return keras.saving.load_model(
            path, custom_objects=objects, compile=compile, safe_mode=safe_mode
        )


def _check_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            missing = {"config.json", "metadata.json"} - set(archive.namelist())
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(
            f"{path} is not a whole '.keras' file ({error}): save the model again, or copy the "
            "file again if it was cut short."
        ) from error
    if missing or damaged:
        problem = f"{damaged} is damaged" if damaged else f"without {sorted(missing)}"
        raise ValueError(
            f"{path} is not a whole '.keras' file ({problem}): save the model again, or copy "
            "the file again if it was cut short."
        )


def _optimizers() -> dict[str, Any]:
    """Public name -> class, of all optimizers."""
    members = vars(keras.optimizers).items()
    return {
        name: member
        for name, member in members
        if isinstance(member, type) and issubclass(member, keras.optimizers.Optimizer)
    }
