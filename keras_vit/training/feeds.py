"""What a run is fed with: batches from any position on, and the names in them."""

from __future__ import annotations

from typing import Any, Protocol

from keras_vit.recipe import Recipe


class Feed(Protocol):
    """What `train` needs of training data. `SourceFeed` is one, over tf.data; yours may be another.

    With several processes each takes its part of every batch itself: all must be given equal
    batches, of all examples.

    Attributes:
        size: examples.
        description: one line about the data; a run goes on only with the same.
    """

    size: int
    description: str

    def batches(self, start: int, batch_size: int) -> Any:
        """An endless stream for `fit`, from batch number `start` of the whole run on.

        Images `(batch, height, width, channels)`, pixels 0..255; labels as integers `(batch,)`
        or as shares `(batch, num_classes)`. Equal calls give equal batches.
        """
        ...

    def names_of_batch(self, number: int, batch_size: int) -> list[str]:
        """Names of the examples of a batch, or an empty list."""
        ...

    def note(self) -> dict[str, Any]:
        """What a checkpoint has to hold of the data, as JSON values."""
        ...

    def restore(self, note: dict[str, Any]) -> None:
        """Takes the note of a checkpoint."""
        ...


class SourceFeed:
    """Feeds a run from a source of `keras_vit.data`, augmented as a recipe says.

    Args:
        source: the source.
        recipe: the recipe.
        image_shape: `(height, width, channels)` of the model.
        num_classes: classes of the model.
        shard: `(index, count)`: this process takes every `count`-th example of each batch.
        options: further arguments of `keras_vit.data.Pipeline`, such as `cache`, `transforms`
            or `on_bad`.
    """

    def __init__(
        self, source, recipe: Recipe, image_shape, num_classes: int, shard=(0, 1), **options
    ):
        self.source = source
        self.shard = shard
        self.recipe = recipe
        self.size = source.size
        self.description = source.description
        self.class_names = list(source.class_names)
        self._arguments = {
            **pipeline_arguments(recipe, image_shape, num_classes),
            "crop": recipe.crop,
            "crop_area": recipe.crop_area,
            "flip": recipe.flip,
            "randaugment": recipe.randaugment,
            "erasing": recipe.erasing,
            "mixup": recipe.mixup,
            "cutmix": recipe.cutmix,
            "seed": recipe.seed,
            **options,
        }
        # Index of an example that could not be read -> its name, and why.
        self._bad: dict[int, tuple[str, str]] = {}
        self._pipeline: Any = None

    def _make(self, start: int, batch_size: int):
        from keras_vit.data import Pipeline

        return Pipeline(
            self.source,
            training=True,
            batch_size=batch_size // self.shard[1],
            shard=self.shard,
            start_step=start,
            known_bad=sorted(self._bad),
            **self._arguments,
        )

    def batches(self, start: int, batch_size: int) -> Any:
        """See `Feed`."""
        self._collect()
        self._pipeline = self._make(start, batch_size)
        return self._pipeline.dataset

    def names_of_batch(self, number: int, batch_size: int) -> list[str]:
        """See `Feed`."""
        self._collect()
        return self._make(number, batch_size).names_of_batch(number)

    def note(self) -> dict[str, Any]:
        """See `Feed`: the examples that could not be read."""
        self._collect()
        return {"unreadable": [[index, *words] for index, words in sorted(self._bad.items())]}

    def restore(self, note: dict[str, Any]) -> None:
        """See `Feed`."""
        self._bad |= {index: (name, reason) for index, name, reason in note.get("unreadable", ())}

    def bad_report(self) -> str:
        """The unreadable examples in words; empty if there are none."""
        self._collect()
        if not self._bad:
            return ""
        lines = [f"  {name}: {reason}" for _, (name, reason) in sorted(self._bad.items())]
        return "\n".join([f"{len(lines)} pictures could not be read:", *lines])

    def _collect(self) -> None:
        if self._pipeline is not None:
            for index, name, reason in list(self._pipeline.bad.items):
                self._bad[int(index)] = (str(name), str(reason))


def pipeline_arguments(recipe: Recipe, image_shape, num_classes: int) -> dict[str, Any]:
    """Arguments of `keras_vit.data.Pipeline` that training and evaluation share."""
    return {
        "image_size": tuple(image_shape[:2]),
        "channels": image_shape[2],
        "num_classes": num_classes,
        "one_hot": True,
    }


def evaluation_batches(source, recipe: Recipe, image_shape, num_classes, batch_size, **options):
    """One pass over a source, as a `keras_vit.data.Pipeline`, sized as the recipe says.

    Args:
        source: the source.
        recipe: the recipe.
        image_shape: `(height, width, channels)` of the model.
        num_classes: classes of the model.
        batch_size: images of a batch of this process.
        options: further arguments of `keras_vit.data.Pipeline`.
    """
    from keras_vit.data import Pipeline

    return Pipeline(
        source,
        training=False,
        batch_size=batch_size,
        crop=recipe.evaluation,
        **pipeline_arguments(recipe, image_shape, num_classes),
        **options,
    )
