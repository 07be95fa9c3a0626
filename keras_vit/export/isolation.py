"""Runs what needs TensorFlow: here where Keras runs on it, else in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import keras

from keras_vit import _deps
from keras_vit.export.preparation import Serving, check_model

# Of the parent's environment, what would have the child compute with others, or on the
# accelerator that the parent holds.
_DROPPED = ("TF_CONFIG", "KERAS_DISTRIBUTION_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "XLA_FLAGS")
_SETTINGS = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
_ERRORS = {kind.__name__: kind for kind in (ValueError, ImportError, OSError, FileExistsError)}
# The child ends as soon as its standard input does, also while it imports.
_START = """
import os, sys, threading
def end_with_parent():
    sys.stdin.buffer.read()
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
from pathlib import Path
from keras_vit.export.child import main
main(Path(sys.argv[1]))
"""
_LINES = 12  # of what a dead process said last


def with_graph(
    model: keras.Model,
    task: str,
    serving: Serving,
    *,
    batch_size: int | None = None,
    outputs: tuple[str, ...] = ("logits", "probabilities"),
    **arguments,
) -> Any:
    """Makes a SavedModel of a model, and has a function work on it in the process that made it.

    Args:
        model: see `preparation.exportable`.
        task: the function, such as `"keras_vit.export.tflite:convert"`; it gets the SavedModel's
            directory, which has the signature `serving_default` alone, and `arguments`.
        serving: of the model.
        batch_size: the only size of batches; `None`: any.
        outputs: what the signature gives; those that a model has not are left out.
        **arguments: JSON values.

    Returns:
        What the function returns, a JSON value.

    Raises:
        ValueError: if the model cannot be exported, and what the function raises.
        ImportError: if TensorFlow is not installed.
        RuntimeError: if the process died; the message has its last words.
    """
    work = {
        "on_graph": task,
        "batch_size": batch_size,
        "outputs": list(outputs),
        "arguments": arguments,
    }
    return under_tensorflow(model, "keras_vit.export.graph:run_task", serving, **work)


def under_tensorflow(model: keras.Model, task: str, serving: Serving, **arguments) -> Any:
    """Calls `task(model, serving, **arguments)` where Keras runs on TensorFlow.

    In this process if its backend is TensorFlow and no strategy is active; layers of the user's
    own are known there. Otherwise in a child process, that loads the model from a `.keras` file.
    Arguments, results and errors are those of `with_graph`.
    """
    check_model(model)
    _deps.require("tensorflow", "export", "Exporting models, from any backend,")
    if keras.backend.backend() == "tensorflow" and not _has_strategy():
        return _here(function(task), model, serving, arguments)
    with tempfile.TemporaryDirectory(prefix="keras-vit-export-") as name:
        folder = Path(name)
        model.save(folder / "model.keras")
        job = {"task": task, "serving": serving.to_dict(), "arguments": arguments}
        (folder / "job.json").write_text(json.dumps(job))
        return _child(folder)


def _here(task, model: keras.Model, serving: Serving, arguments: dict[str, Any]) -> Any:
    import tensorflow as tf

    try:
        return task(model, serving, **arguments)
    except tf.errors.OpError as error:  # such as a full disk
        raise RuntimeError(f"{type(error).__name__}: {error.message}") from error


def function(name: str) -> Any:
    """The function that a text like `"package.module:function"` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def _has_strategy() -> bool:
    import tensorflow as tf

    return tf.distribute.has_strategy()


def _child(folder: Path) -> Any:
    log = folder / "log.txt"
    command = [sys.executable, "-c", _START, str(folder)]
    with open(log, "wb") as said:
        # The child ends when this end of its standard input closes, however this process ends.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=_environment(folder)
        )
        try:
            code = process.wait()
        finally:
            process.kill()
            process.communicate()
    result = folder / "result.json"
    if not result.exists():
        raise RuntimeError(_last_words(code, log))
    found = json.loads(result.read_text())
    if "error" in found:
        raise _ERRORS.get(found["error"], RuntimeError)(found["message"])
    return found["value"]


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [kept.get("PYTHONPATH")])])
    own = {**_SETTINGS, "PYTHONPATH": path, "TMPDIR": str(folder)}
    return {"TF_CPP_MIN_LOG_LEVEL": "2", **kept, **own}


def _last_words(code: int, log: Path) -> str:
    end = f"status {code}"
    if code < 0:
        end = f"signal {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            end += ", as when memory runs out"
    lines = log.read_text(errors="replace").strip().splitlines()[-_LINES:]
    return "\n".join(
        [f"The process that exports under TensorFlow ended with {end}. It said last:", *lines]
    )
