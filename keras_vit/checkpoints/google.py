"""Google's Flax files: vit_jax and big_vision, plain ViTs, hybrids and BiT ResNets.

vit_jax counts the modules of a block through (`LayerNorm_0, MultiHeadDotProductAttention_1,
LayerNorm_2, MlpBlock_3`), newer code counts each kind; positions stand in the encoder or at the
top; big_vision puts the weights below `params/`, two-tower models below `img/` too, and may stack
the blocks. A layout records what a file does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import dialect
from keras_vit.checkpoints.dialect import Dialect, Found, Hints, Target
from keras_vit.checkpoints.rules import (
    F_CONV,
    F_DENSE,
    F_FROM_HEADS,
    F_NORM,
    F_PATCH,
    F_TO_HEADS,
    LONE,
    POINTWISE,
    SAME,
    TABLE,
    Kind,
    Row,
    each,
)
from keras_vit.checkpoints.shapes import Config, is_bit
from keras_vit.checkpoints.store import Store

Layout = Mapping[str, Any]

PREFIXES = ("opt/target/", "params/img/", "img/", "params/", "")
_PUBLISHED_POSITIONS = "Transformer/posembed_input/pos_embedding"
_POSITIONS = (_PUBLISHED_POSITIONS, "pos_embedding", "Transformer/pos_embedding")
# Modules of a block, in the order of `_MODULES`.
_PUBLISHED_NUMBERS = (1, 2, 3)
_LINEN_NUMBERS = (0, 1, 0)
_V2_ROOT = "resnet/root_block/standardized_conv2d"
_V2_NORM: Kind = (("/gamma", "/gamma", SAME), ("/beta", "/beta", SAME))
_V2_HEAD: Kind = (("/kernel", "/kernel", POINTWISE), ("/bias", "/bias", SAME))
_DEFAULT_SIDE = 224

FIXED = {"activation": "gelu_tanh", "norm_epsilon": 1e-6, "pixel_range": "inception"}
FIXED_STEM = {
    "groups": 32,
    "group_norm_epsilon": 1e-6,
    "std_conv_epsilon": 1e-5,
    "std_conv_mode": "std",
}


def _rows(config: Config, layout: Layout) -> list[Row]:
    if is_bit(config):
        return _v2_rows() if config["preactivation"] else _bit_v1_rows(layout["prefix"])
    prefix, map_head = layout["prefix"], layout["prefix"] + layout["map_head"]
    block = f"{prefix}Transformer/encoderblock" + ("[{i}]" if layout["stacked"] else "_{i}")
    number, norm, mlp = layout["numbers"]
    attention = f"{block}/MultiHeadDotProductAttention_{number}"
    pool = f"{map_head}MultiHeadDotProductAttention_0"
    ours = "encoder_block_{i}"
    return [
        *_resnet_rows(prefix, "stem_"),
        (f"{prefix}embedding", "patch_encoder/projection", F_PATCH),
        (f"{prefix}cls", "patch_encoder/class_token", LONE),
        (prefix + layout["positions"], "patch_encoder/position_embedding", TABLE),
        (f"{block}/LayerNorm_0", f"{ours}/attention_norm", F_NORM),
        (each(f"{attention}/", "query", "key", "value"), f"{ours}/attention/qkv", F_TO_HEADS),
        (f"{attention}/out", f"{ours}/attention/out", F_FROM_HEADS),
        (f"{block}/LayerNorm_{norm}", f"{ours}/mlp_norm", F_NORM),
        (f"{block}/MlpBlock_{mlp}/Dense_0", f"{ours}/mlp/fc1", F_DENSE),
        (f"{block}/MlpBlock_{mlp}/Dense_1", f"{ours}/mlp/fc2", F_DENSE),
        (f"{prefix}Transformer/encoder_norm", "encoder_norm", F_NORM),
        (f"{map_head}probe", "pooling/probe", LONE),
        (f"{pool}/query", "pooling/query", F_TO_HEADS),
        (each(f"{pool}/", "key", "value"), "pooling/key_value", F_TO_HEADS),
        (f"{pool}/out", "pooling/out", F_FROM_HEADS),
        (f"{map_head}LayerNorm_0", "pooling/norm", F_NORM),
        (f"{map_head}MlpBlock_0/Dense_0", "pooling/mlp/fc1", F_DENSE),
        (f"{map_head}MlpBlock_0/Dense_1", "pooling/mlp/fc2", F_DENSE),
        (f"{prefix}pre_logits", "pre_logits", F_DENSE),
        (f"{prefix}head", "head", F_DENSE),
    ]


def _resnet_rows(prefix: str, ours: str) -> list[Row]:
    """The post-activation ResNet: a hybrid's stem, or a classifier."""
    theirs, unit = prefix + "block{b}/unit{u}", ours + "block{b}_unit{u}"
    parts = ("1", "2", "3", "_proj")
    return [
        (f"{prefix}conv_root", f"{ours}root/conv", F_CONV),
        (f"{prefix}gn_root", f"{ours}root/norm", F_NORM),
        *((f"{theirs}/conv{part}", f"{unit}/conv{part}", F_CONV) for part in parts),
        *((f"{theirs}/gn{part}", f"{unit}/norm{part}", F_NORM) for part in parts),
    ]


