"""OpenAI's CLIP files (OpenCLIP's too): the image tower, beside a text tower or alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import dialect
from keras_vit.checkpoints.dialect import Dialect, Found, Hints, Target
from keras_vit.checkpoints.huggingface_clip import layout as clip_layout
from keras_vit.checkpoints.huggingface_clip import target as clip_target
from keras_vit.checkpoints.rules import (
    FLAT_TABLE,
    SAME,
    T_DENSE,
    T_FUSED,
    T_NORM,
    T_PATCH,
    TOKEN,
    Kind,
    Row,
)
from keras_vit.checkpoints.shapes import Config
from keras_vit.checkpoints.store import Store

Layout = Mapping[str, Any]

_PROJECTION: Kind = (("", "/kernel", SAME),)


def _rows(config: Config, layout: Layout) -> list[Row]:
    block, ours = "visual.transformer.resblocks.{i}", "encoder_block_{i}"
    return [
        ("visual.conv1", "patch_encoder/projection", T_PATCH),
        ("visual.class_embedding", "patch_encoder/class_token", TOKEN),
        ("visual.positional_embedding", "patch_encoder/position_embedding", FLAT_TABLE),
        ("visual.ln_pre", "pre_norm", T_NORM),
        (f"{block}.ln_1", f"{ours}/attention_norm", T_NORM),
        (f"{block}.attn.in_proj", f"{ours}/attention/qkv", T_FUSED),
        (f"{block}.attn.out_proj", f"{ours}/attention/out", T_DENSE),
        (f"{block}.ln_2", f"{ours}/mlp_norm", T_NORM),
        (f"{block}.mlp.c_fc", f"{ours}/mlp/fc1", T_DENSE),
        (f"{block}.mlp.c_proj", f"{ours}/mlp/fc2", T_DENSE),
        ("visual.ln_post", "pooled_norm", T_NORM),
        ("visual.proj", "head", _PROJECTION),
    ]


def _describe(store: Store, hints: Hints) -> Found:
    kernel = dialect.entry(store, "visual.conv1.weight", 4).shape
    table = dialect.entry(store, "visual.positional_embedding", 2).shape
    height, width = dialect.image_size(table[0] - 1, kernel[2:], hints, store)
    block = "visual.transformer.resblocks.0"
    projection = store.entries.get("visual.proj")
    return Found(
        "openai_clip",
        {
            "image_shape": (height, width, kernel[1]),
            "patch_size": kernel[2:],
            "hidden_dim": kernel[0],
            "num_layers": dialect.count(store, r"visual\.transformer\.resblocks\.(\d+)\."),
            "num_heads": dialect.num_heads(kernel[0], None, hints, store),
            "mlp_dim": dialect.entry(store, f"{block}.mlp.c_fc.weight", 2).shape[0],
            "num_classes": None if projection is None else projection.shape[-1],
            "class_token": True,
            "activation": "quick_gelu",
            "norm_epsilon": 1e-5,
            "pre_norm": True,
            "norm_after_pooling": True,
            "head_bias": False,
            "pixel_range": "clip",
        },
        # The text tower lies at the top.
        ignored=r"(?!visual\.).*",
        resampling="bicubic_antialias",
        assumed=(
            "QuickGELU as in OpenAI's models; LAION's take activation='gelu'",
            *dialect.assumed_heads(kernel[0], None, hints),
        ),
    )


def _target(config: Config, layout: Layout) -> Target:
    return clip_target(config, {**clip_layout(config), "model_type": "clip_vision_model"})


OPENAI_CLIP = Dialect(
    name="openai_clip",
    title="OpenAI's CLIP",
    recognises=lambda store: (
        "visual.conv1.weight" in store.entries and "visual.class_embedding" in store.entries
    ),
    describe=_describe,
    rows=_rows,
    container="safetensors",
    target=_target,
)
