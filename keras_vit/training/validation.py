"""What a run is evaluated on after each epoch, and for its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras_vit.engines.engine import Engine
from keras_vit.recipe import Recipe
from keras_vit.training.feeds import evaluation_batches
from keras_vit.training.whole_batches import fill_up


@dataclass(frozen=True)
class Validation:
    """Evaluation data.

    Attributes:
        words: what it is, for the run's directory.
        whole: all of it, for one process.
        fitted: `validation_data` for `fit`: this process' part, filled up on several devices.
        batch_size: where `fitted` is arrays.
        is_filled: whether it is filled up by images of no weight.
    """

    words: str
    whole: Any
    fitted: Any
    batch_size: int | None = None
    is_filled: bool = False


NONE = Validation("none", None, None)


def validation_of_feed(data: Any, batch_size: int, engine: Engine) -> Validation:
    """From what `validation_data` of `fit` may be; on several devices, arrays."""
    if engine.devices == 1:
        return Validation("given", data, data)
    fitted = engine.feed(fill_up(data, len(data[0]), batch_size, engine), batch_size)
    return Validation("given", data, fitted, batch_size // engine.shard[1], is_filled=True)


def validation_of_source(
    data: Any, recipe: Recipe, config: Any, batch_size: int, engine: Engine, **options
) -> Validation:
    """From what `keras_vit.data.open_source` takes.

    Args:
        data: the data.
        recipe: the recipe.
        config: the model's flat config.
        batch_size: images of a global batch.
        engine: the engine.
        options: further arguments of `keras_vit.data.Pipeline`.
    """
    from keras_vit.data import open_source

    source = open_source(data)
    shape = (config["image_shape"], config["num_classes"])

    def batches(size: int, **more):
        return evaluation_batches(source, recipe, *shape, size, **options, **more).dataset

    whole = batches(batch_size)
    if engine.devices == 1:
        return Validation(source.description, whole, whole)
    part = batches(batch_size // engine.shard[1], shard=engine.shard)
    fitted = engine.feed(fill_up(part, source.size, batch_size, engine), batch_size)
    return Validation(source.description, whole, fitted, is_filled=True)
