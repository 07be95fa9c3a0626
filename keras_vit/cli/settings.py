"""`--set NAME=VALUE` of `train`: fields of the recipe, or arguments of the model."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from keras_vit.counts import BIT_DEFAULTS, VIT_DEFAULTS, count_params
from keras_vit.recipe import Recipe
from keras_vit.recipes import get_recipe

# Arguments of the models that change no parameter count, so that the counts have no defaults.
_OTHERS = (
    *("classifier_activation", "include_rescaling", "pixel_range", "norm_epsilon", "remat"),
    *("norm_after_pooling", "attention_dropout_rate", "patch_dropout_rate"),
)
# The data decide these.
_REFUSED = {
    "num_classes": "the data say how many classes there are",
    "image_shape": "set image_size, the side or (height, width)",
    "name": "--recipe names the recipe",
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
            for_model[name] = value
        else:
            known = sorted({*fields, *arguments} - _REFUSED.keys())
            near = difflib.get_close_matches(name, known) or known
            raise ValueError(
                f"--set {name}: neither a field of recipes nor an argument of models. Expected one "
                f"of {near}"
            )
    return get_recipe(recipe_name).replace(**for_recipe), for_model


def check_model(variant: str, recipe: Recipe, arguments: dict[str, Any]) -> None:
    """Raises a ValueError if a variant cannot have the arguments; builds nothing."""
    config: dict[str, Any] = {**arguments, **recipe.model_arguments()}
    if recipe.image_size is not None:
        config["image_shape"] = (*sides(recipe.image_size), 3)
    count_params(variant, **{k: v for k, v in config.items() if k not in (*_OTHERS, "dtype")})


def sides(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width)."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def model_arguments(recipe: Recipe, arguments: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """All arguments that the model is built with."""
    found = {**arguments, **recipe.model_arguments(), "num_classes": num_classes}
    if recipe.image_size is not None:
        found["image_shape"] = (*sides(recipe.image_size), 3)
    return found
