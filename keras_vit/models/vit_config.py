"""Checks the flat config of a Vision Transformer before any weight is made."""

from __future__ import annotations

from typing import Any

from keras_vit import _checks
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.position_embedding import ADDED_KINDS, check_width
from keras_vit.layers.std_conv import STD_CONV_MODES
from keras_vit.models.base import check_shared

POOLINGS = ("token", "gap", "mean", "token_gap", "map", None)
DISTILLATIONS = (None, "token", "head")
# Poolings that read the class token.
TOKEN_POOLINGS = ("token", "token_gap")
POSITION_EMBEDDINGS = (*ADDED_KINDS, "relative", "none")
POSITION_PLACEMENTS = ("stem", "every_layer", "shared")

# A hybrid's stem; the defaults are the official Flax code's.
STEM_DEFAULTS: dict[str, Any] = {
    "block_counts": (),
    "width": 64,
    "groups": 32,
    "group_norm_epsilon": 1e-6,
    "std_conv_epsilon": 1e-5,
    "std_conv_mode": "std",
}

_SHARED = (
    "image_shape",
    "num_classes",
    "classifier_activation",
    "include_rescaling",
    "pixel_range",
)
_POSITIVE_INTS = ("hidden_dim", "num_layers", "num_heads", "mlp_dim")
_RATES = ("dropout_rate", "attention_dropout_rate", "drop_path_rate", "patch_dropout_rate")
_BOOLEANS = (
    "head_bias",
    "class_token_position",
    "qkv_bias",
    "qk_norm",
    "pre_norm",
    "norm_after_pooling",
    "remat",
)
_CHOICES = {
    "pooling": POOLINGS,
    "distillation": DISTILLATIONS,
    "position_embedding": POSITION_EMBEDDINGS,
    "position_placement": POSITION_PLACEMENTS,
    "activation": tuple(ACTIVATIONS),
}
_OPTIONAL = {
    "representation_size": _checks.positive_int,
    "layer_scale_init": _checks.positive_float,
}


