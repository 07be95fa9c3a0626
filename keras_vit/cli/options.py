"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import argparse
import ast
import contextlib
import sys
from pathlib import Path
from typing import Any


def positive(text: str) -> int:
    """A positive integer, for argparse."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


positive.__name__ = "positive integer"  # argparse's word for it


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
        type=_setting,
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


def _setting(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise ValueError
    with contextlib.suppress(ValueError, SyntaxError):
        return name, ast.literal_eval(value)
    return name, value


_setting.__name__ = "NAME=VALUE"


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
