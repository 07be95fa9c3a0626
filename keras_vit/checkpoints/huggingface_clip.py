"""transformers' CLIP and SigLIP image towers, alone or in a file with the text tower."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import dialect
from keras_vit.checkpoints.dialect import Found, Hints, Target
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.huggingface import prefix_of
from keras_vit.checkpoints.huggingface_config import (
    ACTIVATION_NAMES,
    activation,
    epsilon,
    preprocessor,
    sides,
    stated_size,
)
from keras_vit.checkpoints.rules import (
    FLAT_TABLE,
    LONE,
    T_DENSE,
    T_FUSED,
    T_NORM,
    T_PATCH,
    TOKEN,
    Row,
    each,
)
from keras_vit.checkpoints.shapes import Config
from keras_vit.checkpoints.store import Store

Layout = Mapping[str, Any]

ANCHOR = "embeddings.patch_embedding.weight"
# Model types with an image tower of these names: in a file of its own, or beside a text tower.
_CLIP = ("clip_vision_model", "clip")
_SIGLIP = ("siglip_vision_model", "siglip")


def rows(config: Config, layout: Layout) -> list[Row]:
    """The table of names."""
    prefix = layout["prefix"]
    block, ours = prefix + "encoder.layers.{i}", "encoder_block_{i}"
    parts = each(f"{block}.self_attn.", "q_proj", "k_proj", "v_proj")
    head = f"{prefix}head"
    # CLIP applies its last norm to the class token alone.
    last = "pooled_norm" if config["norm_after_pooling"] else "encoder_norm"
    return [
        (f"{prefix}embeddings.patch_embedding", "patch_encoder/projection", T_PATCH),
        (f"{prefix}embeddings.class_embedding", "patch_encoder/class_token", TOKEN),
        (
            f"{prefix}embeddings.position_embedding.weight",
            "patch_encoder/position_embedding",
            FLAT_TABLE,
        ),
        # The letters stand like this in the files.
        (f"{prefix}pre_layrnorm", "pre_norm", T_NORM),
        (f"{block}.layer_norm1", f"{ours}/attention_norm", T_NORM),
        (parts, f"{ours}/attention/qkv", T_DENSE),
        (f"{block}.self_attn.out_proj", f"{ours}/attention/out", T_DENSE),
        (f"{block}.layer_norm2", f"{ours}/mlp_norm", T_NORM),
        (f"{block}.mlp.fc1", f"{ours}/mlp/fc1", T_DENSE),
        (f"{block}.mlp.fc2", f"{ours}/mlp/fc2", T_DENSE),
        (f"{prefix}post_layernorm", last, T_NORM),
        (f"{head}.probe", "pooling/probe", LONE),
        (f"{head}.attention.in_proj[0:1/3]", "pooling/query", T_FUSED),
        (f"{head}.attention.in_proj[1:3/3]", "pooling/key_value", T_FUSED),
        (f"{head}.attention.out_proj", "pooling/out", T_DENSE),
        (f"{head}.layernorm", "pooling/norm", T_NORM),
        (f"{head}.mlp.fc1", "pooling/mlp/fc1", T_DENSE),
        (f"{head}.mlp.fc2", "pooling/mlp/fc2", T_DENSE),
        ("visual_projection", "head", T_DENSE),
    ]


def recognises(store: Store) -> bool:
    """Whether the names are those of this module."""
    return prefix_of(store, ANCHOR) is not None


def _sidecar(store: Store) -> dict[str, Any]:
    """The image tower's part of `config.json`."""
    whole = dialect.document(store, "config.json")
    part = whole.get("vision_config")
    return part if isinstance(part, dict) else whole


