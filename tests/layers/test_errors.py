"""Bad arguments of layers: a ValueError that names argument, expectation and value."""

import pytest

from keras_vit import layers

BAD = [
    (layers.Patches, {"patch_size": 0}, "patch_size"),
    (layers.Patches, {"patch_size": (2, -3)}, "patch_size"),
    (layers.Patches, {"patch_size": (2, 3, 4)}, "patch_size"),
    (layers.PatchEncoder, {"hidden_dim": 2.5}, "hidden_dim"),
    (
        layers.PatchEncoder,
        {"hidden_dim": 8, "position_embedding": "relative"},
        "position_embedding",
    ),
    (layers.PatchEncoder, {"hidden_dim": 8, "num_registers": -1}, "num_registers"),
    (layers.PatchEncoder, {"hidden_dim": 8, "dropout_rate": 1.0}, "dropout_rate"),
    (layers.PatchEncoder, {"hidden_dim": 8, "class_token": None}, "class_token"),
    (layers.PositionEmbedding, {"kind": "rope", "grid_shape": 3}, "kind"),
    (layers.PositionEmbedding, {"grid_shape": 0}, "grid_shape"),
    (layers.PositionEmbedding, {"grid_shape": 3, "class_token_position": True}, "class_token"),
    (
        layers.PatchEncoder,
        {"hidden_dim": 8, "class_token": False, "distillation_token": True},
        "distillation_token",
    ),
    (
        layers.PositionEmbedding,
        {"grid_shape": 3, "num_prefix_tokens": 1, "distillation_token": True},
        "distillation_token",
    ),
    (layers.MultiHeadSelfAttention, {"num_heads": 0}, "num_heads"),
    (layers.MultiHeadSelfAttention, {"num_heads": 2, "dropout_rate": -0.1}, "dropout_rate"),
    (layers.MultiHeadSelfAttention, {"num_heads": 2, "norm_epsilon": 0}, "norm_epsilon"),
    (layers.MLP, {"mlp_dim": True}, "mlp_dim"),
    (layers.MLP, {"mlp_dim": 8, "activation": "relu"}, "activation"),
    (
        layers.TransformerBlock,
        {"num_heads": 2, "mlp_dim": 8, "drop_path_rate": 2},
        "drop_path_rate",
    ),
    (layers.TransformerBlock, {"num_heads": 2, "mlp_dim": 8, "remat": "yes"}, "remat"),
    (
        layers.TransformerBlock,
        {"num_heads": 2, "mlp_dim": 8, "attention_dropout_rate": 1},
        "attention_dropout_rate",
    ),
    (layers.AttentionPooling, {"num_heads": 1.5, "mlp_dim": 8}, "num_heads"),
    (layers.DropPath, {"rate": float("nan")}, "rate"),
    (layers.PatchDropout, {"rate": -1}, "rate"),
    (layers.PatchDropout, {"rate": 0.5, "num_prefix_tokens": -2}, "num_prefix_tokens"),
    (layers.LayerScale, {"initial_value": 0}, "initial_value"),
    (layers.PixelScaling, {"pixel_range": "uint8"}, "pixel_range"),
    (layers.RelativePosition, {"num_prefix_tokens": -1}, "num_prefix_tokens"),
    (layers.PatchAveragePooling, {"num_prefix_tokens": 0.5}, "num_prefix_tokens"),
    (layers.TokenPooling, {"index": -1}, "index"),
    (layers.TokenAveragePooling, {"num_prefix_tokens": 0}, "num_prefix_tokens"),
    (layers.StdConv2D, {"filters": 4, "kernel_size": 3, "padding": "full"}, "padding"),
    (layers.StdConv2D, {"filters": 4, "kernel_size": 3, "mode": "l2"}, "mode"),
    (layers.StdConv2D, {"filters": 4, "kernel_size": 3, "epsilon": -1}, "epsilon"),
    (layers.RootBlock, {"filters": 0}, "filters"),
    (layers.BottleneckUnit, {"filters": 4, "std_conv_mode": "l2"}, "std_conv_mode"),
    (layers.BottleneckUnit, {"filters": 4, "strides": 0}, "strides"),
]
UNBUILDABLE = [
    (lambda: layers.MultiHeadSelfAttention(3), (None, 7, 10), ["num_heads", "3", "10"]),
    (lambda: layers.AttentionPooling(3, 8), (None, 7, 10), ["num_heads", "3", "10"]),
    (lambda: layers.TransformerBlock(3, 8), (None, 7, 10), ["num_heads", "3", "10"]),
    (lambda: layers.PositionEmbedding(grid_shape=(2, 3)), (None, 7, 8), ["2 x 3", "7"]),
    (
        lambda: layers.PositionEmbedding("learned_2d", grid_shape=2),
        (None, 4, 7),
        ["hidden_dim", "2", "7"],
    ),
    (
        lambda: layers.PositionEmbedding("sincos2d", grid_shape=2),
        (None, 4, 6),
        ["hidden_dim", "4", "6"],
    ),
    (lambda: layers.PatchEncoder(8), (None, 4, 4, 3), ["patches", "(None, 4, 4, 3)"]),
    (lambda: layers.RootBlock(6, groups=4), (None, 8, 8, 3), ["groups", "4", "6"]),
    (
        lambda: layers.BottleneckUnit(6, project=True, groups=4),
        (None, 8, 8, 3),
        ["groups", "4", "6"],
    ),
    (lambda: layers.PixelScaling("clip"), (None, 8, 8, 4), ["3 channels", "channels=4"]),
]


@pytest.mark.parametrize(("cls", "kwargs", "name"), BAD)
def test_bad_argument(cls, kwargs, name):
    with pytest.raises(ValueError, match=f"{name}.*Received: "):
        cls(**kwargs)


@pytest.mark.parametrize(("make", "shape", "words"), UNBUILDABLE)
def test_input_that_does_not_fit(make, shape, words):
    layer = make()
    with pytest.raises(ValueError, match="Received: ") as error:
        layer.build(shape)
    for word in words:
        assert word in str(error.value)
    assert not layer.weights, "weights were made before the input was checked"
