"""transformers' `config.json` and `preprocessor_config.json`, both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit.checkpoints import dialect
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.shapes import Config
from keras_vit.checkpoints.store import Store

Layout = Mapping[str, Any]

DINOV2 = ("dinov2", "dinov2_with_registers")

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


# Reading.


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


def stated_size(
    config: Mapping[str, Any], patches: int, cell: Sequence[int], whole: bool, store: Store
) -> Any:
    """`image_size`, unless the table is not of that size (DINOv2's config may lack it).

    Args:
        config: the document.
        patches: how many have positions.
        cell: pixels of a patch, `(height, width)`.
        whole: whether patches must divide an image; what is left over is read by none.
        store: for messages.
    """
    stated = config.get("image_size")
    if stated is None:
        return None
    height, width = dialect.pair(stated, "image size", store)
    fits = (height // cell[0]) * (width // cell[1]) == patches
    return stated if fits and not (whole and (height % cell[0] or width % cell[1])) else None


# Writing.


def gated_width(config: Config) -> int:
    """The width that transformers derives from a whole `mlp_ratio`, 4 here."""
    return (int(int(config["hidden_dim"] * 4) * 2 / 3) + 7) // 8 * 8


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
        # Some processors would cut 224 x 224 out of the middle.
        "do_center_crop": False,
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
    if kind in DINOV2:
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
    processor = "BitImageProcessor" if kind in DINOV2 else "ViTImageProcessor"
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
