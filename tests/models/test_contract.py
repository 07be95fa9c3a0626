"""Both model classes, against the harness."""

import harness
import pytest

import keras_vit

# What every option looks like away from its default, in models that may have it together.
VIT = {
    "image_shape": (14, 21, 3),
    "patch_size": (7, 7),
    "hidden_dim": 8,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 13,
    "num_classes": 5,
}
STEM = {
    "block_counts": (1, 2),
    "width": 8,
    "groups": 4,
    "group_norm_epsilon": 1e-3,
    "std_conv_epsilon": 1e-4,
    "std_conv_mode": "variance",
}
VIT_CASES = {
    "plain": VIT,
    "everything": {
        **VIT,
        "pooling": "gap",
        "representation_size": 11,
        "classifier_activation": "softmax",
        "position_embedding": "learned_2d",
        "class_token": True,
        "class_token_position": False,
        "num_registers": 2,
        "activation": "swiglu",
        "norm_epsilon": 1e-3,
        "qkv_bias": False,
        "pre_norm": True,
        "norm_after_pooling": True,
        "layer_scale_init": 0.5,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.2,
        "drop_path_rate": 0.3,
        "patch_dropout_rate": 0.4,
        "remat": True,
        "pixel_range": "imagenet",
    },
    "map_shared": {
        **VIT,
        "pooling": "map",
        "qk_norm": True,
        "position_placement": "shared",
        "activation": "quick_gelu",
        "include_rescaling": False,
    },
    # By the mean of the patches: the class token has no relative position.
    "relative_features": {
        **VIT,
        "position_embedding": "relative",
        "num_classes": None,
        "pooling": "gap",
    },
    "distilled": {
        **VIT,
        "distillation": "head",
        "num_registers": 2,
        "patch_dropout_rate": 0.4,
        "head_bias": False,
        "classifier_activation": "softmax",
    },
    "distilled_features": {
        **VIT,
        "distillation": "head",
        "num_classes": None,
        "position_embedding": "learned_2d",
        "position_placement": "shared",
    },
    "distilled_relative_token_gap": {
        **VIT,
        "distillation": "token",
        "pooling": "token_gap",
        "position_embedding": "relative",
        "representation_size": 11,
    },
    "mean": {**VIT, "pooling": "mean", "class_token": True, "position_embedding": "sincos2d"},
    "hybrid_every_layer": {
        **VIT,
        "image_shape": (24, 40, 3),
        "patch_size": (2, 1),
        "stem": STEM,
        "position_placement": "every_layer",
    },
}
BIT = {
    "image_shape": (23, 31, 3),
    "block_counts": (1, 2),
    "width_factor": 0.125,
    "groups": 4,
    "num_classes": 5,
}
BIT_CASES = {
    "v2": BIT,
    "v1": {
        **BIT,
        "preactivation": False,
        "classifier_activation": "sigmoid",
        "group_norm_epsilon": 1e-3,
        "std_conv_epsilon": 1e-4,
        "std_conv_mode": "variance",
        "include_rescaling": False,
        "pixel_range": "unit",
    },
    "map": {**BIT, "pooling": None, "num_classes": None},
}
# Weights that no logit depends on: softmax does not see what all keys share.
BLIND = ("key_norm/beta",)

CASES = [
    *((keras_vit.VisionTransformer, name, case) for name, case in VIT_CASES.items()),
    *((keras_vit.BiTResNet, name, case) for name, case in BIT_CASES.items()),
]
IDS = [f"{cls.__name__}-{name}" for cls, name, _ in CASES]


@pytest.mark.parametrize("policy", harness.POLICIES)
@pytest.mark.parametrize(("cls", "name", "kwargs"), CASES, ids=IDS)
def test_model(cls, name, kwargs, policy, tmp_path):
    harness.check_model(cls, kwargs, policy, tmp_path / "model.keras", BLIND)


@pytest.mark.parametrize(
    ("cls", "cases"),
    [(keras_vit.VisionTransformer, VIT_CASES), (keras_vit.BiTResNet, BIT_CASES)],
)
def test_every_argument_is_tried(cls, cases):
    harness.check_coverage(cls, list(cases.values()))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize(
    ("cls", "kwargs"),
    [
        (keras_vit.VisionTransformer, {**VIT, "dropout_rate": 0.1}),
        (keras_vit.VisionTransformer, VIT_CASES["hybrid_every_layer"]),
        (keras_vit.BiTResNet, BIT),
    ],
    ids=["vit", "hybrid", "bit"],
)
def test_noise_times_1000_stays_finite(cls, kwargs, policy):
    harness.check_training(cls(**kwargs, dtype=policy))


def test_noise_times_1000_at_the_width_of_s16():
    model = keras_vit.ViTS16(
        num_layers=2, image_shape=(32, 32, 3), num_classes=5, dtype="mixed_float16"
    )
    harness.check_training(model)
