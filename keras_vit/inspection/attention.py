"""Where a Vision Transformer attends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.engines.gradients import untracked
from keras_vit.inspection.subject import block_indices, check, on_grid, reads, values_at
from keras_vit.models.vit import VisionTransformer

HEAD_FUSIONS = {"mean": np.mean, "max": np.max, "min": np.min}


def iter_attention_maps(
    model: VisionTransformer, images, layers: Iterable[int] | None = None
) -> Iterator[np.ndarray]:
    """The attention probabilities of each block, one block after the other.

    Attention is computed beside the model, from the tokens that reach each block: fused kernels
    stay in use, and one block's map is in memory at a time.

    Args:
        model: a `VisionTransformer`. Its outputs and weights are not touched.
        images: `(batch, height, width, channels)`, as the model takes them.
        layers: indices of blocks, negative ones from the end; `None` for all.

    Yields:
        For each of the blocks `(batch, num_heads, tokens, tokens)`, float32; each row sums to 1.

    Raises:
        ValueError: if the model is no `VisionTransformer`, or has no such block.
    """
    check(model)
    blocks = model.encoder_blocks
    places = block_indices(layers, len(blocks))
    return _maps(model, images, [blocks[place] for place in places])


def _maps(model, images, blocks) -> Iterator[np.ndarray]:
    if not blocks:
        return
    tokens = values_at(model, [block.input for block in blocks], images)
    for block, x in zip(blocks, tokens, strict=True):
        with untracked():
            scores = block.attention_scores(x)
        yield keras.ops.convert_to_numpy(scores)


def pooling_attention(model: VisionTransformer, images) -> np.ndarray:
    """The attention probabilities of the pooling of a model with `pooling="map"`.

    Args:
        model: a `VisionTransformer` whose pooling attends.
        images: `(batch, height, width, channels)`, as the model takes them.

    Returns:
        `(batch, num_heads, tokens)`, float32; each row sums to 1.
    """
    pooling = model.get_layer("pooling")
    (tokens,) = values_at(model, [pooling.input], images)
    with untracked():
        _, scores = pooling(tokens, return_attention_scores=True)
    return keras.ops.convert_to_numpy(scores)[:, :, 0]


def attention_maps(model: VisionTransformer, images, layers=None) -> list[np.ndarray]:
    """The attention probabilities of all blocks, or of some; see `iter_attention_maps`.

    Args:
        model: a `VisionTransformer`.
        images: `(batch, height, width, channels)`, as the model takes them.
        layers: indices of blocks, negative ones from the end; `None` for all.

    Returns:
        For each of the blocks `(batch, num_heads, tokens, tokens)`, float32; each row sums to 1.

    Raises:
        ValueError: if the model is no `VisionTransformer`, or has no such block.
    """
    return list(iter_attention_maps(model, images, layers))


def attention_rollout(
    model: VisionTransformer, images, head_fusion: str = "mean", discard_ratio: float = 0.0
) -> np.ndarray:
    """How much of each patch reaches the output, followed through all blocks.

    Heads are fused, the residual counts as much as the attention, and the blocks' matrices
    are multiplied. The row is that of what becomes the output: the class token's (with DeiT's
    two heads the mean of the class and the distillation token's), the mean of the patches' with
    `pooling="gap"`, of all with `pooling="mean"`; `pooling="map"` weighs them by its own attention.

    Args:
        model: a `VisionTransformer`.
        images: `(batch, height, width, channels)`, as the model takes them.
        head_fusion: `"mean"`, `"max"` or `"min"` over heads.
        discard_ratio: in 0..1, without 1: the share of an image's fused probabilities, the
            smallest of each block, that are left out.

    Returns:
        `(batch, grid_height, grid_width)`, float32; the patches' shares, which sum to 1, or are all
        zero where so much is left out that nothing of the patches reaches the output.

    Raises:
        ValueError: if the model is no `VisionTransformer`, or on arguments out of range.

    Reference:
        arXiv 2005.00928; used in arXiv 2010.11929, appendix D.8.
    """
    check(model)
    _checks.choice("head_fusion", head_fusion, tuple(HEAD_FUSIONS))
    discard_ratio = _checks.rate("discard_ratio", discard_ratio)
    tokens = model.num_prefix_tokens + int(np.prod(model.grid_shape))
    residual = np.eye(tokens, dtype="float32")
    rollout = residual
    for scores in iter_attention_maps(model, images):
        fused = _without_smallest(HEAD_FUSIONS[head_fusion](scores, axis=1), discard_ratio)
        mixed = fused / np.maximum(fused.sum(axis=-1, keepdims=True), np.finfo("float32").tiny)
        rollout = (0.5 * mixed + 0.5 * residual) @ rollout
    if model.flat_config["pooling"] == "map":
        fused = HEAD_FUSIONS[head_fusion](pooling_attention(model, images), axis=1)
        weights = fused / fused.sum(axis=-1, keepdims=True)
    else:
        weights = reads(model)[None]
    shares = (weights[:, None] @ rollout)[:, 0, model.num_prefix_tokens :]
    total = shares.sum(axis=1, keepdims=True)
    return on_grid(model, np.divide(shares, total, out=np.zeros_like(shares), where=total > 0))


def _without_smallest(fused: np.ndarray, ratio: float) -> np.ndarray:
    """`(batch, tokens, tokens)` with the smallest of each image set to zero."""
    flat = fused.reshape(len(fused), -1)
    count = int(ratio * flat.shape[1])
    if not count:
        return fused
    smallest = np.argpartition(flat, count - 1, axis=1)[:, :count]
    kept = flat.copy()
    np.put_along_axis(kept, smallest, 0.0, axis=1)
    return kept.reshape(fused.shape)
