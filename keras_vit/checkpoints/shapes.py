"""The variables of a model as a function of its flat config: path -> shape, without Keras.

Only what other projects' files can hold is described: models of other kinds (positions at every
layer, learned 2-D or relative positions) are refused before, see `dialect.common_refusals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Config = Mapping[str, Any]
Shape = tuple[int, ...]


def weight_shapes(config: Config) -> dict[str, Shape]:
    """Shapes of all weights by variable path.

    Args:
        config: the checked config of a `VisionTransformer` or `BiTResNet`, with all keys.

    Returns:
        Shapes by path, in no particular order.
    """
    return dict(_bit(config) if is_bit(config) else _vit(config))


def is_bit(config: Config) -> bool:
    """Whether this is the config of a `BiTResNet`."""
    return "block_counts" in config


def feature_stride(config: Config) -> int:
    """Pixels along one side of a cell of what is cut into patches."""
    if config["stem"] is None:
        return 1
    return 4 * 2 ** max(len(config["stem"]["block_counts"]) - 1, 0)


def grid_shape(config: Config) -> tuple[int, int]:
    """Patches along height and width."""
    stride = feature_stride(config)
    height, width = (-(-side // stride) for side in config["image_shape"][:2])
    return height // config["patch_size"][0], width // config["patch_size"][1]


def num_position_rows(config: Config) -> int:
    """Rows of the position table: prefix tokens with an entry, then patches."""
    height, width = grid_shape(config)
    return num_prefix_positions(config) + height * width


def num_prefix_positions(config: Config) -> int:
    """Prefix tokens with a position entry: class token and distillation token, or none."""
    if not (config["class_token"] and config["class_token_position"]):
        return 0
    return 1 + (config["distillation"] is not None)


def pooled_width(config: Config) -> int:
    """Width of the vector that pooling gives."""
    return config["hidden_dim"] * (2 if config["pooling"] == "token_gap" else 1)


def _dense(path: str, inputs: int, outputs: int, bias: bool = True) -> Iterator[tuple[str, Shape]]:
    yield f"{path}/kernel", (inputs, outputs)
    if bias:
        yield f"{path}/bias", (outputs,)


def _norm(path: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{path}/gamma", (width,)
    yield f"{path}/beta", (width,)


def _mlp(path: str, config: Config) -> Iterator[tuple[str, Shape]]:
    width, inner = config["hidden_dim"], config["mlp_dim"]
    yield from _dense(f"{path}/fc1", width, inner * (2 if config["activation"] == "swiglu" else 1))
    yield from _dense(f"{path}/fc2", inner, width)


def _block(path: str, config: Config) -> Iterator[tuple[str, Shape]]:
    width = config["hidden_dim"]
    yield from _norm(f"{path}/attention_norm", width)
    yield from _dense(f"{path}/attention/qkv", width, 3 * width, config["qkv_bias"])
    if config["qk_norm"]:
        for name in ("query_norm", "key_norm"):
            yield from _norm(f"{path}/attention/{name}", width // config["num_heads"])
    yield from _dense(f"{path}/attention/out", width, width)
    yield from _norm(f"{path}/mlp_norm", width)
    yield from _mlp(f"{path}/mlp", config)
    if config["layer_scale_init"] is not None:
        yield f"{path}/attention_scale/gamma", (width,)
        yield f"{path}/mlp_scale/gamma", (width,)


def _vit(config: Config) -> Iterator[tuple[str, Shape]]:
    width, channels = config["hidden_dim"], config["image_shape"][-1]
    if config["stem"] is not None:
        stem = config["stem"]
        yield from _resnet("stem_", channels, stem["block_counts"], stem["width"], False)
        channels = stem["width"] * (4 * 2 ** (len(stem["block_counts"]) - 1))
        channels = channels if stem["block_counts"] else stem["width"]
    values = config["patch_size"][0] * config["patch_size"][1] * channels
    yield from _dense("patch_encoder/projection", values, width, not config["pre_norm"])
    if config["class_token"]:
        yield "patch_encoder/class_token", (1, 1, width)
    if config["distillation"] is not None:
        yield "patch_encoder/distillation_token", (1, 1, width)
    if config["num_registers"]:
        yield "patch_encoder/registers", (1, config["num_registers"], width)
    if config["position_embedding"] == "learned":
        yield "patch_encoder/position_embedding/embedding", (num_position_rows(config), width)
    if config["pre_norm"]:
        yield from _norm("pre_norm", width)
    for index in range(config["num_layers"]):
        yield from _block(f"encoder_block_{index}", config)
    yield from _norm("pooled_norm" if config["norm_after_pooling"] else "encoder_norm", width)
    if config["pooling"] == "map":
        yield "pooling/probe", (1, 1, width)
        for name, outputs in (("query", width), ("key_value", 2 * width), ("out", width)):
            yield from _dense(f"pooling/{name}", width, outputs)
        yield from _norm("pooling/norm", width)
        yield from _mlp("pooling/mlp", config)
    features = pooled_width(config)
    if config["representation_size"] is not None:
        yield from _dense("pre_logits", features, config["representation_size"])
        features = config["representation_size"]
    if config["num_classes"] is not None:
        heads = ("head", "head_dist") if config["distillation"] == "head" else ("head",)
        for name in heads:
            yield from _dense(name, features, config["num_classes"], config["head_bias"])


def _resnet(
    prefix: str, channels: int, counts: tuple[int, ...], width: int, preactivation: bool
) -> Iterator[tuple[str, Shape]]:
    """Root and units; a norm stands behind each convolution in V1, before it in V2."""
    yield f"{prefix}root/conv/kernel", (7, 7, channels, width)
    if not preactivation:
        yield from _norm(f"{prefix}root/norm", width)
    channels = width
    for block, units in enumerate(counts):
        inner = width * 2**block
        for unit in range(units):
            path = f"{prefix}block{block + 1}_unit{unit + 1}"
            widths = (channels, inner, inner) if preactivation else (inner, inner, 4 * inner)
            kernels = ((1, 1, channels, inner), (3, 3, inner, inner), (1, 1, inner, 4 * inner))
            for number, (kernel, norm) in enumerate(zip(kernels, widths, strict=True), 1):
                yield f"{path}/conv{number}/kernel", kernel
                yield from _norm(f"{path}/norm{number}", norm)
            if unit == 0:
                yield f"{path}/conv_proj/kernel", (1, 1, channels, 4 * inner)
                if not preactivation:
                    yield from _norm(f"{path}/norm_proj", 4 * inner)
            channels = 4 * inner


def _bit(config: Config) -> Iterator[tuple[str, Shape]]:
    counts, width = config["block_counts"], int(64 * config["width_factor"])
    yield from _resnet("", config["image_shape"][-1], counts, width, config["preactivation"])
    channels = width * 4 * 2 ** (len(counts) - 1)
    if config["preactivation"]:
        yield from _norm("final_norm", channels)
    if config["num_classes"] is not None:
        yield from _dense("head", channels, config["num_classes"])
