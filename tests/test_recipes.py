"""Recipes: their figures, and that no field takes a value that it must not have."""

import dataclasses
import json
import math

import harness  # noqa: F401  # chooses the backend
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vit.models import vit_config
from keras_vit.recipe import POOLINGS, POSITION_EMBEDDINGS, Recipe
from keras_vit.recipes import AUGREG_LEVELS, get_recipe, list_recipes

FIELDS = [field.name for field in dataclasses.fields(Recipe)]
OPTIONAL = [field.name for field in dataclasses.fields(Recipe) if "None" in str(field.type)]

# What the papers' code says; a decay of big_vision is divided by the peak learning rate.
SIGMOID_21K = {"loss": "sigmoid", "initial_head_bias": -10.0}
AUGREG = {
    **{"epochs": 300, "batch_size": 4096, "loss": "sigmoid", "initial_head_bias": -6.9},
    **{"optimizer": "adamw", "beta_1": 0.9, "beta_2": 0.999, "learning_rate": 1e-3},
    **{"schedule": "cosine", "warmup_steps": 10_000, "clip_norm": 1.0, "image_size": 224},
    **{"weight_decay": 1e-4 / 1e-3, "evaluation": "resize_small", "flip": True},
    **{"crop": "inception", "crop_area": (0.05, 1.0), "cutmix": 0.0, "final_learning_rate": 0.0},
}
LEVELS = {
    "none": (0, None),
    "light1": (0, (2, 0)),
    "light2": (0.2, (2, 10)),
    "medium1": (0.2, (2, 15)),
    "medium2": (0.5, (2, 15)),
    "strong1": (0.5, (2, 20)),
    "strong2": (0.8, (2, 20)),
}
FIGURES = {
    "paper_finetune": {
        **{"optimizer": "sgd", "momentum": 0.9, "batch_size": 512, "clip_norm": 1.0},
        **{"schedule": "cosine", "warmup_steps": 500, "learning_rate": 0.03, "weight_decay": 0.0},
        **{"image_size": 384, "dropout_rate": 0.0, "steps": 20_000, "epochs": None},
        **{"crop": "inception", "crop_area": (0.05, 1.0), "flip": True, "evaluation": "squash"},
        **{"loss": "softmax", "label_smoothing": 0.0, "mixup": 0.0, "randaugment": None},
    },
    "paper_pretrain": {
        **{"batch_size": 4096, "optimizer": "adamw", "beta_1": 0.9, "beta_2": 0.999},
        **{"learning_rate": 1e-3, "schedule": "linear", "final_learning_rate": 1e-5},
        **{"warmup_steps": 10_000, "dropout_rate": 0.1, "weight_decay": 0.03, "epochs": 90},
        **{"representation_size": 768, "image_size": 224, **SIGMOID_21K},
    },
    "paper_pretrain_i1k": {
        **{"epochs": 300, "learning_rate": 3e-3, "schedule": "cosine", "weight_decay": 0.3},
        **{"dropout_rate": 0.1, "clip_norm": 1.0, "batch_size": 4096, "warmup_steps": 10_000},
        **{"loss": "softmax", "initial_head_bias": None},
    },
    "s16_90ep": {
        **{"epochs": 90, "batch_size": 1024, "loss": "softmax", "pooling": "gap"},
        **{"position_embedding": "sincos2d", "randaugment": (2, 10), "mixup": 0.2},
        **{"learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 10_000, "clip_norm": 1.0},
        **{"evaluation": "resize_small", "image_size": 224, "weight_decay": 1e-4 / 1e-3},
        **{"representation_size": 384, "optimizer": "adamw"},
    },
    **{
        f"augreg_{level}": {**AUGREG, "mixup": mixup, "randaugment": randaugment}
        for level, (mixup, randaugment) in LEVELS.items()
    },
}
FIGURES["augreg"] = FIGURES["augreg_medium2"]

# Values that the field takes, and some that it does not.
_NUMBERS = st.one_of(st.integers(-5, 5), st.floats(-10, 10), st.sampled_from([math.inf, math.nan]))
_OTHER = st.one_of(st.text(max_size=3), st.booleans(), st.lists(st.integers(-2, 2), max_size=3))
_ANY = st.one_of(_NUMBERS, _OTHER)


def is_int(value, low):
    return type(value) is int and value >= low


def is_number(value, low, high=math.inf, above=False, below=False):
    if type(value) not in (int, float) or not math.isfinite(value):
        return False
    return (value > low if above else value >= low) and (value < high if below else value <= high)


def is_pair(value, first, second):
    return isinstance(value, (list, tuple)) and len(value) == 2 and first(value[0], value[1]) and (
        second(value[0], value[1])
    )  # fmt: skip


def is_text(value):
    return isinstance(value, str)


def never(value):
    return False


def is_positive(value):
    return is_number(value, 0, above=True)


def is_rate(value):
    return is_number(value, 0, 1, below=True)


def is_part(value):
    return is_number(value, 0, 1, above=True)


RIGHT = {
    **dict.fromkeys(("name", "source"), is_text),
    # Words: what hypothesis draws is none of them.
    **dict.fromkeys(("optimizer", "schedule", "loss", "crop", "evaluation"), never),
    **dict.fromkeys(("distillation", "pooling", "position_embedding", "dtype"), never),
    **dict.fromkeys(("epochs", "learning_rate", "clip_norm", "temperature"), is_positive),
    **dict.fromkeys(("momentum", "beta_1", "beta_2", "ema_decay", "label_smoothing"), is_rate),
    **dict.fromkeys(("dropout_rate", "drop_path_rate"), is_rate),
    **dict.fromkeys(
        ("final_learning_rate", "weight_decay", "mixup", "cutmix"), lambda v: is_number(v, 0)
    ),
    **dict.fromkeys(("erasing", "distillation_weight"), lambda v: is_number(v, 0, 1)),
    **dict.fromkeys(
        ("steps", "batch_size", "accumulation_steps", "representation_size", "lora_rank"),
        lambda v: is_int(v, 1),
    ),
    **dict.fromkeys(("warmup_steps", "train_blocks", "seed"), lambda v: is_int(v, 0)),
    "layer_decay": is_part,
    "flip": lambda v: isinstance(v, bool),
    "initial_head_bias": lambda v: is_number(v, -math.inf),
    "image_size": lambda v: (
        is_int(v, 1) or is_pair(v, lambda a, b: is_int(a, 1), lambda a, b: is_int(b, 1))
    ),
    "crop_area": lambda v: is_pair(v, lambda a, b: is_part(a) and is_part(b), lambda a, b: a <= b),
    "randaugment": lambda v: is_pair(
        v, lambda a, b: is_int(a, 1), lambda a, b: is_number(b, 0, 30)
    ),
}


def test_every_field_is_drawn():
    assert sorted(RIGHT) == sorted(FIELDS)


@pytest.mark.parametrize("field", FIELDS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_values_of_a_field(field, data):
    value = data.draw(_ANY)
    base = Recipe(steps=3, batch_size=60)
    if RIGHT[field](value):
        if field == "accumulation_steps" and 60 % value:
            return
        recipe = base.replace(**{field: value})
        stored = getattr(recipe, field)
        same = isinstance(value, list) and len(set(value)) == 1 and field == "image_size"
        assert stored == (value[0] if same else tuple(value) if isinstance(value, list) else value)
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    else:
        with pytest.raises(ValueError, match=f"`{field}`"):
            base.replace(**{field: value})


@pytest.mark.parametrize("field", FIELDS)
def test_none_is_for_optional_fields(field):
    base = Recipe(steps=3)
    if field == "steps":
        with pytest.raises(ValueError, match="either `epochs` or `steps`"):
            base.replace(steps=None)
    elif field in OPTIONAL:
        assert getattr(base.replace(**{field: None}), field) is None
    else:
        with pytest.raises(ValueError, match=f"`{field}`"):
            base.replace(**{field: None})


@pytest.mark.parametrize("name", list_recipes())
def test_each_recipe(name):
    recipe = get_recipe(name)
    assert recipe.source and get_recipe(recipe) is recipe
    assert recipe.name == {"augreg": "augreg_medium2"}.get(name, name)
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    printed = str(recipe).splitlines()
    assert recipe.name in printed[0] and recipe.source in printed[0]
    shown = dict(line.strip().split(" = ") for line in printed[1:])
    differing = {
        f: str(getattr(recipe, f)) for f in FIELDS if getattr(recipe, f) != getattr(Recipe, f)
    }
    assert shown == {f: v for f, v in differing.items() if f not in ("name", "source")}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_the_papers(name):
    recipe = get_recipe(name)
    for field, value in FIGURES[name].items():
        found = getattr(recipe, field)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), field


def test_the_levels_of_augreg():
    assert AUGREG_LEVELS == LEVELS


def test_epochs_and_steps_take_each_others_place():
    recipe = get_recipe("paper_finetune").replace(epochs=3)
    assert (recipe.epochs, recipe.steps) == (3, None)
    recipe = recipe.replace(steps=7)
    assert (recipe.epochs, recipe.steps) == (None, 7)
    assert recipe.total_steps(100) == 7
    assert recipe.replace(epochs=0.5).total_steps(101) == 50
    assert recipe.replace(epochs=0.001).total_steps(10) == 1
    for fields in ({}, {"epochs": 2, "steps": 3}):
        with pytest.raises(ValueError, match="either `epochs` or `steps`"):
            Recipe(**fields)


def test_fields_that_do_not_go_together():
    with pytest.raises(ValueError, match="`lora_rank` and `train_blocks`"):
        Recipe(epochs=1, lora_rank=2, train_blocks=0)
    with pytest.raises(ValueError, match=r"accumulation_steps=3, batch_size=8"):
        Recipe(epochs=1, batch_size=8, accumulation_steps=3)


def test_unknown_names():
    with pytest.raises(ValueError, match=r"Unknown field 'epoch'.*\['epochs'\]"):
        Recipe(epochs=1).replace(epoch=3)
    with pytest.raises(ValueError, match="Unknown field 'zzz'.*'batch_size'"):
        Recipe.from_dict({"zzz": 3})
    for name in ("nope", None, 3, "", ["augreg"]):
        with pytest.raises(ValueError, match="Unknown recipe.*'paper_finetune'"):
            get_recipe(name)


def test_recipes_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_recipe("scratch").seed = 3
    assert len({get_recipe(name) for name in list_recipes()}) == len(list_recipes()) - 1


def test_the_words_are_those_of_the_model():
    assert set(POOLINGS) == set(vit_config.POOLINGS) - {None}
    assert set(POSITION_EMBEDDINGS) == set(vit_config.POSITION_EMBEDDINGS)
