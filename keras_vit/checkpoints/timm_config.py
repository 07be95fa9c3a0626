"""timm's `config.json`, both ways: what a name of an architecture implies, and what is written.

`timm.create_model("local-dir:...")` builds the architecture of that name with `model_args` laid
over its own; epsilons, norms and gated MLPs are in timm's code alone.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import dialect
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.shapes import Config, feature_stride, num_prefix_positions
from keras_vit.checkpoints.store import Store
from keras_vit.variants import STEMS

Layout = Mapping[str, Any]

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
    (r"^test_vit2?$", {"num_heads": 2}),
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


# Reading.


def known_of(architecture: str) -> dict[str, Any]:
    """Activation, epsilon and heads of an architecture; heads may be `None`."""
    known: dict[str, Any] = {"activation": "gelu", "norm_epsilon": 1e-6, "num_heads": None}
    for pattern, changes in _ARCHITECTURES:
        if re.search(pattern, architecture):
            known |= changes
    return known


def activation(arguments: Mapping[str, Any], default: str, store: Store) -> str:
    """Our word for `act_layer`.

    Raises:
        CheckpointError: if it is none that we have.
    """
    stated = arguments.get("act_layer")
    if stated is None:
        return default
    if stated not in _ACTIVATIONS:
        raise CheckpointError(
            f"{store.path}: act_layer in config.json must be one of {tuple(_ACTIVATIONS)}. "
            f"Received: {stated!r}"
        )
    return _ACTIVATIONS[stated]


def pooling(store: Store, stated: Any, with_prefix: bool) -> str | None:
    """Our word for `global_pool`.

    Args:
        store: its arrays tell where nothing is stated.
        stated: what the document says.
        with_prefix: whether means are over all tokens.

    Raises:
        CheckpointError: if it is none that we have.
    """
    if "attn_pool.latent" in store.entries:
        return "map"
    if stated is not None and stated not in _POOLINGS:
        raise CheckpointError(
            f"{store.path}: global_pool in config.json must be one of {tuple(_POOLINGS)}. "
            f"Received: {stated!r}"
        )
    usual = "gap" if "fc_norm.weight" in store.entries else "token"
    found = usual if stated is None or stated == "map" else _POOLINGS[stated]
    if found == "token" and "cls_token" not in store.entries:
        found = "gap"
    return "mean" if found == "gap" and with_prefix else found


# Writing.


def architecture_of(config: Config) -> str:
    """The architecture to build a model from."""
    if config["stem"] is not None:
        return _HYBRIDS.get(config["stem"]["block_counts"], "vit_base_r50_s16_224")
    return next(name for fits, name in _ARCHITECTURE_OF if fits(config))


def _ratio(inner: int, width: int) -> float:
    """A `mlp_ratio` of which `int(width * ratio)` is `inner`."""
    ratio = inner / width
    return ratio if int(width * ratio) == inner else math.nextafter(ratio, math.inf)


def documents(config: Config, layout: Layout, class_names) -> dict[str, Any]:
    """`config.json`, from which `timm.create_model("local-dir:...")` builds the model.

    Nothing, with a warning, for a stem that is in none of timm's architectures.
    """
    if config["stem"] is not None and not _stem_known(config):
        warnings.warn(
            "timm has no architecture with this ResNet stem: its own code runs this file only in "
            "a model that you build yourself, and no config.json is written.",
            stacklevel=6,
        )
        return {}
    architecture = layout["architecture"] or architecture_of(config)
    mean, std = dialect.PIXEL_STATISTICS[config["pixel_range"]]
    size, classes = list(config["image_shape"][:2]), config["num_classes"] or 0
    with_prefix = config["pooling"] == "mean"
    ours = "gap" if with_prefix else config["pooling"]
    pool = next(theirs for theirs, word in _POOLINGS.items() if word == ours)
    prefix = bool(config["class_token"] or config["num_registers"])
    gated = config["activation"] == "swiglu"
    height, width = config["patch_size"]
    arguments: dict[str, Any] = {
        "img_size": size,
        "patch_size": height if height == width else [height, width],
        "in_chans": config["image_shape"][2],
        "num_classes": classes,
        "global_pool": pool,
        "embed_dim": config["hidden_dim"],
        "depth": config["num_layers"],
        "num_heads": config["num_heads"],
        "mlp_ratio": _ratio((1 + gated) * config["mlp_dim"], config["hidden_dim"]),
        "qkv_bias": config["qkv_bias"],
        "class_token": config["class_token"],
        "no_embed_class": prefix and not num_prefix_positions(config),
        "fc_norm": config["norm_after_pooling"],
        # `None` would leave these to the architecture.
        "reg_tokens": config["num_registers"],
        "init_values": config["layer_scale_init"] or 0,
    }
    optional = {
        "qk_norm": config["qk_norm"],
        "pre_norm": config["pre_norm"],
        # A gated MLP is an object of timm's code, and so in the architecture.
        "act_layer": None if gated else config["activation"],
        # Means and attention pooling are over all tokens here, over patches in timm.
        "pool_include_prefix": with_prefix or (config["pooling"] == "map" and prefix),
    }
    arguments |= {key: value for key, value in optional.items() if value}
    published = {
        "input_size": [config["image_shape"][2], *size],
        "fixed_input_size": True,
        "num_classes": classes,
        "mean": list(mean),
        "std": list(std),
        "first_conv": _first_conv(config),
        "classifier": ["head", "head_dist"] if config["distillation"] is not None else "head",
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


def _stem_known(config: Config) -> bool:
    """Whether an architecture has this stem; timm wants its features in whole patches."""
    stem, stride = config["stem"], feature_stride(config)
    sides = (-(-side // stride) for side in config["image_shape"][:2])
    whole = not any(side % patch for side, patch in zip(sides, config["patch_size"], strict=True))
    return whole and stem["block_counts"] in _HYBRIDS and stem["width"] == 64


def _first_conv(config: Config) -> str:
    if config["stem"] is None:
        return "patch_embed.proj"
    return f"patch_embed.backbone.{'stem.' if config['stem']['block_counts'] else ''}conv"
