"""Models from other projects' checkpoints, and back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.checkpoints import formats, reading, writing
from keras_vit.checkpoints.dialect import Hints
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.shapes import is_bit, weight_shapes
from keras_vit.models.base import FlatModel
from keras_vit.models.download import resolve_source
from keras_vit.models.file_config import class_of, config_of
from keras_vit.models.filling import fill, variables_of
from keras_vit.models.quantized import check_in_floats

# Stands for "as in the file", where None means something else.
AS_IN_FILE: Any = "as in the file"


def from_checkpoint(
    source,
    *,
    num_classes: int | None = AS_IN_FILE,
    image_shape=None,
    patch_size=None,
    skip: str | Iterable[str] = (),
    resampling: str | None = None,
    sha256: str | None = None,
    **arguments,
) -> FlatModel:
    """Builds the model that a checkpoint holds, with its weights.

    Project, architecture and settings are found from names, shapes and the JSON files beside the
    weights. Every array of the file must have its variable and every variable its array.

    Args:
        source: a `.npz`, `.safetensors` or `.weights.h5` file, a directory with one and its
            `config.json`, `"hf://owner/name"` or an `https://` address. Google (vit_jax,
            big_vision, BiT), timm, transformers, torchvision, OpenAI's CLIP, Meta's DINOv2 and
            keras-hub are known.
        num_classes: as in the file where left out; another number gives a fresh head, zero at
            first (and no Dense-tanh layer before it), `None` leaves the head off.
        image_shape: `(height, width, channels)`; for a new size positions are resampled.
        patch_size: int or `(height, width)`; the projection is resampled (FlexiViT), and image
            size stays, unless `image_shape` says otherwise.
        skip: regular expressions, found anywhere in names of theirs or ours, of what may be
            missing, left over or misshapen. Such variables stay fresh.
        resampling: key of `checkpoints.adapt.METHODS`; `None`: as the project itself does.
        sha256: digest that a downloaded file must have.
        **arguments: arguments of `VisionTransformer` or `BiTResNet`, such as `num_heads` where
            the file does not say it, `include_rescaling`, `drop_path_rate`, `dtype`.

    Returns:
        `VisionTransformer` or `BiTResNet`, compiled if it has a head.

    Raises:
        CheckpointError: naming file, arrays and remedy, if the file is damaged, of no known
            kind, or does not fit.
        ValueError: on arguments out of range.

    Example:
        ```python
        model = keras_vit.from_checkpoint("vit_base/", num_classes=10, image_shape=(384, 384, 3))
        ```
    """
    if image_shape is not None:
        image_shape = _checks.int_tuple("image_shape", image_shape, length=3)
    if num_classes is not AS_IN_FILE and num_classes is not None:
        _checks.positive_int("num_classes", num_classes)
    hints = Hints.of({**arguments, "image_shape": image_shape})
    with open_checkpoint(resolve_source(source, sha256=sha256)) as store:
        found = formats.detect(store, hints)
        config = config_of(found, arguments, store)
        changes = dict(arguments)
        if num_classes is not AS_IN_FILE and num_classes != config["num_classes"]:
            changes["num_classes"] = num_classes
            if not is_bit(config):
                changes.setdefault("representation_size", None)
            if num_classes is None:
                changes.setdefault("classifier_activation", None)
        if image_shape is not None:
            changes["image_shape"] = image_shape
        if patch_size is not None:
            if is_bit(config):
                raise ValueError("A BiT ResNet has no patches. Leave `patch_size` out.")
            changes["patch_size"] = patch_size
        # The file is compared before anything is built: damaged shapes build giants.
        weights = reading.Weights(store, found, config, skip)
        weights.report.raise_unless_clean(store.path)
        model = class_of(config)(**{**found.config, **changes})
        fill(model, weights, resampling or found.resampling, stream=True)
    return model


def load_checkpoint(
    model: FlatModel, source, *, skip: str | Iterable[str] = (), resampling: str | None = None
) -> None:
    """Gives a model the weights of a checkpoint, as `from_checkpoint` would.

    Positions are resampled if the image size differs, and so is the projection if the patch size
    does. A head with another number of classes stays as it is. On an error nothing is loaded.

    Args:
        model: `VisionTransformer` or `BiTResNet` of the same architecture.
        source: see `from_checkpoint`.
        skip: see `from_checkpoint`.
        resampling: see `from_checkpoint`.

    Raises:
        CheckpointError: if the file is damaged, of no known kind, or does not fit.
    """
    _check_model(model)
    current = model.flat_config
    with open_checkpoint(resolve_source(source)) as store:
        # The shape helps where the file does not say how its patches lie.
        found = formats.detect(store, Hints.of(current))
        config = config_of(found, {}, store)
        if is_bit(config) != is_bit(current):
            raise CheckpointError(
                f"{store.path} holds a {'BiT ResNet' if is_bit(config) else 'Vision Transformer'}, "
                f"and the model is a {type(model).__name__}. Build it by from_checkpoint."
            )
        weights = reading.Weights(store, found, config, skip)
        weights.report.raise_unless_clean(store.path)
        fill(model, weights, resampling or found.resampling, stream=False)


def to_checkpoint(
    model: FlatModel,
    path: str | os.PathLike,
    *,
    format: str,  # noqa: A002
    dtype: str = "float32",
    class_names: Iterable[str] | None = None,
) -> None:
    """Writes a model's weights in another project's own format.

    Args:
        model: `VisionTransformer` or `BiTResNet`.
        path: for `"google"` and `"big_vision"` a `.npz` file; for `"huggingface"` a directory,
            from which `transformers.AutoModel...from_pretrained` loads; for `"timm"` a directory
            (`timm.create_model("local-dir:...")`) or a `.safetensors` file; for `"torchvision"`,
            `"openai_clip"` and `"dinov2"` (Meta's names) a `.safetensors` file or a directory.
        format: one of `checkpoints.formats.FORMATS`.
        dtype: `"float32"`, `"float16"`, `"bfloat16"` or `"float64"`.
        class_names: names of the classes, in order; those of the checkpoint that the model came
            from, unless it has another head now.

    Raises:
        CheckpointError: if the format cannot hold the model; the message says why.

    A model that came from a file of the same project is written in that file's own layout. Where
    the project's code would run another GELU, epsilon or pixel range, a warning says so.
    transformers' `ViTModel` of a model without a head wants `add_pooling_layer=False`.
    """
    _check_model(model)
    check_in_floats(model, "to_checkpoint")
    config = dict(model.flat_config)
    variables = variables_of(model)
    names = None if class_names is None else _checked_names(class_names, config["num_classes"])
    writing.write(
        config,
        lambda path: keras.ops.convert_to_numpy(variables[path]).astype("float32", copy=False),
        path,
        format=format,
        source=model.source,
        dtype=dtype,
        class_names=names,
    )


def _check_model(model) -> None:
    if not isinstance(model, FlatModel):
        raise ValueError(
            "`model` must be a keras_vit VisionTransformer or BiTResNet. "
            f"Received: model of type {type(model).__name__}"
        )


def _checked_names(class_names, count: int | None) -> tuple[str, ...]:
    # A string is a sequence of strings too, and never meant as one.
    several = isinstance(class_names, Iterable) and not isinstance(class_names, str | bytes)
    names = tuple(name for name in (class_names if several else ()) if isinstance(name, str))
    if len(names) != count:
        raise CheckpointError(
            f"`class_names` must name {count} classes. Received: {len(names)} of "
            f"{type(class_names).__name__}"
        )
    return names


def convert_checkpoint(
    source,
    path: str | os.PathLike,
    *,
    format: str,  # noqa: A002
    dtype: str | None = None,
    skip: str | Iterable[str] = (),
    sha256: str | None = None,
    **arguments,
) -> None:
    """Writes another project's checkpoint in a third one's format, without building a model.

    One array at a time is in memory. To change image size or classes on the way, use
    `from_checkpoint` and `to_checkpoint`.

    Args:
        source: see `from_checkpoint`.
        path: see `to_checkpoint`.
        format: one of `checkpoints.formats.FORMATS`.
        dtype: see `to_checkpoint`; `None`: the file's, float32 where its arrays differ.
        skip: patterns, see `from_checkpoint`, of what may be left over.
        sha256: digest that a downloaded file must have.
        **arguments: arguments of the model, such as `num_heads` where the file does not say it,
            or the `image_shape` that it was made for.

    Raises:
        CheckpointError: as `from_checkpoint` and `to_checkpoint`; `path` is then as it was.
        ValueError: on arguments out of range.
    """
    hints = Hints.of(arguments)
    with open_checkpoint(resolve_source(source, sha256=sha256)) as store:
        found = formats.detect(store, hints)
        config = config_of(found, arguments, store)
        weights = reading.Weights(store, found, config, skip)
        weights.report.raise_unless_clean(store.path)
        if lacking := sorted(weight_shapes(config).keys() - set(weights.paths)):
            raise CheckpointError(
                f"{store.path} lacks {', '.join(lacking[:5])}, and a file of weights must have "
                "them: `skip` excuses only what is left over. Build a model by from_checkpoint."
            )

        def get(variable: str) -> np.ndarray:
            # Sums and products of half precision are made in float32.
            value = weights.read(variable)
            return value.astype("float32") if value.dtype == "float16" else value

        kinds = {entry.dtype for entry in store.entries.values() if "float" in entry.dtype}
        dtype = dtype or (kinds.pop() if len(kinds) == 1 else "float32")
        writing.write(config, get, path, format=format, source=weights.source(), dtype=dtype)
    if weights.not_finite:
        names = ", ".join(list(dict.fromkeys(weights.not_finite))[:5])
        warnings.warn(f"{source}: values are NaN or infinite in {names}", stacklevel=2)
