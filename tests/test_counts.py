"""Analytic counts: against published figures, against built models, against PyTorch's counter."""

import inspect

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import counts, variants
from keras_vit.counts import BIT_DEFAULTS, VIT_DEFAULTS, count_flops, count_params

# Parameters at 224 pixels with 1000 classes, and multiply-adds in 10^9 as printed by timm 1.0.31
# (by image side). Strings keep the printed precision.
PUBLISHED = {
    "ViT-Ti/16": (5_717_416, {224: "1.26", 384: "4.70"}),
    "ViT-S/32": (22_878_952, {224: "1.15", 384: "3.45"}),
    "ViT-S/16": (22_050_664, {224: "4.61", 384: "15.52"}),
    "ViT-B/32": (88_224_232, {224: "4.41", 384: "13.06"}),
    "ViT-B/16": (86_567_656, {224: "17.58", 384: "55.54"}),
    "ViT-B/8": (86_576_872, {224: "78.22"}),
    "ViT-L/32": (306_535_400, {224: "15.4", 384: "45.31"}),
    "ViT-L/16": (304_326_632, {224: "61.60", 384: "191.2"}),
    "ViT-L/14": (304_203_752, {224: "81.08"}),
    "ViT-H/14": (632_045_800, {224: "167.4"}),
    "ViT-g/14": (1_012_611_432, {224: "267.2"}),
    "ViT-G/14": (1_844_440_680, {224: "484.0"}),
    "R+ViT-Ti/16": (6_337_704, {224: ".44", 384: "1.34"}),
    "R26+ViT-S/32": (36_431_912, {224: "3.56", 384: "10.43"}),
    "R26+ViT-B/32": (101_383_976, {224: "6.81"}),
    "R50+ViT-B/32": (110_945_832, {}),
    "R50+ViT-B/16": (98_659_112, {224: "21.67", 384: "67.43"}),
    "R50+ViT-L/32": (328_994_856, {224: "19.58", 384: "57.43"}),
    "R50+ViT-L/16": (316_483_624, {}),
    "BiT R50x1": (25_549_352, {224: "4.23", 448: "16.62"}),
    "BiT R50x2": (97_988_712, {}),
    "BiT R50x3": (217_319_080, {224: "37.06"}),
    "BiT R101x1": (44_541_480, {224: "8.04"}),
    "BiT R101x3": (387_934_888, {224: "71.23"}),
    "BiT R152x1": (60_185_128, {}),
    "BiT R152x2": (236_335_208, {224: "46.95"}),
    "BiT R152x4": (936_533_224, {224: "186.9"}),
    "BiT R200x3": (568_633_000, {}),
}
# The same without the head.
HEADLESS = {
    "ViT-Ti/16": 5_524_416,
    "ViT-S/32": 22_493_952,
    "ViT-S/16": 21_665_664,
    "ViT-B/32": 87_455_232,
    "ViT-B/16": 85_798_656,
    "ViT-B/8": 85_807_872,
    "ViT-L/32": 305_510_400,
    "ViT-L/16": 303_301_632,
    "ViT-L/14": 303_178_752,
    "ViT-H/14": 630_764_800,
    "ViT-g/14": 1_011_202_432,
    "ViT-G/14": 1_842_775_680,
}
# 10^9 multiply-adds by arithmetic elsewhere, without timm's extras. 378 is 384 in whole patches.
COMPUTED = {
    ("ViT-H/14", 378): "503",
    ("R26+ViT-B/32", 384): "19.8",
    ("R50+ViT-B/32", 224): "8.5",
    ("R50+ViT-B/32", 384): "24.9",
    ("R50+ViT-L/16", 224): "65.5",
    ("R50+ViT-L/16", 384): "202.8",
}


