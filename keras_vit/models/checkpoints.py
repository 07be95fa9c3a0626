"""Models from other projects' checkpoints, and back."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.checkpoints import formats, reading, writing
from keras_vit.checkpoints.adapt import METHODS, resample_patch_kernel, resample_positions
from keras_vit.checkpoints.dialect import Found, Hints
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.fitting import Fitted, fit, target_of
from keras_vit.checkpoints.shapes import Config, grid_shape, is_bit, weight_shapes
from keras_vit.checkpoints.store import Store
from keras_vit.models import resnet, vit_config
from keras_vit.models.base import FlatModel
from keras_vit.models.download import resolve_source
from keras_vit.models.resnet import BiTResNet
from keras_vit.models.surgery import HEAD_LAYERS
from keras_vit.models.vit import VisionTransformer

# Stands for "as in the file", where None means something else.
AS_IN_FILE: Any = "as in the file"

_POSITIONS = "patch_encoder/position_embedding/embedding"
_KERNEL = "patch_encoder/projection/kernel"
_NOT_IN_FILE = ("dtype", "name", "trainable", "frozen_layers")


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
    hints = Hints(image_shape, arguments.get("num_heads"))
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
        model = _class_of(config)(**{**found.config, **changes})
        _load(model, store, found, config, skip, resampling)
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
    current = model.flat_config
    with open_checkpoint(resolve_source(source)) as store:
        # The shape helps where the file does not say how its patches lie.
        found = formats.detect(store, Hints(current["image_shape"], current.get("num_heads")))
        config = config_of(found, {}, store)
        if is_bit(config) != is_bit(current):
            raise CheckpointError(
                f"{store.path} holds a {'BiT ResNet' if is_bit(config) else 'Vision Transformer'}, "
                f"and the model is a {type(model).__name__}. Build it by from_checkpoint."
            )
        _load(model, store, found, config, skip, resampling, stream=False)


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
    """
    if not isinstance(model, FlatModel):
        raise ValueError(
            "`model` must be a keras_vit VisionTransformer or BiTResNet. "
            f"Received: model of type {type(model).__name__}"
        )
    config = dict(model.flat_config)
    variables = _variables(model)
    names = None if class_names is None else tuple(class_names)
    if names is not None and len(names) != config["num_classes"]:
        raise CheckpointError(
            f"`class_names` must name {config['num_classes']} classes. Received: {len(names)}"
        )
    writing.write(
        config,
        lambda path: keras.ops.convert_to_numpy(variables[path]).astype("float32", copy=False),
        path,
        format=format,
        source=model.source,
        dtype=dtype,
        class_names=names,
    )


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
        _complete({**found.config, "include_rescaling": False})
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{store.path} holds a model that cannot be: {error}") from error
    return _complete({**found.config, **given})


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """Adds the defaults of the model's class, and checks everything."""
    kind = _class_of(config)
    parameters = inspect.signature(kind.__init__).parameters.items()
    defaults = {name: p.default for name, p in parameters if p.default is not p.empty}
    unknown = config.keys() - defaults.keys()
    if unknown:
        raise ValueError(
            f"Unknown arguments {sorted(unknown)}. Expected some of {sorted(defaults)}"
        )
    config = {k: v for k, v in {**defaults, **config}.items() if k not in _NOT_IN_FILE}
    return resnet.resolve(config) if is_bit(config) else vit_config.resolve(config)


def _class_of(config: Config) -> type[FlatModel]:
    return BiTResNet if is_bit(config) else VisionTransformer


def _variables(model: FlatModel) -> dict[str, Any]:
    """Weights by path, without the states of random layers."""
    return {v.path: v for v in model.weights if "seed_generator" not in v.path}


def _load(
    model: FlatModel,
    store: Store,
    found: Found,
    config: Config,
    skip,
    resampling: str | None,
    stream: bool = True,
) -> None:
    """Checks all names and shapes, then assigns; `stream` reads and assigns one by one."""
    weights = reading.Weights(store, found, config, skip)
    weights.report.raise_unless_clean(store.path)
    now = model.flat_config
    fitted = fit(config, weights.read, target_of(now), f"The model of {store.path}")
    adapt = _adaptation(fitted.config, now, resampling or found.resampling)
    variables, fresh = _variables(model), _fresh(fitted.config, now)
    plan = _plan(store, fitted.config, now, variables, fresh, re.compile(weights.skip))
    values = ((variables[path], adapt(path, _read(fitted, path))) for path in plan)
    for variable, value in values if stream else list(values):
        if value is not None:
            variable.assign(value)
    model.source = weights.source()
    _tell(store, fitted.config, now, fresh, fitted.differences, weights.not_finite)


def _plan(store, config: Config, now: Config, variables, fresh, excused: re.Pattern) -> list[str]:
    """The variables to load.

    Raises:
        CheckpointError: listing what file and model do not have in common.
    """
    keys = ("image_shape", "patch_size")
    shapes = weight_shapes({**config, **{key: now[key] for key in keys if key in config}})
    shapes = {path: shape for path, shape in shapes.items() if path.split("/")[0] not in fresh}
    ours = {
        path: tuple(variable.shape)
        for path, variable in variables.items()
        if path.split("/")[0] not in fresh
    }
    faults = [
        f"{path}: {shapes.get(path, 'nothing')} in the file, {ours.get(path, 'nothing')} here"
        for path in sorted(shapes.keys() | ours.keys())
        if shapes.get(path) != ours.get(path) and not excused.search(path)
    ]
    if faults:
        more = [f"and {len(faults) - 10} more"] if len(faults) > 10 else []
        raise CheckpointError(
            f"{store.path} does not fit the model:\n  "
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


def _tell(store, config: Config, now: Config, fresh, differences, not_finite) -> None:
    """Warns of what is not as in the file."""
    notices = []
    if fresh and now["num_classes"] is not None:
        notices.append(
            f"the head is fresh: {now['num_classes']} classes, in the file {config['num_classes']}"
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
        warnings.warn(f"{store.path}: {'; '.join(notices)}", stacklevel=4)


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
    hints = Hints(arguments.get("image_shape"), arguments.get("num_heads"))
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
