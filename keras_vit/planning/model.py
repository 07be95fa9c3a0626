"""The model that is planned: its complete config, and the sizes that everything is counted in."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from keras_vit import _checks, variants
from keras_vit.checkpoints.shapes import grid_shape
from keras_vit.counts import BIT_DEFAULTS, STEM_DEFAULTS, VIT_DEFAULTS, count_params

Config = dict[str, Any]

# Arguments that change no parameter count, with the models' defaults.
_VIT_OTHERS: Config = {
    "norm_after_pooling": False,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "drop_path_rate": 0.0,
    "patch_dropout_rate": 0.0,
    "remat": False,
    "include_rescaling": True,
}
_BIT_OTHERS: Config = {"include_rescaling": True}

# These decide nothing that is counted here.
WITHOUT_EFFECT = ("norm_epsilon", "pixel_range", "classifier_activation")

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("hidden_dim", "num_layers", "num_heads", "mlp_dim"), _checks.positive_int),
    **dict.fromkeys(("num_classes", "representation_size"), _checks.positive_int),
    **dict.fromkeys(("dropout_rate", "attention_dropout_rate"), _checks.rate),
    **dict.fromkeys(("drop_path_rate", "patch_dropout_rate"), _checks.rate),
    **dict.fromkeys(("head_bias", "class_token_position", "qkv_bias", "qk_norm"), _checks.boolean),
    **dict.fromkeys(("pre_norm", "norm_after_pooling", "remat"), _checks.boolean),
    **dict.fromkeys(("include_rescaling", "preactivation", "class_token"), _checks.boolean),
    **dict.fromkeys(("layer_scale_init", "width_factor", "norm_epsilon"), _checks.positive_float),
    "num_registers": _checks.non_negative_int,
    "patch_size": _checks.int_pair,
    "block_counts": _checks.int_tuple,
    "image_shape": lambda name, value: _checks.int_tuple(name, value, length=3),
}
_MAY_BE_NONE = ("num_classes", "representation_size", "class_token", "layer_scale_init")


def arguments_of(family: str) -> list[str]:
    """The names of a model's arguments that a plan takes."""
    known = {**BIT_DEFAULTS, **_BIT_OTHERS} if family == "bit" else {**VIT_DEFAULTS, **_VIT_OTHERS}
    return sorted({*known, *WITHOUT_EFFECT})


def complete(name: str, **arguments: Any) -> Config:
    """The complete config of a variant with other arguments.

    Args:
        name: of a variant, in any spelling of `variants.parse`.
        **arguments: of `VisionTransformer` or `BiTResNet`, such as `num_layers=48`.

    Returns:
        All arguments that matter here: `image_shape` and `patch_size` as tuples, `class_token`
        decided. A `BiTResNet` has the key "block_counts" at the top.

    Raises:
        ValueError: on an unknown variant or argument, or values that no model can have.
    """
    variant = variants.parse(name)
    bit = variant.family == "bit"
    known = {**BIT_DEFAULTS, **_BIT_OTHERS} if bit else {**VIT_DEFAULTS, **_VIT_OTHERS}
    for key in arguments:
        if key not in known and key not in WITHOUT_EFFECT:
            names = arguments_of(variant.family)
            near = difflib.get_close_matches(key, names)
            hint = f"Did you mean one of {near}?" if near else f"Expected one of {names}"
            raise ValueError(f"{key!r} is no argument of {variant.name} that a plan knows. {hint}")
    given = {key: _checked(key, value) for key, value in arguments.items() if key in known}
    config = {**known, **variant.config(), **given}
    counted = {key: config[key] for key in (BIT_DEFAULTS if bit else VIT_DEFAULTS)}
    count_params(counted)  # finds values that do not go together
    if bit:
        return config
    config["patch_size"] = _checks.int_pair("patch_size", config["patch_size"])
    if config["stem"] is not None:
        config["stem"] = {**STEM_DEFAULTS, **config["stem"]}
    if config["class_token"] is None:
        reads = config["pooling"] in ("token", "token_gap")
        config["class_token"] = reads or config["distillation"] is not None
    return config


def _checked(name: str, value: Any) -> Any:
    if name not in _CHECKS or (value is None and name in _MAY_BE_NONE):
        return value
    return _CHECKS[name](name, value)


def sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """The symbols that shapes are written in, for a ViT or hybrid.

    Returns:
        N: patches, of which patch dropout leaves K; A: all tokens; T: those in the blocks; E: T, or
        one more where that is odd; D: width; M: MLP; H: heads; C: classes; P: values of a patch; F:
        features that the head reads; R: width of the layer before the head.
    """
    grid = grid_shape(config)
    patches = grid[0] * grid[1]
    prefix = int(config["class_token"]) + int(config["distillation"] is not None)
    prefix += config["num_registers"]
    kept = patches
    if config["patch_dropout_rate"]:
        kept = max(1, round(patches * (1.0 - config["patch_dropout_rate"])))
    width, patch = config["hidden_dim"], config["patch_size"]
    tokens = kept + prefix
    return {
        "N": patches,
        "K": kept,
        "A": patches + prefix,
        "T": tokens,
        "E": tokens + tokens % 2,
        "D": width,
        "M": config["mlp_dim"],
        "H": config["num_heads"],
        "C": config["num_classes"] or 0,
        "P": patch[0] * patch[1] * map_channels(config),
        "F": width * (2 if config["pooling"] == "token_gap" else 1),
        "R": config["representation_size"] or 0,
    }


def map_channels(config: Mapping[str, Any]) -> int:
    """Channels of what is cut into patches."""
    if config["stem"] is None:
        return config["image_shape"][-1]
    counts, width = config["stem"]["block_counts"], config["stem"]["width"]
    return width * 4 * 2 ** (len(counts) - 1) if counts else width
