"""Where a Vision Transformer attends."""

from __future__ import annotations

import keras
import numpy as np

from keras_vit.models.vit import VisionTransformer


def attention_maps(model: VisionTransformer, images, layers=None) -> list[np.ndarray]:
    """The attention probabilities of each block.

    Args:
        model: a `VisionTransformer`. Its outputs and weights are not touched.
        images: `(batch, height, width, channels)`, as the model takes them.
        layers: indices of blocks, negative ones from the end; `None` for all.

    Returns:
        For each of the blocks `(batch, num_heads, tokens, tokens)`, float32; each row sums to 1.

    Raises:
        ValueError: if the model is no `VisionTransformer`, or has no such block.
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"`model` must be a VisionTransformer. Received: {type(model).__name__}")
    blocks = model.encoder_blocks
    indices = range(len(blocks)) if layers is None else layers
    wrong = [index for index in indices if not -len(blocks) <= index < len(blocks)]
    if wrong:
        raise ValueError(
            f"`layers` must be indices of the model's {len(blocks)} blocks. Received: {wrong}"
        )
    chosen = [blocks[index] for index in indices]
    if not chosen:
        return []
    inputs = keras.Model(model.input, [block.input for block in chosen])
    tokens = inputs(keras.ops.convert_to_tensor(images, dtype="float32"), training=False)
    tokens = tokens if isinstance(tokens, (list, tuple)) else [tokens]
    return [
        keras.ops.convert_to_numpy(block.attention_scores(x))
        for block, x in zip(chosen, tokens, strict=True)
    ]


def attention_rollout(model: VisionTransformer, images) -> np.ndarray:
    """How much of each patch reaches the output, followed through all blocks.

    Heads are averaged, the residual counts as much as the attention, and the blocks' matrices
    are multiplied. The row is the class token's, or the mean of all rows without one.

    Args:
        model: a `VisionTransformer`.
        images: `(batch, height, width, channels)`, as the model takes them.

    Returns:
        `(batch, grid_height, grid_width)`, float32; the patches' shares, which sum to 1.

    Raises:
        ValueError: if the model is no `VisionTransformer`.

    Reference:
        arXiv 2005.00928; used in arXiv 2010.11929, appendix D.8.
    """
    maps = attention_maps(model, images)
    tokens = maps[0].shape[-1]
    rollout = np.eye(tokens, dtype="float32")
    for scores in maps:
        rollout = (0.5 * scores.mean(axis=1) + 0.5 * np.eye(tokens, dtype="float32")) @ rollout
    prefix = model.num_prefix_tokens
    row = rollout[:, 0] if model.get_config()["class_token"] else rollout.mean(axis=1)
    shares = row[:, prefix:]
    shares = shares / shares.sum(axis=1, keepdims=True)
    return shares.reshape(-1, *model.grid_shape)
