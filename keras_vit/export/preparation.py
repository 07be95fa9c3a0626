"""What is exported of a model: float32 logits and features, and what a server has to know."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_vit import _checks
from keras_vit.evaluation.features import headless
from keras_vit.models.base import FlatModel
from keras_vit.recipe import EVALUATION_CROPS

PROBABILITIES = ("softmax", "sigmoid")
INTERPOLATIONS = ("bilinear", "bicubic")
TOP = 5
# What rebuilding for inference changes; the weights are the same.
_PLAIN = {"classifier_activation": None, "remat": False}


@dataclass(frozen=True)
class Serving:
    """What an artifact says and does beside the network.

    Attributes:
        image_shape: (height, width, channels) of an image.
        num_classes: classes; `None`: the model has no head and gives features.
        pixels: whether images are pixels 0..255, which the model scales itself.
        class_names: names in the order of the classes, or `None`.
        probabilities: what makes probabilities of logits.
        crop: how a picture gets its size, see `keras_vit.data.read_images`.
        crop_fraction: see `keras_vit.data.Pipeline`.
        interpolation: the filter that resizes pictures.
        top: how many classes `serve_bytes` names.
    """

    image_shape: tuple[int, int, int]
    num_classes: int | None
    pixels: bool = True
    class_names: Sequence[str] | None = None
    probabilities: str = "softmax"
    crop: str = "squash"
    crop_fraction: float = 0.875
    interpolation: str = "bilinear"
    top: int = TOP

    def __post_init__(self):
        fix = object.__setattr__  # the dataclass is frozen
        fix(self, "image_shape", _checks.int_tuple("image_shape", self.image_shape, 3))
        _checks.choice("probabilities", self.probabilities, PROBABILITIES)
        _checks.choice("crop", self.crop, EVALUATION_CROPS)
        _checks.choice("interpolation", self.interpolation, INTERPOLATIONS)
        fraction = _checks.positive_float("crop_fraction", self.crop_fraction)
        if fraction > 1:
            raise ValueError(f"`crop_fraction` must lie in (0, 1]. Received: {fraction}")
        _checks.positive_int("top", self.top)
        fix(self, "class_names", self._names())

    def _names(self) -> tuple[str, ...] | None:
        if self.class_names is None:
            return None
        if isinstance(self.class_names, str) or self.num_classes is None:
            raise ValueError(
                "`class_names` must be a sequence of names, of a model that has a head. "
                f"Received: {self.class_names!r}"
            )
        names = tuple(str(name) for name in self.class_names)
        if len(names) != self.num_classes:
            raise ValueError(
                f"`class_names` must name the model's {self.num_classes} classes. "
                f"Received: {len(names)} names"
            )
        broken = [name for name in names if not name or "\n" in name or "\r" in name]
        if broken:
            raise ValueError(
                "`class_names` stand in a file, a line each: no name may be empty or hold a line "
                f"break. Received: {broken[0]!r}"
            )
        return names

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each class, its number where it has no name."""
        return tuple(self.class_names or map(str, range(self.num_classes or 0)))

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Serving:
        """What `to_dict` made, also after it went through JSON."""
        names = values["class_names"]
        return cls(**{**values, "class_names": names if names is None else tuple(names)})


def serving_of(
    model: keras.Model,
    class_names: Sequence[str] | None = None,
    probabilities: str | None = None,
    **settings,
) -> Serving:
    """What serving a model needs to know.

    Args:
        model: see `exportable`.
        class_names: names in the order of the classes; `None`: those of the checkpoint that the
            model came from, if it had any.
        probabilities: `"softmax"` or `"sigmoid"`; `None`: the model's `classifier_activation`,
            else `"softmax"`.
        **settings: other fields of `Serving`.

    Raises:
        ValueError: if the model cannot be exported, or a setting does not fit it.
    """
    check_model(model)
    shape = tuple(model.inputs[0].shape[1:])
    if not isinstance(model, FlatModel):
        classes = model.outputs[0].shape[-1]
        chosen = probabilities or "softmax"
        return Serving(shape, classes, True, class_names, chosen, **settings)
    config = model.flat_config
    if class_names is None and config["num_classes"] is not None:
        class_names = getattr(model.source, "class_names", None)
    return Serving(
        image_shape=shape,
        num_classes=config["num_classes"],
        pixels=config["include_rescaling"],
        class_names=class_names,
        probabilities=probabilities or config["classifier_activation"] or "softmax",
        **settings,
    )


