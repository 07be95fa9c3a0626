"""`train`: a run from a recipe, in a directory that it can be resumed from."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit import _checks
from keras_vit._reading import plainly
from keras_vit.engines.adoption import engine_for, entered
from keras_vit.engines.engine import Engine
from keras_vit.models.base import FlatModel, default_compilation
from keras_vit.recipe import Recipe
from keras_vit.recipes import get_recipe
from keras_vit.training import directory
from keras_vit.training.averages import EvaluateAverages, swap_averages
from keras_vit.training.callbacks import Keeper, Progress, StopOnNonFinite
from keras_vit.training.compiling import build_state, prepare
from keras_vit.training.distillation import Distiller
from keras_vit.training.feeds import Feed, SourceFeed
from keras_vit.training.finish import report_run
from keras_vit.training.lora import merge_lora
from keras_vit.training.losses import accuracy
from keras_vit.training.plan import Plan, plan_of, updates_per_epoch
from keras_vit.training.record import Record
from keras_vit.training.result import Result
from keras_vit.training.state import Checkpoints
from keras_vit.training.validation import NONE, Validation, validation_of_feed, validation_of_source
from keras_vit.training.whole_batches import WholeLoss


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

    Inside of `distribution.scope` it trains on several devices; batch sizes are global. Of several
    processes all call it alike, with an `output` that they share, and the chief writes; the
    result's model is each process' own, to be trained no further inside of the scope.

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
        ValueError: if model, recipe, data, devices or directory do not fit each other.
        NonFiniteLossError: if the loss is no number any more.
        CheckpointError: if no state of the directory can be loaded.
        PeerLostError: if another process of the run ended.
    """
    engine = engine_for(model)
    with entered(engine):
        return _train(
            engine,
            model,
            data,
            get_recipe(recipe),
            None if output is None else Path(output).expanduser(),
            validation=validation,
            teacher=teacher,
            callbacks=callbacks,
            checkpoint_minutes=checkpoint_minutes,
            keep=keep,
            verbose=verbose and engine.is_chief,
            report=report,
            options=options,
        )


def _train(
    engine: Engine,
    model: FlatModel,
    data: Any,
    recipe: Recipe,
    folder: Path | None,
    *,
    validation: Any,
    teacher: keras.Model | None,
    callbacks: Sequence[keras.callbacks.Callback],
    checkpoint_minutes: float,
    keep: int,
    verbose: bool,
    report: bool,
    options: dict[str, Any],
) -> Result:
    _checks.positive_float("checkpoint_minutes", checkpoint_minutes)
    _checks.positive_int("keep", keep)
    _check_teacher(recipe, teacher)
    engine.check_batch(recipe.batch_size, recipe.accumulation_steps)
    feed = _feed(data, recipe, model, options, engine)
    held_out = _validation(validation, data, recipe, model, options, engine)
    described = directory.describe_run(model, recipe, feed, held_out.words)
    if folder is not None:
        directory.check(folder, described)
    # Besides, none writes before all have looked.
    _check_same(engine, directory.digest(described))

    keras.utils.set_random_seed(recipe.seed)
    trainable = [layer.trainable for layer in model.layers]
    total = recipe.total_steps(updates_per_epoch(recipe, feed.size))
    plan = plan_of(recipe, feed.size, prepare(model, recipe, total))
    trained = _with_teacher(model, recipe, teacher)
    engine.check_model(trained)
    _build(trained, feed, plan, model.flat_config["num_classes"])

    if folder is not None and engine.is_chief:
        directory.claim(folder, described)  # not before: what cannot be trained leaves nothing
    checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", keep, engine)
    note = (checkpoints and checkpoints.load_newest(trained)) or {"position": 0, "history": []}
    _check_agreed(engine, note["position"], folder)
    feed.restore(note)
    engine.vary_random(trained)  # before the keeper takes note of the generators
    if verbose and 0 < note["position"] < plan.total_batches:
        epoch, batch = divmod(note["position"], plan.batches_per_epoch)
        print(f"going on from batch {batch} of epoch {epoch + 1}/{plan.epochs}", flush=True)
    record = Record(folder if engine.is_chief else None, note["history"])
    guard = StopOnNonFinite(
        lambda number: feed.names_of_batch(number, plan.batch_size), note["position"]
    )
    keeper = Keeper(
        plan,
        record,
        checkpoints,
        position=note["position"],
        minutes=checkpoint_minutes,
        note=feed.note,
        guard=guard.look,
        engine=engine,
    )
    own = [
        guard,
        *([EvaluateAverages()] if recipe.ema_decay is not None else []),
        *([WholeLoss(engine)] if held_out.is_filled else []),
    ]
    last = [keeper, *([Progress(plan, record, note["position"])] if verbose else [])]
    _fit(trained, feed, plan, keeper, held_out, [*own, *callbacks, *last])
    record.close()
    if recipe.ema_decay is not None:
        swap_averages(trained)
    unreadable = feed.bad_report() if isinstance(feed, SourceFeed) else ""
    finished = engine.local_model(_finished(model, recipe, trainable))
    result = Result(finished, record.rows, folder, unreadable)
    if folder is not None and engine.is_chief:
        with engine.alone():
            result.model.save(folder / directory.MODEL_FILE)
            if unreadable:
                directory.write_text(folder / directory.BAD_FILE, unreadable + "\n")
            if report and held_out.whole is not None:
                report_run(result, folder, held_out.whole, recipe, feed, engine)
    engine.total(0)  # none leaves before the chief is done
    return result