def test_every_variant_has_a_published_count():
    assert set(keras_vit.variants.list_variants()) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    assert count_params(name) == PUBLISHED[name][0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_without_head(name):
    variant = variants.parse(name)
    width = variants.SIZES[variant.size][0] if variant.size else 32 * variant.width
    assert count_params(name, num_classes=None) == PUBLISHED[name][0] - 1000 * (width + 1)


@pytest.mark.parametrize("name", HEADLESS)
def test_parameters_without_head_are_the_published_ones(name):
    assert count_params(name, num_classes=None) == HEADLESS[name]


def test_head_of_another_size():
    """A ten-class B/16 differs from the thousand-class one in the head only."""
    assert count_params("ViTB16", num_classes=None) == 85_798_656
    assert count_params("ViTB16", num_classes=10) == 85_806_346


# Multiply-adds of the named variants.


def _agrees(count, printed):
    """Whether `count` is `printed` x 10^9 within the printed digits or 0.1%."""
    half_digit = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    return abs(count / 1e9 - float(printed)) <= max(half_digit, 1e-3 * float(printed))


def _normalised(variant, side):
    """Returns the elements that norms see, the standardised weights, and the pooled elements."""
    norms = weights = pooled = 0
    if variant.block_counts is not None:
        before = variant.family == "bit"  # BiT: norm before its convolution; hybrids: behind
        side, channels = -(-side // 2), variant.width
        norms, weights = (0 if before else channels * side**2), 7 * 7 * 3 * channels
        side = -(-side // 2)
        for block, count in enumerate(variant.block_counts):
            width = variant.width * 2**block
            for unit in range(count):
                out = -(-side // 2) if block and not unit else side
                norms += channels * side**2 if before else 4 * width * out**2
                norms += width * side**2 + width * out**2
                weights += channels * width + 9 * width**2 + 4 * width**2
                if not unit:
                    norms += 0 if before else 4 * width * out**2
                    weights += 4 * channels * width
                side, channels = out, 4 * width
        pooled = channels * side**2
        norms += pooled if before else 0
    if variant.size:
        hidden_dim, num_layers = variants.SIZES[variant.size][:2]
        tokens = (side // variant.patch_size) ** 2 + 1
        norms += (2 * num_layers + 1) * tokens * hidden_dim
    return norms, weights, pooled if variant.family == "bit" else 0


@pytest.mark.parametrize(
    ("name", "side"), [(name, side) for name, row in PUBLISHED.items() for side in row[1]]
)
def test_multiply_adds_are_those_of_timm(name, side):
    """timm prints fvcore's count, which adds to ours 5 for an element normalised, 4 for a weight
    standardised and 1 for an element averaged by the final pooling."""
    norms, weights, pooled = _normalised(variants.parse(name), side)
    count = count_flops(name, image_shape=(side, side, 3)) + 5 * norms + 4 * weights + pooled
    assert _agrees(count, PUBLISHED[name][1][side])


@pytest.mark.parametrize(("name", "side"), COMPUTED)
def test_multiply_adds_are_those_computed(name, side):
    assert _agrees(count_flops(name, image_shape=(side, side, 3)), COMPUTED[name, side])


def test_multiply_adds_of_four_models_by_another_counter():
    """PyTorch's FlopCounterMode over timm 1.0.31's models (see benchmarks/count_flops.py)."""
    counted = {
        "ViT-Ti/16": 1_253_683_200,
        "ViT-S/16": 4_598_882_304,
        "ViT-B/16": 17_563_828_224,
        "R50+ViT-B/16": 21_535_358_976,
    }
    assert {name: count_flops(name) for name in counted} == counted


# Every option, against built models.

VIT = {
    "image_shape": (32, 24, 3),
    "patch_size": 8,
    "hidden_dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 24,
    "num_classes": 5,
}
STEM = {"block_counts": (1, 2), "width": 8, "groups": 4}
BIT = {"image_shape": (32, 32, 3), "block_counts": (1, 2), "num_classes": 5, "width_factor": 1}

VIT_CASES = {
    "plain": {},
    "rectangular patch": {"patch_size": (8, 6)},
    "one channel": {"image_shape": (16, 16, 1)},
    "depth and width": {"hidden_dim": 24, "num_layers": 3, "num_heads": 3, "mlp_dim": 40},
    "features": {"num_classes": None},
    "representation": {"representation_size": 7},
    "representation without head": {"representation_size": 7, "num_classes": None},
    "gap": {"pooling": "gap"},
    "gap with class token": {"pooling": "gap", "class_token": True},
    "map": {"pooling": "map"},
    "map with class token": {"pooling": "map", "class_token": True, "num_registers": 2},
    "map with representation": {"pooling": "map", "representation_size": 7},
    "map without qkv bias": {"pooling": "map", "qkv_bias": False},
    "map with swiglu": {"pooling": "map", "activation": "swiglu"},
    "sequence": {"pooling": None, "num_classes": None},
    "sequence with class token": {"pooling": None, "num_classes": None, "class_token": True},
    "mean": {"pooling": "mean"},
    "mean with class token": {"pooling": "mean", "class_token": True, "num_registers": 2},
    "token_gap": {"pooling": "token_gap"},
    "token_gap with registers": {"pooling": "token_gap", "num_registers": 2},
    "token_gap with representation": {"pooling": "token_gap", "representation_size": 7},
    "token_gap without head": {"pooling": "token_gap", "num_classes": None},
    "head without bias": {"head_bias": False},
    "distillation token": {"distillation": "token"},
    "distillation token, gap": {"distillation": "token", "pooling": "gap"},
    "distillation head": {"distillation": "head"},
    "distillation head without bias": {"distillation": "head", "head_bias": False},
    "distillation head without head": {"distillation": "head", "num_classes": None},
    "distillation, registers": {"distillation": "head", "num_registers": 2},
    "distillation, no positions": {"distillation": "head", "class_token_position": False},
    "distillation, 2d": {"distillation": "head", "position_embedding": "learned_2d"},
    "distillation, relative": {"distillation": "head", "position_embedding": "relative"},
    "distillation, every layer": {"distillation": "token", "position_placement": "every_layer"},
    "norm after pooling": {"pooling": "gap", "norm_after_pooling": True},
    "class token without position": {"class_token_position": False},
    "registers": {"num_registers": 3},
    "registers without class token": {"num_registers": 3, "pooling": "gap"},
    "swiglu": {"activation": "swiglu"},
    "quick_gelu": {"activation": "quick_gelu"},
    "no qkv bias": {"qkv_bias": False},
    "qk norm": {"qk_norm": True},
    "pre norm": {"pre_norm": True},
    "layer scale": {"layer_scale_init": 1e-5},
    "dropout": {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "drop_path_rate": 0.1},
    "patch dropout": {"patch_dropout_rate": 0.5},
    "remat": {"remat": True},
    "imagenet pixels": {"pixel_range": "imagenet"},
    "raw pixels": {"include_rescaling": False},
    "learned_2d": {"position_embedding": "learned_2d"},
    "learned_2d, no class row": {"position_embedding": "learned_2d", "class_token_position": False},
    "learned_2d, registers": {"position_embedding": "learned_2d", "num_registers": 2},
    "sincos2d": {"position_embedding": "sincos2d"},
    "relative": {"position_embedding": "relative"},
    "relative, gap": {"position_embedding": "relative", "pooling": "gap"},
    "relative, registers": {"position_embedding": "relative", "num_registers": 2},
    "no positions": {"position_embedding": "none"},
    "every layer": {"position_placement": "every_layer"},
    "every layer, registers": {"position_placement": "every_layer", "num_registers": 2},
    "every layer, 2d": {"position_placement": "every_layer", "position_embedding": "learned_2d"},
    "every layer, sincos2d": {
        "position_placement": "every_layer",
        "position_embedding": "sincos2d",
    },
    "shared": {"position_placement": "shared"},
    "shared, 2d": {"position_placement": "shared", "position_embedding": "learned_2d"},
    "default stem": {"stem": {}, "patch_size": 2},
    "root-only stem": {"stem": {**STEM, "block_counts": ()}, "patch_size": 2},
    "stem": {"stem": STEM, "patch_size": 1},
    "three-block stem": {"stem": {**STEM, "block_counts": (1, 1, 2)}, "patch_size": 1},
    "four-block stem": {
        "image_shape": (64, 64, 3),
        "stem": {**STEM, "block_counts": (1, 1, 1, 1)},
        "patch_size": 1,
    },
    "stem, odd image": {"image_shape": (39, 50, 3), "stem": STEM, "patch_size": 1},
    "stem, cropped": {"image_shape": (39, 50, 3), "stem": STEM, "patch_size": 2},
    "stem, rectangular patch": {"image_shape": (64, 64, 3), "stem": STEM, "patch_size": (2, 1)},
    "stem, variance": {"stem": {**STEM, "std_conv_mode": "variance"}, "patch_size": 1},
    "everything": {
        "image_shape": (45, 61, 3),
        "patch_size": (2, 1),
        "stem": STEM,
        "pooling": "map",
        "class_token": True,
        "num_registers": 2,
        "activation": "swiglu",
        "position_embedding": "learned_2d",
        "position_placement": "every_layer",
        "qk_norm": True,
        "qkv_bias": False,
        "pre_norm": True,
        "layer_scale_init": 0.1,
        "representation_size": 9,
    },
}
BIT_CASES = {
    "plain": {},
    "features": {"num_classes": None},
    "feature map": {"num_classes": None, "pooling": None},
    "four blocks": {"block_counts": (1, 1, 1, 1)},
    "wide": {"block_counts": (1,), "width_factor": 2},
    "narrow": {"width_factor": 0.5},
    "odd image": {"image_shape": (41, 54, 3)},
    "one channel": {"image_shape": (32, 32, 1)},
    "version 1": {"preactivation": False},
    "version 1, odd image": {"preactivation": False, "image_shape": (41, 54, 3)},
    "groups": {"groups": 8, "std_conv_mode": "std"},
}
CASES = [
    *(pytest.param("vit", {**VIT, **case}, id=f"vit: {name}") for name, case in VIT_CASES.items()),
    *(pytest.param("bit", {**BIT, **case}, id=f"bit: {name}") for name, case in BIT_CASES.items()),
]


def _build(family, config):
    return {"vit": keras_vit.VisionTransformer, "bit": keras_vit.BiTResNet}[family](**config)


@pytest.mark.parametrize(("family", "config"), CASES)
def test_counts_are_those_of_the_built_model(family, config):
    model = _build(family, config)
    assert count_params(config) == model.count_params()
    assert count_params(model) == model.count_params()
    assert count_flops(model) == count_flops(config)


@pytest.mark.skipif(
    keras.backend.backend() != "torch",
    reason="needs PyTorch's FlopCounterMode (XLA's cost analysis also counts what is no product)",
)
@pytest.mark.parametrize(("family", "config"), CASES)
def test_multiply_adds_are_those_pytorch_counts(family, config):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = _build(family, config)
    images = np.zeros((1, *config["image_shape"]), "float32")
    # The fused attention of the CPU is a kernel that the counter does not know.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(images, training=False)
    assert 2 * count_flops(config) == counter.get_total_flops()


def test_ti16_builds_with_the_published_count():
    model = keras_vit.ViTTi16()
    assert model.count_params() == PUBLISHED["ViT-Ti/16"][0] == count_params(model)
    assert count_flops(model) == count_flops("Ti/16")


# Arguments.


@pytest.mark.parametrize(
    ("model", "known", "free"),
    [
        (keras_vit.VisionTransformer, VIT_DEFAULTS, counts._VIT_WITHOUT_COST),
        (keras_vit.BiTResNet, BIT_DEFAULTS, counts._BIT_WITHOUT_COST),
    ],
)
def test_every_argument_of_the_models_is_known(model, known, free):
    """An option added to a model must be counted, or be named as one that costs nothing."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(model).parameters.items()
        if name not in free
    }
    assert defaults == known


def test_a_variant_is_its_config():
    for name in ("B/16", "R50+B/16", "BiT R50x1"):
        defaults = BIT_DEFAULTS if name.startswith("BiT") else VIT_DEFAULTS
        config = {**defaults, **variants.parse(name).config()}
        assert count_params(config) == count_params(name)
        assert count_flops(config) == count_flops(name)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("B/16", {"num_clases": 10}),
        ("B/16", {"width_factor": 2}),
        ("BiT R50x1", {"hidden_dim": 64}),
        ("R50+B/16", {"stem": {"blocks": (1, 1)}}),
        ({**VIT, "num_clases": 10}, {}),
    ],
)
def test_unknown_keys_are_errors(name, overrides):
    with pytest.raises(ValueError, match="Received: .*(num_clases|width_factor|hidden_dim|blocks)"):
        count_params(name, **overrides)


@pytest.mark.parametrize("argument", ["B/17", {"num_classes": 10}, 3, None])
def test_what_is_no_model_is_an_error(argument):
    with pytest.raises(ValueError, match="Received: "):
        count_flops(argument)


def test_an_image_that_the_patch_does_not_divide_is_an_error():
    with pytest.raises(ValueError, match=r"image_shape=\(225, 224, 3\), patch_size=16"):
        count_params("B/16", image_shape=(225, 224, 3))


def test_an_image_smaller_than_a_patch_is_an_error():
    with pytest.raises(ValueError, match=r"too small.*feature map=\(7, 7\)"):
        count_params("R+Ti/16", image_shape=(28, 28, 3))


@pytest.mark.parametrize("name", ["B/16", "BiT R50x1"])
def test_a_head_without_pooling_is_an_error(name):
    with pytest.raises(ValueError, match="pooling=None, num_classes=1000"):
        count_params(name, pooling=None)


def test_unknown_kinds_are_errors():
    for key in (
        "pooling",
        "distillation",
        "position_embedding",
        "position_placement",
        "activation",
    ):
        with pytest.raises(ValueError, match=f"`{key}`.*Received: {key}='other'"):
            count_params("B/16", **{key: "other"})
