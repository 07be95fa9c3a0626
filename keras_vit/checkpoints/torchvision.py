"""torchvision's `VisionTransformer` files. They do not say the number of heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import dialect
from keras_vit.checkpoints.dialect import Dialect, Found, Hints, Target
from keras_vit.checkpoints.rules import LONE, T_DENSE, T_FUSED, T_NORM, T_PATCH, TABLE, Row
from keras_vit.checkpoints.shapes import Config
from keras_vit.checkpoints.store import Store

Layout = Mapping[str, Any]

_BLOCK = "encoder.layers.encoder_layer_"
# Names of the MLP's layers today, and in the first releases.
_MLP = (("mlp.0", "mlp.3"), ("mlp.linear_1", "mlp.linear_2"))


def _rows(config: Config, layout: Layout) -> list[Row]:
    block, ours = _BLOCK + "{i}", "encoder_block_{i}"
    fc1, fc2 = layout["mlp"]
    return [
        ("conv_proj", "patch_encoder/projection", T_PATCH),
        ("class_token", "patch_encoder/class_token", LONE),
        ("encoder.pos_embedding", "patch_encoder/position_embedding", TABLE),
        (f"{block}.ln_1", f"{ours}/attention_norm", T_NORM),
        (f"{block}.self_attention.in_proj", f"{ours}/attention/qkv", T_FUSED),
        (f"{block}.self_attention.out_proj", f"{ours}/attention/out", T_DENSE),
        (f"{block}.ln_2", f"{ours}/mlp_norm", T_NORM),
        (f"{block}.{fc1}", f"{ours}/mlp/fc1", T_DENSE),
        (f"{block}.{fc2}", f"{ours}/mlp/fc2", T_DENSE),
        ("encoder.ln", "encoder_norm", T_NORM),
        ("heads.pre_logits", "pre_logits", T_DENSE),
        ("heads.head", "head", T_DENSE),
    ]


def _recognises(store: Store) -> bool:
    return "conv_proj.weight" in store.entries and "encoder.pos_embedding" in store.entries


def _describe(store: Store, hints: Hints) -> Found:
    first = next((names for names in _MLP if f"{_BLOCK}0.{names[0]}.weight" in store.entries), None)
    fc1, fc2 = first or _MLP[0]
    kernel = dialect.entry(store, "conv_proj.weight", 4).shape
    table = dialect.entry(store, "encoder.pos_embedding", 3).shape
    height, width = dialect.image_size(table[1] - 1, kernel[2:], hints, store)
    head = store.entries.get("heads.head.weight")
    representation = store.entries.get("heads.pre_logits.weight")
    return Found(
        "torchvision",
        {
            "image_shape": (height, width, kernel[1]),
            "patch_size": kernel[2:],
            "hidden_dim": kernel[0],
            "num_layers": dialect.count(store, r"encoder\.layers\.encoder_layer_(\d+)\."),
            "num_heads": dialect.num_heads(kernel[0], None, hints, store),
            "mlp_dim": dialect.entry(store, f"{_BLOCK}0.{fc1}.weight", 2).shape[0],
            "num_classes": None if head is None else head.shape[0],
            "representation_size": None if representation is None else representation.shape[0],
            "class_token": True,
            "activation": "gelu",
            "pixel_range": "imagenet",
        },
        {"mlp": [fc1, fc2]},
        resampling="bicubic_align_corners",
        assumed=dialect.assumed_heads(kernel[0], None, hints),
    )


def _target(config: Config, layout: Layout) -> Target:
    return Target(
        rules=(
            (config["pooling"] == "token", "no pooling but by the class token"),
            (
                config["position_embedding"] in ("learned", "sincos2d"),
                f"no positions {config['position_embedding']!r}",
            ),
            (not config["pre_norm"], "no norm before the first block"),
            (not config["qk_norm"], "no norms of queries and keys"),
            (config["activation"] != "swiglu", "no SwiGLU"),
            (not config["num_registers"], "no register tokens"),
            (config["distillation"] is None, "no distillation token"),
            (config["stem"] is None, "no ResNet stem"),
            (config["patch_size"][0] == config["patch_size"][1], "no patches but square ones"),
            (config["image_shape"][0] == config["image_shape"][1], "no images but square ones"),
        ),
        class_positions=True,
        norm_after_pooling=False,
        qkv_bias=True,
        layer_scale=False,
        fixed_positions=False,
        fixed={"activation": "gelu", "norm_epsilon": 1e-6, "pixel_range": "imagenet"},
    )


TORCHVISION = Dialect(
    name="torchvision",
    title="torchvision",
    recognises=_recognises,
    describe=_describe,
    rows=_rows,
    container="safetensors",
    target=_target,
    layout=lambda config: {"mlp": list(_MLP[0])},
)
