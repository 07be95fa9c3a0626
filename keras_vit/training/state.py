"""The whole state of a run in one file: weights, optimizer, metrics, random numbers, position.

A safetensors file with a JSON note, so that nothing is unpickled; it appears whole or not at all.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.safetensors import open_safetensors, write_safetensors
from keras_vit.checkpoints.store import Entry
from keras_vit.engines.engine import Engine
from keras_vit.training.randomness import random_arrays, restore_random

_NOTE = "keras_vit_run"
_FILE = "step-{step:09d}.safetensors"
_PATTERN = re.compile(r"step-(\d{9,})\.safetensors")


class NonFiniteLossError(ArithmeticError):
    """The loss, or a weight, is no number any more."""


def _variables(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """(name, variable) of everything that a step changes; numbers keep names apart."""
    groups = {
        # Random states are among the layers' variables.
        "model": model.variables,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    seen: set[int] = set()
    for group, variables in groups.items():
        for index, variable in enumerate(variables):
            # A Keras model counts its optimizer's and metrics' variables in, or not.
            if id(variable) not in seen:
                seen.add(id(variable))
                path = getattr(variable, "path", variable.name)
                # Automatic names count up in a process, so that the next one has others.
                yield f"{group}/{index:05d}/{re.sub(r'_[0-9]+(?=/|$)', '', path)}", variable


def save_state(
    path: Path, model: keras.Model, note: Mapping[str, Any], engine: Engine | None = None
) -> None:
    """Writes the state of a compiled and built model, readable on any number of devices.

    Args:
        path: file to write.
        model: the model, with its optimizer and metrics.
        note: what else the run needs to go on, as JSON values.
        engine: of several devices; all processes must call this together, and the chief writes.

    Raises:
        CheckpointError: if the file cannot be written.
        NonFiniteLossError: if a number in it is not finite; nothing is written.
    """
    engine = engine or Engine()
    arrays: dict[str, np.ndarray] = {}
    for summed, variables in _parts(model):
        arrays |= zip(
            variables, engine.arrays(list(variables.values()), summed=summed), strict=True
        )
    _check_finite(arrays)
    if not engine.is_chief:
        return
    arrays |= random_arrays()
    entries = {name: Entry(array.shape, array.dtype.name) for name, array in arrays.items()}
    write_safetensors(path, entries, arrays.__getitem__, {_NOTE: json.dumps(note)})


def _parts(model: keras.Model) -> Iterator[tuple[bool, dict[str, Any]]]:
    """(whether processes may hold parts of its sums, name -> variable), in two groups."""
    variables = dict(_variables(model))
    metrics = {id(variable) for variable in model.metrics_variables}
    for summed in (False, True):
        yield summed, {n: v for n, v in variables.items() if (id(v) in metrics) == summed}


def _check_finite(arrays: Mapping[str, np.ndarray]) -> None:
    """A state that would go on from infinite weights must not take a sound one's place."""
    for name, array in arrays.items():
        # NumPy does not know that bfloat16 is a number.
        values = array if array.dtype.kind in "fiub" else array.astype("float32")
        if not np.isfinite(values).all():
            raise NonFiniteLossError(
                f"{name.split('/', 2)[-1]} is not finite after the last step, so that no state is "
                "saved. Usual causes: a learning rate that is too high (halve it, or warm up for "
                "longer), no clip_norm, or float16 (take bfloat16)."
            )


def load_state(path: Path, model: keras.Model, engine: Engine | None = None) -> dict[str, Any]:
    """Restores what `save_state` wrote, bit for bit; everything is checked before it is touched.

    Args:
        path: the file.
        model: a model of the same architecture, compiled and built the same way.
        engine: of several devices; all processes must call this together.

    Returns:
        The note.

    Raises:
        CheckpointError: if the file is damaged, or belongs to another model or optimizer.
    """
    with open_safetensors(path) as store:
        note = read_note(path, store.metadata)
        variables = dict(_variables(model))
        expected = variables.keys() | random_arrays().keys()
        # A machine may have other GPUs, or none, with a generator each.
        missing = sorted(filter(_is_shared, expected - store.entries.keys()))
        unknown = sorted(filter(_is_shared, store.entries.keys() - expected))
        if missing or unknown:
            raise CheckpointError(
                f"{path} is of another model, optimizer or backend: it lacks {missing[:5]}, and "
                f"has {unknown[:5]} that this run does not know."
            )
        for name, variable in variables.items():
            if store.entries[name].shape != tuple(variable.shape):
                raise CheckpointError(
                    f"{path}: {name} has shape {store.entries[name].shape}. "
                    f"Expected: {tuple(variable.shape)}"
                )
        arrays = {name: store.read(name) for name in store.entries}
    engine = engine or Engine()
    for summed, part in _parts(model):
        for name, variable in part.items():
            engine.assign(variable, arrays[name], summed=summed)
    restore_random(arrays)
    return note


def _is_shared(name: str) -> bool:
    """Whether every machine has this."""
    return not name.startswith("random/cuda_")


def read_note(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The note of a state file, from its metadata.

    Raises:
        CheckpointError: if there is none.
    """
    try:
        note = json.loads(metadata[_NOTE])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is no state of a training run: it has no note.") from error
    return note


class Checkpoints:
    """The rotating state files of a run.

    Args:
        folder: where they lie; made if it is not there.
        keep: files to keep.
        engine: of several devices: its chief writes, and all processes read.
    """

    def __init__(self, folder: Path, keep: int = 2, engine: Engine | None = None):
        self.folder = folder
        self.keep = keep
        self.engine = engine or Engine()
        if self.engine.is_chief:
            folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Removes what a killed process left half-written under a temporary name."""
        for path in self.folder.glob(".step-*.safetensors"):
            path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """The files, newest first."""
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if _PATTERN.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.stem.partition("-")[2]), reverse=True)

    def save(self, model: keras.Model, step: int, note: Mapping[str, Any]) -> None:
        """Saves the state after `step` batches, and removes the oldest files."""
        save_state(self.folder / _FILE.format(step=step), model, note, self.engine)
        for path in self.paths()[self.keep :] if self.engine.is_chief else ():
            path.unlink(missing_ok=True)

    def load_newest(self, model: keras.Model) -> dict[str, Any] | None:
        """Restores the newest file that is sound.

        Returns:
            Its note; `None` if there is no file.

        Raises:
            CheckpointError: if there are files and none can be loaded.
        """
        problems = []
        for path in self.paths():
            try:
                note = load_state(path, model, self.engine)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            if problems:
                warnings.warn(f"Went back to {path}: {'; '.join(problems)}", stacklevel=2)
            return note
        if problems:
            raise CheckpointError(
                f"No state in {self.folder} can be loaded; start anew with another output "
                f"directory. {'; '.join(problems)}"
            )
        return None
