"""The variables of a model as a function of its config: path -> shape, by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keras_vit.checkpoints.shapes import grid_shape, is_bit, weight_shapes

Shape = tuple[int, ...]


def variable_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    """Shapes of all weights by `variable.path`; all are trainable.

    Args:
        config: of `planning.model.complete`.

    Returns:
        Shapes by path, in no particular order. Not in it: the states of random layers, see
        `random_states`.
    """
    shapes = weight_shapes(config)
    if is_bit(config):
        return shapes
    # What no other project's file can hold, and `weight_shapes` does not know.
    shapes.pop("patch_encoder/position_embedding/embedding", None)
    return {**shapes, **dict(_positions(config)), **dict(_relative(config))}


def random_states(config: Mapping[str, Any]) -> int:
    """How many random layers there are; each has a state of two uint32."""
    if is_bit(config):
        return 0
    layers = config["num_layers"]
    deeper = layers - 1 if config["drop_path_rate"] else 0  # the first block drops nothing
    return (
        bool(config["dropout_rate"]) * (1 + 3 * layers)
        + bool(config["attention_dropout_rate"]) * layers
        + 2 * deeper
        + bool(config["patch_dropout_rate"])
    )


def _positions(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    """The tables that are added to tokens, wherever they are added."""
    names = {
        "stem": ["patch_encoder/position_embedding"],
        "shared": ["position_embedding"],
        "every_layer": [f"position_embedding_{i}" for i in range(config["num_layers"])],
    }[config["position_placement"]]
    (height, width), dim = grid_shape(config), config["hidden_dim"]
    placed = config["class_token"] and config["class_token_position"]
    rows = 1 + (config["distillation"] is not None) if placed else 0
    for name in names:
        if config["position_embedding"] == "learned":
            yield f"{name}/embedding", (rows + height * width, dim)
        elif config["position_embedding"] == "learned_2d":
            yield f"{name}/x_embedding", (width, dim // 2)
            yield f"{name}/y_embedding", (height, dim // 2)
            if rows:
                yield f"{name}/class_embedding", (rows, dim)


def _relative(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    if config["position_embedding"] == "relative":
        height, width = grid_shape(config)
        shape = (2 * height * width - 1, config["hidden_dim"] // config["num_heads"])
        for block in range(config["num_layers"]):
            yield f"encoder_block_{block}/attention/relative_position/embedding", shape
