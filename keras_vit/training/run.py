"""`train`: a run from a recipe, in a directory that it can be resumed from."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit import _checks
from keras_vit.models.base import FlatModel, default_compilation
from keras_vit.recipe import Recipe
from keras_vit.recipes import get_recipe
from keras_vit.training import directory
from keras_vit.training.averages import EvaluateAverages, swap_averages
from keras_vit.training.callbacks import Keeper, Progress, StopOnNonFinite
from keras_vit.training.compiling import build_state, prepare
from keras_vit.training.distillation import Distiller
from keras_vit.training.feeds import Feed, SourceFeed, evaluation_batches
from keras_vit.training.finish import report_run
from keras_vit.training.lora import merge_lora
from keras_vit.training.plan import Plan, plan_of, updates_per_epoch
from keras_vit.training.record import Record
from keras_vit.training.result import Result
from keras_vit.training.state import Checkpoints


def train(
    model: FlatModel,
    data: Any,
    recipe: str | Recipe = "finetune",
    output: str | Path | None = None,
    *,
    validation: Any = None,
    teacher: keras.Model | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    checkpoint_minutes: float = 10.0,
    keep: int = 2,
    verbose: bool = True,
    report: bool = True,
    **options,
) -> Result:
    """Trains a model by a recipe; with `output`, so that a killed run goes on where it was.

    Weights, order, augmentation and dropout follow from the recipe's seed: seed the model's own
    initial weights by `set_seed(recipe.seed)` before building it. The same call with the same
    `output` continues a run that was broken off, or returns what a finished one came to; on one
    device the losses are those of a run that was never broken off.

    Args:
        model: `VisionTransformer` or `BiTResNet` with logits. It is trained in place.
        data: what `keras_vit.data.open_source` takes, a source, or a `Feed`.
        recipe: name of a recipe, or a `Recipe`.
        output: directory of the run; `None` to keep everything in memory.
        validation: as `data`, evaluated after each epoch; with a `Feed`, whatever
            `validation_data` of `fit` may be. `None` for none.
        teacher: model that the recipe's `distillation` learns from.
        callbacks: further Keras callbacks.
        checkpoint_minutes: minutes after which a state is saved inside of an epoch; one is saved
            at each epoch's end in any case.
        keep: states to keep.
        verbose: whether to show progress.
        report: whether to write `report.html` and `report.png` in the end, where there are
            `output` and `validation`.
        **options: of `keras_vit.data.Pipeline`, such as `cache`, `transforms`, `on_bad`.

    Returns:
        A `Result`. With `output`, the directory holds `config.json`, `metrics.csv`, `logs/` for
        TensorBoard, `checkpoints/` and, at the end, `model.keras` and the report.

    Raises:
        ValueError: if model, recipe, data or directory do not fit each other.
        NonFiniteLossError: if the loss is no number any more.
        CheckpointError: if no state of the directory can be loaded.
    """
    recipe = get_recipe(recipe)
    _checks.positive_float("checkpoint_minutes", checkpoint_minutes)
    _checks.positive_int("keep", keep)
    _check_teacher(recipe, teacher)
    feed = _feed(data, recipe, model, options)
    evaluation = validation
    if validation is not None and not _is_feed(data):
        validation, evaluation = _evaluation(validation, recipe, model, options)
    folder, described = None if output is None else Path(output).expanduser(), {}
    if folder is not None:
        words = getattr(validation, "description", "none" if validation is None else "given")
        described = directory.describe_run(model, recipe, feed, words)
        directory.check(folder, described)

    keras.utils.set_random_seed(recipe.seed)
    trainable = [layer.trainable for layer in model.layers]
    total = recipe.total_steps(updates_per_epoch(recipe, feed.size))
    plan = plan_of(recipe, feed.size, prepare(model, recipe, total))
    trained = _with_teacher(model, recipe, teacher)
    _build(trained, feed, plan)

    if folder is not None:  # not before: what cannot be trained leaves nothing behind
        directory.claim(folder, described)
    checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", keep)
    note = (checkpoints and checkpoints.load_newest(trained)) or {"position": 0, "history": []}
    feed.restore(note)
    record, position = Record(folder, note["history"]), note["position"]
    guard = StopOnNonFinite(lambda number: feed.names_of_batch(number, plan.batch_size), position)
    keeper = Keeper(
        plan,
        record,
        checkpoints,
        position=position,
        minutes=checkpoint_minutes,
        note=feed.note,
        guard=guard.look,
    )
    own = [guard, *([EvaluateAverages()] if recipe.ema_decay is not None else [])]
    last = [keeper, *([Progress(plan, record, position)] if verbose else [])]
    _fit(trained, feed, plan, keeper, evaluation, [*own, *callbacks, *last])
    record.close()
    if recipe.ema_decay is not None:
        swap_averages(trained)
    unreadable = feed.bad_report() if isinstance(feed, SourceFeed) else ""
    result = Result(_finished(model, recipe, trainable), record.rows, folder, unreadable)
    if folder is not None:
        result.model.save(folder / directory.MODEL_FILE)
        if unreadable:
            directory.write_text(folder / directory.BAD_FILE, unreadable + "\n")
        if report and evaluation is not None:
            report_run(result, folder, evaluation, recipe, feed)
    return result


def _check_teacher(recipe: Recipe, teacher) -> None:
    if (recipe.distillation is None) != (teacher is None):
        raise ValueError(
            "A `teacher` and a recipe with `distillation` go together. Received: "
            f"distillation={recipe.distillation!r}, teacher={teacher!r}"
        )


def _feed(data, recipe: Recipe, model: FlatModel, options: dict) -> Feed:
    if _is_feed(data):
        if options:
            raise ValueError(f"A feed makes its own batches. Received: {sorted(options)}")
        return data
    from keras_vit.data import open_source

    config = model.flat_config
    source = open_source(data)
    return SourceFeed(source, recipe, config["image_shape"], config["num_classes"], **options)


def _evaluation(validation, recipe: Recipe, model: FlatModel, options: dict):
    """The source, and `validation_data` for `fit`."""
    from keras_vit.data import open_source

    source, config = open_source(validation), model.flat_config
    kept = {name: value for name, value in options.items() if name in ("on_bad", "cache")}
    pipeline = evaluation_batches(
        source,
        recipe,
        config["image_shape"],
        config["num_classes"],
        recipe.batch_size // recipe.accumulation_steps,
        **kept,
    )
    return source, pipeline.dataset


def _is_feed(data) -> bool:
    return hasattr(data, "batches") and hasattr(data, "names_of_batch")


def _with_teacher(model: FlatModel, recipe: Recipe, teacher) -> keras.Model:
    """The model that is fitted."""
    if teacher is None or recipe.distillation is None:
        return model
    distiller = Distiller(
        model,
        teacher,
        kind=recipe.distillation,
        alpha=recipe.distillation_weight,
        temperature=recipe.temperature,
        label_smoothing=recipe.label_smoothing,
    )
    distiller.compile(model.optimizer)
    return distiller


def _build(trained: keras.Model, feed: Feed, plan: Plan) -> None:
    batch = next(iter(feed.batches(0, plan.batch_size)))
    images, labels = (keras.ops.convert_to_numpy(part) for part in batch[:2])
    build_state(trained, images, labels)


def _fit(trained, feed: Feed, plan: Plan, keeper: Keeper, validation, callbacks) -> None:
    """Fits from the keeper's position to the end of the plan."""
    if keeper.position % plan.batches_per_epoch:
        keeper.metric_values = [
            keras.ops.convert_to_numpy(variable) for variable in trained.metrics_variables
        ]
    for first, end, batches in plan.segments(keeper.position):
        with warnings.catch_warnings():
            # Said of every data set whose length Keras does not know, such as validation's.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            trained.fit(
                feed.batches(keeper.position, plan.batch_size),
                initial_epoch=first,
                epochs=end,
                steps_per_epoch=batches,
                validation_data=validation,
                callbacks=callbacks,
                shuffle=False,
                verbose=0,
            )
        if trained.stop_training:
            break


def _finished(model: FlatModel, recipe: Recipe, trainable: list[bool]) -> FlatModel:
    """The model as it goes out: low-rank updates merged, nothing frozen that was not before."""
    if recipe.lora_rank is not None:
        return merge_lora(model)
    for layer, flag in zip(model.layers, trainable, strict=True):
        layer.trainable = flag
    model.compile(**default_compilation(model.flat_config["classifier_activation"]))
    return model
