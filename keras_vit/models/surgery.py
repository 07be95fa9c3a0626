"""New models from old ones: another head, another image size, the weights kept."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.checkpoints.adapt import resample_axis, resample_positions
from keras_vit.models.base import FlatModel
from keras_vit.models.quantized import check_in_floats
from keras_vit.models.vit import VisionTransformer

HEAD_LAYERS = ("pre_logits", "head", "head_dist")


def replace_head(model: FlatModel, num_classes: int | None, **changes) -> FlatModel:
    """Returns a new model with a fresh, zero-initialised head; all other weights are copied.

    Args:
        model: `VisionTransformer` or `BiTResNet`.
        num_classes: classes of the new head; `None` for features.
        **changes: `representation_size`, `classifier_activation`, or other arguments that leave
            the other weights' shapes alone, such as `dropout_rate` or `drop_path_rate`.

    Returns:
        A new model of the same class, freshly compiled. The old one is unchanged.

    Raises:
        ValueError: on arguments out of range, or changes that other weights do not survive.
    """
    _check_model(model)
    changes = {"num_classes": num_classes, **changes}
    if num_classes is None:
        changes.setdefault("classifier_activation", None)
    if isinstance(model, VisionTransformer):
        changes.setdefault("representation_size", None)
    return _rebuild(model, changes, fresh=HEAD_LAYERS)


def resize(model: FlatModel, image_shape: Sequence[int]) -> FlatModel:
    """Returns a new model for another image size; learned positions are resampled.

    The patch stays, so the number of patches changes: positions go through the official rule,
    see `checkpoints.adapt.resample_positions`. A warning says so. Relative positions are
    resampled along the one-dimensional offset, which mixes rows where the grid's width changes:
    fine-tune such a model.

    Args:
        model: `VisionTransformer` or `BiTResNet`.
        image_shape: `(height, width, channels)`; the channels stay.

    Returns:
        A new model of the same class, freshly compiled. The old one is unchanged.

    Raises:
        ValueError: if the patch does not divide the new size, or the channels change.

    Reference:
        arXiv 2010.11929, section 3.2.
    """
    _check_model(model)
    image_shape = _checks.int_tuple("image_shape", image_shape, length=3)
    channels = model.get_config()["image_shape"][-1]
    if image_shape[-1] != channels:
        raise ValueError(
            f"`image_shape` must keep the model's {channels} channels. "
            f"Received: image_shape={image_shape}"
        )
    return _rebuild(model, {"image_shape": image_shape}, fresh=())


def _check_model(model) -> None:
    if not isinstance(model, FlatModel):
        raise ValueError(
            "`model` must be a keras_vit VisionTransformer or BiTResNet. "
            f"Received: model of type {type(model).__name__}"
        )
    check_in_floats(model, "To rebuild a model")


def _rebuild(model: FlatModel, changes: dict, fresh: tuple[str, ...]) -> FlatModel:
    config = model.get_config()
    unknown = changes.keys() - config.keys()
    if unknown:
        raise ValueError(f"Unknown arguments {sorted(unknown)}. Expected some of {sorted(config)}")
    new = type(model).from_config({**config, **changes})
    adapt = _adaptation(model, new)
    old = {v.path: v for v in model.weights}
    resampled, pending = [], []
    for variable in new.weights:
        if variable.path.split("/")[0] in fresh:
            continue
        source = old.get(variable.path)
        value = None if source is None else keras.ops.convert_to_numpy(source)
        if value is not None:
            kept, value = value, adapt(variable.path, value)
            if value is not kept:
                resampled.append(variable.path)
        if value is None or value.shape != tuple(variable.shape):
            raise ValueError(
                f"{sorted(changes)} change more than head or image size: {variable.path} would "
                f"have shape {tuple(variable.shape)}. Received: "
                f"{'no such weight' if source is None else f'shape {tuple(source.shape)}'}"
            )
        pending.append((variable, value))
    for variable, value in pending:
        variable.assign(value)
    if resampled:
        warnings.warn(
            f"Positions were resampled from a grid of {model.grid_shape} to {new.grid_shape} "
            f"patches: {', '.join(resampled)}",
            stacklevel=3,
        )
    return new


def _adaptation(old: FlatModel, new: FlatModel):
    """A function from path and old value to the value for the new grid, the same where none is due.

    The shape does not tell: grids of 4 x 6 and 6 x 4 patches have tables of the same size.
    """
    if not isinstance(old, VisionTransformer) or not isinstance(new, VisionTransformer):
        return lambda path, value: value
    before, (height, width) = old.grid_shape, new.grid_shape
    rules = {
        r"position_embedding(_\d+)?/embedding": lambda t: resample_positions(
            t, before, (height, width)
        ),
        r"x_embedding": lambda t: _resample_rows(t, width),
        r"y_embedding": lambda t: _resample_rows(t, height),
        r"relative_position/embedding": lambda t: _resample_rows(t, 2 * height * width - 1),
    }

    def adapt(path: str, value: np.ndarray) -> np.ndarray:
        for ending, rule in rules.items():
            if re.search(f"(^|/){ending}$", path):
                return rule(value)
        return value

    return adapt


def _resample_rows(table: np.ndarray, rows: int) -> np.ndarray:
    if table.shape[0] == rows:
        return table
    return resample_axis(table, 0, rows).astype(table.dtype)
