"""Bad arguments: a ValueError that names argument, expectation and value, before any weight."""

import keras
import numpy as np
import pytest

import keras_vit

VIT = {"image_shape": (14, 21, 3), "patch_size": 7, "hidden_dim": 12, "num_layers": 1}
VIT |= {"num_heads": 3, "mlp_dim": 13, "num_classes": 5}
HYBRID = {"image_shape": (24, 40, 3), "patch_size": 1}
BIT = {"image_shape": (24, 31, 3), "block_counts": (1,), "width_factor": 0.125, "groups": 4}

# What is wrong -> what the message must say, in this order or another.
BAD_VIT = [
    ({"image_shape": (15, 21, 3)}, ["patch_size", "image_shape", "15", "7"]),
    ({"image_shape": (14, 22, 3)}, ["patch_size", "width", "22", "7"]),
    ({"image_shape": (14, 21)}, ["image_shape", "3", "(14, 21)"]),
    ({"image_shape": (14, 21, 0)}, ["image_shape", "positive", "0"]),
    ({"image_shape": (None, None, 3)}, ["image_shape", "positive", "None"]),
    ({"image_shape": (14, 21, 1), "pixel_range": "imagenet"}, ["pixel_range", "3", "1"]),
    ({"patch_size": 0}, ["patch_size", "positive", "0"]),
    ({"patch_size": 7.0}, ["patch_size", "7.0"]),
    ({"patch_size": (7, 7, 7)}, ["patch_size", "pair", "(7, 7, 7)"]),
    ({"hidden_dim": 13}, ["num_heads", "hidden_dim", "3", "13"]),
    ({"hidden_dim": -12}, ["hidden_dim", "positive", "-12"]),
    ({"num_heads": 5}, ["num_heads", "hidden_dim", "5", "12"]),
    ({"num_layers": 0}, ["num_layers", "positive", "0"]),
    ({"num_layers": True}, ["num_layers", "positive", "True"]),
    ({"mlp_dim": "wide"}, ["mlp_dim", "positive", "wide"]),
    ({"num_classes": 0}, ["num_classes", "positive", "0"]),
    ({"num_classes": 2.5}, ["num_classes", "positive", "2.5"]),
    ({"pooling": "max"}, ["pooling", "token", "gap", "mean", "token_gap", "map", "'max'"]),
    ({"pooling": None}, ["pooling", "num_classes", "None", "5"]),
    ({"pooling": "token", "class_token": False}, ["class", "pooling", "False"]),
    ({"pooling": "token_gap", "class_token": False}, ["class", "pooling", "token_gap", "False"]),
    (
        {"pooling": "token_gap", "norm_after_pooling": True},
        ["norm_after_pooling", "token_gap", "True"],
    ),
    ({"distillation": "soft"}, ["distillation", "token", "head", "'soft'"]),
    ({"distillation": True}, ["distillation", "token", "head", "True"]),
    (
        {"distillation": "token", "pooling": "gap", "class_token": False},
        ["distillation", "class_token=False"],
    ),
    ({"distillation": "head", "pooling": "gap"}, ["distillation", "token", "pooling='gap'"]),
    (
        {"distillation": "head", "pooling": None, "num_classes": None},
        ["distillation", "token", "pooling=None"],
    ),
    (
        {"distillation": "head", "representation_size": 6},
        ["distillation", "representation_size=6"],
    ),
    (
        {"distillation": "head", "norm_after_pooling": True},
        ["distillation", "norm_after_pooling=True"],
    ),
    ({"head_bias": 0}, ["head_bias", "True or False", "0"]),
    ({"position_embedding": "rope"}, ["position_embedding", "learned", "relative", "'rope'"]),
    ({"position_placement": "end"}, ["position_placement", "stem", "shared", "'end'"]),
    (
        {"position_embedding": "relative", "position_placement": "shared"},
        ["position_placement", "relative", "shared"],
    ),
    ({"position_embedding": "sincos2d", "hidden_dim": 18}, ["hidden_dim", "4", "18"]),
    ({"position_embedding": "learned_2d", "hidden_dim": 9}, ["hidden_dim", "2", "9"]),
    ({"num_registers": -1}, ["num_registers", "non-negative", "-1"]),
    ({"activation": "relu"}, ["activation", "gelu_tanh", "'relu'"]),
    ({"norm_epsilon": 0}, ["norm_epsilon", "positive", "0"]),
    ({"layer_scale_init": -0.1}, ["layer_scale_init", "positive", "-0.1"]),
    ({"representation_size": 0}, ["representation_size", "positive", "0"]),
    ({"classifier_activation": "tanh"}, ["classifier_activation", "softmax", "'tanh'"]),
    (
        {"classifier_activation": "softmax", "num_classes": None},
        ["classifier_activation", "num_classes", "None"],
    ),
    ({"dropout_rate": -0.1}, ["dropout_rate", "[0, 1)", "-0.1"]),
    ({"attention_dropout_rate": 1.0}, ["attention_dropout_rate", "[0, 1)", "1.0"]),
    ({"drop_path_rate": "much"}, ["drop_path_rate", "[0, 1)", "much"]),
    ({"patch_dropout_rate": float("nan")}, ["patch_dropout_rate", "[0, 1)", "nan"]),
    (
        {"patch_dropout_rate": 0.5, "position_placement": "every_layer"},
        ["patch_dropout_rate", "position_placement", "every_layer"],
    ),
    ({"remat": 1}, ["remat", "True or False", "1"]),
    ({"qkv_bias": None}, ["qkv_bias", "True or False", "None"]),
    ({"pixel_range": "uint8"}, ["pixel_range", "inception", "'uint8'"]),
    ({**HYBRID, "stem": {"depth": 50}}, ["stem", "block_counts", "depth"]),
    ({**HYBRID, "stem": {"width": 30}}, ["stem", "width", "30", "32"]),
    ({**HYBRID, "stem": {"block_counts": 3}}, ["block_counts", "3"]),
    ({**HYBRID, "stem": {"block_counts": (1, 0)}}, ["block_counts", "positive", "0"]),
    ({**HYBRID, "stem": {"std_conv_mode": "l2"}}, ["std_conv_mode", "variance", "'l2'"]),
    ({**HYBRID, "stem": {}, "patch_size": 16}, ["image_shape", "patch_size", "6", "16"]),
]
BAD_BIT = [
    ({"block_counts": (1, -1)}, ["block_counts", "positive", "-1"]),
    ({"width_factor": 0.1}, ["width_factor", "0.1", "4"]),
    ({"width_factor": -1}, ["width_factor", "positive", "-1"]),
    ({"groups": 5}, ["width_factor", "groups", "5"]),
    ({"pooling": "token"}, ["pooling", "gap", "'token'"]),
    ({"pooling": None}, ["pooling", "num_classes"]),
    ({"preactivation": "yes"}, ["preactivation", "True or False", "yes"]),
    ({"std_conv_mode": "l2"}, ["std_conv_mode", "variance", "'l2'"]),
    ({"group_norm_epsilon": 0}, ["group_norm_epsilon", "positive", "0"]),
]
CASES = [(keras_vit.VisionTransformer, VIT, *case) for case in BAD_VIT]
CASES += [(keras_vit.BiTResNet, BIT, *case) for case in BAD_BIT]


