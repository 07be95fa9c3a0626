"""The config of the model in a file: what the file says, what the caller says, and the defaults."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.dialect import Found
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.shapes import Config, is_bit
from keras_vit.checkpoints.store import Store
from keras_vit.models import resnet, vit_config
from keras_vit.models.base import FlatModel
from keras_vit.models.resnet import BiTResNet
from keras_vit.models.vit import VisionTransformer

_NOT_IN_FILE = ("dtype", "name", "trainable", "frozen_layers")


def config_of(found: Found, arguments: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """The checked config of the model in a file.

    Args:
        found: what `formats.detect` made of the file.
        arguments: what the caller knows better.
        store: for messages.

    Raises:
        CheckpointError: if the file contradicts itself.
        ValueError: if the caller's arguments are out of range.
    """
    given = {key: value for key, value in arguments.items() if key not in _NOT_IN_FILE}
    try:
        complete({**found.config, "include_rescaling": False})
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{store.path} holds a model that cannot be: {error}") from error
    # Whether pixels are scaled is the business of the model that is built.
    return complete({"include_rescaling": False, **found.config, **given})


def complete(config: dict[str, Any]) -> dict[str, Any]:
    """Adds the defaults of the model's class, and checks everything.

    Args:
        config: some arguments of `VisionTransformer` or `BiTResNet`.

    Raises:
        ValueError: if one is unknown or out of range.
    """
    kind = class_of(config)
    parameters = inspect.signature(kind.__init__).parameters.items()
    defaults = {name: p.default for name, p in parameters if p.default is not p.empty}
    unknown = config.keys() - defaults.keys()
    if unknown:
        raise ValueError(
            f"Unknown arguments {sorted(unknown)}. Expected some of {sorted(defaults)}"
        )
    config = {k: v for k, v in {**defaults, **config}.items() if k not in _NOT_IN_FILE}
    return resnet.resolve(config) if is_bit(config) else vit_config.resolve(config)


def class_of(config: Config) -> type[FlatModel]:
    """The model class that a config belongs to."""
    return BiTResNet if is_bit(config) else VisionTransformer
