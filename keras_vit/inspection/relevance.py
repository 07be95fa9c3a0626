"""Attention that speaks for a class: probabilities weighted by the gradient of its logit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.engines.gradients import pull_back
from keras_vit.inspection.subject import block_indices, check, on_grid, reads, values_at
from keras_vit.models.vit import VisionTransformer


def weighted_attention_maps(
    model: VisionTransformer, images, classes=None, layers: Iterable[int] | None = None
) -> list[np.ndarray]:
    """Attention probabilities times the gradient of a class's logit by them.

    Positive where more attention would have raised the logit. Gradients go through the blocks with
    plain attention; the model itself is not touched.

    Args:
        model: a `VisionTransformer` with a head.
        images: `(batch, height, width, channels)`, as the model takes them.
        classes: a class for all images, or `(batch,)` of them; `None`: what each is taken for.
        layers: indices of blocks, negative ones from the end; `None` for all.

    Returns:
        For each of the blocks `(batch, num_heads, tokens, tokens)`, float32.

    Raises:
        ValueError: if the model is no `VisionTransformer`, has no head, no such class or no such
            block.

    Reference:
        arXiv 2103.15679, section 3.2.
    """
    check(model)
    places = block_indices(layers, model.flat_config["num_layers"])
    found = {}
    for place, weighted in _from_the_end(model, images, classes):
        if place in places:
            found[place] = weighted
        if len(found) == len(set(places)):
            break
    return [found[place] for place in places]


def class_relevance(model: VisionTransformer, images, classes=None) -> np.ndarray:
    """How much each patch speaks for a class, followed through all blocks.

    Of each block the gradient-weighted attention that is positive is averaged over heads and added
    to the residual, and the row of what becomes the output is followed back to the patches.

    Args:
        model: a `VisionTransformer` with a head.
        images: `(batch, height, width, channels)`, as the model takes them.
        classes: a class for all images, or `(batch,)` of them; `None`: what each is taken for.

    Returns:
        `(batch, grid_height, grid_width)`, float32, not negative, in units of the logit; zero
        where attention does nothing for the class.

    Raises:
        ValueError: if the model is no `VisionTransformer`, has no head or no such class.

    Reference:
        arXiv 2103.15679, section 3.2, equations 5 and 6.
    """
    check(model)
    start = reads(model)[None]
    row = start
    for place, weighted in _from_the_end(model, images, classes):
        spoken = np.maximum(weighted, 0.0).mean(axis=1)
        if place is None:  # the pooling: its one row is where to start
            start, row = 0.0, spoken[:, 0]
        else:
            row = row + (row[:, None] @ spoken)[:, 0]
    return on_grid(model, (row - start)[:, model.num_prefix_tokens :])


def _from_the_end(model, images, classes) -> Iterator[tuple[int | None, np.ndarray]]:
    """(index, weighted attention) of each block, last first; `None` for a pooling that attends."""
    if model.flat_config["num_classes"] is None:
        raise ValueError(
            "Attention for a class needs a model with a head. Received: num_classes=None"
        )
    blocks, logits = model.encoder_blocks, model.get_layer("logits").input
    tensors = [*(block.input for block in blocks), blocks[-1].output, logits]
    *inputs, tokens, scores = values_at(model, tensors, images)
    cotangent = _one_hot(keras.ops.convert_to_numpy(scores), classes)
    cotangent = keras.ops.convert_to_tensor(cotangent)
    attends = model.flat_config["pooling"] == "map"
    probe = [_gates(tokens, (model.flat_config["num_heads"], 1))] if attends else []

    def read(tokens, *gates):
        pooling = model.get_layer("pooling")
        instead = {"pooling": lambda x: pooling.gated(x, *gates)} if gates else {}
        return _behind(model, blocks[-1].output, tokens, logits, instead)

    cotangent, *found = pull_back(read, [tokens, *probe], cotangent)
    for weighted in found:
        yield None, keras.ops.convert_to_numpy(weighted)
    for place in reversed(range(len(blocks))):
        # Positions that are added between blocks leave the gradient as it is.
        x = inputs.pop()
        gates = _gates(x, (model.flat_config["num_heads"], x.shape[1]))
        cotangent, weighted = pull_back(blocks[place].gated, [x, gates], cotangent)
        yield place, keras.ops.convert_to_numpy(weighted)


def _gates(tokens, shape):
    return keras.ops.ones((tokens.shape[0], *shape, tokens.shape[1]), dtype="float32")


def _one_hot(logits: np.ndarray, classes) -> np.ndarray:
    batch, count = logits.shape
    try:
        wanted = logits.argmax(axis=-1) if classes is None else np.asarray(classes)
    except ValueError:  # lists of different lengths
        wanted = np.array("ragged")
    if (
        wanted.shape not in ((), (batch,))
        or wanted.dtype.kind not in "iu"
        or not ((0 <= wanted) & (wanted < count)).all()
    ):
        raise ValueError(
            f"`classes` must be a class from 0 to {count - 1}, or one for each of the {batch} "
            f"images. Received: {classes}"
        )
    return np.eye(count, dtype="float32")[np.broadcast_to(wanted, (batch,))]


def _behind(model, start, value, end, instead: dict[str, Any]):
    """What a tensor of a model is if another one has a value.

    Args:
        model: functional.
        start: the symbolic tensor that has the value.
        value: it.
        end: the symbolic tensor that is asked for; all that it hangs on hangs on `start`.
        instead: functions to call in place of layers.
    """
    values = {id(start): value}
    for layer in model.layers:
        if id(end) in values:
            break
        given = [id(tensor) for tensor in keras.tree.flatten(layer.input)]
        if given and values.keys() >= set(given):
            inputs = keras.tree.map_structure(lambda tensor: values[id(tensor)], layer.input)
            values[id(layer.output)] = instead.get(layer.name, layer)(inputs)
    return values[id(end)]