@pytest.fixture
def no_weights(monkeypatch):
    """Fails the test if any weight is made."""

    def refuse(self, *args, **kwargs):
        raise AssertionError("a weight was made before the arguments were checked")

    monkeypatch.setattr(keras.layers.Layer, "add_weight", refuse)


@pytest.mark.parametrize(
    ("cls", "good", "bad", "words"), CASES, ids=[f"{c[0].__name__}-{c[2]}" for c in CASES]
)
def test_bad_argument(cls, good, bad, words, no_weights):
    with pytest.raises(ValueError) as error:
        cls(**{**good, **bad})
    for word in words:
        assert word in str(error.value)
    assert "Received: " in str(error.value)


def test_the_good_arguments_are_good():
    keras_vit.VisionTransformer(**VIT)
    keras_vit.BiTResNet(**BIT)
    keras_vit.VisionTransformer(**{**VIT, **HYBRID, "stem": {}})


@pytest.mark.parametrize("name", ["ViT-B/15", "", "resnet50", None, 16, "ViT"])
def test_unknown_variant(name):
    with pytest.raises(ValueError, match="ViT-B/16.*Received: "):
        keras_vit.create_model(name)


def test_unknown_argument_is_a_type_error():
    with pytest.raises(TypeError, match="n_classes"):
        keras_vit.ViTB16(n_classes=3)


@pytest.mark.parametrize("weights", ["imagenet", "vit.npz", 3])
def test_unknown_weights(weights, no_weights):
    with pytest.raises(ValueError, match="weights.*Received: "):
        keras_vit.ViTTi16(weights=weights)


@pytest.mark.parametrize("shape", [(2, 14, 21, 1), (2, 14, 21, 4), (2, 14, 28, 3), (2, 14, 21)])
def test_images_of_another_shape(shape):
    model = keras_vit.VisionTransformer(**VIT)
    images = np.zeros(shape, "float32")
    for call in (model, lambda x: model.predict(x, verbose=0)):
        with pytest.raises(ValueError, match=r"images.*14, 21, 3"):
            call(images)