def _bit_v1_rows(prefix: str) -> list[Row]:
    return [*_resnet_rows(prefix, ""), (f"{prefix}head", "head", F_DENSE)]


def _v2_rows() -> list[Row]:
    """The published pre-activation BiT; its convolutions a, b, c are ours 1, 2, 3."""
    theirs, ours = "resnet/block{b}/unit{u:02d}", "block{b}_unit{u}"
    rows: list[Row] = [
        (_V2_ROOT, "root/conv", F_CONV),
        (f"{theirs}/a/proj/standardized_conv2d", f"{ours}/conv_proj", F_CONV),
        ("resnet/group_norm", "final_norm", _V2_NORM),
        ("resnet/head/conv2d", "head", _V2_HEAD),
    ]
    for letter, number in zip("abc", "123", strict=True):
        rows += [
            (f"{theirs}/{letter}/standardized_conv2d", f"{ours}/conv{number}", F_CONV),
            (f"{theirs}/{letter}/group_norm", f"{ours}/norm{number}", _V2_NORM),
        ]
    return rows


# Reading.


def _prefix(store: Store, name: str) -> str | None:
    """What stands before the weights: the first of `PREFIXES` under which `name` is found."""
    return next((prefix for prefix in PREFIXES if prefix + name in store.entries), None)


def _is_vit(store: Store) -> bool:
    prefix = _prefix(store, "embedding/kernel")
    pattern = rf"{re.escape(prefix or '')}Transformer/encoderblock"
    return prefix is not None and any(re.match(pattern, name) for name in store.entries)


def _is_vit_jax(store: Store) -> bool:
    prefix = _prefix(store, "embedding/kernel") or ""
    return _is_vit(store) and (
        prefix + _PUBLISHED_POSITIONS in store.entries
        or any("/MlpBlock_3/" in name for name in store.entries)
    )


def _is_bit(store: Store) -> bool:
    kernel = "conv_root/kernel"
    return f"{_V2_ROOT}/kernel" in store.entries or (
        _prefix(store, kernel) is not None and not _is_vit(store)
    )


def _layout(store: Store) -> dict[str, Any]:
    prefix = _prefix(store, "embedding/kernel") or ""
    block = f"{prefix}Transformer/encoderblock"
    stacked = any(name.startswith(f"{block}/") for name in store.entries)
    first = f"{block}/" if stacked else f"{block}_0/"
    published = any(name.startswith(f"{first}MlpBlock_3/") for name in store.entries)
    inlined = f"{prefix}probe" in store.entries
    positions = [name for name in _POSITIONS if prefix + name in store.entries]
    return {
        "prefix": prefix,
        "stacked": stacked,
        "numbers": list(_PUBLISHED_NUMBERS if published else _LINEN_NUMBERS),
        "positions": (positions or ["pos_embedding"])[0],
        "map_head": "" if inlined else "MAPHead_0/",
    }


