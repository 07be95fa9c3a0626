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
_DINOV2 = ("dinov2", "dinov2_with_registers")
# Pre-training alone uses these.
_IGNORED = r"(.*\.)?mask_token|(.*\.)?decoder.*|(.*\.)?position_ids"

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "swiglu": "gelu",
}


def rows(config: Config, layout: Layout) -> list[Row]:
    """The table of names."""
    prefix, kind = layout["prefix"], layout["model_type"]
    block, ours = prefix + "encoder.layer.{i}", "encoder_block_{i}"
    embeddings = f"{prefix}embeddings"
    parts = each(f"{block}.attention.attention.", "query", "key", "value")
    dinov2 = kind in _DINOV2
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


def activation(config: Mapping[str, Any], default: str, store: Store) -> str:
    """Our word for `hidden_act`.

    Raises:
        CheckpointError: if it is none that we have.
    """
    stated = config.get("hidden_act", default)
    if stated not in ACTIVATIONS:
        raise CheckpointError(
            f"{store.path}: hidden_act in config.json must be one of {tuple(ACTIVATIONS)}. "
            f"Received: {stated!r}"
        )
    return ACTIVATIONS[stated]


def epsilon(config: Mapping[str, Any], default: float, store: Store) -> float:
    """`layer_norm_eps`, checked.

    Raises:
        CheckpointError: if it is no positive number.
    """
    stated = config.get("layer_norm_eps", default)
    if not isinstance(stated, int | float) or isinstance(stated, bool) or not 0 < stated < 1:
        raise CheckpointError(
            f"{store.path}: layer_norm_eps in config.json must be a small positive number. "
            f"Received: {stated!r}"
        )
    return float(stated)


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
    tokens = 1 + has(f"{embeddings}.distillation_token")
    table = dialect.entry(store, f"{embeddings}.position_embeddings", 3)
    registers = store.entries.get(f"{embeddings}.register_tokens")
    height, width = dialect.image_size(
        table.shape[1] - tokens,
        (kernel[2] * stride, kernel[3] * stride),
        hints,
        store,
        _stated_size(sidecar, table.shape[1] - tokens, kernel, stride, store),
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
            "pooling": "token_gap" if kind in _DINOV2 and head is not None else "token",
            "representation_size": None if pooler is None else pooler.shape[0],
            "stem": stem,
            "class_token": True,
            "distillation": None if tokens == 1 else "head" if two_heads else "token",
            "num_registers": 0 if registers is None else registers.shape[-2],
            "activation": "swiglu" if gated else activation(sidecar, "gelu", store),
            "norm_epsilon": epsilon(sidecar, usual_epsilon, store),
            "qkv_bias": has(f"{block}.attention.attention.query.bias"),
            "layer_scale_init": 1.0 if has(f"{block}.layer_scale1.lambda1") else None,
            "pixel_range": _pixels(store, usual_pixels),
        },
        {"prefix": prefix, "model_type": kind},
        ignored=_IGNORED,
        resampling=resampling,
        class_names=dialect.class_names(sidecar.get("id2label")),
        assumed=() if sidecar else (f"no config.json: {kind}, epsilon {usual_epsilon}",),
    )


def _pixels(store: Store, usual: str) -> str:
    mean = dialect.document(store, "preprocessor_config.json").get("image_mean")
    return dialect.pixel_range(mean, store, usual)


def _stated_size(sidecar, patches: int, kernel, stride: int, store: Store):
    """`image_size`, unless the table is not of that size (DINOv2's config may lack it)."""
    stated = sidecar.get("image_size")
    if stated is None:
        return None
    height, width = dialect.pair(stated, "image size", store)
    cells = (height // (kernel[2] * stride)) * (width // (kernel[3] * stride))
    return stated if cells == patches else None


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
    dinov2, headless = kind in _DINOV2, config["num_classes"] is None
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
                not gated or config["mlp_dim"] == _gated_width(config),
                f"SwiGLU of width {_gated_width(config)} only",
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
    if layout["model_type"] not in _DINOV2:
        return {}
    return {f"{layout['prefix']}embeddings.mask_token": (1, config["hidden_dim"])}


def _gated_width(config: Config) -> int:
    """The width that transformers derives from a whole `mlp_ratio`, 4 here."""
    return (int(int(config["hidden_dim"] * 4) * 2 / 3) + 7) // 8 * 8


_CLASSES = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "vit_mae": ("ViTMAEModel", "ViTForImageClassification"),
    "vit-hybrid": ("ViTHybridModel", "ViTHybridForImageClassification"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
    ),
}


