"""Parameters and multiply-adds of a model, by arithmetic: no model is built, Keras is not needed.

Each function below describes one part of the network and returns both of its figures as a `Cost`,
so that a part is described once.

The convention of `count_flops`: multiply-adds of the forward pass of one image, a multiply and its
add counting as one (the GMACs of timm, the "FLOPs" of most papers; double it for floating-point
operations). Counted are convolutions and matrix products: patch projection, both products of
attention, the product with relative positions, MLP, attention pooling, pre-logits and head. Not
counted are normalisation, activations, softmax, biases, residual sums, the addition of positions,
weight standardisation and the rescaling of pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_vit import _checks, variants

# The keys of the two model classes that matter here, with the classes' defaults.
VIT_DEFAULTS: dict[str, Any] = {
    "image_shape": (224, 224, 3),
    "patch_size": 16,
    "hidden_dim": 768,
    "num_layers": 12,
    "num_heads": 12,
    "mlp_dim": 3072,
    "num_classes": 1000,
    "pooling": "token",
    "distillation": None,
    "representation_size": None,
    "head_bias": True,
    "stem": None,
    "position_embedding": "learned",
    "position_placement": "stem",
    "class_token": None,
    "class_token_position": True,
    "num_registers": 0,
    "activation": "gelu_tanh",
    "qkv_bias": True,
    "qk_norm": False,
    "pre_norm": False,
    "layer_scale_init": None,
}
BIT_DEFAULTS: dict[str, Any] = {
    "image_shape": (224, 224, 3),
    "block_counts": (3, 4, 6, 3),
    "width_factor": 1,
    "num_classes": 1000,
    "preactivation": True,
    "pooling": "gap",
}
STEM_DEFAULTS: dict[str, Any] = {"block_counts": (), "width": 64}

_VIT_CHOICES: dict[str, tuple[Any, ...]] = {
    "pooling": ("token", "gap", "mean", "token_gap", "map", None),
    "distillation": (None, "token", "head"),
    "position_embedding": ("learned", "learned_2d", "sincos2d", "relative", "none"),
    "position_placement": ("stem", "every_layer", "shared"),
    "activation": ("gelu", "gelu_tanh", "quick_gelu", "swiglu"),
}

# Keys of the two configs and of a stem that change neither figure.
_SHARED_WITHOUT_COST = frozenset(
    (
        *("classifier_activation", "include_rescaling", "pixel_range"),
        *("dtype", "name", "trainable", "frozen_layers"),
    )
)
_RESNET_WITHOUT_COST = frozenset(
    ("groups", "group_norm_epsilon", "std_conv_epsilon", "std_conv_mode")
)
_VIT_WITHOUT_COST = _SHARED_WITHOUT_COST | frozenset(
    (
        *("norm_epsilon", "norm_after_pooling", "dropout_rate", "attention_dropout_rate"),
        *("drop_path_rate", "patch_dropout_rate", "remat"),
    )
)
_BIT_WITHOUT_COST = _SHARED_WITHOUT_COST | _RESNET_WITHOUT_COST


@dataclass(frozen=True)
class Cost:
    """What a part of the network costs.

    Attributes:
        params: number of weights.
        multiply_adds: multiply-adds of the forward pass of one image.
    """

    params: int = 0
    multiply_adds: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.params + other.params, self.multiply_adds + other.multiply_adds)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.params * times, self.multiply_adds * times)


# Elementary parts.


def _dense(rows: int, inputs: int, outputs: int, bias: bool = True) -> Cost:
    return Cost(inputs * outputs + bias * outputs, rows * inputs * outputs)


def _conv(out_size: tuple[int, int], kernel: int, inputs: int, outputs: int) -> Cost:
    params = kernel * kernel * inputs * outputs
    return Cost(params, out_size[0] * out_size[1] * params)


def _norm(width: int) -> Cost:
    return Cost(params=2 * width)


def _product(rows: int, inner: int, columns: int) -> Cost:
    """A matrix product of two activations."""
    return Cost(multiply_adds=rows * inner * columns)


def _halved(size: tuple[int, int]) -> tuple[int, int]:
    """The size behind a stride of 2: SAME and BiT's explicit padding both round up."""
    return -(-size[0] // 2), -(-size[1] // 2)


# Convolutional parts: the hybrids' stem and the BiT ResNets.


def _bottleneck(
    size: tuple[int, int], inputs: int, width: int, *, first: bool, stride: int, preactivation: bool
) -> tuple[Cost, tuple[int, int]]:
    """One residual unit. Returns its cost and the size of its output."""
    out_size = _halved(size) if stride == 2 else size
    outputs = 4 * width
    cost = _conv(size, 1, inputs, width) + _conv(out_size, 3, width, width)
    cost += _conv(out_size, 1, width, outputs)
    # The norms stand before the convolutions in V2, behind them in V1.
    cost += _norm(inputs if preactivation else outputs) + _norm(width) * 2
    if first:
        cost += _conv(out_size, 1, inputs, outputs)
        cost += Cost() if preactivation else _norm(outputs)
    return cost, out_size


def _resnet(
    image_shape: tuple[int, int, int],
    block_counts: tuple[int, ...],
    width: int,
    preactivation: bool,
) -> tuple[Cost, tuple[int, int], int]:
    """Root and blocks. Returns the cost, and the size and channels of the feature map."""
    size = _halved(image_shape[:2])
    cost = _conv(size, 7, image_shape[2], width) + (Cost() if preactivation else _norm(width))
    size, channels = _halved(size), width  # the max-pool
    for block, count in enumerate(block_counts):
        for unit in range(count):
            stride = 2 if block and not unit else 1
            part, size = _bottleneck(
                size,
                channels,
                width * 2**block,
                first=not unit,
                stride=stride,
                preactivation=preactivation,
            )
            cost, channels = cost + part, 4 * width * 2**block
    return cost, size, channels


def _bit_resnet(config: Mapping[str, Any]) -> Cost:
    preactivation, classes = config["preactivation"], config["num_classes"]
    width = int(64 * config["width_factor"])
    cost, _, channels = _resnet(config["image_shape"], config["block_counts"], width, preactivation)
    cost += _norm(channels) if preactivation else Cost()
    return cost + (Cost() if classes is None else _dense(1, channels, classes))


# Transformer parts.


def _mlp(rows: int, width: int, mlp_dim: int, activation: str) -> Cost:
    gates = 2 if activation == "swiglu" else 1
    return _dense(rows, width, gates * mlp_dim) + _dense(rows, mlp_dim, width)


def _attention(config: Mapping[str, Any], tokens: int, patches: int) -> Cost:
    width = config["hidden_dim"]
    cost = _dense(tokens, width, 3 * width, bias=config["qkv_bias"]) + _dense(tokens, width, width)
    cost += _product(tokens, width, tokens) * 2  # queries with keys, weights with values
    head_dim = width // config["num_heads"]
    if config["qk_norm"]:
        cost += _norm(head_dim) * 2
    if config["position_embedding"] == "relative":
        offsets = 2 * patches - 1
        cost += Cost(params=offsets * head_dim) + _product(patches, width, offsets)
    return cost


def _block(config: Mapping[str, Any], tokens: int, patches: int) -> Cost:
    width = config["hidden_dim"]
    cost = _norm(width) * 2 + _attention(config, tokens, patches)
    cost += _mlp(tokens, width, config["mlp_dim"], config["activation"])
    if config["layer_scale_init"] is not None:
        cost += Cost(params=2 * width)
    return cost


def _positions(config: Mapping[str, Any], grid: tuple[int, int], class_token: bool) -> Cost:
    """The tables that are added to the tokens."""
    distilled = config["distillation"] is not None
    prefix_rows = 1 + distilled if class_token and config["class_token_position"] else 0
    width = config["hidden_dim"]
    table = {
        "learned": (grid[0] * grid[1] + prefix_rows) * width,
        "learned_2d": sum(grid) * (width // 2) + prefix_rows * width,
    }.get(config["position_embedding"], 0)
    copies = config["num_layers"] if config["position_placement"] == "every_layer" else 1
    return Cost(params=table) * copies


def _attention_pooling(config: Mapping[str, Any], tokens: int) -> Cost:
    width = config["hidden_dim"]
    cost = Cost(params=width) + _dense(1, width, width) + _dense(tokens, width, 2 * width)
    cost += _product(1, width, tokens) * 2 + _dense(1, width, width) + _norm(width)
    return cost + _mlp(1, width, config["mlp_dim"], config["activation"])


def _head(config: Mapping[str, Any]) -> Cost:
    width = config["hidden_dim"] * (2 if config["pooling"] == "token_gap" else 1)
    size, classes = config["representation_size"], config["num_classes"]
    cost = _dense(1, width, size) if size else Cost()
    if classes is None:
        return cost
    heads = 2 if config["distillation"] == "head" else 1
    return cost + _dense(1, size or width, classes, config["head_bias"]) * heads


def _vision_transformer(config: Mapping[str, Any]) -> Cost:
    stem, size, channels = Cost(), config["image_shape"][:2], config["image_shape"][2]
    if config["stem"] is not None:
        options = config["stem"]
        stem, size, channels = _resnet(
            config["image_shape"], options["block_counts"], options["width"], preactivation=False
        )
    grid, patch = _grid(config, size)
    patches, width, pooling = grid[0] * grid[1], config["hidden_dim"], config["pooling"]
    class_token, distilled = config["class_token"], config["distillation"] is not None
    if class_token is None:
        class_token = pooling in ("token", "token_gap") or distilled
    prefix = int(class_token) + int(distilled) + config["num_registers"]
    tokens = patches + prefix

    cost = stem + _dense(patches, patch[0] * patch[1] * channels, width, not config["pre_norm"])
    cost += Cost(params=prefix * width) + _positions(config, grid, class_token)
    cost += _norm(width) if config["pre_norm"] else Cost()
    cost += _block(config, tokens, patches) * config["num_layers"]
    cost += _norm(width)
    if pooling == "map":
        cost += _attention_pooling(config, tokens)
    return cost + _head(config)


def _grid(
    config: Mapping[str, Any], size: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the patches a column and a row, and the patch's height and width."""
    patch = _checks.int_pair("patch_size", config["patch_size"])
    # A hybrid's feature map is cropped to whole patches, a picture is not.
    if config["stem"] is None and (size[0] % patch[0] or size[1] % patch[1]):
        raise ValueError(
            "`image_shape` must be divisible by `patch_size`. "
            f"Received: image_shape={config['image_shape']}, patch_size={config['patch_size']}"
        )
    if patch[0] > size[0] or patch[1] > size[1]:
        raise ValueError(
            "`image_shape` is too small for the stem and `patch_size`. "
            f"Received: feature map={size}, patch_size={config['patch_size']}"
        )
    return (size[0] // patch[0], size[1] // patch[1]), patch


# Entry points.


def _checked(
    given: Mapping[str, Any], known: Mapping[str, Any], without_cost: frozenset[str], what: str
) -> dict[str, Any]:
    """Completes `given` by the defaults in `known`."""
    unknown = sorted(set(given) - set(known) - without_cost)
    if unknown:
        raise ValueError(
            f"Unknown keys of {what}. Expected some of {sorted(set(known) | without_cost)}. "
            f"Received: {unknown}"
        )
    return {**known, **given}


def _config(model: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(model, str):
        variant = variants.parse(model)
        config = {**(BIT_DEFAULTS if variant.family == "bit" else VIT_DEFAULTS), **variant.config()}
    elif isinstance(model, Mapping):
        config = dict(model)
    elif hasattr(model, "get_config"):
        config = model.get_config()
    else:
        config = {}
    if "hidden_dim" not in config and "width_factor" not in config:
        raise ValueError(
            "`model_or_name` must be the name of a variant, a model of keras_vit or its config "
            "(with `hidden_dim`, or `width_factor` for a BiT ResNet). "
            f"Received: model_or_name={model!r}"
        )
    config.update(overrides)
    if config.get("pooling", "") is None and config.get("num_classes", 1000) is not None:
        raise ValueError(
            "A head needs pooled features: choose a `pooling`, or `num_classes=None`. "
            f"Received: pooling=None, num_classes={config.get('num_classes', 1000)}"
        )
    if "width_factor" in config:
        return _checked(config, BIT_DEFAULTS, _BIT_WITHOUT_COST, "BiTResNet")
    config = _checked(config, VIT_DEFAULTS, _VIT_WITHOUT_COST, "VisionTransformer")
    for key, choices in _VIT_CHOICES.items():
        _checks.choice(key, config[key], choices)
    _checks.divides("num_heads", config["num_heads"], "hidden_dim", config["hidden_dim"])
    if config["stem"] is not None:
        stem = _checked(config["stem"], STEM_DEFAULTS, _RESNET_WITHOUT_COST, "`stem`")
        config["stem"] = stem
    return config


def _cost(model: Any, overrides: Mapping[str, Any]) -> Cost:
    config = _config(model, overrides)
    return _bit_resnet(config) if "width_factor" in config else _vision_transformer(config)


def count_params(model_or_name: Any, **overrides: Any) -> int:
    """Counts the weights of a model without building it.

    Args:
        model_or_name: the name of a variant in any spelling of `variants.parse` (at the model
            classes' defaults: 224 pixels, 1000 classes), the config of a `VisionTransformer` or
            `BiTResNet`, or such a model.
        **overrides: keys of the config, such as `num_classes=None`, `image_shape=(384, 384, 3)`.

    Returns:
        The number of weights of the model, without those of an optimizer.

    Raises:
        ValueError: if the name or a key is unknown, or the patch does not divide the image.

    Example:
        >>> count_params("ViT-B/16")
        86567656
        >>> count_params("ViT-B/16", num_classes=10)
        85806346
    """
    return _cost(model_or_name, overrides).params


def count_flops(model_or_name: Any, **overrides: Any) -> int:
    """Counts the multiply-adds of one image's forward pass, by the convention of this module.

    Args:
        model_or_name: as in `count_params`.
        **overrides: as in `count_params`.

    Returns:
        The number of multiply-adds (a multiply and its add count as one) of convolutions and
        matrix products. Twice this number is what PyTorch's `FlopCounterMode` reports.

    Raises:
        ValueError: as in `count_params`.

    Example:
        >>> round(count_flops("ViT-B/16") / 1e9, 2)
        17.56
        >>> round(count_flops("ViT-B/16", image_shape=(384, 384, 3)) / 1e9, 2)
        55.48
    """
    return _cost(model_or_name, overrides).multiply_adds
