"""Trains a model on pictures, by a recipe. The same command goes on with a run that was broken off.

    keras-vit train --data pictures/ --model vit_s16 --weights augreg_in21k --output runs/a
    keras-vit train --data tfds:beans --model vit_ti16 --recipe scratch --set image_size=32 \
        --set patch_size=8 --set epochs=3 --output runs/b

OUTPUT holds metrics.csv (a line an epoch), logs/ for TensorBoard, checkpoints/, model.keras,
report.html and report.png.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from keras_vit import recipes
from keras_vit.checkpoints import pretrained
from keras_vit.cli import devices, settings
from keras_vit.cli import options as shared

RUN_FILE = "config.json"  # of every run's directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    shared.add_data_option(parser, required=True)
    shared.add_data_option(
        parser,
        "--validation",
        help="as --data; else its val/ or test/ folder, else --held-out of it",
    )
    parser.add_argument(
        "--held-out",
        type=_share,
        default=0.1,
        metavar="SHARE",
        help="part of --data to validate on where there is nothing else (0.1); 0 for none",
    )
    parser.add_argument("--model", metavar="NAME", help="variant, such as vit_s16 or R50+ViT-B/16")
    parser.add_argument(
        "--weights",
        metavar="SRC",
        help="published name, file, directory, hf:// or https:// address",
    )
    parser.add_argument(
        "--recipe", default="finetune", help=f"one of {', '.join(recipes.list_recipes())}"
    )
    parser.add_argument(
        "--set",
        type=shared.setting,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="a field of the recipe or an argument of the model, such as epochs=3 patch_size=8",
    )
    parser.add_argument("--teacher", metavar="SRC", help="model that `distillation` learns from")
    parser.add_argument("--output", required=True, type=Path, help="directory of the run")
    parser.add_argument("--cache", action="store_true", help="keep decoded pictures in memory")
    parser.add_argument(
        "--on-bad", choices=("skip", "raise"), default="skip", help="unreadable pictures (skip)"
    )
    parser.add_argument(
        "--checkpoint-minutes",
        type=float,
        default=10.0,
        metavar="N",
        help="minutes between states saved inside of an epoch (10)",
    )
    parser.add_argument("--no-report", action="store_true", help="leave the report off")
    shared.add_backend_option(parser)
    devices.add_arguments(parser)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError
    return value


_share.__name__ = "share in [0, 1)"


def check(options: argparse.Namespace) -> None:
    """Raises a ValueError on bad arguments, before Keras is imported."""
    recipe, arguments = settings.split(options.set, options.recipe)
    shared.check_data("--data", options.data)
    shared.check_data("--validation", options.validation)
    if options.model is None and options.weights is None:
        raise ValueError("Give --model NAME, --weights SRC, or both.")
    if options.model is not None:
        settings.check_model(options.model, recipe, arguments)
    _check_weights(options.model, options.weights)
    if options.teacher is not None:
        shared.check_model("--teacher", options.teacher)
    if (options.teacher is None) != (recipe.distillation is None):
        raise ValueError("--teacher and --set distillation=hard (or soft) go together.")
    if not 0 < options.checkpoint_minutes < math.inf:
        raise ValueError("--checkpoint-minutes must be a positive number.")
    _check_output(options.output)


def _check_weights(variant: str | None, weights: str | None) -> None:
    if weights is None or "://" in weights or Path(weights).expanduser().exists():
        return
    if variant is not None:
        pretrained.find(variant, weights)  # what is no path is a name of the table
        return
    raise ValueError(
        f"--weights: no such file or directory. A published name needs --model. Received: {weights}"
    )


def _check_output(output: Path) -> None:
    output = output.expanduser()
    there = next(path for path in (output, *output.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"--output: {there} is a file; expected a directory.")
    # As the run itself will say, after a while.
    names = [path.name for path in there.iterdir()] if there == output else []
    foreign = sorted(name for name in names if not name.startswith("."))
    if foreign and RUN_FILE not in names:
        raise ValueError(
            f"--output: {output} holds no run, but other files ({', '.join(foreign[:5])}): name an "
            "empty or new directory."
        )


def run(options: argparse.Namespace) -> int:
    """Trains, and says what came of it."""
    return devices.run(options, _run)


def _run(options: argparse.Namespace, engine) -> int:
    from keras_vit.cli.models import load
    from keras_vit.data import open_splits
    from keras_vit.training import train

    recipe, arguments = settings.split(options.set, options.recipe)
    engine.check_batch(recipe.batch_size, recipe.accumulation_steps)
    print(recipe)
    print(f"on {engine.description}")
    training, validation = open_splits(
        options.data, options.validation, held_out=options.held_out, seed=recipe.seed
    )
    print(f"training on {training.description}: {training.size:,} pictures of "
          f"{training.num_classes} classes")  # fmt: skip
    if validation is not None:
        print(f"validation on {validation.description}: {validation.size:,} pictures")
    model = _model(options, recipe, arguments, training.num_classes)
    print(f"{model.name}: {model.count_params():,} parameters", flush=True)
    result = train(
        model,
        training,
        recipe,
        options.output,
        validation=validation,
        teacher=None if options.teacher is None else load(options.teacher)[0],
        checkpoint_minutes=options.checkpoint_minutes,
        report=not options.no_report,
        cache=options.cache,
        on_bad=options.on_bad,
    )
    if result.unreadable:
        print(result.unreadable)
    last = result.history[-1] if result.history else {}
    words = [f"{name} {last[name]:.4f}" for name in ("accuracy", "val_accuracy") if name in last]
    print(f"done: {', '.join(words)}; wrote {options.output}")
    return 0


def _model(options: argparse.Namespace, recipe, arguments, num_classes: int):
    """The model to train, its weights seeded by the recipe."""
    import keras

    from keras_vit.models import create_model, from_checkpoint

    keras.utils.set_random_seed(recipe.seed)
    arguments = settings.model_arguments(recipe, arguments, num_classes)
    if options.model is None:
        return from_checkpoint(options.weights, **arguments)
    return create_model(options.model, weights=options.weights, **arguments)