def _check_teacher(recipe: Recipe, teacher) -> None:
    if (recipe.distillation is None) != (teacher is None):
        raise ValueError(
            "A `teacher` and a recipe with `distillation` go together. Received: "
            f"distillation={recipe.distillation!r}, teacher={teacher!r}"
        )


def _check_same(engine: Engine, digest: int) -> None:
    """Raises a ValueError unless all processes were asked for the same run."""
    if engine.total(digest) != engine.processes * digest:
        raise ValueError(
            f"The {engine.processes} processes were not given the same recipe, model and data: "
            "run the same program, with the same arguments, in all of them."
        )


def _check_agreed(engine: Engine, position: int, folder: Path | None) -> None:
    """Raises a ValueError unless all processes go on from the same batch."""
    if engine.total(position) != engine.processes * position:
        raise ValueError(
            f"The {engine.processes} processes find different checkpoints in {folder}: name an "
            f"output directory that all of them share. Received: batch {position} here"
        )


def _feed(data, recipe: Recipe, model: FlatModel, options: dict, engine: Engine) -> Feed:
    if _is_feed(data):
        if options:
            raise ValueError(f"A feed makes its own batches. Received: {sorted(options)}")
        return data
    from keras_vit.data import open_source

    if "shard" in options:
        raise ValueError("`shard` follows from the processes: see `distribution.scope`.")
    config = model.flat_config
    return SourceFeed(
        open_source(data),
        recipe,
        config["image_shape"],
        config["num_classes"],
        shard=engine.shard,
        **options,
    )


def _validation(validation, data, recipe: Recipe, model, options, engine: Engine) -> Validation:
    if validation is None:
        return NONE
    batch_size = recipe.batch_size // recipe.accumulation_steps
    if _is_feed(data):
        return validation_of_feed(validation, batch_size, engine)
    kept = {name: value for name, value in options.items() if name in ("on_bad", "cache")}
    return validation_of_source(validation, recipe, model.flat_config, batch_size, engine, **kept)


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
    distiller.compile(model.optimizer, metrics=(), weighted_metrics=[accuracy])
    return distiller


def _build(trained: keras.Model, feed: Feed, plan: Plan, num_classes: int) -> None:
    labels = next(iter(feed.batches(0, plan.batch_size)))[1]
    build_state(trained, keras.ops.convert_to_numpy(labels), num_classes)


def _fit(trained, feed: Feed, plan: Plan, keeper: Keeper, held_out: Validation, callbacks) -> None:
    """Fits from the keeper's position to the end of the plan."""
    engine = keeper.engine
    if keeper.position % plan.batches_per_epoch:
        keeper.metric_values = engine.arrays(trained.metrics_variables, summed=True)
    for first, end, batches in plan.segments(keeper.position):
        with warnings.catch_warnings(), plainly():
            # Said of every data set whose length Keras does not know, such as validation's.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            trained.fit(
                _part(feed, keeper.position, plan.batch_size, engine),
                initial_epoch=first,
                epochs=end,
                steps_per_epoch=batches,
                validation_data=held_out.fitted,
                validation_batch_size=held_out.batch_size,
                callbacks=callbacks,
                shuffle=False,
                verbose=0,
            )
        if trained.stop_training:
            break


def _part(feed: Feed, position: int, batch_size: int, engine: Engine):
    """This process' part of the feed's batches."""
    batches = feed.batches(position, batch_size)
    index, count = engine.shard
    if count == 1 or isinstance(feed, SourceFeed):
        return engine.feed(batches, batch_size)
    return engine.feed(((x[index::count], y[index::count]) for x, y in batches), batch_size)


def _finished(model: FlatModel, recipe: Recipe, trainable: list[bool]) -> FlatModel:
    """The model as it goes out: low-rank updates merged, nothing frozen that was not before."""
    if recipe.lora_rank is not None:
        return merge_lora(model)
    for layer, flag in zip(model.layers, trainable, strict=True):
        layer.trainable = flag
    model.compile(**default_compilation(model.flat_config["classifier_activation"]))
    return model
