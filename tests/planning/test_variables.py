"""The analytic list of variables against built models, and its sum against the counts."""

import math

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras
import pytest

from keras_vit.counts import BIT_DEFAULTS, VIT_DEFAULTS, count_params
from keras_vit.planning.model import complete
from keras_vit.planning.variables import random_states, variable_shapes

TINY = {
    "image_shape": (12, 20, 3),
    "patch_size": 4,
    "hidden_dim": 24,
    "num_layers": 3,
    "num_heads": 3,
    "mlp_dim": 56,
    "num_classes": 7,
}
needs_models = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="paths and shapes: the same from any backend"
)
OPTIONS = [
    {},
    {"num_classes": None},
    {"pooling": "gap"},
    {"pooling": "mean"},
    {"pooling": "map"},
    {"pooling": "token_gap"},
    {"pooling": None, "num_classes": None},
    {"distillation": "token"},
    {"distillation": "head"},
    {"representation_size": 10},
    {"head_bias": False},
    {"position_embedding": "learned_2d"},
    {"position_embedding": "sincos2d"},
    {"position_embedding": "relative"},
    {"position_embedding": "none"},
    {"position_placement": "every_layer"},
    {"position_placement": "shared"},
    {"position_placement": "every_layer", "position_embedding": "learned_2d"},
    {"class_token": True, "pooling": "gap"},
    {"class_token_position": False},
    {"class_token_position": False, "position_embedding": "learned_2d"},
    {"distillation": "token", "position_embedding": "learned_2d"},
    {"num_registers": 2},
    {"activation": "swiglu"},
    {"activation": "swiglu", "pooling": "map"},
    {"activation": "gelu"},
    {"qkv_bias": False},
    {"qk_norm": True},
    {"pre_norm": True},
    {"norm_after_pooling": True},
    {"layer_scale_init": 0.1},
    {"dropout_rate": 0.1},
    {"attention_dropout_rate": 0.1},
    {"drop_path_rate": 0.1},
    {"drop_path_rate": 0.1, "num_layers": 1},
    {"patch_dropout_rate": 0.1},
    {"remat": True, "dropout_rate": 0.1},
    {"patch_size": (2, 5)},
    {"stem": {"block_counts": (), "width": 32}, "image_shape": (24, 40, 3), "patch_size": 2},
    {"stem": {"block_counts": (1, 2), "width": 32}, "image_shape": (24, 40, 3), "patch_size": 1},
]
RESNETS = [
    {},
    {"preactivation": False},
    {"num_classes": None},
    {"pooling": None, "num_classes": None},
    {"width_factor": 1, "block_counts": (2, 1, 1)},
]
SMALL_RESNET = {
    "image_shape": (32, 32, 3),
    "block_counts": (2, 1),
    "width_factor": 0.5,
    "num_classes": 7,
}


def of_model(model):
    """(shapes of weights by path, how many random states)"""
    states = [v for v in model.variables if "seed_generator" in v.path]
    found = {v.path: tuple(v.shape) for v in model.variables if "seed_generator" not in v.path}
    assert all(tuple(state.shape) == (2,) for state in states)
    if keras.backend.backend() == "jax":  # which a plan's 8 bytes are of
        assert all(state.dtype == "uint32" for state in states)
    return found, len(states)


@needs_models
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_vit(options):
    arguments = {**TINY, **options}
    config = complete("B/16", **arguments)
    expected, states = of_model(keras_vit.VisionTransformer(**arguments))
    assert variable_shapes(config) == expected
    assert random_states(config) == states


@needs_models
@pytest.mark.parametrize("options", RESNETS, ids=str)
def test_resnet(options):
    arguments = {**SMALL_RESNET, **options}
    config = complete("BiT R50x1", **arguments)
    expected, states = of_model(keras_vit.BiTResNet(**arguments))
    assert variable_shapes(config) == expected
    assert random_states(config) == states == 0


@pytest.mark.parametrize("name", keras_vit.list_variants())
def test_sum_is_the_published_count(name):
    shapes = variable_shapes(complete(name)).values()
    assert sum(map(math.prod, shapes)) == count_params(name)


def test_every_option_that_changes_weights_is_tried():
    tried = {key for options in OPTIONS for key in options} | set(TINY)
    assert set(VIT_DEFAULTS) <= tried
    assert set(BIT_DEFAULTS) <= {key for options in RESNETS for key in options} | set(SMALL_RESNET)


def test_22b():
    """ViT-22B's sizes (arXiv 2302.05442 calls it 21.7 billion)."""
    sizes = {"hidden_dim": 6144, "num_layers": 48, "num_heads": 48, "mlp_dim": 24576}
    config = complete("g/14", **sizes, qk_norm=True)
    total = sum(map(math.prod, variable_shapes(config).values()))
    assert total == count_params("g/14", **sizes, qk_norm=True)
    assert 21.6e9 < total < 21.9e9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hiden_dim": 3}, r"hidden_dim"),
        ({"hidden_dim": 0}, r"`hidden_dim` must be a positive integer"),
        ({"num_heads": 5}, r"`num_heads` must divide `hidden_dim`"),
        ({"patch_size": 15}, r"`image_shape` must be divisible"),
        ({"pooling": "best"}, r"`pooling` must be one of"),
        ({"remat": 1}, r"`remat` must be True or False"),
        ({"drop_path_rate": 1.5}, r"`drop_path_rate` must be a number in \[0, 1\)"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        complete("ViT-B/16", **arguments)


def test_resnets_have_other_arguments():
    with pytest.raises(ValueError, match="no argument of BiT R50x1"):
        complete("BiT R50x1", num_layers=3)
