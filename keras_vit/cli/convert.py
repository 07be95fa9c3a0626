"""Writes a checkpoint in another project's format.

Where neither image size nor classes change, no model is built, and one array at a time is in
memory. Otherwise positions are resampled, and a head with another number of classes is fresh.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from keras_vit.cli import options as shared
from keras_vit.cli.describe import describe

KERAS = "keras"
# Stands for "as in the file", where None means no head; argparse would parse a string.
_AS_IN_FILE = object()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from keras_vit.checkpoints.adapt import METHODS
    from keras_vit.checkpoints.formats import FORMATS
    from keras_vit.checkpoints.store import FLOATS

    parser.add_argument(
        "source",
        metavar="SRC",
        help="file, directory, hf:// or https:// address, or a .keras file of this package",
    )
    parser.add_argument("path", metavar="DST", type=Path, help="file or directory to write")
    parser.add_argument("--to", required=True, choices=(*FORMATS, KERAS), help="format of DST")
    shared.add_model_options(parser)
    parser.add_argument(
        "--num-classes",
        type=_classes,
        default=_AS_IN_FILE,
        metavar="N",
        help="another number gives a fresh head, 'none' leaves the head off",
    )
    parser.add_argument(
        "--dtype",
        choices=FLOATS,
        help="of the arrays in DST; the file's where left out. In a .keras file the model "
        "computes in it too",
    )
    parser.add_argument(
        "--skip",
        nargs="+",
        action="extend",
        default=[],
        metavar="REGEX",
        help="names that may be left over; where a model is built, missing or misshapen too",
    )
    parser.add_argument(
        "--resampling", choices=tuple(METHODS), help="of positions; as the project does by itself"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace DST if it is there")


def _classes(text: str) -> int | None:
    return None if text.lower() == "none" else shared.positive(text)


_classes.__name__ = "number of classes"


def run(options: argparse.Namespace) -> int:
    """Converts, and says what was found and written."""
    _check_path(options)
    if options.source.endswith(".keras") and "://" not in options.source:
        _from_keras(options)
    else:
        _from_checkpoint(options)
    size = shared.megabytes(shared.bytes_on_disk(options.path))
    print(f"wrote  {options.path} ({options.to}), {size}")
    return 0


def _check_path(options: argparse.Namespace) -> None:
    path = options.path
    if (path.suffix == ".keras") != (options.to == KERAS):
        raise ValueError(
            f"DST must {'' if options.to == KERAS else 'not '}end in '.keras' for "
            f"--to {options.to}. Received: {path}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"No such directory: {path.parent}. Make it first.")
    if path.exists() and not options.overwrite:
        raise ValueError(f"{path} is there already: name another place, or pass --overwrite.")
    if path.is_dir() and options.to == KERAS:
        raise ValueError(f"{path} is a directory; expected a file.")


def _from_keras(options: argparse.Namespace) -> None:
    from keras_vit.counts import count_params
    from keras_vit.models.base import FlatModel
    from keras_vit.models.loading import load_model
    from keras_vit.models.surgery import replace_head, resize

    given = {"num_heads": "--num-heads", "set": "--set", "skip": "--skip"}
    given |= {"resampling": "--resampling"}
    wrong = [option for name, option in given.items() if getattr(options, name)]
    wrong += ["--dtype"] if options.dtype and options.to == KERAS else []
    if wrong:
        raise ValueError(f"A .keras file says everything itself: leave out {', '.join(wrong)}.")
    model: Any = load_model(options.source, compile=False)
    if not isinstance(model, FlatModel):
        raise ValueError(
            f"{options.source} holds a {type(model).__name__}; expected a VisionTransformer or "
            "BiTResNet of keras_vit."
        )
    config = model.flat_config
    print(f"found  {type(model).__name__} of keras_vit, {count_params(model):,} parameters")
    if options.num_classes not in (_AS_IN_FILE, config["num_classes"]):
        model = replace_head(model, options.num_classes)
    if options.image_size not in (None, config["image_shape"][:2]):
        model = resize(model, (*options.image_size, config["image_shape"][2]))
    _write(model, options, options.dtype or "float32")


def _from_checkpoint(options: argparse.Namespace) -> None:
    from keras_vit.models.checkpoints import convert_checkpoint, from_checkpoint

    source = shared.resolved(options.source)
    arguments = shared.model_arguments(options)
    found = describe(source, options.image_size, arguments)
    name = found["variant"] or found["architecture"]
    dtypes = [dtype for dtype in found["arrays"] if "float" in dtype]
    print(
        f"found  {found['project']}, {name}, {found['parameters']:,} parameters, "
        f"{', '.join(dtypes)}, {shared.megabytes(found['bytes_on_disk'])}"
    )
    shape = tuple(found["image_shape"])
    changes: dict[str, Any] = {}
    if options.num_classes not in (_AS_IN_FILE, found["classes"]):
        changes["num_classes"] = options.num_classes
    if options.image_size not in (None, shape[:2]):
        changes["image_shape"] = (*options.image_size, shape[2])
    if not changes and options.to != KERAS:
        if options.image_size is not None:
            arguments["image_shape"] = shape
        convert_checkpoint(
            source,
            options.path,
            format=options.to,
            dtype=options.dtype,
            skip=options.skip,
            **arguments,
        )
        return
    if options.image_size is not None:
        changes["image_shape"] = (*options.image_size, shape[2])
    if options.to == KERAS and options.dtype:
        changes["dtype"] = options.dtype
    model = from_checkpoint(
        source, skip=options.skip, resampling=options.resampling, **arguments, **changes
    )
    _write(model, options, options.dtype or (dtypes[0] if len(dtypes) == 1 else "float32"))


def _write(model, options: argparse.Namespace, dtype: str) -> None:
    from keras_vit.models.checkpoints import to_checkpoint

    if options.to == KERAS:
        model.save(options.path)
    else:
        to_checkpoint(model, options.path, format=options.to, dtype=dtype)
