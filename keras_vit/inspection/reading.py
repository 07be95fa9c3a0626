"""What the output reads: attention of the class token, of a pooling, or of all patches."""

from __future__ import annotations

import numpy as np

from keras_vit.inspection.attention import iter_attention_maps, pooling_attention
from keras_vit.inspection.subject import check, on_grid, reads
from keras_vit.models.vit import VisionTransformer


def output_attention(model: VisionTransformer, images, layer: int | None = None) -> np.ndarray:
    """Attention to patches of what becomes the output, laid on the grid.

    That is the class token's (of DeiT's two heads the mean of the class and the distillation
    token's), the pooling's own where it attends (`pooling="map"`), else the mean over what is
    averaged. Of a model that puts class token and mean side by side: the class token's.

    Args:
        model: a `VisionTransformer`.
        images: `(batch, height, width, channels)`, as the model takes them.
        layer: index of a block, negative ones from the end; `None`: the pooling if that attends,
            else the last block.

    Returns:
        `(batch, heads, grid_height, grid_width)`, float32. A row sums to 1 less what prefix tokens
        get.

    Raises:
        ValueError: if the model is no `VisionTransformer`, or has no such block.
    """
    check(model)
    if layer is None and model.flat_config["pooling"] == "map":
        rows = pooling_attention(model, images)
    else:
        (scores,) = iter_attention_maps(model, images, [-1 if layer is None else layer])
        rows = reads(model) @ scores
    patches = np.moveaxis(rows[..., model.num_prefix_tokens :], 1, 2)  # (batch, patches, heads)
    return np.moveaxis(on_grid(model, patches), 3, 1)
