"""timm's files, and Meta's DINOv2 releases, whose names are timm's but for a few.

The arrays do not say everything: `config.json` beside them (timm's `save_for_hf`) names the
architecture, and its `model_args` and `pretrained_cfg` the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import dialect, timm_config
from keras_vit.checkpoints.dialect import Dialect, Found, Hints, Target
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.rules import (
    LONE,
    T_DENSE,
    T_NORM,
    T_PATCH,
    TABLE,
    Row,
    torch_bottlenecks,
)
from keras_vit.checkpoints.shapes import Config
from keras_vit.checkpoints.store import Entry, Store

Layout = Mapping[str, Any]

_BACKBONE = "patch_embed.backbone"
_STEM_CONV = ("stem.conv", "conv")  # with stages, and without
_TIMM_NAMES = {"registers": "reg_token", "fc1": "fc1", "fc2": "fc2"}
_META_NAMES = {"registers": "register_tokens", "fc1": "w12", "fc2": "w3"}


def _rows(config: Config, layout: Layout) -> list[Row]:
    block, ours = "blocks.{i}", "encoder_block_{i}"
    stem = f"{_BACKBONE}.stem" if config["stem"] and config["stem"]["block_counts"] else _BACKBONE
    return [
        *torch_bottlenecks(f"{stem}.conv,{stem}.norm", f"{_BACKBONE}.stages.{{b0}}.blocks.{{u0}}"),
        ("patch_embed.proj", "patch_encoder/projection", T_PATCH),
        ("cls_token", "patch_encoder/class_token", LONE),
        ("dist_token", "patch_encoder/distillation_token", LONE),
        (layout["registers"], "patch_encoder/registers", LONE),
        ("pos_embed", "patch_encoder/position_embedding", TABLE),
        ("norm_pre", "pre_norm", T_NORM),
        (f"{block}.norm1", f"{ours}/attention_norm", T_NORM),
        (f"{block}.attn.qkv", f"{ours}/attention/qkv", T_DENSE),
        (f"{block}.attn.q_norm", f"{ours}/attention/query_norm", T_NORM),
        (f"{block}.attn.k_norm", f"{ours}/attention/key_norm", T_NORM),
        (f"{block}.attn.proj", f"{ours}/attention/out", T_DENSE),
        (f"{block}.ls1.gamma", f"{ours}/attention_scale/gamma", LONE),
        (f"{block}.norm2", f"{ours}/mlp_norm", T_NORM),
        (f"{block}.mlp.{layout['fc1']}", f"{ours}/mlp/fc1", T_DENSE),
        (f"{block}.mlp.{layout['fc2']}", f"{ours}/mlp/fc2", T_DENSE),
        (f"{block}.ls2.gamma", f"{ours}/mlp_scale/gamma", LONE),
        ("norm", "encoder_norm", T_NORM),
        ("attn_pool.latent", "pooling/probe", LONE),
        ("attn_pool.q", "pooling/query", T_DENSE),
        ("attn_pool.kv", "pooling/key_value", T_DENSE),
        ("attn_pool.proj", "pooling/out", T_DENSE),
        ("attn_pool.norm", "pooling/norm", T_NORM),
        ("attn_pool.mlp.fc1", "pooling/mlp/fc1", T_DENSE),
        ("attn_pool.mlp.fc2", "pooling/mlp/fc2", T_DENSE),
        ("fc_norm", "pooled_norm", T_NORM),
        ("head", "head", T_DENSE),
        ("head_dist", "head_dist", T_DENSE),
    ]


# Reading.


def _recognises(store: Store) -> bool:
    return "patch_embed.proj.weight" in store.entries and any(
        name.startswith("blocks.0.") for name in store.entries
    )


def _is_meta(store: Store) -> bool:
    names = ("mask_token", "register_tokens")
    return _recognises(store) and any(name in store.entries for name in names)


def _describe(name: str, store: Store, hints: Hints) -> Found:
    has = store.entries.__contains__
    sidecar = dialect.document(store, "config.json")
    architecture = str(sidecar.get("architecture", ""))
    arguments, published = ({}, {})
    if architecture:
        arguments = sidecar.get("model_args") or {}
        # In timm's first documents everything lies at the top.
        published = sidecar.get("pretrained_cfg", sidecar) or {}
    if "_rpn_" in architecture:
        raise CheckpointError(
            f"{store.path}: {architecture} normalises behind attention and MLP, which a "
            "VisionTransformer does not."
        )
    if not isinstance(arguments, Mapping) or not isinstance(published, Mapping):
        raise CheckpointError(
            f"{store.path}: model_args and pretrained_cfg in config.json must be objects. Take "
            "timm's own file, or remove it and pass the model's arguments."
        )
    names = dict(_META_NAMES if name == "dinov2" else _TIMM_NAMES)
    if has("blocks.0.mlp.fc1.weight"):
        names |= {"fc1": "fc1", "fc2": "fc2"}
    kernel = dialect.entry(store, "patch_embed.proj.weight", 4).shape
    width, patch = kernel[0], kernel[2:]
    fc1 = dialect.entry(store, f"blocks.0.mlp.{names['fc1']}.weight", 2).shape[0]
    fc2 = dialect.entry(store, f"blocks.0.mlp.{names['fc2']}.weight", 2).shape[1]
    known = timm_config.known_of(architecture)
    if not architecture and has("norm_pre.weight"):
        known["norm_epsilon"] = 1e-5
    activation = timm_config.activation(arguments, known["activation"], store)
    registers = store.entries[names["registers"]].shape[-2] if has(names["registers"]) else 0
    # Meta's registers come in behind the positions.
    prefix = has("cls_token") + has("dist_token") + (registers if name == "timm" else 0)
    stem = _stem(store)
    stride = 1 if stem is None else 4 * 2 ** max(len(stem["block_counts"]) - 1, 0)
    rows = store.entries["pos_embed"].shape[-2] if has("pos_embed") else 0
    stated = arguments.get("img_size") or (published.get("input_size") or [None])[-2:]
    stated = None if stated in ([None], (None,)) else stated
    cell = (patch[0] * stride, patch[1] * stride)
    grids = () if stated is None else _grids(stated, cell, store)
    own_entries = bool(prefix and rows) and _has_entries(
        rows,
        prefix,
        grids,
        arguments,
        name == "timm" and (bool(registers) or architecture.startswith("deit3")),
    )
    patches = rows - prefix * own_entries
    if has("pos_embed"):
        cut = stem is None and stated is not None and _leaves_rest(stated, patch, store)
        if patches not in grids or cut:
            # Dynamic sizes, a document older than the arrays, or pixels that no patch reads.
            stated = None
        height, side = dialect.image_size(patches, cell, hints, store, stated)
    else:
        height, side = dialect.pair(stated or (hints.image_shape or (224, 224))[:2], "size", store)
    if own_entries and registers and name == "timm":
        _fold_entries(store, prefix)
        own_entries = False
    pooling = timm_config.pooling(
        store,
        arguments.get("global_pool", sidecar.get("global_pool")),
        arguments.get("pool_include_prefix", False),
    )
    if pooling == "map" and prefix and not arguments.get("pool_include_prefix"):
        raise CheckpointError(
            f"{store.path}: attention pooling of a VisionTransformer reads all tokens, "
            "and timm's the patches alone unless config.json says pool_include_prefix."
        )
    classes = store.entries.get("head.weight")
    stated_heads = arguments.get("num_heads") or known["num_heads"]
    return Found(
        name,
        {
            "image_shape": (height, side, _channels(store, stem, kernel)),
            "patch_size": patch,
            "hidden_dim": width,
            "num_layers": dialect.count(store, r"blocks\.(\d+)\."),
            "num_heads": dialect.num_heads(width, stated_heads, hints, store),
            "mlp_dim": fc2,
            "num_classes": None if classes is None else classes.shape[0],
            "pooling": pooling,
            "stem": stem,
            "position_embedding": "learned" if has("pos_embed") else "none",
            "class_token": has("cls_token"),
            "class_token_position": own_entries,
            "distillation": None
            if not has("dist_token")
            else "head"
            if has("head_dist.weight") or classes is None
            else "token",
            "num_registers": registers,
            "activation": "swiglu" if fc1 == 2 * fc2 else activation,
            "norm_epsilon": known["norm_epsilon"],
            "qkv_bias": has("blocks.0.attn.qkv.bias"),
            "qk_norm": has("blocks.0.attn.q_norm.weight"),
            "pre_norm": has("norm_pre.weight"),
            "norm_after_pooling": has("fc_norm.weight"),
            "layer_scale_init": 1.0 if has("blocks.0.ls1.gamma") else None,
            "pixel_range": _pixels(store, published, name, hints),
        },
        {**names, "architecture": architecture},
        ignored=r"mask_token",
        resampling="bicubic" if name == "dinov2" else "bicubic_antialias",
        assumed=(
            *(() if architecture else ("no config.json: GELU by erf unless it is gated",)),
            *dialect.assumed_heads(width, stated_heads, hints),
        ),
    )


def _has_entries(
    rows: int, prefix: int, grids: tuple[int, ...], arguments: Mapping, unusual: bool
) -> bool:
    """Whether prefix tokens have position entries: said, or what leaves a grid or a square."""
    if "no_embed_class" in arguments:
        return not arguments["no_embed_class"]
    for fits in (grids.__contains__, lambda n: n > 0 and math.isqrt(n) ** 2 == n):
        with_entries, without = fits(rows - prefix), fits(rows)
        if with_entries != without:
            return with_entries
    return not unusual


def _grids(stated: Any, cell: tuple[int, int], store: Store) -> tuple[int, ...]:
    """Patches of an image of the stated size, its last cells cut off or not."""
    height, width = dialect.pair(stated, "image size", store)
    return (
        -(-height // cell[0]) * -(-width // cell[1]),
        (height // cell[0]) * (width // cell[1]),
    )


def _leaves_rest(stated: Any, patch: tuple[int, ...], store: Store) -> bool:
    sides = dialect.pair(stated, "image size", store)
    return any(side % length for side, length in zip(sides, patch, strict=True))


def _fold_entries(store: Store, prefix: int) -> None:
    """Has the store show position entries of prefix tokens as part of these tokens.

    A `VisionTransformer` has none for registers.
    """
    read, entries = store.read_array, dict(store.entries)
    starts, start = {}, 0
    for token in ("cls_token", "dist_token", "reg_token"):
        if token in entries:
            starts[token] = start
            start += entries[token].shape[-2]
    rows, width = entries["pos_embed"].shape[-2:]
    entries["pos_embed"] = Entry((1, rows - prefix, width), entries["pos_embed"].dtype)

    def read_folded(name: str):
        if name == "pos_embed":
            return read(name).reshape(1, rows, width)[:, prefix:]
        if name in starts:
            token = read(name)
            end = starts[name] + token.shape[-2]
            return token + read("pos_embed").reshape(1, rows, width)[:, starts[name] : end]
        return read(name)

    store.read_array, store.entries = read_folded, entries


def _channels(store: Store, stem, kernel) -> int:
    return kernel[1] if stem is None else dialect.entry(store, _root(store), 4).shape[1]


def _root(store: Store) -> str:
    names = (f"{_BACKBONE}.{conv}.weight" for conv in _STEM_CONV)
    return next((name for name in names if name in store.entries), "")


def _stem(store: Store) -> dict[str, Any] | None:
    root = _root(store)
    if not root:
        return None
    stages = dialect.count(store, re.escape(f"{_BACKBONE}.stages.") + r"(\d+)\.")
    counts = tuple(
        dialect.count(store, re.escape(f"{_BACKBONE}.stages.{stage}.blocks.") + r"(\d+)\.")
        for stage in range(stages)
    )
    width = dialect.entry(store, root, 4).shape[0]
    return {"block_counts": counts, "width": width, **dialect.TORCH_STEM}


def _pixels(store: Store, published: Mapping[str, Any], name: str, hints: Hints) -> str:
    """From `pretrained_cfg`, or as models with these arrays are usually trained."""
    usual = "inception"
    if name == "dinov2" or "blocks.0.ls1.gamma" in store.entries or "dist_token" in store.entries:
        usual = "imagenet"
    if "norm_pre.weight" in store.entries:
        usual = "clip"
    mean = published.get("mean")
    if isinstance(mean, list) and len(mean) == 1:
        mean = mean * 3  # gray images
    return dialect.pixel_range(mean, store, usual, hints)


# Writing.


def _target(config: Config, layout: Layout) -> Target:
    stem, pooling = config["stem"], config["pooling"]
    architecture = layout["architecture"] or timm_config.architecture_of(config)
    fixed: dict[str, Any] = {"norm_epsilon": timm_config.known_of(architecture)["norm_epsilon"]}
    if stem is not None:
        fixed["stem"] = {**stem, **dialect.TORCH_STEM}
    return Target(
        rules=(
            (config["representation_size"] is None, "no Dense-tanh layer before the head"),
            (
                config["position_embedding"] in ("learned", "sincos2d"),
                f"no positions {config['position_embedding']!r}",
            ),
            (pooling in ("token", "gap", "mean", "map", None), f"no pooling {pooling!r}"),
            (pooling != "map" or config["activation"] != "swiglu", "no gated attention pooling"),
            (
                config["distillation"] is None or not config["num_registers"],
                "no registers beside a distillation token",
            ),
            (
                config["distillation"] != "token",
                "no distillation token without a head of its own",
            ),
            (
                not (config["norm_after_pooling"] and pooling == "map"),
                "no norm behind attention pooling",
            ),
        ),
        class_positions=False
        if config["num_registers"]
        else True
        if config["distillation"] is not None
        else None,
        norm_after_pooling=False if pooling == "token" else None,
        fixed_positions=False,
        fixed=fixed,
    )


def _meta_target(config: Config, layout: Layout) -> Target:
    return Target(
        rules=(
            (config["num_classes"] is None, "no head"),
            (config["pooling"] == "token", "no pooling but by the class token"),
            (not config["pre_norm"], "no norm before the first block"),
            (not config["qk_norm"], "no norms of queries and keys"),
            (config["distillation"] is None, "no distillation token"),
            (config["stem"] is None, "no ResNet stem"),
            (config["representation_size"] is None, "no Dense-tanh layer"),
            (
                config["position_embedding"] in ("learned", "sincos2d"),
                f"no positions {config['position_embedding']!r}",
            ),
        ),
        class_positions=True,
        norm_after_pooling=False,
        layer_scale=True,
        fixed_positions=False,
        fixed={"norm_epsilon": 1e-6, "pixel_range": "imagenet"},
    )


def _fresh_layout(config: Config) -> dict[str, Any]:
    return {**_TIMM_NAMES, "architecture": timm_config.architecture_of(config)}


TIMM = Dialect(
    name="timm",
    title="timm",
    recognises=_recognises,
    describe=lambda store, hints: _describe("timm", store, hints),
    rows=_rows,
    container="safetensors",
    target=_target,
    layout=_fresh_layout,
    documents=timm_config.documents,
)

META = Dialect(
    name="dinov2",
    title="Meta's DINOv2",
    recognises=_is_meta,
    describe=lambda store, hints: _describe("dinov2", store, hints),
    rows=_rows,
    container="safetensors",
    target=_meta_target,
    layout=lambda config: {
        **_META_NAMES,
        **({} if config["activation"] == "swiglu" else {"fc1": "fc1", "fc2": "fc2"}),
        "architecture": "",
    },
    extras=lambda config, layout: {"mask_token": (1, config["hidden_dim"])},
)
