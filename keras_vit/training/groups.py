"""Which weights decay, and how much slower lower layers learn: rules over variables' paths."""

from __future__ import annotations

import re

from keras_vit import _checks
from keras_vit.models.vit import VisionTransformer

_BLOCK = re.compile(r"(?:^|/)encoder_block_(\d+)(?:/|$)")
_ABOVE = re.compile(r"(?:^|/)(encoder_norm|pooled_norm|pooling|pre_logits|head|head_dist)(?:/|$)")


def depth(path: str, num_layers: int) -> int:
    """How far above the input a variable lies.

    Args:
        path: of the variable, such as `"encoder_block_3/mlp/fc1/kernel"`.
        num_layers: Transformer blocks of the model.

    Returns:
        0 for stem, patches, tokens and positions; i + 1 for block i; `num_layers + 1` above.
    """
    block = _BLOCK.search(path)
    if block:
        return int(block[1]) + 1
    return num_layers + 1 if _ABOVE.search(path) else 0


def layer_decay_multipliers(model: VisionTransformer, decay: float) -> dict[str, float]:
    """Learning-rate multipliers, `decay ** (levels below the top)`, for each trainable variable.

    Args:
        model: a `VisionTransformer`.
        decay: factor from one level to the one below, in (0, 1].

    Returns:
        Path of each trainable variable -> multiplier; 1 for what is above the last block.

    Raises:
        ValueError: if the model has no Transformer blocks, or `decay` is out of range.

    Reference:
        arXiv 2106.08254, section 3.2.
    """
    _checks.positive_float("decay", decay)
    if decay > 1:
        raise ValueError(f"`decay` must be at most 1. Received: decay={decay}")
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            "Layer-wise decay needs the blocks of a VisionTransformer. "
            f"Received: model of type {type(model).__name__}"
        )
    top = model.flat_config["num_layers"] + 1
    return {
        variable.path: decay ** (top - depth(variable.path, top - 1))
        for variable in model.trainable_variables
    }
