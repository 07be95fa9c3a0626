"""timm's files, and Meta's DINOv2 releases, whose names are timm's but for a few.

The arrays do not say everything: `config.json` beside them (timm's `save_for_hf`) names the
architecture, and its `model_args` and `pretrained_cfg` the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import dialect
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
from keras_vit.checkpoints.store import Store
from keras_vit.variants import STEMS

Layout = Mapping[str, Any]

_BACKBONE = "patch_embed.backbone"
_STEM_CONV = ("stem.conv", "conv")  # with stages, and without
_TIMM_NAMES = {"registers": "reg_token", "fc1": "fc1", "fc2": "fc2"}
_META_NAMES = {"registers": "register_tokens", "fc1": "w12", "fc2": "w3"}

# What architectures do that neither arrays nor `model_args` say: pattern of the name -> arguments.
_ARCHITECTURES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"clip|beit3", {"norm_epsilon": 1e-5}),
    (r"quickgelu", {"activation": "quick_gelu"}),
    (
        r"(base_patch32|giantopt_patch16|so400m_patch16)_siglip|large_patch16_siglip(_gap)?_512",
        {"activation": "gelu_tanh"},
    ),
    (r"giantopt", {"num_heads": 16}),
    (r"vit_base_patch16_gap", {"num_heads": 16}),
)
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_erf": "gelu",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "swiglu",
    "swish": "swiglu",
}
_POOLINGS = {"token": "token", "avg": "gap", "map": "map", "": None}

# Architectures that `timm.create_model` builds others from, by what sets a model apart.
_ARCHITECTURE_OF = (
    (lambda c: c["distillation"] is not None, "deit_tiny_distilled_patch16_224"),
    (lambda c: c["activation"] == "swiglu" and c["num_registers"], "vit_giant_patch14_reg4_dinov2"),
    (lambda c: c["activation"] == "swiglu", "vit_giant_patch14_dinov2"),
    (
        lambda c: c["pre_norm"] and c["activation"] == "quick_gelu",
        "vit_base_patch16_clip_quickgelu_224",
    ),
    (lambda c: c["pre_norm"], "vit_base_patch16_clip_224"),
    (lambda c: True, "vit_base_patch16_224"),
)
_HYBRIDS = {
    counts: name
    for (counts, _, _), name in zip(
        STEMS.values(),
        (
            "vit_tiny_r_s16_p8_224",
            "vit_small_r26_s32_224",
            "vit_large_r50_s32_224",
            "vit_base_r50_s16_224",
        ),
        strict=True,
    )
}


def _rows(config: Config, layout: Layout) -> list[Row]:
    block, ours = "blocks.{i}", "encoder_block_{i}"
    stem = f"{_BACKBONE}.stem" if config["stem"] and config["stem"]["block_counts"] else _BACKBONE
    # Of one pooled token, the norm before the pooling is the norm after it.
    fc_norm = "norm" if config["pooling"] == "token" else "fc_norm"
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
        (fc_norm, "pooled_norm", T_NORM),
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
        published = sidecar.get("pretrained_cfg") or {}
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
    known = {"activation": "gelu", "norm_epsilon": 1e-6, "num_heads": None}
    for pattern, changes in _ARCHITECTURES:
        if re.search(pattern, architecture):
            known |= changes
    if not architecture and has("norm_pre.weight"):
        known["norm_epsilon"] = 1e-5
    activation = _activation(arguments, known["activation"], store)
    prefix_tokens = has("cls_token") + has("dist_token")
    registers = store.entries[names["registers"]].shape[-2] if has(names["registers"]) else 0
    stem = _stem(store)
    stride = 1 if stem is None else 4 * 2 ** max(len(stem["block_counts"]) - 1, 0)
    rows = store.entries["pos_embed"].shape[-2] if has("pos_embed") else 0
    stated = arguments.get("img_size") or (published.get("input_size") or [None])[-2:]
    stated = None if stated in ([None], (None,)) else stated
    # Meta's registers come in behind the positions; timm's class token has then no entry.
    own_entries = bool(prefix_tokens) and (name == "dinov2" or not registers)
    if own_entries:
        own_entries = _has_entries(rows, prefix_tokens, arguments, architecture)
    cell = (patch[0] * stride, patch[1] * stride)
    patches = rows - prefix_tokens * own_entries
    if has("pos_embed"):
        if stated is not None and not _grid_matches(stated, cell, patches, store):
            stated = None  # dynamic sizes, or a document that is older than the arrays
        height, side = dialect.image_size(patches, cell, hints, store, stated)
    else:
        height, side = dialect.pair(stated or (hints.image_shape or (224, 224))[:2], "size", store)
    pooled = arguments.get("global_pool", sidecar.get("global_pool"))
    classes = store.entries.get("head.weight")
    return Found(
        name,
        {
            "image_shape": (height, side, _channels(store, stem, kernel)),
            "patch_size": patch,
            "hidden_dim": width,
            "num_layers": dialect.count(store, r"blocks\.(\d+)\."),
            "num_heads": dialect.num_heads(
                width, arguments.get("num_heads") or known["num_heads"], hints, store
            ),
            "mlp_dim": fc2,
            "num_classes": None if classes is None else classes.shape[0],
            "pooling": _pooling(store, pooled),
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
            "pixel_range": _pixels(store, published, name),
        },
        {**names, "architecture": architecture},
        ignored=r"mask_token",
        resampling="bicubic" if name == "dinov2" else "bicubic_antialias",
        assumed=() if architecture else ("no config.json: GELU by erf unless it is gated",),
    )


def _has_entries(rows: int, prefix_tokens: int, arguments: Mapping, architecture: str) -> bool:
    """Whether prefix tokens have position entries: said, or the one that leaves a square."""
    if "no_embed_class" in arguments:
        return not arguments["no_embed_class"]
    if round(max(rows - prefix_tokens, 0) ** 0.5) ** 2 == rows - prefix_tokens:
        return True
    if round(rows**0.5) ** 2 == rows:
        return False
    return not re.match(r"deit3|.*_reg\d", architecture)


def _grid_matches(stated: Any, cell: tuple[int, int], patches: int, store: Store) -> bool:
    height, width = dialect.pair(stated, "image size", store)
    return -(-height // cell[0]) * -(-width // cell[1]) == patches or (
        (height // cell[0]) * (width // cell[1]) == patches
    )


def _activation(arguments: Mapping[str, Any], default: str, store: Store) -> str:
    stated = arguments.get("act_layer")
    if stated is None:
        return default
    if stated not in _ACTIVATIONS:
        raise CheckpointError(
            f"{store.path}: act_layer in config.json must be one of {tuple(_ACTIVATIONS)}. "
            f"Received: {stated!r}"
        )
    return _ACTIVATIONS[stated]


def _pooling(store: Store, stated: Any) -> str | None:
    if "attn_pool.latent" in store.entries:
        return "map"
    if "fc_norm.weight" in store.entries or "cls_token" not in store.entries:
        return "gap"
    if stated is not None and stated not in _POOLINGS:
        raise CheckpointError(
            f"{store.path}: global_pool in config.json must be one of {tuple(_POOLINGS)}. "
            f"Received: {stated!r}"
        )
    pooling = _POOLINGS.get(stated, "token")
    return "token" if pooling == "map" else pooling


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


def _pixels(store: Store, published: Mapping[str, Any], name: str) -> str:
    """From `pretrained_cfg`, or as models with these arrays are usually trained."""
    usual = "inception"
    if name == "dinov2" or "blocks.0.ls1.gamma" in store.entries or "dist_token" in store.entries:
        usual = "imagenet"
    if "norm_pre.weight" in store.entries:
        usual = "clip"
    return dialect.pixel_range(published.get("mean"), store, usual)


# Writing.


def _target(config: Config, layout: Layout) -> Target:
    clip = config["pre_norm"]
    stem = config["stem"]
    fixed: dict[str, Any] = {"norm_epsilon": 1e-5 if clip else 1e-6}
    if stem is not None:
        fixed["stem"] = {**stem, **dialect.TORCH_STEM}
    return Target(
        rules=(
            (config["representation_size"] is None, "no Dense-tanh layer before the head"),
            (
                config["position_embedding"] in ("learned", "sincos2d"),
                f"no positions {config['position_embedding']!r}",
            ),
            (
                config["pooling"] in ("token", "gap", "map", None),
                f"no pooling {config['pooling']!r}",
            ),
            (
                config["distillation"] is None or not config["num_registers"],
                "no registers beside a distillation token",
            ),
            (
                config["distillation"] != "token",
                "no distillation token without a head of its own",
            ),
            (
                not (config["norm_after_pooling"] and config["pooling"] == "map"),
                "no norm behind attention pooling",
            ),
        ),
        class_positions=False
        if config["num_registers"]
        else True
        if config["distillation"] is not None
        else None,
        norm_after_pooling=False if config["pooling"] == "token" else None,
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
    if config["stem"] is not None:
        architecture = _HYBRIDS.get(config["stem"]["block_counts"], "vit_base_r50_s16_224")
    else:
        architecture = next(name for fits, name in _ARCHITECTURE_OF if fits(config))
    return {**_TIMM_NAMES, "architecture": architecture}


def _documents(config: Config, layout: Layout, class_names) -> dict[str, Any]:
    """`config.json`, from which `timm.create_model("local-dir:...")` builds the model."""
    architecture = layout["architecture"] or _fresh_layout(config)["architecture"]
    mean, std = dialect.PIXEL_STATISTICS[config["pixel_range"]]
    size, classes = list(config["image_shape"][:2]), config["num_classes"] or 0
    pool = next(theirs for theirs, ours in _POOLINGS.items() if ours == config["pooling"])
    gated = 2 if config["activation"] == "swiglu" else 1
    arguments: dict[str, Any] = {
        "img_size": size,
        "in_chans": config["image_shape"][2],
        "num_classes": classes,
        "global_pool": pool,
        "embed_dim": config["hidden_dim"],
        "depth": config["num_layers"],
        "num_heads": config["num_heads"],
        "mlp_ratio": gated * config["mlp_dim"] / config["hidden_dim"],
        "qkv_bias": config["qkv_bias"],
        "class_token": config["class_token"],
        "no_embed_class": config["class_token"] and not config["class_token_position"],
    }
    if config["patch_size"][0] == config["patch_size"][1]:
        arguments["patch_size"] = config["patch_size"][0]
    optional = {
        "reg_tokens": config["num_registers"],
        "qk_norm": config["qk_norm"],
        "init_values": config["layer_scale_init"],
        "pre_norm": config["pre_norm"],
        "act_layer": config["activation"] if config["activation"] == "gelu_tanh" else None,
    }
    arguments |= {key: value for key, value in optional.items() if value}
    if config["pooling"] == "gap":
        arguments["fc_norm"] = config["norm_after_pooling"]
        arguments["final_norm"] = not config["norm_after_pooling"]
    published = {
        "input_size": [config["image_shape"][2], *size],
        "num_classes": classes,
        "mean": list(mean),
        "std": list(std),
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    document = {
        "architecture": architecture,
        "num_classes": classes,
        "num_features": config["hidden_dim"],
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": published,
    }
    if class_names:
        document["label_names"] = list(class_names)
    return {"config.json": document}


TIMM = Dialect(
    name="timm",
    title="timm",
    recognises=_recognises,
    describe=lambda store, hints: _describe("timm", store, hints),
    rows=_rows,
    container="safetensors",
    target=_target,
    layout=_fresh_layout,
    documents=_documents,
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
