"""What a recipe of training is: a frozen dataclass whose fields are checked.

Standard library only, so that a recipe is checked before anything heavy is imported.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keras_vit import _checks

# Side of pictures where neither recipe nor model says it.
DEFAULT_SIZE = 224

OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("cosine", "linear", "rsqrt", "constant")
LOSSES = ("softmax", "sigmoid")
CROPS = ("inception", "resize_small", "squash", "none")
EVALUATION_CROPS = ("squash", "resize_small", "none")
POOLINGS = ("token", "gap", "mean", "token_gap", "map")
POSITION_EMBEDDINGS = ("learned", "learned_2d", "sincos2d", "relative", "none")
DTYPES = ("float32", "bfloat16", "float16", "float64", "mixed_bfloat16", "mixed_float16")
DISTILLATIONS = (None, "hard", "soft")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run beside model and data.

    Attributes:
        name: the recipe's name.
        source: where its figures are from.
        epochs: passes over the data; `None` where `steps` says how long.
        steps: updates of the weights; `None` where `epochs` says how long.
        batch_size: examples an update.
        accumulation_steps: forward passes an update; `batch_size` is split into as many.
        optimizer: `"adamw"` or `"sgd"`.
        learning_rate: at its peak.
        schedule: `"cosine"`, `"linear"`, `"rsqrt"` or `"constant"`, after the warm-up.
        warmup_steps: updates of the linear warm-up; at most a fifth of the run.
        final_learning_rate: where cosine and linear end.
        momentum: of `"sgd"`.
        beta_1: of `"adamw"`.
        beta_2: of `"adamw"`.
        weight_decay: decoupled, times the learning rate; on kernels only. big_vision's figure is
            times the schedule alone: divide it by the peak learning rate.
        clip_norm: bound of the gradients' global norm; `None` for none.
        layer_decay: factor of the learning rate from each block to the one below.
        ema_decay: decay of the weights' average, which is evaluated and kept; `None` for none.
        loss: `"softmax"`, or `"sigmoid"` (summed over the classes).
        label_smoothing: share of the labels' mass that is spread over all classes.
        image_size: side, or (height, width), in pixels; `None`: the model's.
        crop: training's `"inception"` (a random part, as wide as `crop_area` says),
            `"resize_small"` (short side to 8/7 of the size, then a random crop), `"squash"`
            (resize, whatever the shape) or `"none"` (the pictures have the size).
        crop_area: least and greatest part of the picture's area in an inception crop.
        flip: whether half of the pictures are mirrored.
        randaugment: (operations a picture, magnitude of 10), or `None`.
        erasing: probability that a rectangle of a picture is erased.
        mixup: parameter of the Beta distribution; 0 for none.
        cutmix: parameter of the Beta distribution; 0 for none.
        evaluation: how pictures get their size in evaluation: `"squash"`, `"resize_small"` (short
            side to 8/7 of the size, then the centre) or `"none"`.
        dropout_rate: of the model; `None`: as the model has it.
        drop_path_rate: of the model; `None`: as the model has it.
        representation_size: width of the Dense-tanh before the head; `None`: as the model has it.
        pooling: of the model; `None`: as the model has it.
        position_embedding: of the model; `None`: as the model has it.
        initial_head_bias: initial value of the head's bias; `None`: as it is.
        train_blocks: last blocks that are trained, with the head; `None`: everything is, 0: the
            head alone.
        lora_rank: rank of low-rank updates; then only these and the head are trained.
        distillation: `None`, or what a teacher gives: `"hard"` labels or `"soft"` ones.
        distillation_weight: weight of the teacher's term.
        temperature: of soft labels.
        dtype: dtype policy; `None`: as the model has it.
        seed: decides weights, order, augmentation and dropout.

    Raises:
        ValueError: on a field out of range, naming it.
    """

    name: str = "custom"
    source: str = ""
    epochs: float | None = None
    steps: int | None = None
    batch_size: int = 128
    accumulation_steps: int = 1
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    warmup_steps: int = 0
    final_learning_rate: float = 0.0
    momentum: float = 0.9
    beta_1: float = 0.9
    beta_2: float = 0.999
    weight_decay: float = 0.0
    clip_norm: float | None = None
    layer_decay: float = 1.0
    ema_decay: float | None = None
    loss: str = "softmax"
    label_smoothing: float = 0.0
    image_size: int | tuple[int, int] | None = None
    crop: str = "inception"
    crop_area: tuple[float, float] = (0.05, 1.0)
    flip: bool = True
    randaugment: tuple[int, float] | None = None
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    evaluation: str = "squash"
    dropout_rate: float | None = None
    drop_path_rate: float | None = None
    representation_size: int | None = None
    pooling: str | None = None
    position_embedding: str | None = None
    initial_head_bias: float | None = None
    train_blocks: int | None = None
    lora_rank: int | None = None
    distillation: str | None = None
    distillation_weight: float = 0.5
    temperature: float = 1.0
    dtype: str | None = None
    seed: int = 0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):  # as JSON has tuples
                value = tuple(value)
            check = _FIELDS.get(field.name)
            if value is not None or field.name in _REQUIRED:
                value = value if check is None else check(field.name, value)
            object.__setattr__(self, field.name, value)
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                "A recipe needs either `epochs` or `steps`. "
                f"Received: epochs={self.epochs}, steps={self.steps}"
            )
        if self.batch_size % self.accumulation_steps:
            _checks.divides(
                "accumulation_steps", self.accumulation_steps, "batch_size", self.batch_size
            )
        if self.lora_rank is not None and self.train_blocks is not None:
            raise ValueError(
                "`lora_rank` and `train_blocks` both say what is trained; give one. "
                f"Received: lora_rank={self.lora_rank}, train_blocks={self.train_blocks}"
            )

    def replace(self, **fields) -> Recipe:
        """A recipe with other fields; `epochs` and `steps` take each other's place.

        Raises:
            ValueError: on a field that is unknown or out of range.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in fields:
            if name not in known:
                near = difflib.get_close_matches(name, known) or known
                raise ValueError(f"Unknown field {name!r} of a recipe. Expected one of {near}")
        for one, other in (("epochs", "steps"), ("steps", "epochs")):
            if fields.get(one) is not None:
                fields.setdefault(other, None)
        return dataclasses.replace(self, **fields)

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Recipe:
        """The recipe that `to_dict` described."""
        return cls(epochs=1).replace(**dict(fields))

    def changes(self) -> dict[str, Any]:
        """The fields that differ from the class' defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of the model that the recipe sets."""
        return {
            name: getattr(self, name) for name in MODEL_FIELDS if getattr(self, name) is not None
        }

    def total_steps(self, steps_per_epoch: int) -> int:
        """Updates of the whole run, at least 1."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.epochs or 0) * steps_per_epoch))

    def __str__(self):
        lines = [f"recipe {self.name}" + (f" ({self.source})" if self.source else "")]
        shown = {k: v for k, v in self.changes().items() if k not in ("name", "source")}
        return "\n".join([*lines, *(f"  {name} = {value}" for name, value in shown.items())])


# Fields that are arguments of the model, under the same name.
MODEL_FIELDS = (
    "dropout_rate",
    "drop_path_rate",
    "representation_size",
    "pooling",
    "position_embedding",
    "dtype",
)


def _number(low: float, high: float = float("inf"), above: bool = False):
    def check(name: str, value: Any) -> float:
        number = _checks.number(name, value)
        if not (low < number if above else low <= number) or number > high:
            bounds = f"{'above' if above else 'at least'} {low:g}"
            bounds += "" if high == float("inf") else f" and at most {high:g}"
            raise ValueError(f"`{name}` must be {bounds}. Received: {name}={value!r}")
        return number

    return check


def _choice(options: tuple) -> Callable[[str, Any], Any]:
    return lambda name, value: _checks.choice(name, value, options)


def _size(name: str, value: Any) -> int | tuple[int, int]:
    height, width = _checks.int_pair(name, value)
    return height if height == width else (height, width)


def _area(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(
            f"`{name}` must be two numbers, least and most. Received: {name}={value!r}"
        )
    low, high = (_number(0, 1, above=True)(name, part) for part in value)
    if low > high:
        raise ValueError(f"`{name}` must rise. Received: {name}={value!r}")
    return low, high


def _randaugment(name: str, value: Any) -> tuple[int, float]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(
            f"`{name}` must be (operations, magnitude), such as (2, 10), or None. "
            f"Received: {name}={value!r}"
        )
    # AugReg goes up to 20, twice the scale of RandAugment's own paper.
    return _checks.positive_int(name, value[0]), _number(0, 30)(name, value[1])


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be text. Received: {name}={value!r}")
    return value


_REQUIRED = {field.name for field in dataclasses.fields(Recipe) if "None" not in str(field.type)}
_FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "name": _text,
    "source": _text,
    "epochs": _checks.positive_float,
    "steps": _checks.positive_int,
    "batch_size": _checks.positive_int,
    "accumulation_steps": _checks.positive_int,
    "optimizer": _choice(OPTIMIZERS),
    "learning_rate": _checks.positive_float,
    "schedule": _choice(SCHEDULES),
    "warmup_steps": _checks.non_negative_int,
    "final_learning_rate": _number(0),
    "momentum": _checks.rate,
    "beta_1": _checks.rate,
    "beta_2": _checks.rate,
    "weight_decay": _number(0),
    "clip_norm": _checks.positive_float,
    "layer_decay": _number(0, 1, above=True),
    "ema_decay": _checks.rate,
    "loss": _choice(LOSSES),
    "label_smoothing": _checks.rate,
    "image_size": _size,
    "crop": _choice(CROPS),
    "crop_area": _area,
    "flip": _checks.boolean,
    "randaugment": _randaugment,
    "erasing": _number(0, 1),
    "mixup": _number(0),
    "cutmix": _number(0),
    "evaluation": _choice(EVALUATION_CROPS),
    "dropout_rate": _checks.rate,
    "drop_path_rate": _checks.rate,
    "representation_size": _checks.positive_int,
    "pooling": _choice(POOLINGS),
    "position_embedding": _choice(POSITION_EMBEDDINGS),
    "initial_head_bias": _checks.number,
    "train_blocks": _checks.non_negative_int,
    "lora_rank": _checks.positive_int,
    "distillation": _choice(DISTILLATIONS),
    "distillation_weight": _number(0, 1),
    "temperature": _checks.positive_float,
    "dtype": _choice(DTYPES),
    "seed": _checks.non_negative_int,
}