def describe(store: Store, hints: Hints) -> Found:
    """What is in a file of this family."""
    prefix = prefix_of(store, ANCHOR) or ""
    has = store.entries.__contains__
    sidecar = _sidecar(store)
    clip = has(f"{prefix}pre_layrnorm.weight")
    stated = dialect.document(store, "config.json").get("model_type")
    if stated is not None and stated not in (_CLIP if clip else _SIGLIP):
        raise CheckpointError(
            f"{store.path}: model_type in config.json must be one of {_CLIP if clip else _SIGLIP} "
            f"for these names. Received: {stated!r}"
        )
    kernel = dialect.entry(store, prefix + ANCHOR, 4).shape
    token = has(f"{prefix}embeddings.class_embedding")
    table = dialect.entry(store, f"{prefix}embeddings.position_embedding.weight", 2)
    patches = table.shape[0] - token
    height, width = dialect.image_size(
        patches,
        kernel[2:],
        hints,
        store,
        stated_size(sidecar, patches, kernel[2:], True, store),
    )
    usual = ("quick_gelu", 1e-5, "clip") if clip else ("gelu_pytorch_tanh", 1e-6, "inception")
    projection = store.entries.get("visual_projection.weight")
    mean = dialect.document(store, "preprocessor_config.json").get("image_mean")
    tower = re.escape(prefix)
    probe = has(f"{prefix}head.probe")
    return Found(
        "huggingface",
        {
            "image_shape": (height, width, kernel[1]),
            "patch_size": kernel[2:],
            "hidden_dim": kernel[0],
            "num_layers": dialect.count(store, re.escape(f"{prefix}encoder.layers.") + r"(\d+)\."),
            "num_heads": dialect.num_heads(
                kernel[0], sidecar.get("num_attention_heads"), hints, store
            ),
            "mlp_dim": dialect.entry(store, f"{prefix}encoder.layers.0.mlp.fc2.weight", 2).shape[1],
            "num_classes": None if projection is None else projection.shape[0],
            "pooling": "token" if clip else "map" if probe else "gap",
            "class_token": token,
            "activation": activation(sidecar, usual[0], store),
            "norm_epsilon": epsilon(sidecar, usual[1], store),
            "pre_norm": clip,
            "norm_after_pooling": clip,
            "head_bias": False,
            "pixel_range": dialect.pixel_range(mean, store, usual[2], hints),
        },
        {"prefix": prefix, "model_type": _CLIP[0] if clip else _SIGLIP[0]},
        # The other tower, temperatures, and the buffer of older files.
        ignored=rf"text_model\..*|text_projection\..*|logit_(scale|bias)|{tower}.*\.position_ids",
        resampling="bicubic",
        assumed=(
            *(() if sidecar else (f"no config.json: {usual[0]}, epsilon {usual[1]}",)),
            *dialect.assumed_heads(kernel[0], sidecar.get("num_attention_heads"), hints),
        ),
    )


def layout(config: Config) -> dict[str, Any]:
    """CLIP for a norm before the first block, SigLIP otherwise."""
    kind = _CLIP[0] if config["pre_norm"] else _SIGLIP[0]
    return {"prefix": "vision_model.", "model_type": kind}


def keep(config: Config, layout: Layout) -> dict[str, Any]:
    """A file's layout; names do not depend on the head."""
    return dict(layout)


def target(config: Config, layout: Layout) -> Target:
    """What these files need of a model."""
    clip = layout["model_type"] == _CLIP[0]
    kind = "CLIP" if clip else "SigLIP"
    return Target(
        rules=(
            (
                config["pre_norm"] == clip,
                f"no {kind} tower {'without' if clip else 'with'} a norm before the first block",
            ),
            (
                config["pooling"] == ("token" if clip else "map"),
                f"no pooling {config['pooling']!r} in {kind}",
            ),
            (clip or config["num_classes"] is None, "no head on a SigLIP tower"),
            (clip or not config["class_token"], "no class token in SigLIP"),
            (clip or not config["norm_after_pooling"], "no norm behind SigLIP's pooling"),
            (
                config["position_embedding"] in ("learned", "sincos2d"),
                f"no positions {config['position_embedding']!r}",
            ),
            (not config["qk_norm"], "no norms of queries and keys"),
            (config["activation"] != "swiglu", "no SwiGLU"),
            (not config["num_registers"], "no register tokens"),
            (config["distillation"] is None, "no distillation token"),
            (config["stem"] is None, "no ResNet stem"),
            (config["representation_size"] is None, "no Dense-tanh layer"),
            (config["patch_size"][0] == config["patch_size"][1], "no patches but square ones"),
            (config["image_shape"][0] == config["image_shape"][1], "no images but square ones"),
        ),
        class_positions=True if clip else None,
        norm_after_pooling=True if clip else None,
        qkv_bias=True,
        head_bias=False if clip else None,
        layer_scale=False,
        fixed_positions=False,
    )


def documents(config: Config, layout: Layout, class_names) -> dict[str, Any]:
    """`config.json` and `preprocessor_config.json`."""
    clip = layout["model_type"] == _CLIP[0]
    headless = config["num_classes"] is None
    name = "CLIPVisionModel" if clip else "SiglipVisionModel"
    document = {
        "architectures": [name if headless else f"{name}WithProjection"],
        "model_type": layout["model_type"],
        "hidden_size": config["hidden_dim"],
        "intermediate_size": config["mlp_dim"],
        "num_hidden_layers": config["num_layers"],
        "num_attention_heads": config["num_heads"],
        "hidden_act": ACTIVATION_NAMES[config["activation"]],
        "layer_norm_eps": config["norm_epsilon"],
        "image_size": sides(config),
        "patch_size": config["patch_size"][0],
        "num_channels": config["image_shape"][2],
    }
    if not clip:
        document["vision_use_head"] = True
    if not headless:
        document["projection_dim"] = config["num_classes"]
    processor = "CLIPImageProcessor" if clip else "SiglipImageProcessor"
    return {
        "config.json": document,
        "preprocessor_config.json": preprocessor(config, processor),
    }
