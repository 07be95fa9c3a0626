"""Says what a checkpoint holds, and whether it would load with nothing missing or left over.

Only headers are read. The exit status is 0 if the file would load, 1 if not.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
from pathlib import Path
from typing import Any

from keras_vit.cli.main import in_options
from keras_vit.cli.options import (
    add_model_options,
    bytes_on_disk,
    megabytes,
    model_arguments,
    resolved,
)

CLEAN = "loads with nothing left over"
_ACTIVATIONS = {
    "gelu": "GELU, exact (by erf)",
    "gelu_tanh": "GELU, by tanh",
    "quick_gelu": "QuickGELU, x * sigmoid(1.702 x)",
    "swiglu": "SwiGLU",
}
_POOLINGS = {
    "token": "class token",
    "gap": "mean of the patches",
    "mean": "mean of all tokens",
    "token_gap": "class token, and mean of the patches",
    "map": "attention",
    None: "none: all tokens",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("source", metavar="FILE", help="file, directory, hf:// or https:// address")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the description; the status says whether a strict load would do."""
    path = resolved(options.source)
    found = describe(path, options.image_size, model_arguments(options))
    print(json.dumps(found, indent=2) if options.json else in_words(found))
    return 0 if found["loads"] else 1


def describe(path: Path, image_size, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint holds, as plain JSON values; only headers are read.

    Args:
        path: file or directory.
        image_size: `(height, width)` where the file does not say it, or `None`.
        arguments: of the model, such as `num_heads`, where the file does not say them.

    Raises:
        CheckpointError: if it is damaged, of no known kind, or does not say enough.
    """
    from keras_vit.checkpoints import formats
    from keras_vit.checkpoints.dialect import Hints
    from keras_vit.checkpoints.errors import CheckpointError
    from keras_vit.checkpoints.files import open_checkpoint
    from keras_vit.checkpoints.reading import Weights
    from keras_vit.checkpoints.report import Report
    from keras_vit.checkpoints.shapes import weight_shapes
    from keras_vit.models.file_config import config_of

    shape = None if image_size is None else (*image_size, 3)
    with open_checkpoint(path) as store:
        found = formats.detect(store, Hints.of({**arguments, "image_shape": shape}))
        config = config_of(found, arguments, store)
        report, refusal = Report(), ""
        try:
            report = Weights(store, found, config).report
        except CheckpointError as error:
            refusal = str(error)
    entries = store.entries.values()
    shapes = weight_shapes(config).values()
    return {
        "path": str(path),
        "format": found.dialect,
        "project": formats.DIALECTS[found.dialect].title,
        "variant": variant_of(config),
        "architecture": _architecture(config),
        **_sizes(config),
        "classes": config["num_classes"],
        "pixel_range": config["pixel_range"],
        "parameters": sum(math.prod(shape) for shape in shapes),
        "arrays": dict(collections.Counter(entry.dtype for entry in entries)),
        "array_bytes": sum(entry.nbytes for entry in entries),
        "bytes_on_disk": bytes_on_disk(path),
        "assumed": list(found.assumed),
        "ignored": list(report.ignored),
        "loads": report.clean and not refusal,
        "problems": [*report.lines(), *([refusal] if refusal else [])],
        "config": config,
    }


def variant_of(config) -> str | None:
    """The published name of an architecture whose sizes and stem are in the tables."""
    from keras_vit.checkpoints.shapes import is_bit
    from keras_vit.variants import BIT_DEPTHS, SIZES, STEMS

    if is_bit(config):
        depths = {counts: depth for depth, counts in BIT_DEPTHS.items()}
        depth, factor = depths.get(tuple(config["block_counts"])), config["width_factor"]
        named = depth is not None and config["preactivation"] and int(factor) == factor
        return f"BiT R{depth}x{int(factor)}" if named else None
    keys = ("hidden_dim", "num_layers", "mlp_dim", "num_heads")
    sizes = {values: name for name, values in SIZES.items()}
    size = sizes.get(tuple(config[key] for key in keys))
    height, width = config["patch_size"]
    if size is None or height != width:
        return None
    if config["stem"] is None:
        return f"ViT-{size}/{height}"
    stems = {values: name for name, values in STEMS.items()}
    stem = config["stem"]
    name = stems.get((tuple(stem["block_counts"]), stem["width"], height))
    return None if name is None else f"{name[0]}+ViT-{size}/{name[1]}"


def _architecture(config) -> str:
    """Sizes in words, and what sets the model apart from the paper's."""
    from keras_vit.checkpoints.shapes import is_bit

    if is_bit(config):
        kind = "BiT ResNet" + ("" if config["preactivation"] else " V1 (norm after convolution)")
        return f"{kind}, units {_times(config['block_counts'])}, width x {config['width_factor']}"
    words = [
        f"{config['num_layers']} layers of width {config['hidden_dim']}, {config['num_heads']} "
        f"heads, MLP of {config['mlp_dim']}"
    ]
    if config["stem"] is not None:
        counts = config["stem"]["block_counts"]
        units = f"units {_times(counts)}" if counts else "root alone"
        words.append(f"ResNet stem ({units}, width {config['stem']['width']})")
    if config["position_embedding"] != "learned":
        words.append(f"positions: {config['position_embedding']}")
    marks = {
        "LayerScale": config["layer_scale_init"] is not None,
        "norms of queries and keys": config["qk_norm"],
        "norm before the first block": config["pre_norm"],
        "norm after the pooling": config["norm_after_pooling"],
        "no biases of queries, keys and values": not config["qkv_bias"],
        f"Dense-tanh of {config['representation_size']} before the head": config[
            "representation_size"
        ],
    }
    return ", ".join([*words, *(word for word, there in marks.items() if there)])


def _sizes(config) -> dict[str, Any]:
    """What images become; a BiT ResNet has no tokens."""
    from keras_vit.checkpoints.shapes import feature_stride, grid_shape, is_bit

    sizes: dict[str, Any] = {"image_shape": list(config["image_shape"])}
    if is_bit(config):
        return {**sizes, "pooling": config["pooling"]}
    grid, stride = grid_shape(config), feature_stride(config)
    counts = {
        "patches": grid[0] * grid[1],
        "class token": int(config["class_token"]),
        "distillation token": int(config["distillation"] is not None),
        "registers": config["num_registers"],
    }
    return {
        **sizes,
        "patch_pixels": [side * stride for side in config["patch_size"]],
        "grid": list(grid),
        "tokens": sum(counts.values()),
        "tokens_by_kind": {kind: count for kind, count in counts.items() if count},
        "heads": config["num_heads"],
        "pooling": config["pooling"],
        "activation": config["activation"],
        "norm_epsilon": config["norm_epsilon"],
    }


def _times(sides) -> str:
    return " x ".join(map(str, sides))


def in_words(found: dict[str, Any]) -> str:
    """A description as lines of text."""
    height, width, channels = found["image_shape"]
    rows = [
        ("project", found["project"]),
        ("architecture", ": ".join(filter(None, (found["variant"], found["architecture"])))),
        ("image size", f"{height} x {width}, {channels} channels"),
    ]
    if "tokens" in found:
        kinds = found["tokens_by_kind"].items()
        rows += [
            ("patch", f"{_times(found['patch_pixels'])} pixels; a grid of {_times(found['grid'])}"),
            ("tokens", f"{found['tokens']} ({', '.join(f'{n} {kind}' for kind, n in kinds)})"),
            ("heads", found["heads"]),
            ("activation", _ACTIVATIONS[found["activation"]]),
            ("epsilon", found["norm_epsilon"]),
        ]
    # Of a BiT ResNet there is a map instead of patches.
    mean = found["pooling"] == "gap" and "tokens" not in found
    pooling = "mean of the map" if mean else _POOLINGS[found["pooling"]]
    arrays = ", ".join(f"{count} of {dtype}" for dtype, count in found["arrays"].items())
    rows += [
        ("pooling", pooling),
        ("classes", found["classes"] or "none: no head"),
        ("pixels", found["pixel_range"]),
        ("parameters", f"{found['parameters']:,}"),
        ("arrays", f"{arrays}; {megabytes(found['array_bytes'])}"),
        ("on disk", megabytes(found["bytes_on_disk"])),
        *(("assumed", line) for line in found["assumed"]),
    ]
    if found["ignored"]:
        rows.append(("serves others", ", ".join(found["ignored"])))
    if found["loads"]:
        rows.append(("strict load", CLEAN))
    else:
        rows.append(("strict load", f"fails, {len(found['problems'])} problems:"))
    lines = [f"{name:<15}{in_options(str(value))}" for name, value in rows]
    return "\n".join(lines + [f"  {problem}" for problem in found["problems"]])
