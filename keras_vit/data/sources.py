"""Opens whatever holds labelled pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit.data import tfds_source
from keras_vit.data.arrays import ArraySource
from keras_vit.data.folder import open_csv, open_folder
from keras_vit.data.records import open_records
from keras_vit.data.source import Source, printable, split_source

TRAINING_FOLDERS = ("train", "training")
VALIDATION_FOLDERS = ("val", "valid", "validation", "test")
_PARTS = (*TRAINING_FOLDERS, *VALIDATION_FOLDERS)


def open_source(
    spec: Any,
    split: str | None = None,
    *,
    class_names: Sequence[str] | None = None,
    data_dir: str | os.PathLike | None = None,
) -> Source:
    """Opens a source of labelled pictures.

    Args:
        spec: a folder with a sub-folder a class; a CSV file of file names and labels;
            "tfds:NAME[:split]", prepared on this machine; "tfrecord:PATTERN"; arrays
            `(images, labels)`; or a `Source`, which is returned as it is.
        split: of a tfds data set, in place of the one in `spec`; of a folder, the sub-folder with
            the classes, such as "train".
        class_names: classes in the order of the labels, such as those of the training data.
            Ignored for tfds and sources.
        data_dir: where tfds data sets lie, instead of TFDS_DATA_DIR.

    Returns:
        The source.

    Raises:
        ValueError: if it is none of these, or holds no pictures.
    """
    if isinstance(spec, Source):
        _no_split(split, "a Source")
        return spec
    if isinstance(spec, (tuple, list)) and len(spec) == 2 and not isinstance(spec[0], str):
        _no_split(split, "arrays")
        return ArraySource(*spec, class_names=class_names)
    if not isinstance(spec, (str, os.PathLike)):
        raise ValueError(
            "Expected a folder, a CSV file, tfds:NAME[:split], tfrecord:PATTERN, arrays "
            f"(images, labels), or a Source. Received: {type(spec).__name__}"
        )
    text = os.fspath(spec)
    if text.startswith("tfds:"):
        return tfds_source.open_tfds(text, split, data_dir)
    if text.startswith("tfrecord:"):
        _no_split(split, "TFRecord files")
        return open_records(text.removeprefix("tfrecord:"), class_names)
    path = Path(text).expanduser()
    if path.is_file():
        _no_split(split, "a CSV file")
        if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
            raise ValueError(
                f"{printable(text)} is a file, but no CSV file. Expected a folder, or a file "
                "of file names and labels whose name ends in .csv"
            )
        return open_csv(path, class_names)
    if split is None and class_names is None:
        _check_layout(path)
    return open_folder(path if split is None else path / split, class_names)


def open_splits(
    data: Any, validation: Any = None, *, held_out: float = 0.1, seed: int = 0
) -> tuple[Source, Source | None]:
    """Opens what is trained on and what is validated on, of the same classes.

    Args:
        data: what `open_source` takes; or a folder that has `train/` and `val/` or `test/`.
        validation: what `open_source` takes. If it is left out: the `val/` or `test/` beside
            `train/`; of a tfds data set without a split in `data`, its "validation" or "test";
            else a part of `data`.
        held_out: share of `data` that is held out where there is nothing else; 0 for none.
        seed: of the part that is held out.

    Returns:
        `(training, validation or None)`.

    Raises:
        ValueError: as `open_source`, or if the classes differ.
    """
    part = other = None
    if isinstance(data, (str, os.PathLike)):
        part, other = _parts(os.fspath(data))
    training = open_source(data, part)
    if validation is None and other is not None:
        names = None if os.fspath(data).startswith("tfds:") else training.class_names
        return training, open_source(data, other, class_names=names)
    if validation is None:
        return split_source(training, held_out, seed) if held_out else (training, None)
    named = isinstance(validation, (str, os.PathLike))
    opened = open_source(validation, class_names=training.class_names if named else None)
    if opened.num_classes != training.num_classes and named:
        raise ValueError(
            f"{opened.description} must have the {training.num_classes} classes of "
            f"{training.description}. Received: {opened.num_classes}"
        )
    return training, opened


def _parts(text: str) -> tuple[str | None, str | None]:
    """What to train and to validate on, where the data has parts of its own."""
    if text.startswith("tfds:"):
        if tfds_source.parse(text)[2] is not None:
            return None, None
        known = tfds_source.splits(text)
        names = tfds_source.TRAINING_SPLITS, tfds_source.VALIDATION_SPLITS
    elif text.startswith("tfrecord:"):
        return None, None
    else:
        path = Path(text).expanduser()
        known = [name for name in _PARTS if (path / name).is_dir()]
        names = TRAINING_FOLDERS, VALIDATION_FOLDERS
    part, other = (next((n for n in wanted if n in known), None) for wanted in names)
    return (None, None) if part is None else (part, other)


def _check_layout(path: Path) -> None:
    """Parts of a data set must not be taken for classes."""
    if not path.is_dir():
        return
    inside = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
    parts = sorted(name for name in inside if (path / name).is_dir())
    if parts and set(parts) <= set(_PARTS) and any(name in TRAINING_FOLDERS for name in parts):
        raise ValueError(
            f"{printable(str(path))} has {', '.join(f'{name}/' for name in parts)}: say which, as "
            f"{printable(str(path / parts[0]))} or by `split`."
        )


def _no_split(split: str | None, what: str) -> None:
    if split is not None:
        raise ValueError(f"`split` does not go with {what}. Received: split={split!r}")