def exportable(model: keras.Model) -> keras.Model:
    """The same network in float32, without the classifier's activation.

    Args:
        model: a model of this package, whatever its policy, or another Keras model in float32
            that takes one batch of images `(batch, height, width, channels)` and gives logits
            `(batch, classes)`. It is not touched.

    Returns:
        A functional model of images float32 that gives a dict: `logits` `(batch, classes)`, and
        for models of this package `features`, what the head reads; without a head `features`
        alone.

    Raises:
        ValueError: if it is no such model.
    """
    check_model(model)
    if not isinstance(model, FlatModel):
        return keras.Model(model.inputs[0], {"logits": model.outputs[0]})
    if not _is_plain(model):
        model = _rebuilt(model)
    if model.flat_config["num_classes"] is None:
        return keras.Model(model.input, {"features": model.output})
    read = headless(model).outputs
    features = read[0] if len(read) == 1 else keras.layers.Average(dtype="float32")(read)
    return keras.Model(model.input, {"logits": model.output, "features": features})


def check_model(model: Any) -> None:
    """Raises a ValueError that says what to do unless `exportable` takes the model."""
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`model` must be a Keras model; load it by keras_vit.load_model. Received: {model!r}"
        )
    student = getattr(model, "student", None)
    if isinstance(student, keras.Model):
        raise ValueError("`model` is a distiller: export its `student`.")
    if any(getattr(layer, "lora_enabled", False) for layer in model._flatten_layers()):
        raise ValueError(
            "`model` has low-rank updates (LoRA): export what "
            "`keras_vit.training.merge_lora(model)` returns."
        )
    quantized = sorted(
        {
            layer.dtype_policy.name
            for layer in model._flatten_layers()
            if getattr(layer.dtype_policy, "quantization_mode", None)
        }
    )
    if quantized:
        raise ValueError(
            "`model` was quantised by Keras, which exports cannot undo: export the model as it was "
            f"before (TFLite's own quantisation is `to_tflite`'s). Received: {', '.join(quantized)}"
        )
    if not isinstance(model, FlatModel):
        _check_foreign(model)


def _check_foreign(model: keras.Model) -> None:
    if not getattr(model, "inputs", None) or len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            "`model` must be built, take one batch of images and give one output: build it as a "
            f"functional model, `keras.Model(images, logits)`. Received: {model.name!r}"
        )
    images, outputs = model.inputs[0].shape, model.outputs[0].shape
    if len(images) != 4 or None in images[1:] or len(outputs) != 2 or outputs[-1] is None:
        raise ValueError(
            "`model` must take images of one size, (batch, height, width, channels), and give "
            f"logits (batch, classes). Received: {tuple(images)} and {tuple(outputs)}"
        )
    half = {
        layer.dtype_policy.compute_dtype
        for layer in model._flatten_layers()
        if layer.dtype_policy.compute_dtype in ("float16", "bfloat16")
    }
    if half:
        raise ValueError(
            "`model` computes in a half precision, which only models of this package are rebuilt "
            f"from: build it under the policy float32. Received: {', '.join(sorted(half))}"
        )
    activation = _activation(model.outputs[0])
    if activation in PROBABILITIES:
        raise ValueError(
            "`model` must give logits: leave the activation of its last layer out (exports add "
            f"probabilities themselves). Received: activation={activation!r}"
        )


def _activation(output) -> str:
    """What the operation that gives an output ends in, in lower case; empty if nothing."""
    operation = output._keras_history.operation
    inner = getattr(operation, "outputs", None)
    if isinstance(operation, keras.Model) and inner:
        return _activation(inner[0])
    activation = getattr(operation, "activation", None)
    return str(getattr(activation, "__name__", None) or type(operation).__name__).lower()


def _is_plain(model: FlatModel) -> bool:
    config = model.flat_config
    policies = {layer.dtype_policy.name for layer in model._flatten_layers()}
    return policies == {"float32"} and all(
        config.get(name, value) == value for name, value in _PLAIN.items()
    )


def _rebuilt(model: FlatModel) -> FlatModel:
    config = {**model.get_config(), "dtype": "float32"}
    config |= {name: value for name, value in _PLAIN.items() if name in config}
    new = type(model).from_config(config)
    values = {variable.path: variable for variable in model.weights}
    for variable in new.weights:
        if "float" not in variable.dtype:  # the states of random layers
            continue
        value = keras.ops.cast(values[variable.path].value, "float32")
        variable.assign(keras.ops.convert_to_numpy(value))
    return new
