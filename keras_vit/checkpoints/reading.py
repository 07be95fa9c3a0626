"""A checkpoint read as the weights of a model: names checked, then one variable at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np

from keras_vit.checkpoints.dialect import Found, Source
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats import DIALECTS
from keras_vit.checkpoints.report import compare
from keras_vit.checkpoints.rules import Reader, bind, expected
from keras_vit.checkpoints.shapes import Config, weight_shapes
from keras_vit.checkpoints.store import Store

# Pre-training's mask token goes back into the file that it came from.
_CARRIED = r"(.*\.)?mask_token"


class Weights:
    """The weights in a file, by our variable paths.

    Args:
        store: the open checkpoint.
        found: what `formats.detect` made of it.
        config: the checked config of the model in the file.
        skip: patterns, found anywhere in a name of theirs or ours, of what may be missing, left
            over or misshapen.

    Attributes:
        path: the file or directory, for messages.
        report: what does not fit.
        paths: the variables that can be read.
    """

    def __init__(self, store: Store, found: Found, config: Config, skip: Iterable[str] | str = ()):
        self._store, self._found, self.config = store, found, dict(config)
        self.path = store.path
        self.skip = _excuses(skip)
        rows = DIALECTS[found.dialect].rows(config, found.layout)
        bindings, homeless = bind(weight_shapes(config), rows, config, found.zeros)
        if homeless:
            raise CheckpointError(
                f"{store.path}: {DIALECTS[found.dialect].title}'s files have no "
                f"{', '.join(homeless[:5])}. Leave out the arguments that ask for them."
            )
        self.report = compare(store, bindings, found.ignored, self.skip)
        self._wanted = expected(bindings)
        # What is excused may be there all the same, and fit.
        faulty = compare(store, bindings, found.ignored)
        bad = {line.split(" ", 1)[0] for line in (*faulty.missing, *faulty.misshapen)}
        good = [b for b in bindings if not bad & {ref.name for ref in b.refs}]
        self._reader = Reader(store, good)
        self.paths = tuple(self._reader.bindings)
        self.not_finite: list[str] = []

    def read(self, path: str) -> np.ndarray:
        """Reads one variable, float32 or as the file has it; notes values that are not finite."""
        value = self._reader.read(path)
        # The sum tells at the cost of one pass, and of no array of its own.
        with np.errstate(all="ignore"):
            if not np.isfinite(value.sum(dtype="float64")) and not np.isfinite(value).all():
                self.not_finite.append(path)
        return value

    def source(self) -> Source:
        """What has to be remembered to write the file again."""
        entries = self._store.entries
        shapes = {
            name: entries[name].shape
            for name, shape in self._wanted.items()
            if name in entries and entries[name].shape != shape
        }
        carried = [name for name in self.report.ignored if re.fullmatch(_CARRIED, name)]
        return Source(
            self._found.dialect,
            self._found.layout,
            shapes,
            {name: self._store.read(name) for name in carried},
            self._found.class_names,
        )


def _excuses(patterns: Iterable[str] | str) -> Callable[[str], bool]:
    """Whether one of the patterns is found in a name."""
    try:
        patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        compiled = [re.compile(pattern) for pattern in patterns]
        for pattern in compiled:
            pattern.search("")  # one of bytes compiles, and fails here
    except (re.error, TypeError) as error:
        raise CheckpointError(
            f"`skip` must be one regular expression or several ({error}). Received: {patterns!r}"
        ) from error
    return lambda name: any(pattern.search(name) for pattern in compiled)
