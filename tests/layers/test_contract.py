"""Every public layer, against the harness."""

import harness
import pytest

from keras_vit import layers

_RESNET = {
    "groups": 3,
    "group_norm_epsilon": 1e-3,
    "std_conv_epsilon": 1e-4,
    "std_conv_mode": "variance",
}

# name -> (class, arguments, input shape, endings of weights without a gradient). Sizes are
# distinct primes, where the arithmetic allows.
CASES = {
    "dense": (layers.Dense, {"units": 13, "activation": "tanh"}, (3, 5), ()),
    "dense_no_bias": (layers.Dense, {"units": 13, "use_bias": False}, (3, 5), ()),
    "dense_tokens": (layers.Dense, {"units": 13}, (3, 7, 5), ()),
    "mlp": (layers.MLP, {"mlp_dim": 13}, (3, 7, 5), ()),
    "mlp_swiglu": (
        layers.MLP,
        {"mlp_dim": 13, "activation": "swiglu", "dropout_rate": 0.3},
        (3, 7, 5),
        (),
    ),
    "attention": (layers.MultiHeadSelfAttention, {"num_heads": 2}, (3, 7, 10), ()),
    "attention_all": (
        layers.MultiHeadSelfAttention,
        {
            "num_heads": 2,
            "qkv_bias": False,
            "qk_norm": True,
            "norm_epsilon": 1e-3,
            "dropout_rate": 0.3,
            "relative_position": True,
            "num_prefix_tokens": 2,
        },
        (3, 7, 10),
        # Shared by all keys, so softmax does not see it.
        ("key_norm/beta",),
    ),
    "block": (layers.TransformerBlock, {"num_heads": 2, "mlp_dim": 13}, (3, 7, 10), ()),
    "block_all": (
        layers.TransformerBlock,
        {
            "num_heads": 2,
            "mlp_dim": 13,
            "activation": "swiglu",
            "dropout_rate": 0.2,
            "attention_dropout_rate": 0.3,
            "drop_path_rate": 0.4,
            "layer_scale_init": 0.5,
            "norm_epsilon": 1e-3,
            "qkv_bias": False,
            "qk_norm": True,
            "relative_position": True,
            "num_prefix_tokens": 2,
            "remat": True,
        },
        (3, 7, 10),
        ("key_norm/beta",),
    ),
    "attention_pooling": (
        layers.AttentionPooling,
        {"num_heads": 2, "mlp_dim": 13, "activation": "quick_gelu", "norm_epsilon": 1e-3},
        (3, 7, 10),
        (),
    ),
    "token_pooling": (layers.TokenPooling, {}, (3, 7, 5), ()),
    "token_pooling_second": (layers.TokenPooling, {"index": 1}, (3, 7, 5), ()),
    "token_average_pooling": (
        layers.TokenAveragePooling,
        {"num_prefix_tokens": 2},
        (3, 7, 5),
        (),
    ),
    "average_pooling": (layers.PatchAveragePooling, {"num_prefix_tokens": 2}, (3, 7, 5), ()),
    "drop_path": (layers.DropPath, {"rate": 0.4, "seed": 5}, (3, 7, 5), ()),
    "layer_scale": (layers.LayerScale, {"initial_value": 0.3}, (3, 7, 5), ()),
    "patch_dropout": (
        layers.PatchDropout,
        {"rate": 0.4, "num_prefix_tokens": 2, "seed": 5},
        (3, 13, 7),
        (),
    ),
    "patches": (layers.Patches, {"patch_size": (2, 3)}, (5, 14, 33, 13), ()),
    "pixel_scaling": (layers.PixelScaling, {"pixel_range": "imagenet"}, (2, 5, 7, 3), ()),
    "position_learned": (
        layers.PositionEmbedding,
        {"grid_shape": (3, 5), "num_prefix_tokens": 2, "class_token_position": True},
        (2, 17, 7),
        (),
    ),
    "position_2d": (
        layers.PositionEmbedding,
        {
            "kind": "learned_2d",
            "grid_shape": (3, 5),
            "num_prefix_tokens": 2,
            "class_token_position": True,
        },
        (2, 17, 14),
        (),
    ),
    "position_distilled": (
        layers.PositionEmbedding,
        {
            "kind": "learned_2d",
            "grid_shape": (3, 5),
            "num_prefix_tokens": 3,
            "class_token_position": True,
            "distillation_token": True,
        },
        (2, 18, 14),
        (),
    ),
    "position_sincos": (
        layers.PositionEmbedding,
        {"kind": "sincos2d", "grid_shape": (3, 5), "num_prefix_tokens": 2},
        (7, 17, 12),
        (),
    ),
    "relative_position": (
        layers.RelativePosition,
        {"num_prefix_tokens": 2},
        (2, 3, 7, 5),
        (),
    ),
    "patch_encoder": (layers.PatchEncoder, {"hidden_dim": 7}, (2, 9, 11), ()),
    "patch_encoder_all": (
        layers.PatchEncoder,
        {
            "hidden_dim": 14,
            "grid_shape": (3, 5),
            "position_embedding": "learned_2d",
            "class_token_position": False,
            "num_registers": 2,
            "use_bias": False,
            "dropout_rate": 0.3,
        },
        (2, 15, 11),
        (),
    ),
    "patch_encoder_distilled": (
        layers.PatchEncoder,
        {
            "hidden_dim": 7,
            "grid_shape": (3, 5),
            "distillation_token": True,
            "num_registers": 2,
        },
        (2, 15, 11),
        (),
    ),
    "patch_encoder_bare": (
        layers.PatchEncoder,
        {"hidden_dim": 7, "position_embedding": "none", "class_token": False},
        (2, 5, 11),
        (),
    ),
    "std_conv": (layers.StdConv2D, {"filters": 5, "kernel_size": (3, 3)}, (2, 7, 11, 3), ()),
    "std_conv_all": (
        layers.StdConv2D,
        {
            "filters": 5,
            "kernel_size": (3, 5),
            "strides": (2, 1),
            "padding": "symmetric",
            "epsilon": 1e-3,
            "mode": "variance",
        },
        (2, 7, 11, 3),
        (),
    ),
    "root": (layers.RootBlock, {"filters": 6, **_RESNET}, (2, 13, 17, 5), ()),
    "root_v2": (
        layers.RootBlock,
        {"filters": 6, "preactivation": True, **_RESNET},
        (2, 13, 17, 5),
        (),
    ),
    "unit": (layers.BottleneckUnit, {"filters": 6, **_RESNET}, (2, 5, 7, 24), ()),
    "unit_v2_first": (
        layers.BottleneckUnit,
        {"filters": 6, "strides": 2, "project": True, "preactivation": True, **_RESNET},
        (2, 5, 7, 9),
        (),
    ),
}


@pytest.mark.parametrize("policy", harness.POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_layer(name, policy):
    cls, kwargs, shape, without_gradient = CASES[name]
    harness.check_layer(cls, kwargs, shape, policy, without_gradient)


@pytest.mark.parametrize("policy", harness.POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_layer_in_a_model(name, policy, tmp_path):
    cls, kwargs, shape, _ = CASES[name]
    harness.check_layer_in_model(cls, kwargs, shape, policy, tmp_path / "model.keras")


@pytest.mark.parametrize("name", layers.__all__)
def test_cases_cover_every_argument(name):
    cls = getattr(layers, name)
    cases = [kwargs for found, kwargs, *_ in CASES.values() if found is cls]
    assert cases, f"no case for {name}"
    if cls is not layers.Dense:  # its arguments are those of Keras
        harness.check_coverage(cls, cases)


@pytest.mark.parametrize("name", layers.__all__)
def test_registered_under_the_package(name):
    import keras

    cls = getattr(layers, name)
    assert keras.saving.get_registered_name(cls) == f"keras_vit>{name}"