def _others(prefix: str) -> str:
    """Names outside the prefix: optimizer state, text tower, temperature."""
    return rf"(?!{re.escape(prefix)}).*" if prefix else r"opt/.*|(params/)?(t|b|txt/.*)"


def _describe_vit(name: str, store: Store, hints: Hints) -> Found:
    layout = _layout(store)
    prefix, number = layout["prefix"], layout["numbers"][0]
    kernel = dialect.entry(store, f"{prefix}embedding/kernel", 4).shape
    width, stem = kernel[-1], None
    if f"{prefix}conv_root/kernel" in store.entries:
        stem = {**FIXED_STEM, **_stem(store, prefix)}
    block = f"{prefix}Transformer/encoderblock" + ("" if layout["stacked"] else "_0")
    query = dialect.entry(store, f"{block}/MultiHeadDotProductAttention_{number}/query/kernel")
    inner = dialect.entry(store, f"{block}/MlpBlock_{layout['numbers'][2]}/Dense_0/kernel")
    layers = (
        query.shape[0]
        if layout["stacked"]
        else dialect.count(store, re.escape(f"{prefix}Transformer/encoderblock_") + r"(\d+)/")
    )
    cls, probe = f"{prefix}cls" in store.entries, prefix + layout["map_head"] + "probe"
    stride = 1 if stem is None else 4 * 2 ** max(len(stem["block_counts"]) - 1, 0)
    cell = (kernel[0] * stride, kernel[1] * stride)
    table = store.entries.get(prefix + layout["positions"])
    own_entry = cls and layout["positions"] == _PUBLISHED_POSITIONS
    assumed: tuple[str, ...] = ()
    if table is None:
        height, width_px = (hints.image_shape or (_DEFAULT_SIDE, _DEFAULT_SIDE))[:2]
        assumed = (f"no positions: sincos2d, images of {height} x {width_px}",)
    else:
        rows = table.shape[-2] if len(table.shape) > 1 else 0
        if cls and not own_entry and hints.image_shape is None:
            # big_vision reads files with an entry for the class token too.
            own_entry = not _is_square(rows) and _is_square(rows - 1)
        height, width_px = dialect.image_size(rows - own_entry, cell, hints, store)
    return Found(
        name,
        {
            "image_shape": (height, width_px, _channels(store, prefix, kernel, stem)),
            "patch_size": kernel[:2],
            "hidden_dim": width,
            "num_layers": layers,
            "num_heads": query.shape[-2] if len(query.shape) > 2 else 1,
            "mlp_dim": inner.shape[-1],
            "num_classes": _last(store, f"{prefix}head/kernel"),
            "pooling": "token" if cls else "map" if probe in store.entries else "gap",
            "representation_size": _last(store, f"{prefix}pre_logits/kernel"),
            "stem": stem,
            "position_embedding": "sincos2d" if table is None else "learned",
            "class_token": cls,
            "class_token_position": bool(own_entry),
            **FIXED,
        },
        layout,
        ignored=_others(prefix),
        assumed=assumed,
    )


def _is_square(number: int) -> bool:
    return number > 0 and round(number**0.5) ** 2 == number


def _channels(store: Store, prefix: str, kernel, stem) -> int:
    if stem is None:
        return kernel[2]
    return dialect.entry(store, f"{prefix}conv_root/kernel", 4).shape[2]


def _last(store: Store, name: str) -> int | None:
    found = store.entries.get(name)
    return found.shape[-1] if found is not None and found.shape else None


def _stem(store: Store, prefix: str) -> dict[str, Any]:
    width = dialect.entry(store, f"{prefix}conv_root/kernel", 4).shape[-1]
    return {"block_counts": _blocks(store, prefix + "block{}/unit"), "width": width}


