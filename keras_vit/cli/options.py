"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import argparse
import ast
import contextlib
import glob
import sys
from pathlib import Path
from typing import Any

from keras_vit._deps import BACKENDS
from keras_vit.recipe import EVALUATION_CROPS


def positive(text: str) -> int:
    """A positive integer, for argparse."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


positive.__name__ = "positive integer"  # argparse's word for it


def port(text: str) -> int:
    """A port, for argparse; 0 stands for any that is free."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError
    return value


port.__name__ = "port"


def size(text: str) -> tuple[int, int]:
    """Height and width as N or HEIGHTxWIDTH, for argparse."""
    sides = [positive(side) for side in text.split("x")]
    if len(sides) > 2:
        raise ValueError
    return sides[0], sides[-1]


size.__name__ = "size (N or HEIGHTxWIDTH)"


CROPS = (
    "what of a picture is seen: all of it, its aspect ratio lost (squash), the centre "
    "(resize_small), or pictures of the very size (none); the run's, else squash"
)


class _Size(argparse.Action):
    """One side, or height and width."""

    def __call__(self, parser, namespace, values, option_string=None):
        sides: Any = values
        if len(sides) > 2:
            parser.error(f"argument {option_string}: expected N, or HEIGHT WIDTH")
        setattr(namespace, self.dest, (sides[0], sides[-1]))


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what a file leaves open."""
    parser.add_argument(
        "--num-heads", type=positive, metavar="N", help="attention heads, if the file is silent"
    )
    parser.add_argument(
        "--image-size",
        type=positive,
        nargs="+",
        action=_Size,
        metavar="N",
        help="side, or height and width, of the images",
    )
    parser.add_argument(
        "--set",
        type=setting,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="another argument of the model, such as activation=gelu or pixel_range=clip",
    )


def model_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the model that were given, but for the image size."""
    arguments = dict(options.set)
    if options.num_heads is not None:
        arguments["num_heads"] = options.num_heads
    return arguments


def add_backend_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--backend`, which `main` acts on before Keras is imported."""
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        help="what Keras runs on; else KERAS_BACKEND, or what is there",
    )


def add_data_option(parser: argparse.ArgumentParser, name: str = "--data", **kwargs) -> None:
    """Adds an option that names labelled pictures; see `check_data`."""
    help_text = "folder with a folder a class, CSV file, tfds:NAME[:split], or tfrecord:PATTERN"
    parser.add_argument(name, metavar="DATA", **{"help": help_text, **kwargs})


def add_source_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--model`, what `cli.models.load` takes."""
    parser.add_argument(
        "--model",
        required=True,
        metavar="SRC",
        help="a run's directory, .keras file, checkpoint, hf:// or https:// address",
    )


def add_inference_options(parser: argparse.ArgumentParser, batch_size: int, json: str) -> None:
    """Adds what evaluation and prediction share: the model, how pictures come, what is printed."""
    add_source_option(parser)
    parser.add_argument("--batch-size", type=positive, default=batch_size, metavar="N")
    parser.add_argument("--crop", choices=EVALUATION_CROPS, help=CROPS)
    parser.add_argument("--json", action="store_true", help=json)
    add_backend_option(parser)


def add_looked_at_options(parser: argparse.ArgumentParser) -> None:
    """Adds the model that is looked into, and how pictures come to it."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a run's directory, .keras file, checkpoint, hf:// or https:// address",
    )
    parser.add_argument(
        "--image-size",
        type=size,
        metavar="N",
        help="side in pixels, or HEIGHTxWIDTH, to look at pictures in; positions are resampled "
        "(the model's own)",
    )
    parser.add_argument("--crop", choices=EVALUATION_CROPS, help=CROPS)
    add_backend_option(parser)


def picture_paths(patterns: list[str]) -> list[str]:
    """The files that names and patterns stand for, each once.

    Raises:
        ValueError: if there are none for one of them, or it is a directory.
    """
    found: list[str] = []
    for pattern in patterns:
        # A file whose name looks like a pattern is meant itself.
        names = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
        names = [name for name in names if not Path(name).is_dir()]
        if not names and Path(pattern).is_dir():
            raise ValueError(f"{pattern} is a directory: name its pictures, as '{pattern}/*.jpg'.")
        if not names:
            raise ValueError(f"No such file, and no file matches: {pattern}")
        found += names
    return list(dict.fromkeys(found))


def check_data(option: str, spec: str | None) -> None:
    """Raises a ValueError unless a data option names something that can be there."""
    if spec is None or spec.startswith(("tfds:", "tfrecord:")):
        kind, _, name = (spec or "tfds:?").partition(":")
        if not name:
            raise ValueError(f"{option} must name something behind the colon. Received: {spec}")
        if kind == "tfrecord" and "://" not in name and not glob.glob(name):
            raise ValueError(f"{option}: no file matches the pattern. Received: {spec}")
        return
    if not Path(spec).expanduser().exists():
        raise ValueError(
            f"{option}: no such folder or file. Expected a folder with a folder a class, a CSV "
            f"file, tfds:NAME[:split], or tfrecord:PATTERN. Received: {spec}"
        )


def check_model(option: str, name: str) -> None:
    """Raises a ValueError where a model is named by a local path that is not there."""
    if "://" not in name and not Path(name).expanduser().exists():
        raise ValueError(f"{option}: no such file or directory. Received: {name}")


def short_name(source: str) -> str:
    """The end of a model's path or address: a file's name, and the folder that it is in."""
    return "/".join(Path(source).parts[-2:])


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, for argparse; the value as Python writes it, else as text."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise ValueError
    with contextlib.suppress(ValueError, SyntaxError):
        return name, ast.literal_eval(value)
    return name, value


setting.__name__ = "NAME=VALUE"


def resolved(source: str) -> Path:
    """The local path of a source; the progress of a download goes to stderr."""
    from keras_vit.models.download import resolve_source

    with contextlib.redirect_stdout(sys.stderr):
        return resolve_source(source)


def bytes_on_disk(path: Path) -> int:
    """Bytes of a file, or of all files of a directory; of an index, with its shards."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if path.name.endswith(".index.json"):
        shards = path.parent.glob(f"{path.name.removesuffix('.safetensors.index.json')}-*")
        return sum(file.stat().st_size for file in (path, *shards))
    return path.stat().st_size


def megabytes(count: int) -> str:
    """A number of bytes in words."""
    return f"{count:,} bytes" if count < 100_000 else f"{count / 1e6:,.1f} MB"
