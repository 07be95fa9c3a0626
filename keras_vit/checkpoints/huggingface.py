"""transformers' files: ViT, DeiT, ViT-MAE, DINOv2 with and without registers, ViT-hybrid.

CLIP and SigLIP towers, which share their own set of names, are in `huggingface_clip.py`. The
names are those in files; transformers 5 has others in memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import dialect
from keras_vit.checkpoints.dialect import Found, Hints, Target
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.huggingface_config import (
    DINOV2,
    activation,
    epsilon,
    gated_width,
    stated_size,
)
from keras_vit.checkpoints.rules import (
    LONE,
    T_DENSE,
    T_NORM,
    T_PATCH,
    TABLE,
    Row,
    each,
    torch_bottlenecks,
)
from keras_vit.checkpoints.shapes import Config, Shape
from keras_vit.checkpoints.store import Store

Layout = Mapping[str, Any]

ANCHOR = "embeddings.patch_embeddings.projection.weight"
_BIT = "embeddings.patch_embeddings.backbone.bit"

# model type -> (prefix in a model with a head, LayerNorm epsilon and pixels where config.json does
# not say, resampling of positions).
TYPES: dict[str, tuple[str, float, str, str]] = {
    "vit": ("vit.", 1e-12, "inception", "bicubic"),
    "deit": ("deit.", 1e-12, "imagenet", "bicubic"),
    "vit_mae": ("vit.", 1e-12, "imagenet", "bicubic"),
    "vit-hybrid": ("vit.", 1e-12, "inception", "bicubic"),
    "dinov2": ("dinov2.", 1e-6, "imagenet", "bicubic"),
    "dinov2_with_registers": (
        "dinov2_with_registers.",
        1e-6,
        "imagenet",
        "bicubic_antialias",
    ),
}
# Pre-training alone uses these.
_IGNORED = r"(.*\.)?mask_token|(.*\.)?decoder.*|(.*\.)?position_ids"


def rows(config: Config, layout: Layout) -> list[Row]:
    """The table of names."""
    prefix, kind = layout["prefix"], layout["model_type"]
    block, ours = prefix + "encoder.layer.{i}", "encoder_block_{i}"
    embeddings = f"{prefix}embeddings"
    parts = each(f"{block}.attention.attention.", "query", "key", "value")
    dinov2 = kind in DINOV2
    gated = config["activation"] == "swiglu"
    mlp = ("weights_in", "weights_out") if gated else ("fc1", "fc2")
    fc1, fc2 = each("mlp.", *mlp) if dinov2 else ("intermediate.dense", "output.dense")
    norms = ("norm1", "norm2") if dinov2 else ("layernorm_before", "layernorm_after")
    two_heads = config["distillation"] == "head"
    bit = prefix + _BIT
    return [
        *torch_bottlenecks(
            f"{bit}.embedder.convolution,{bit}.embedder.norm",
            f"{bit}.encoder.stages.{{b0}}.layers.{{u0}}",
        ),
        (f"{embeddings}.patch_embeddings.projection", "patch_encoder/projection", T_PATCH),
        (f"{embeddings}.cls_token", "patch_encoder/class_token", LONE),
        (f"{embeddings}.distillation_token", "patch_encoder/distillation_token", LONE),
        (f"{embeddings}.register_tokens", "patch_encoder/registers", LONE),
        (f"{embeddings}.position_embeddings", "patch_encoder/position_embedding", TABLE),
        (f"{block}.{norms[0]}", f"{ours}/attention_norm", T_NORM),
        (parts, f"{ours}/attention/qkv", T_DENSE),
        (f"{block}.attention.output.dense", f"{ours}/attention/out", T_DENSE),
        (f"{block}.layer_scale1.lambda1", f"{ours}/attention_scale/gamma", LONE),
        (f"{block}.{norms[1]}", f"{ours}/mlp_norm", T_NORM),
        (f"{block}.{fc1}", f"{ours}/mlp/fc1", T_DENSE),
        (f"{block}.{fc2}", f"{ours}/mlp/fc2", T_DENSE),
        (f"{block}.layer_scale2.lambda1", f"{ours}/mlp_scale/gamma", LONE),
        (f"{prefix}layernorm", "encoder_norm", T_NORM),
        (f"{prefix}pooler.dense", "pre_logits", T_DENSE),
        ("cls_classifier" if two_heads else "classifier", "head", T_DENSE),
        ("distillation_classifier", "head_dist", T_DENSE),
    ]


def prefix_of(store: Store, anchor: str) -> str | None:
    """What stands before `anchor` in the one name that ends with it."""
    found = [name for name in store.entries if name == anchor or name.endswith(f".{anchor}")]
    return found[0].removesuffix(anchor) if len(found) == 1 else None


def recognises(store: Store) -> bool:
    """Whether the names are those of this module."""
    return prefix_of(store, ANCHOR) is not None


def _model_type(store: Store, prefix: str) -> str:
    """From `config.json`, or from names."""
    stated = dialect.document(store, "config.json").get("model_type")
    if stated in TYPES:
        return stated
    if stated is not None:
        raise CheckpointError(
            f"{store.path}: model_type in config.json must be one of {tuple(TYPES)} for these "
            f"names. Received: {stated!r}"
        )
    signs = {
        f"{prefix}embeddings.distillation_token": "deit",
        f"{prefix}embeddings.register_tokens": "dinov2_with_registers",
        f"{prefix}encoder.layer.0.norm1.weight": "dinov2",
        f"{prefix}{_BIT}.embedder.convolution.weight": "vit-hybrid",
    }
    return next((kind for name, kind in signs.items() if name in store.entries), "vit")


def describe(store: Store, hints: Hints) -> Found:
    """What is in a file of this family."""
    prefix = prefix_of(store, ANCHOR) or ""
    kind = _model_type(store, prefix)
    sidecar = dialect.document(store, "config.json")
    _, usual_epsilon, usual_pixels, resampling = TYPES[kind]
    has = store.entries.__contains__
    embeddings, block = f"{prefix}embeddings", f"{prefix}encoder.layer.0"
    kernel = dialect.entry(store, prefix + ANCHOR, 4).shape
    gated = has(f"{block}.mlp.weights_in.weight")
    fc2 = next(
        (
            name
            for name in each(f"{block}.", "mlp.weights_out", "mlp.fc2", "output.dense")
            if has(f"{name}.weight")
        ),
        f"{block}.output.dense",
    )
    stem = _stem(store, prefix, sidecar)
    stride = 1 if stem is None else 4 * 2 ** max(len(stem["block_counts"]) - 1, 0)
    cell = (kernel[2] * stride, kernel[3] * stride)
    tokens = 1 + has(f"{embeddings}.distillation_token")
    table = dialect.entry(store, f"{embeddings}.position_embeddings", 3)
    registers = store.entries.get(f"{embeddings}.register_tokens")
    height, width = dialect.image_size(
        table.shape[1] - tokens,
        cell,
        hints,
        store,
        stated_size(sidecar, table.shape[1] - tokens, cell, stem is None, store),
    )
    two_heads = has("cls_classifier.weight")
    head = store.entries.get("cls_classifier.weight" if two_heads else "classifier.weight")
    pooler = store.entries.get(f"{prefix}pooler.dense.weight")
    return Found(
        "huggingface",
        {
            "image_shape": (height, width, _channels(store, prefix, stem, kernel)),
            "patch_size": kernel[2:],
            "hidden_dim": kernel[0],
            "num_layers": dialect.count(store, re.escape(f"{prefix}encoder.layer.") + r"(\d+)\."),
            "num_heads": dialect.num_heads(
                kernel[0], sidecar.get("num_attention_heads"), hints, store
            ),
            "mlp_dim": dialect.entry(store, f"{fc2}.weight", 2).shape[1],
            "num_classes": None if head is None else head.shape[0],
            "pooling": "token_gap" if kind in DINOV2 and head is not None else "token",
            "representation_size": None if pooler is None else pooler.shape[0],
            "stem": stem,
            "class_token": True,
            "distillation": None if tokens == 1 else "head" if two_heads else "token",
            "num_registers": 0 if registers is None else registers.shape[-2],
            "activation": "swiglu" if gated else activation(sidecar, "gelu", store),
            "norm_epsilon": epsilon(sidecar, usual_epsilon, store),
            "qkv_bias": has(f"{block}.attention.attention.query.bias"),
            "layer_scale_init": 1.0 if has(f"{block}.layer_scale1.lambda1") else None,
            "pixel_range": _pixels(store, usual_pixels, hints),
        },
        {"prefix": prefix, "model_type": kind},
        ignored=_IGNORED,
        resampling=resampling,
        class_names=dialect.class_names(sidecar.get("id2label")),
        assumed=(
            *(() if sidecar else (f"no config.json: {kind}, epsilon {usual_epsilon}",)),
            *dialect.assumed_heads(kernel[0], sidecar.get("num_attention_heads"), hints),
        ),
    )


def _pixels(store: Store, usual: str, hints: Hints) -> str:
    mean = dialect.document(store, "preprocessor_config.json").get("image_mean")
    return dialect.pixel_range(mean, store, usual, hints)


def _channels(store: Store, prefix: str, stem, kernel) -> int:
    if stem is None:
        return kernel[1]
    return dialect.entry(store, f"{prefix}{_BIT}.embedder.convolution.weight", 4).shape[1]


def _stem(store: Store, prefix: str, sidecar: Mapping[str, Any]) -> dict[str, Any] | None:
    root = f"{prefix}{_BIT}.embedder.convolution.weight"
    if root not in store.entries:
        return None
    stages = f"{prefix}{_BIT}.encoder.stages."
    counts = tuple(
        dialect.count(store, re.escape(f"{stages}{stage}.layers.") + r"(\d+)\.")
        for stage in range(dialect.count(store, re.escape(stages) + r"(\d+)\."))
    )
    backbone = sidecar.get("backbone_config")
    groups = backbone.get("num_groups", 32) if isinstance(backbone, Mapping) else 32
    width = dialect.entry(store, root, 4).shape[0]
    return {**dialect.TORCH_STEM, "block_counts": counts, "width": width, "groups": groups}


# Writing.


def layout(config: Config) -> dict[str, Any]:
    """The model type that fits a model, and its prefix."""
    headless = config["num_classes"] is None
    if config["distillation"] is not None:
        kind = "deit"
    elif config["stem"] is not None:
        kind = "vit-hybrid"
    elif config["num_registers"]:
        kind = "dinov2_with_registers"
    elif config["layer_scale_init"] is not None or config["activation"] == "swiglu":
        kind = "dinov2"
    else:
        kind = "vit"
    return {"prefix": "" if headless else TYPES[kind][0], "model_type": kind}


def keep(config: Config, layout: Layout) -> dict[str, Any]:
    """A file's layout for the model that it has become: with a head, names have a prefix."""
    if config["num_classes"] is None:
        return dict(layout)
    kind = "vit" if layout["model_type"] == "vit_mae" else layout["model_type"]
    return {"prefix": TYPES[kind][0], "model_type": kind}