def _architecture(config: Config, kind: str) -> str:
    headless = config["num_classes"] is None
    if kind == "deit":
        if headless:
            return "DeiTModel"
        teacher = "WithTeacher" if config["distillation"] == "head" else ""
        return f"DeiTForImageClassification{teacher}"
    return _CLASSES[kind][0 if headless else 1]


def labels(config: Config, class_names) -> dict[str, Any]:
    """`id2label` and `label2id`; without a head, nothing."""
    if config["num_classes"] is None:
        return {}
    names = class_names or [f"LABEL_{index}" for index in range(config["num_classes"])]
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def preprocessor(config: Config, processor: str) -> dict[str, Any]:
    """`preprocessor_config.json`: the pixels that the model was trained on."""
    mean, std = dialect.PIXEL_STATISTICS[config["pixel_range"]]
    height, width = config["image_shape"][:2]
    return {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(mean),
        "image_std": list(std),
        "image_processor_type": processor,
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": height, "width": width},
    }


def sides(config: Config) -> int | list[int]:
    """`image_size`: one number for a square."""
    height, width = config["image_shape"][:2]
    return height if height == width else [height, width]


def documents(config: Config, layout: Layout, class_names) -> dict[str, Any]:
    """`config.json` and `preprocessor_config.json`."""
    kind = layout["model_type"]
    document = {
        "architectures": [_architecture(config, kind)],
        "model_type": kind,
        "hidden_size": config["hidden_dim"],
        "num_hidden_layers": config["num_layers"],
        "num_attention_heads": config["num_heads"],
        "hidden_act": ACTIVATION_NAMES[config["activation"]],
        "layer_norm_eps": config["norm_epsilon"],
        "image_size": sides(config),
        "patch_size": config["patch_size"][0],
        "num_channels": config["image_shape"][2],
        "qkv_bias": config["qkv_bias"],
        **labels(config, class_names),
    }
    if kind in _DINOV2:
        gated = config["activation"] == "swiglu"
        ratio = 4 if gated else config["mlp_dim"] / config["hidden_dim"]
        document |= {
            "mlp_ratio": int(ratio) if ratio == int(ratio) else ratio,
            "use_swiglu_ffn": gated,
            "layerscale_value": config["layer_scale_init"],
        }
        if config["num_registers"]:
            document["num_register_tokens"] = config["num_registers"]
    else:
        document["intermediate_size"] = config["mlp_dim"]
    if config["representation_size"] is not None:
        document |= {"pooler_output_size": config["representation_size"], "pooler_act": "tanh"}
    if kind == "vit-hybrid":
        document |= _backbone(config)
    processor = "BitImageProcessor" if kind in _DINOV2 else "ViTImageProcessor"
    return {
        "config.json": document,
        "preprocessor_config.json": preprocessor(config, processor),
    }


def _backbone(config: Config) -> dict[str, Any]:
    stem = config["stem"]
    widths = [4 * stem["width"] * 2**block for block in range(len(stem["block_counts"]))]
    last = f"stage{len(widths)}"
    height, width = (side // config["patch_size"][0] for side in config["image_shape"][:2])
    stride = 4 * 2 ** (len(widths) - 1)
    return {
        "backbone_config": {
            "model_type": "bit",
            "depths": list(stem["block_counts"]),
            "embedding_size": stem["width"],
            "hidden_sizes": widths,
            "num_groups": stem["groups"],
            "layer_type": "bottleneck",
            "global_padding": "SAME",
            "embedding_dynamic_padding": True,
            "out_features": [last],
        },
        "backbone_featmap_shape": [1, widths[-1], -(-height // stride), -(-width // stride)],
    }
