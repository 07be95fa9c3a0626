"""What a file has and a model needs, compared by names and shapes alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.rules import Binding, expected
from keras_vit.checkpoints.shapes import Shape
from keras_vit.checkpoints.store import Entry, Store


@dataclass(frozen=True)
class Report:
    """What a strict load would find.

    Attributes:
        missing: arrays that the model needs and the file lacks.
        unused: arrays of the file that the model has no variable for.
        misshapen: arrays of another shape or of no float dtype, with both.
        ignored: arrays that are known to serve something else.
    """

    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether everything fits."""
        return not (self.missing or self.unused or self.misshapen)

    def lines(self) -> list[str]:
        """The report in words, one problem a line."""
        return [
            *(f"missing: {entry}" for entry in self.missing),
            *(f"unused: {entry}" for entry in self.unused),
            *(f"misshapen: {entry}" for entry in self.misshapen),
        ]

    def raise_unless_clean(self, path) -> None:
        """Raises a CheckpointError that lists all problems, unless there is none."""
        if self.clean:
            return
        lines = self.lines()
        shown = lines[:20] + ([f"and {len(lines) - 20} more"] if len(lines) > 20 else [])
        raise CheckpointError(
            f"{path} does not fit the model: {len(self.missing)} arrays missing, "
            f"{len(self.unused)} unused, {len(self.misshapen)} misshapen:\n  "
            + "\n  ".join(shown)
            + "\nTake the model's own file, change the arguments that these names point to, or "
            "excuse names by a pattern in `skip`."
        )


def compare(
    store: Store,
    bindings: Iterable[Binding],
    ignored: str = r"(?!)",
    skip: Callable[[str], bool] = lambda name: False,
) -> Report:
    """Compares a file's header with what a model needs.

    Args:
        store: the open checkpoint.
        bindings: the model's variables.
        ignored: pattern of names, in full, that serve something else.
        skip: whether a name, theirs or ours, is excused.
    """
    owners: dict[str, list[str]] = {}
    cut: set[str] = set()
    bindings = list(bindings)
    for binding in bindings:
        for ref in binding.refs:
            owners.setdefault(ref.name, []).append(binding.path)
            if ref.index is not None or ref.part is not None:
                cut.add(ref.name)
    wanted = expected(bindings)
    missing, misshapen = [], []
    for name, shape in wanted.items():
        if skip(name) or all(skip(path) for path in owners[name]):
            continue
        entry = store.entries.get(name)
        if entry is None:
            missing.append(f"{name} {shape}, for {owners[name][0]}")
        elif not _fits(entry, shape, exactly=name in cut):
            misshapen.append(
                f"{name} has shape {entry.shape} and dtype {entry.dtype}; expected floats of "
                f"shape {shape}, for {owners[name][0]}"
            )
    left = [name for name in store.entries if name not in wanted]
    known = [name for name in left if re.fullmatch(ignored, name)]
    unused = [
        f"{name} {store.entries[name].shape}"
        for name in left
        if name not in known and not skip(name)
    ]
    return Report(tuple(missing), tuple(unused), tuple(misshapen), tuple(known))


def _fits(entry: Entry, shape: Shape, exactly: bool) -> bool:
    """Axes of length one may stand elsewhere, as norm scales come as (1, 1, 1, C) too.

    Not so in an array that is cut along its first axis.
    """
    if "float" not in entry.dtype or exactly:
        return "float" in entry.dtype and entry.shape == shape
    return [n for n in entry.shape if n != 1] == [n for n in shape if n != 1]
