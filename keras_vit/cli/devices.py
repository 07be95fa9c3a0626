"""Options that say on which devices a command works."""

from __future__ import annotations

import argparse
import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from keras_vit.cli.options import positive
from keras_vit.engines.layouts import KINDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    group = parser.add_argument_group("several devices")
    group.add_argument(
        "--devices",
        type=positive,
        metavar="N",
        help="how many, in all processes (1; with --mesh or --distribution, or in one of several "
        "processes, all)",
    )
    group.add_argument(
        "--distribution",
        choices=KINDS,
        help="what is cut: the batch (data), attention and MLP too (model; JAX), every large "
        "weight too (fsdp; JAX)",
    )
    group.add_argument(
        "--mesh", type=mesh, metavar="BxM", help="devices along batch and model, such as 4x2 (JAX)"
    )
    group.add_argument(
        "--shard-optimizer", action="store_true", help="cut the optimizer's state too (JAX)"
    )
    group.add_argument("--tpu", metavar="NAME", help="a Cloud TPU, or local (TensorFlow)")


def mesh(text: str) -> tuple[int, int]:
    """BxM, for argparse."""
    first, sign, second = text.lower().partition("x")
    if not sign:
        raise ValueError
    return positive(first), positive(second)


mesh.__name__ = "BxM"  # argparse's word for it


def run(options: argparse.Namespace, work: Callable[[argparse.Namespace, Any], int]) -> int:
    """Calls `work(options, engine)` on the devices asked for; of several processes one speaks."""
    from keras_vit.training import distribution

    names = ("devices", "distribution", "mesh", "tpu")
    asked = any(getattr(options, name) is not None for name in names) or options.shard_optimizer
    several = asked or distribution.is_one_of_several()
    scope = distribution.scope(
        options.distribution,
        options.devices if several else 1,
        mesh=options.mesh,
        shard_optimizer=options.shard_optimizer,
        tpu=options.tpu,
    )
    with scope as engine:
        with contextlib.nullcontext() if engine.is_chief else _silence():
            return work(options, engine)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """No output and no notes, but for errors: what all processes would say, one says."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", category=UserWarning, module=r"keras_vit(\.|$)")
        yield
