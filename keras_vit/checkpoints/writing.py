"""A model's weights written as a file of another project."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._atomic import umask
from keras_vit.checkpoints.dialect import Dialect, Source, to_metadata
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.files import ARRAYS, INDEX, write_documents
from keras_vit.checkpoints.fitting import Get, fit
from keras_vit.checkpoints.formats import format_of
from keras_vit.checkpoints.npz import write_npz
from keras_vit.checkpoints.rules import Writer, bind
from keras_vit.checkpoints.safetensors import write_safetensors
from keras_vit.checkpoints.shapes import Config, is_bit, weight_shapes
from keras_vit.checkpoints.store import FLOATS, Entry


def write(
    config: Config,
    get: Get,
    path: str | os.PathLike,
    *,
    format: str,  # noqa: A002
    source: Source | None = None,
    dtype: str = "float32",
    class_names: tuple[str, ...] | None = None,
) -> list[str]:
    """Writes weights in a project's own format; one array at a time is in memory.

    Args:
        config: the model's checked config, with all keys.
        get: gives the value of a variable by its path.
        path: a file ending in `.npz` or `.safetensors`, as the format has it, or, for
            safetensors, a directory, which then gets the project's JSON files too.
        format: see `formats.FORMATS`.
        source: where the weights came from; a file of the same project is written in its layout.
        dtype: of the arrays: `"float32"`, `"float16"`, `"bfloat16"` or `"float64"`.
        class_names: of the classes, for formats that have a place for them.

    Returns:
        Settings that the project's own code runs in another way than this model, in words; our
        loader reads them from the file. A warning says the same.

    Raises:
        CheckpointError: if the format cannot hold the model, or path or dtype are wrong.
    """
    dialect = format_of(format)
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise CheckpointError(f"`path` must name a file or directory. Received: path={path!r}")
    path = Path(os.fsdecode(path))
    if dtype not in FLOATS:
        raise CheckpointError(f"`dtype` must be one of {FLOATS}. Received: dtype={dtype!r}")
    _check_path(path, dialect)
    if is_bit(config) and not dialect.holds_bit:
        raise CheckpointError(
            f"The format {format!r} cannot hold this model: it has no BiT ResNets. "
            "Take format='google'."
        )
    same = source if source is not None and source.dialect == dialect.name else None
    layout = dialect.layout(config) if same is None else dialect.keep(config, same.layout)
    fitted = fit(config, get, dialect.target(config, layout), f"The format {format!r}")
    bindings, homeless = bind(
        weight_shapes(fitted.config), dialect.rows(fitted.config, layout), fitted.config
    )
    if homeless:
        raise CheckpointError(
            f"The format {format!r} cannot hold this model: it has no place for "
            f"{', '.join(homeless[:5])}."
        )
    writer = Writer(bindings, fitted.get, same.shapes if same else {}, dtype)
    entries, extras = dict(writer.entries), dict(same.extras if same else {})
    for name, shape in dialect.extras(fitted.config, layout).items():
        extras.setdefault(name, np.zeros(shape, "float32"))
    entries |= {name: Entry(value.shape, dtype) for name, value in extras.items()}

    def produce(name: str) -> np.ndarray:
        return extras[name] if name in extras else writer.produce(name)

    names = class_names or (source.class_names if source else None)
    _write(path, dialect, entries, produce, fitted.config, layout, names)
    if fitted.differences:
        warnings.warn(
            f"{dialect.title}'s own code runs this file with {', '.join(fitted.differences)}: its "
            "outputs will differ a little. keras_vit reads these settings from the file.",
            stacklevel=3,
        )
    return fitted.differences


def _check_path(path: Path, dialect: Dialect) -> None:
    suffix = f".{dialect.container}"
    folder_allowed = dialect.container == "safetensors"
    if path.suffix == suffix and not dialect.directory:
        wanted_parent = path.parent
    elif folder_allowed and path.suffix not in (".npz", ".safetensors"):
        wanted_parent = path.parent
        if path.exists() and not path.is_dir():
            raise CheckpointError(f"{path} is a file; the format {dialect.name!r} is a directory.")
        if (path / INDEX).exists():
            raise CheckpointError(
                f"{path} holds a model in several files, which would stay beside the new one: "
                "name another directory."
            )
    else:
        shapes = [] if dialect.directory else [f"a file ending in {suffix!r}"]
        shapes += ["a directory"] if folder_allowed else []
        raise CheckpointError(
            f"`path` must be {' or '.join(shapes)} for format={dialect.name!r}. "
            f"Received: path={str(path)!r}"
        )
    if not wanted_parent.is_dir():
        raise CheckpointError(f"No such directory: {wanted_parent}. Make it first.")


def _write(path: Path, dialect: Dialect, entries, produce, config, layout, names) -> None:
    metadata = to_metadata(config)
    if dialect.container == "npz":
        write_npz(path, entries, produce, metadata)
    elif path.suffix == ".safetensors":
        write_safetensors(path, entries, produce, metadata)
    else:
        _write_directory(path, dialect.documents(config, layout, names), entries, produce, metadata)


def _write_directory(path: Path, documents: Mapping[str, Any], entries, produce, metadata) -> None:
    """A new directory appears whole; in one that is there, each file is replaced whole."""
    partial = path
    try:
        if not path.exists():
            partial = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        write_safetensors(partial / ARRAYS, entries, produce, metadata)
        write_documents(partial, documents)
        if partial is not path:
            os.chmod(partial, 0o777 & ~umask())
            os.replace(partial, path)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error}). It needs a directory that may be written to, "
            "and no other process that makes the same one."
        ) from error
    finally:
        if partial is not path:
            shutil.rmtree(partial, ignore_errors=True)