def resolve(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config in its normal form.

    Args:
        config: all arguments of `VisionTransformer` but `dtype` and `name`.

    Returns:
        The same keys: tuples where sizes came as lists, `class_token` and the stem's defaults
        filled in.

    Raises:
        ValueError: naming the argument, what was expected and what came.
    """
    config = {**config, **check_shared(**{key: config[key] for key in _SHARED})}
    checks = {
        _checks.positive_int: _POSITIVE_INTS,
        _checks.rate: _RATES,
        _checks.boolean: _BOOLEANS,
        _checks.positive_float: ("norm_epsilon",),
        _checks.non_negative_int: ("num_registers",),
        _checks.int_pair: ("patch_size",),
    }
    for check, names in checks.items():
        config |= {name: check(name, config[name]) for name in names}
    for name, options in _CHOICES.items():
        _checks.choice(name, config[name], options)
    for name, check in _OPTIONAL.items():
        if config[name] is not None:
            config[name] = check(name, config[name])
    if config["class_token"] is None:
        needed = config["pooling"] in TOKEN_POOLINGS or config["distillation"] is not None
        config["class_token"] = needed
    _checks.boolean("class_token", config["class_token"])
    config["stem"] = _resolve_stem(config["stem"])
    _check_together(config)
    return config


def _resolve_stem(stem) -> dict[str, Any] | None:
    if stem is None:
        return None
    if not isinstance(stem, dict) or stem.keys() - STEM_DEFAULTS:
        raise ValueError(
            f"`stem` must be None or a dict with keys from {tuple(STEM_DEFAULTS)}. "
            f"Received: stem={stem!r}"
        )
    stem = {**STEM_DEFAULTS, **stem}
    stem["block_counts"] = _checks.int_tuple("stem['block_counts']", stem["block_counts"])
    for name in ("width", "groups"):
        stem[name] = _checks.positive_int(f"stem[{name!r}]", stem[name])
    for name in ("group_norm_epsilon", "std_conv_epsilon"):
        stem[name] = _checks.positive_float(f"stem[{name!r}]", stem[name])
    _checks.choice("stem['std_conv_mode']", stem["std_conv_mode"], STD_CONV_MODES)
    _checks.divides("stem['groups']", stem["groups"], "stem['width']", stem["width"])
    return stem


def _check_together(config: dict[str, Any]) -> None:
    """What no single argument can tell."""
    _checks.divides("num_heads", config["num_heads"], "hidden_dim", config["hidden_dim"])
    check_width(config["position_embedding"], config["hidden_dim"])
    grid_shape(config)
    pooled, kind = config["pooling"] is not None, config["position_embedding"]
    two_heads = config["distillation"] == "head"
    rules = (
        (
            config["pooling"] in TOKEN_POOLINGS and not config["class_token"],
            "Pooling by the class token needs one",
            ("pooling", "class_token"),
        ),
        (
            config["distillation"] is not None and not config["class_token"],
            "`distillation` needs a class token: the distillation token stands behind it",
            ("distillation", "class_token"),
        ),
        (
            two_heads and config["pooling"] != "token",
            "`distillation='head'` needs `pooling='token'`: its heads read one token each",
            ("distillation", "pooling"),
        ),
        (
            two_heads and config["representation_size"] is not None,
            "`distillation='head'` needs `representation_size=None`: no published model has a "
            "layer before both heads",
            ("distillation", "representation_size"),
        ),
        (
            two_heads and config["norm_after_pooling"],
            "`distillation='head'` needs `norm_after_pooling=False`: both tokens would have to be "
            "normalised",
            ("distillation", "norm_after_pooling"),
        ),
        (
            config["pooling"] == "token_gap" and config["norm_after_pooling"],
            "`pooling='token_gap'` needs `norm_after_pooling=False`: one LayerNorm would mix the "
            "statistics of class token and mean",
            ("pooling", "norm_after_pooling"),
        ),
        (
            not pooled and config["num_classes"] is not None,
            "A head needs pooled features: choose a `pooling`, or `num_classes=None`",
            ("pooling", "num_classes"),
        ),
        (
            not pooled and config["representation_size"] is not None,
            "`representation_size` needs pooled features: choose a `pooling`",
            ("pooling", "representation_size"),
        ),
        (
            not pooled and config["norm_after_pooling"],
            "`norm_after_pooling` needs pooled features: choose a `pooling`",
            ("pooling", "norm_after_pooling"),
        ),
        (
            kind in ("relative", "none") and config["position_placement"] != "stem",
            "`position_placement` must be 'stem' where no position is added to tokens",
            ("position_embedding", "position_placement"),
        ),
        (
            config["patch_dropout_rate"] > 0
            and (kind == "relative" or config["position_placement"] != "stem"),
            "`patch_dropout_rate` needs absolute positions at the stem: patches that stay must "
            "know their places",
            ("patch_dropout_rate", "position_embedding", "position_placement"),
        ),
    )
    for broken, sentence, names in rules:
        if broken:
            received = ", ".join(f"{name}={config[name]!r}" for name in names)
            raise ValueError(f"{sentence}. Received: {received}")


def feature_shape(config: dict[str, Any]) -> tuple[int, int]:
    """Height and width of what is cut into patches: the image, or the stem's feature map."""
    height, width, _ = config["image_shape"]
    if config["stem"] is None:
        return height, width
    stride = 4 * 2 ** max(len(config["stem"]["block_counts"]) - 1, 0)
    return -(-height // stride), -(-width // stride)


def grid_shape(config: dict[str, Any]) -> tuple[int, int]:
    """Patches along height and width.

    A patch must divide an image. A stem's feature map is cropped at the bottom and right, as the
    official code's VALID convolution does.

    Raises:
        ValueError: if the patch does not divide the image, or is larger than the feature map.
    """
    sides, patch = feature_shape(config), config["patch_size"]
    for axis, side, length in zip(("height", "width"), sides, patch, strict=True):
        if config["stem"] is None and side % length:
            raise ValueError(
                f"`patch_size` must divide `image_shape`. Received: image {axis}={side}, "
                f"patch {axis}={length}"
            )
        if length > side:
            raise ValueError(
                f"`image_shape` is too small for the stem and `patch_size`. Received: feature "
                f"map {axis}={side}, patch {axis}={length}"
            )
    return sides[0] // patch[0], sides[1] // patch[1]
