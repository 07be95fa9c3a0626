"""Puts the weights of a file into a model: what fits, what is fresh, what is resampled."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit.checkpoints.adapt import METHODS, resample_patch_kernel, resample_positions
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.fitting import Fitted, fit, target_of
from keras_vit.checkpoints.reading import Weights
from keras_vit.checkpoints.shapes import Config, grid_shape, is_bit, weight_shapes
from keras_vit.models.base import FlatModel
from keras_vit.models.surgery import HEAD_LAYERS

_POSITIONS = "patch_encoder/position_embedding/embedding"
_KERNEL = "patch_encoder/projection/kernel"


def fill(model: FlatModel, weights: Weights, resampling: str, *, stream: bool) -> None:
    """Checks that a model and a file's weights belong together, then assigns.

    Args:
        model: `VisionTransformer` or `BiTResNet`.
        weights: the file's; its report is clean.
        resampling: key of `checkpoints.adapt.METHODS`.
        stream: whether each value is assigned as soon as it is read; otherwise all are read
            before the first is assigned, so that damage leaves the model as it was.

    Raises:
        CheckpointError: if they do not belong together, or the file is damaged.
        ValueError: on an unknown `resampling`.
    """
    now, path = model.flat_config, weights.path
    fitted = fit(weights.config, weights.read, target_of(now), f"The model of {path}")
    adapt = _adaptation(fitted.config, now, resampling)
    variables, fresh = variables_of(model), _fresh(fitted.config, now)
    plan = _plan(path, fitted.config, now, variables, fresh, weights.skip)
    values = ((variables[name], adapt(name, _read(fitted, name))) for name in plan)
    for variable, value in values if stream else list(values):
        if value is not None:
            variable.assign(value)
    source = weights.source()
    # The names are those of the file's classes.
    model.source = dataclasses.replace(source, class_names=None) if fresh else source
    _tell(path, fitted.config, now, fresh, fitted.differences, weights.not_finite)


def variables_of(model: FlatModel) -> dict[str, Any]:
    """The model's weights by path, without the states of random layers."""
    return {v.path: v for v in model.weights if "seed_generator" not in v.path}


def _plan(
    file, config: Config, now: Config, variables, fresh, excused: Callable[[str], bool]
) -> list[str]:
    """The variables to load.

    Raises:
        CheckpointError: listing what file and model do not have in common.
    """
    # Size and patch are resampled, channels are not.
    adapted = {"image_shape": (*now["image_shape"][:2], config["image_shape"][2])}
    if not is_bit(config):
        adapted["patch_size"] = now["patch_size"]
    shapes = weight_shapes({**config, **adapted})
    shapes = {path: shape for path, shape in shapes.items() if path.split("/")[0] not in fresh}
    ours = {
        path: tuple(variable.shape)
        for path, variable in variables.items()
        if path.split("/")[0] not in fresh
    }
    faults = [
        f"{path}: {shapes.get(path, 'nothing')} in the file, {ours.get(path, 'nothing')} here"
        for path in sorted(shapes.keys() | ours.keys())
        if shapes.get(path) != ours.get(path) and not excused(path)
    ]
    if faults:
        more = [f"and {len(faults) - 10} more"] if len(faults) > 10 else []
        raise CheckpointError(
            f"{file} does not fit the model:\n  "
            + "\n  ".join(faults[:10] + more)
            + "\nBuild the model that the file holds by from_checkpoint, or excuse names by a "
            "pattern in `skip`."
        )
    return [path for path in ours if shapes.get(path) == ours[path]]


def _read(fitted: Fitted, path: str) -> np.ndarray | None:
    """A value, or `None` for what `skip` excuses and the file does not have."""
    try:
        return fitted.get(path)
    except KeyError:
        return None


def _fresh(config: Config, now: Config) -> tuple[str, ...]:
    """The layers of a head that is not the file's: they stay as the model made them."""
    if config["num_classes"] == now["num_classes"]:
        return ()
    same = config.get("representation_size") == now.get("representation_size")
    return ("head", "head_dist") if same else HEAD_LAYERS


def _adaptation(config: Config, now: Config, method: str):
    """A function from path and value to the value at the model's image and patch size."""
    if is_bit(config):
        return lambda path, value: value
    if method not in METHODS:
        raise ValueError(
            f"`resampling` must be one of {tuple(METHODS)}. Received: resampling={method!r}"
        )
    old_grid, new_grid = grid_shape(config), grid_shape(now)
    old_patch, new_patch = config["patch_size"], now["patch_size"]

    def adapt(path: str, value: np.ndarray | None) -> np.ndarray | None:
        if value is not None and path == _POSITIONS:
            return resample_positions(value, old_grid, new_grid, method)
        if value is not None and path == _KERNEL and old_patch != new_patch:
            channels = len(value) // (old_patch[0] * old_patch[1])
            return resample_patch_kernel(value, old_patch, new_patch, channels)
        return value

    return adapt


def _tell(file, config: Config, now: Config, fresh, differences, not_finite) -> None:
    """Warns of what is not as in the file."""
    notices = []
    if fresh and now["num_classes"] is not None:
        notices.append(
            f"the head is not the file's: {now['num_classes']} classes, in the file "
            f"{config['num_classes']}"
        )
    if not is_bit(config) and config["position_embedding"] == "learned":
        old, new = grid_shape(config), grid_shape(now)
        if old != new:
            notices.append(f"positions were resampled from a grid of {old} to {new} patches")
    if not is_bit(config) and config["patch_size"] != now["patch_size"]:
        notices.append(f"the projection was resampled to patches of {now['patch_size']}")
    if differences:
        notices.append(f"the model has {', '.join(differences)} in the file")
    if not_finite:
        notices.append(f"values are NaN or infinite in {', '.join(not_finite[:5])}")
    if notices:
        warnings.warn(f"{file}: {'; '.join(notices)}", stacklevel=4)
