"""Brings a model into the form that a file, or another model, needs, where outputs stay the same.

A class token's position entry folds into the token; the norm of one pooled token stands before or
after the pooling; LayerScale multiplies into the projection before it; fixed positions become a
table; biases of zero come and go. What would change outputs is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_vit.checkpoints.dialect import Target
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.shapes import (
    Config,
    grid_shape,
    is_bit,
    num_prefix_positions,
    weight_shapes,
)
from keras_vit.sincos import sincos2d

Array = np.ndarray
Get = Callable[[str], Array]

_TABLE = "patch_encoder/position_embedding/embedding"
_TOKENS = ("patch_encoder/class_token", "patch_encoder/distillation_token")
_NORMS = ("encoder_norm", "pooled_norm")


@dataclass
class Fitted:
    """A model in another form.

    Attributes:
        config: its config.
        get: gives the value of a variable by its path, in that form.
        differences: settings that the target runs in another way, in words.
    """

    config: dict[str, Any]
    get: Get
    differences: list[str] = field(default_factory=list)

    def replace(self, changes: Mapping[str, Any], values: Mapping[str, Callable[[], Array]]):
        """Changes the config, and where some variables come from."""
        before, values = self.get, dict(values)
        self.config |= changes
        self.get = lambda path: values[path]() if path in values else before(path)


def fit(config: Config, get: Get, target: Target, purpose: str) -> Fitted:
    """Fits a model to a target.

    Args:
        config: the model's checked config.
        get: gives the value of a variable by its path.
        target: what is needed.
        purpose: what it is for; begins messages, such as `"The format 'google'"`.

    Returns:
        The model in the target's form.

    Raises:
        CheckpointError: listing why the target cannot hold the model.
    """
    reasons = [sentence for holds, sentence in target.rules if not holds]
    fitted = Fitted(dict(config), get)
    if not reasons and not is_bit(config):
        for step in _STEPS:
            reasons += step(fitted, target)
    if reasons:
        raise CheckpointError(f"{purpose} cannot hold this model: it has {'; '.join(reasons)}.")
    fitted.differences = [
        f"{name}={value!r}, where this model has {config[name]!r}"
        for name, value in target.fixed.items()
        if config[name] != value
    ]
    return fitted


def _fit_norm(fitted: Fitted, target: Target) -> list[str]:
    wanted, config = target.norm_after_pooling, fitted.config
    if wanted is None or wanted == config["norm_after_pooling"]:
        return []
    if config["pooling"] != "token" or config["distillation"] == "head":
        return [f"no norm {'before' if not wanted else 'after'} the pooling alone"]
    before, now = _NORMS[not wanted], _NORMS[wanted]
    get = fitted.get
    leaves = ("gamma", "beta")
    fitted.replace(
        {"norm_after_pooling": wanted},
        {f"{now}/{leaf}": lambda leaf=leaf: get(f"{before}/{leaf}") for leaf in leaves},
    )
    return []


def _fit_positions(fitted: Fitted, target: Target) -> list[str]:
    wanted, config, get = target.class_positions, fitted.config, fitted.get
    if (
        wanted is None
        or not config["class_token"]
        or wanted == config["class_token_position"]
        or config["position_embedding"] != "learned"
    ):
        return []
    tokens = _TOKENS[: 1 + (config["distillation"] is not None)]
    rows = len(tokens)
    if wanted:

        def padded():
            table = get(_TABLE)
            return np.concatenate([np.zeros((rows, table.shape[1]), table.dtype), table])

        values = {_TABLE: padded}
    else:
        values = {_TABLE: lambda: get(_TABLE)[rows:]}
        for row, token in enumerate(tokens):
            values[token] = lambda row=row, token=token: get(token) + get(_TABLE)[row]
    fitted.replace({"class_token_position": wanted}, values)
    return []


def _fit_fixed_positions(fitted: Fitted, target: Target) -> list[str]:
    config = fitted.config
    if config["position_embedding"] == "sincos2d" and not target.fixed_positions:
        grid, width = grid_shape(config), config["hidden_dim"]
        rows = num_prefix_positions(config)

        def table():
            return np.concatenate([np.zeros((rows, width), "float32"), sincos2d(grid, width)])

        fitted.replace({"position_embedding": "learned"}, {_TABLE: table})
    return []


def _fit_layer_scale(fitted: Fitted, target: Target) -> list[str]:
    config, get = fitted.config, fitted.get
    scaled = config["layer_scale_init"] is not None
    if target.layer_scale is None or target.layer_scale == scaled:
        return []
    if target.layer_scale:
        _add(fitted, {"layer_scale_init": 1.0}, np.ones)
        return []
    values = {}
    for index in range(config["num_layers"]):
        for scale, dense in (("attention_scale", "attention/out"), ("mlp_scale", "mlp/fc2")):
            for leaf in ("kernel", "bias"):
                path = f"encoder_block_{index}/{dense}/{leaf}"
                gamma = f"encoder_block_{index}/{scale}/gamma"
                values[path] = lambda path=path, gamma=gamma: get(path) * get(gamma)
    fitted.replace({"layer_scale_init": None}, values)
    return []


def _fit_qkv_bias(fitted: Fitted, target: Target) -> list[str]:
    if target.qkv_bias and not fitted.config["qkv_bias"]:
        _add(fitted, {"qkv_bias": True})
    elif target.qkv_bias is False and fitted.config["qkv_bias"]:
        return ["no biases of queries, keys and values"]
    return []


def _fit_head_bias(fitted: Fitted, target: Target) -> list[str]:
    config = fitted.config
    if config["num_classes"] is None or target.head_bias in (None, config["head_bias"]):
        fitted.config["head_bias"] = (
            target.head_bias if target.head_bias is not None else config["head_bias"]
        )
        return []
    if target.head_bias:
        _add(fitted, {"head_bias": True})
        return []
    if np.any(fitted.get("head/bias")):
        return ["no bias on the head"]
    fitted.replace({"head_bias": False}, {})
    return []


def _fit_pooling(fitted: Fitted, target: Target) -> list[str]:
    config, get = fitted.config, fitted.get
    if target.joint_pooling and config["pooling"] == "token":

        def widened():
            kernel = get("head/kernel")
            return np.concatenate([kernel, np.zeros_like(kernel)])

        fitted.replace({"pooling": "token_gap"}, {"head/kernel": widened})
    return []


def _add(fitted: Fitted, changes: Mapping[str, Any], make=np.zeros) -> None:
    """Makes zeros, or what `make` makes, of the variables that the changes bring."""
    before = weight_shapes(fitted.config)
    after = weight_shapes({**fitted.config, **changes})
    fitted.replace(
        changes,
        {
            path: lambda shape=shape: make(shape, "float32")
            for path, shape in after.items()
            if path not in before
        },
    )


_STEPS = (
    _fit_fixed_positions,
    _fit_norm,
    _fit_positions,
    _fit_layer_scale,
    _fit_qkv_bias,
    _fit_head_bias,
    _fit_pooling,
)


def target_of(config: Config) -> Target:
    """What a model with this config needs of another model's weights."""
    if is_bit(config):
        return Target()
    settings = ("activation", "norm_epsilon", "pixel_range", "stem")
    return Target(
        class_positions=config["class_token_position"] if num_prefix_positions(config) else False,
        norm_after_pooling=config["norm_after_pooling"],
        qkv_bias=config["qkv_bias"],
        head_bias=None,
        layer_scale=config["layer_scale_init"] is not None,
        fixed_positions=config["position_embedding"] == "sincos2d",
        fixed={name: config[name] for name in settings},
    )