def target(config: Config, layout: Layout) -> Target:
    """What these files need of a model."""
    kind = layout["model_type"]
    dinov2, headless = kind in DINOV2, config["num_classes"] is None
    hybrid = kind == "vit-hybrid"
    gated = config["activation"] == "swiglu"
    pooler = config["representation_size"] is not None
    stem = config["stem"]
    fixed = (
        {} if stem is None else {"stem": {**stem, **dialect.TORCH_STEM, "groups": stem["groups"]}}
    )
    return Target(
        rules=(
            (config["pooling"] in ("token", "token_gap"), f"no pooling {config['pooling']!r}"),
            (
                dinov2 or config["pooling"] != "token_gap",
                "no pooling 'token_gap' outside DINOv2",
            ),
            (
                config["position_embedding"] in ("learned", "sincos2d"),
                f"no positions {config['position_embedding']!r}",
            ),
            (not config["qk_norm"], "no norms of queries and keys"),
            (not config["pre_norm"], "no norm before the first block outside CLIP"),
            (dinov2 or not gated, "no SwiGLU outside DINOv2"),
            (
                not gated or config["mlp_dim"] == gated_width(config),
                f"SwiGLU of width {gated_width(config)} only",
            ),
            (
                kind == "dinov2_with_registers" or not config["num_registers"],
                f"no registers in {kind}",
            ),
            (
                kind == "deit" or config["distillation"] is None,
                f"no distillation token in {kind}",
            ),
            (hybrid or stem is None, f"no ResNet stem in {kind}"),
            (
                stem is None or len(stem["block_counts"]) > 0,
                "no hybrid with a root block alone",
            ),
            (not pooler or headless, "no pooler before a classifier"),
            (not pooler or kind in ("vit", "deit"), f"no pooler in {kind}"),
            (config["patch_size"][0] == config["patch_size"][1], "no patches but square ones"),
            (
                not dinov2 or gated or config["mlp_dim"] % config["hidden_dim"] == 0,
                "no MLP in DINOv2 but of a whole multiple of the width",
            ),
            (
                not dinov2 or config["image_shape"][0] == config["image_shape"][1],
                "no images in DINOv2 but square ones",
            ),
        ),
        class_positions=True,
        norm_after_pooling=False,
        layer_scale=dinov2,
        fixed_positions=False,
        joint_pooling=dinov2 and not headless,
        fixed=fixed,
    )


def extras(config: Config, layout: Layout) -> dict[str, Shape]:
    """DINOv2's mask token."""
    if layout["model_type"] not in DINOV2:
        return {}
    return {f"{layout['prefix']}embeddings.mask_token": (1, config["hidden_dim"])}
