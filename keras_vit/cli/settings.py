"""`--set NAME=VALUE` of `train`: fields of the recipe, or arguments of the model."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

from keras_vit import _checks, variants
from keras_vit.counts import BIT_DEFAULTS, VIT_DEFAULTS, count_params
from keras_vit.recipe import Recipe
from keras_vit.recipes import get_recipe

# Arguments of the models that change no parameter count, so that the counts have no defaults.
_OTHERS = (
    *("classifier_activation", "include_rescaling", "pixel_range", "norm_epsilon", "remat"),
    *("norm_after_pooling", "attention_dropout_rate", "patch_dropout_rate"),
)
PIXEL_RANGES = ("inception", "imagenet", "clip", "unit")


def _choice(*options: Any) -> Callable[[str, Any], Any]:
    return lambda name, value: _checks.choice(name, value, options)


def _mapping(name: str, value: Any) -> dict:
    if not isinstance(value, dict):
        raise ValueError(
            f"`{name}` must be a dict, such as {{'block_counts': (3, 4)}}. "
            f"Received: {name}={value!r}"
        )
    return value


# Checks that the models make too, after Keras is imported. `None` is for the models to judge.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("hidden_dim", "num_layers", "num_heads", "mlp_dim"), _checks.positive_int),
    **dict.fromkeys(("attention_dropout_rate", "patch_dropout_rate"), _checks.rate),
    **dict.fromkeys(
        (
            *("head_bias", "qkv_bias", "qk_norm", "pre_norm", "norm_after_pooling", "remat"),
            *("class_token", "class_token_position", "include_rescaling", "preactivation"),
        ),
        _checks.boolean,
    ),
    **dict.fromkeys(("norm_epsilon", "layer_scale_init", "width_factor"), _checks.positive_float),
    "num_registers": _checks.non_negative_int,
    "patch_size": _checks.int_pair,
    "block_counts": _checks.int_tuple,
    "pixel_range": _choice(*PIXEL_RANGES),
    "stem": _mapping,
}
# The data decide these, or training does.
_REFUSED = {
    "num_classes": "the data say how many classes there are",
    "image_shape": "set image_size, the side or (height, width)",
    "name": "--recipe names the recipe",
    "classifier_activation": "training needs a head that gives logits",
}


def split(settings: list[tuple[str, Any]], recipe_name: str) -> tuple[Recipe, dict[str, Any]]:
    """The recipe with its fields set, and the arguments of the model.

    Raises:
        ValueError: on an unknown recipe, name or value.
    """
    fields = [field.name for field in dataclasses.fields(Recipe)]
    arguments = {*VIT_DEFAULTS, *BIT_DEFAULTS, *_OTHERS}
    for_recipe: dict[str, Any] = {}
    for_model: dict[str, Any] = {}
    for name, value in settings:
        if name in _REFUSED:
            raise ValueError(f"--set {name}: {_REFUSED[name]}.")
        if name in fields:
            for_recipe[name] = value
        elif name in arguments:
            _check(name, value)
            for_model[name] = value
        else:
            known = sorted({*fields, *arguments} - _REFUSED.keys())
            near = difflib.get_close_matches(name, known) or known
            raise ValueError(
                f"--set {name}: neither a field of recipes nor an argument of models. Expected one "
                f"of {near}"
            )
    return get_recipe(recipe_name).replace(**for_recipe), for_model


def _check(name: str, value: Any) -> None:
    if name in _CHECKS and value is not None:
        _CHECKS[name](name, value)


def check_model(variant: str, recipe: Recipe, arguments: dict[str, Any]) -> None:
    """Raises a ValueError if a variant cannot have the arguments; builds nothing."""
    found = variants.parse(variant)
    config: dict[str, Any] = {**arguments, **recipe.model_arguments()}
    if recipe.image_size is not None:
        config["image_shape"] = (*sides(recipe.image_size), 3)
    count_params(variant, **{k: v for k, v in config.items() if k not in (*_OTHERS, "dtype")})
    if found.family == "bit":
        _check_no_blocks(found.name, recipe)
    else:
        blocks = {**VIT_DEFAULTS, **found.config(), **config}["num_layers"]
        if (recipe.train_blocks or 0) > blocks:
            raise ValueError(
                f"`train_blocks` must be at most the {blocks} blocks of the model. "
                f"Received: train_blocks={recipe.train_blocks}"
            )


def _check_no_blocks(variant: str, recipe: Recipe) -> None:
    """Raises a ValueError if the recipe needs blocks that a ResNet has not."""
    neutral = {"layer_decay": (1.0,), "lora_rank": (None,), "train_blocks": (None, 0)}
    for name, values in neutral.items():
        if getattr(recipe, name) not in values:
            raise ValueError(
                f"`{name}` needs the blocks of a Vision Transformer, and {variant} has none: pass "
                f"--set {name}={values[0]}. Received: {name}={getattr(recipe, name)!r}"
            )


def sides(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width)."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def model_arguments(recipe: Recipe, arguments: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """All arguments that the model is built with."""
    found = {**arguments, **recipe.model_arguments(), "num_classes": num_classes}
    if recipe.image_size is not None:
        found["image_shape"] = (*sides(recipe.image_size), 3)
    return found
