"""What the package needs beside Keras: a backend, and packages that only some features use.

Standard library only: it runs before Keras is imported, and Keras fixes its backend at import.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

DISTRIBUTION = "keras-vision-transformers"

# In order of preference. Each name is Keras' word, the package to import and the extra to install.
BACKENDS = ("tensorflow", "jax", "torch")


def runs_command() -> bool:
    """Whether this process is the command line `keras-vit`, or `python -m keras_vit`.

    It reads its arguments, `--backend` among them, before Keras is imported.
    """
    original = sys.orig_argv
    if sys.argv and sys.argv[0] == "-m":  # as long as Python looks for the module to run
        return "-m" in original and original[original.index("-m") + 1 :][:1] == ["keras_vit"]
    return bool(sys.argv) and Path(sys.argv[0]).stem == "keras-vit"


def use_backend(name: str | None) -> None:
    """Has Keras run on the named backend; `None`: as `select_backend` chooses.

    Raises:
        ImportError: if it is not installed.
        ValueError: if the name is unknown, or Keras runs on another one already.
    """
    if name is not None:
        if name not in BACKENDS:
            raise ValueError(f"The backend must be one of {BACKENDS}. Received: {name!r}")
        keras = sys.modules.get("keras")
        if keras is not None and keras.backend.backend() != name:
            raise ValueError(
                f"Keras runs on {keras.backend.backend()} in this process already; start a new one "
                f"for {name}."
            )
        os.environ["KERAS_BACKEND"] = name
    select_backend()


def select_backend() -> None:
    """Chooses a backend that is installed, where the user has not chosen one.

    Keras falls back to TensorFlow, and writes that into `keras.json` at its first import, even for
    someone who only has JAX or PyTorch. So, unless Keras is already imported or the variable
    `KERAS_BACKEND` is set, a configured backend whose package is missing gives way to the first of
    `BACKENDS` that is installed, through `KERAS_BACKEND`.

    Raises:
        ImportError: if no backend is installed, or `KERAS_BACKEND` names one that is not.
    """
    if "keras" in sys.modules:
        return
    requested = os.environ.get("KERAS_BACKEND")
    if requested:
        if requested in BACKENDS and not _installed(requested):
            raise ImportError(
                f"KERAS_BACKEND is {requested!r}, but {requested} is not installed: "
                f"{_install(requested)}, or set KERAS_BACKEND to a backend that is."
            )
        return
    configured = _configured_backend()
    # Any other name, such as "openvino" or a misspelt one, is for Keras to accept or refuse.
    if configured not in BACKENDS or _installed(configured):
        return
    for backend in BACKENDS:
        if _installed(backend):
            os.environ["KERAS_BACKEND"] = backend
            return
    raise ImportError(
        "keras_vit needs TensorFlow, JAX or PyTorch, and none of them is installed: "
        f'pip install "{DISTRIBUTION}[jax]" (or [tensorflow], or [torch]).'
    )


def optional(module: str, extra: str, purpose: str) -> ModuleType:
    """Imports a package that only some features need.

    Args:
        module: name of the module, such as `"matplotlib.pyplot"`.
        extra: the extra of this distribution that installs it, such as `"plots"`.
        purpose: what needs it; begins the message, such as `"Drawing attention maps"`.

    Returns:
        The imported module.

    Raises:
        ImportError: if it cannot be imported; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs {module}, which cannot be imported ({error}): {_install(extra)}."
        ) from error


def require(module: str, extra: str, purpose: str) -> None:
    """Checks that a package is there that another process, or later code, will import.

    Args:
        module: its name, such as `"tensorflow"`.
        extra: as in `optional`.
        purpose: as in `optional`.

    Raises:
        ImportError: if it is not installed; the message says what to install.
    """
    if not _installed(module):
        raise ImportError(f"{purpose} needs {module}, which is not installed: {_install(extra)}.")


def _install(extra: str) -> str:
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def _installed(package: str) -> bool:
    """Whether `package` can be imported, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # already imported, by something that gave it no `__spec__`
        return True
    # A directory without code (a leftover, or one in the working directory) has no origin.
    return spec is not None and spec.origin is not None


def _configured_backend() -> Any:
    """The backend of `keras.json`, found where Keras looks for it."""
    home = os.environ.get("KERAS_HOME")
    if home is None:
        user = os.path.expanduser("~")
        home = os.path.join(user if os.access(user, os.W_OK) else "/tmp", ".keras")
    try:
        config = json.loads(Path(home, "keras.json").expanduser().read_text())
    except (OSError, ValueError):
        config = None
    return config.get("backend", BACKENDS[0]) if isinstance(config, dict) else BACKENDS[0]
