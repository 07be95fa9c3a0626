"""Data sets that tensorflow-datasets has prepared on this machine. The network is never asked.

The prepared files are found by their place and read as TFRecords, so no builder's code runs, and
pictures come as the bytes that were stored.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from keras_vit import _deps
from keras_vit.data.records import Part, RecordSource

_SPEC = re.compile(
    r"tfds:(?P<name>\w+(?:/[\w.+-]+)?)(?::(?P<version>\d+\.\d+\.\d+))?(?::(?P<split>.+))?"
)
_INFO = "dataset_info.json"
# In order of preference, to train and to validate on.
TRAINING_SPLITS = ("train",)
VALIDATION_SPLITS = ("validation", "valid", "val", "test")


def parse(spec: str) -> tuple[str, str | None, str | None]:
    """Takes "tfds:NAME[/CONFIG][:VERSION][:SPLIT]" apart.

    Returns:
        `(name and config, version, split)`.
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise ValueError(
            "Expected tfds:NAME[/CONFIG][:VERSION][:SPLIT], such as tfds:beans or "
            f"tfds:mnist:train[:90%]. Received: {spec!r}"
        )
    return found["name"], found["version"], found["split"]


def open_tfds(
    spec: str, split: str | None = None, data_dir: str | os.PathLike | None = None
) -> RecordSource:
    """Opens a split of a prepared data set.

    Args:
        spec: "tfds:NAME[/CONFIG][:VERSION][:SPLIT]".
        split: takes the place of the one in `spec`, in the words of tensorflow-datasets; without
            either, "train", or the only split.
        data_dir: where data sets lie; by default TFDS_DATA_DIR, else ~/tensorflow_datasets.

    Raises:
        ValueError: if it is not prepared, has no such split, or no picture with one label.
        ImportError: if tensorflow-datasets is not installed.
    """
    name, version, own = parse(spec)
    folder = _find(name, version, data_dir)
    tfds: Any = _deps.optional("tensorflow_datasets", "data", f"Reading {spec}")
    info = tfds.builder_from_directory(str(folder)).info
    split = split or own or _default(list(info.splits))
    try:
        part = info.splits[split]
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{spec} has no split {split!r}. Expected one of {sorted(info.splits)}, or a part such "
            f"as '{sorted(info.splits)[0]}[:10%]'."
        ) from error
    image_key, label_key, names = _features(tfds, info, spec)
    form = getattr(info.file_format, "value", "tfrecord")
    if form != "tfrecord":
        raise ValueError(
            f"{spec} is stored as {form}. Prepare it with file_format='tfrecord', which is read "
            "here."
        )
    files = [
        Part(os.fspath(file.filename), file.skip, None if file.take < 0 else file.take)
        for file in part.file_instructions
    ]
    return RecordSource(files, names, f"tfds {name}:{split}", image_key, label_key)


def splits(spec: str, data_dir: str | os.PathLike | None = None) -> list[str]:
    """Names of a prepared data set's splits."""
    name, version, _ = parse(spec)
    tfds: Any = _deps.optional("tensorflow_datasets", "data", f"Reading {spec}")
    return sorted(tfds.builder_from_directory(str(_find(name, version, data_dir))).info.splits)


def _default(names: list[str]) -> str:
    for name in (*TRAINING_SPLITS, *(names if len(names) == 1 else ())):
        if name in names:
            return name
    raise ValueError(f"Say which split, as tfds:NAME:SPLIT. Expected one of {sorted(names)}")


def _find(name: str, version: str | None, data_dir: str | os.PathLike | None) -> Path:
    """The folder of a prepared data set, the highest version if none is given."""
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    root = Path(root).expanduser()
    found = [path.parent for path in (root / name).glob(f"*/{_INFO}")]
    if not found and "/" not in name:  # its only configuration
        found = [path.parent for path in (root / name).glob(f"*/*/{_INFO}")]
        if len({path.parent for path in found}) > 1:
            configs = sorted({f"{name}/{path.parent.name}" for path in found})
            raise ValueError(f"Say which configuration of {name}. Expected one of {configs}")
    # Others are left over by a preparation that was broken off.
    found = [path for path in found if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
    if version is not None:
        found = [path for path in found if path.name == version]
    if not found:
        wanted = name if version is None else f"{name}:{version}"
        raise ValueError(
            f"tensorflow-datasets has not prepared {wanted} in {root}, and nothing is downloaded "
            'here; where there is a network, run: python -c "import tensorflow_datasets as tfds; '
            f"tfds.builder('{wanted}', data_dir='{root}').download_and_prepare()\" (another place "
            "is named by TFDS_DATA_DIR)."
        )
    return max(found, key=lambda path: [int(x) for x in re.findall(r"\d+", path.name)])


def _features(tfds: Any, info: Any, spec: str) -> tuple[str, str, tuple[str, ...] | None]:
    """Names of the picture's and the label's feature, and the classes' names if they have some."""
    features = dict(info.features)
    images = [k for k, f in features.items() if isinstance(f, tfds.features.Image)]
    labels = [k for k, f in features.items() if isinstance(f, tfds.features.ClassLabel)]
    labels = labels or [k for k, f in features.items() if _is_integer(f)]
    named = info.supervised_keys or ()
    image_key = next((k for k in named if k in images), images[0] if images else None)
    label_key = next((k for k in named if k in labels), labels[0] if labels else None)
    if image_key is None or label_key is None:
        raise ValueError(
            f"{spec} must have a picture and a class label. Received: features {sorted(features)}"
        )
    names = getattr(features[label_key], "names", None)
    return image_key, label_key, tuple(names) if names else None


def _is_integer(feature: Any) -> bool:
    dtype, shape = getattr(feature, "np_dtype", None), getattr(feature, "shape", None)
    return shape == () and dtype is not None and getattr(dtype, "kind", "") in "ui"