def _blocks(store: Store, template: str) -> tuple[int, ...]:
    blocks = dialect.count(store, re.escape(template.split("{}")[0]) + r"(\d+)/") - 1
    units = (re.escape(template.format(block + 1)) + r"(\d+)/" for block in range(blocks))
    return tuple(dialect.count(store, pattern) - 1 for pattern in units)


def _describe_bit(store: Store, hints: Hints) -> Found:
    v2 = f"{_V2_ROOT}/kernel" in store.entries
    prefix = "" if v2 else _prefix(store, "conv_root/kernel") or ""
    root = f"{_V2_ROOT}/kernel" if v2 else f"{prefix}conv_root/kernel"
    kernel = dialect.entry(store, root, 4).shape
    head = "resnet/head/conv2d/kernel" if v2 else f"{prefix}head/kernel"
    blocks = _blocks(store, "resnet/block{}/unit" if v2 else prefix + "block{}/unit")
    return Found(
        "google",
        {
            "image_shape": (*(hints.image_shape or (_DEFAULT_SIDE,) * 2)[:2], kernel[2]),
            "block_counts": blocks,
            "width_factor": kernel[3] / 64 if kernel[3] % 64 else kernel[3] // 64,
            "num_classes": _last(store, head),
            "preactivation": v2,
            "pixel_range": "inception",
        },
        {"prefix": prefix},
        ignored=_others(prefix),
    )


def _describe_google(store: Store, hints: Hints) -> Found:
    return _describe_bit(store, hints) if _is_bit(store) else _describe_vit("google", store, hints)


# Writing.


def _fresh_layout(config: Config, *, published: bool) -> dict[str, Any]:
    return {
        "prefix": "" if published else "params/",
        "stacked": False,
        "numbers": list(_PUBLISHED_NUMBERS if published else _LINEN_NUMBERS),
        "positions": _PUBLISHED_POSITIONS if published else "pos_embedding",
        "map_head": "MAPHead_0/",
    }


def _target(config: Config, layout: Layout) -> Target:
    if is_bit(config):
        return Target(fixed={"pixel_range": "inception"})
    own_entry = layout["positions"] == _PUBLISHED_POSITIONS
    stem = config["stem"]
    return Target(
        rules=(
            (not config["pre_norm"], "no norm before the first block"),
            (not config["qk_norm"], "no norms of queries and keys"),
            (config["activation"] != "swiglu", "no SwiGLU"),
            (not config["num_registers"], "no register tokens"),
            (config["distillation"] is None, "no distillation token"),
            (
                config["position_embedding"] in ("learned", "sincos2d"),
                f"no positions {config['position_embedding']!r}",
            ),
            (
                config["pooling"] in ("token", "gap", "map"),
                f"no pooling {config['pooling']!r}",
            ),
            (
                not config["class_token"] or config["pooling"] == "token",
                "no class token that is not pooled",
            ),
        ),
        class_positions=own_entry,
        norm_after_pooling=False,
        qkv_bias=True,
        layer_scale=False,
        fixed_positions=not own_entry,
        fixed={**FIXED, **({} if stem is None else {"stem": {**stem, **FIXED_STEM}})},
    )


GOOGLE = Dialect(
    name="google",
    title="vit_jax",
    recognises=lambda store: _is_vit_jax(store) or _is_bit(store),
    describe=_describe_google,
    rows=_rows,
    container="npz",
    holds_bit=True,
    target=_target,
    layout=lambda config: _fresh_layout(config, published=True),
)

BIG_VISION = Dialect(
    name="big_vision",
    title="big_vision",
    recognises=_is_vit,
    describe=lambda store, hints: _describe_vit("big_vision", store, hints),
    rows=_rows,
    container="npz",
    holds_bit=True,
    target=_target,
    layout=lambda config: _fresh_layout(config, published=False),
)
