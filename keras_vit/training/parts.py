"""Training parts of a model: the head alone, the last blocks, everything."""

from __future__ import annotations

import keras

from keras_vit import _checks
from keras_vit.models.surgery import HEAD_LAYERS
from keras_vit.models.vit import VisionTransformer

# Layers above the blocks; they are trained with the last of them.
_TOP_LAYERS = (*HEAD_LAYERS, "encoder_norm", "pooled_norm", "pooling", "distillation_pooling")


def train_last_blocks(model: keras.Model, blocks: int | None) -> None:
    """Freezes all but the head and the last Transformer blocks, in place.

    Compile the model again afterwards, as Keras asks.

    Args:
        model: a `VisionTransformer`; with `blocks` 0 or `None`, any model of this package.
        blocks: blocks to train, with the norm and pooling above them; 0: the head alone; `None`:
            everything.

    Raises:
        ValueError: if the model has no head, or fewer blocks than that.
    """
    if blocks is None:
        model.trainable = True
        for layer in model.layers:
            layer.trainable = True
        return
    _checks.non_negative_int("blocks", blocks)
    if not any(layer.name in HEAD_LAYERS for layer in model.layers):
        raise ValueError("The model has no head, so nothing would be trained: give `num_classes`.")
    names = set(HEAD_LAYERS)
    if blocks:
        if not isinstance(model, VisionTransformer):
            raise ValueError(
                "Only a VisionTransformer has blocks to train; give 0 for the head alone. "
                f"Received: blocks={blocks}, model of type {type(model).__name__}"
            )
        known = model.encoder_blocks
        if blocks > len(known):
            raise ValueError(f"The model has {len(known)} blocks. Received: blocks={blocks}")
        names |= {*_TOP_LAYERS, *(block.name for block in known[-blocks:])}
    model.trainable = True
    for layer in model.layers:
        layer.trainable = layer.name in names
