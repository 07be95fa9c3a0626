"""Measures how fast pictures are read and augmented here, in images a second.

keras-vit benchmark data --data pictures/ --recipe augreg_light2 --set image_size=224
"""

from __future__ import annotations

import argparse

from keras_vit.cli import options as shared
from keras_vit.cli import settings
from keras_vit.recipe import DEFAULT_SIZE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("what", choices=("data",), help="what to measure")
    shared.add_data_option(parser, required=True)
    parser.add_argument("--recipe", default="finetune", help="whose augmentation is used")
    parser.add_argument(
        "--set", type=shared.setting, nargs="+", action="extend", default=[], metavar="NAME=VALUE"
    )
    parser.add_argument("--batches", type=shared.positive, default=30, metavar="N")
    parser.add_argument("--cache", action="store_true", help="keep decoded pictures in memory")


def check(options: argparse.Namespace) -> None:
    """Raises a ValueError on bad arguments, before Keras is imported."""
    settings.split(options.set, options.recipe)
    shared.check_data("--data", options.data)


def run(options: argparse.Namespace) -> int:
    """Measures, and prints images a second."""
    from keras_vit.data import open_source, throughput
    from keras_vit.training.feeds import SourceFeed

    recipe, arguments = settings.split(options.set, options.recipe)
    recipe = recipe if recipe.image_size else recipe.replace(image_size=DEFAULT_SIZE)
    shape = settings.model_arguments(recipe, arguments, 1)["image_shape"]
    source = open_source(options.data)
    feed = SourceFeed(source, recipe, shape, source.num_classes, cache=options.cache)
    speed = throughput(feed.batches(0, recipe.batch_size), options.batches)
    print(f"{speed:,.0f} images/s: {source.description}, {recipe.name}, {shape[0]} x {shape[1]} px")
    return 0
