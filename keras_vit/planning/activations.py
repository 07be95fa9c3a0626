"""Bytes that one device keeps between forward and backward pass, part by part of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keras_vit.checkpoints.shapes import is_bit
from keras_vit.planning import block, convolutions, state, trunk
from keras_vit.planning.model import sizes
from keras_vit.planning.setup import Setup
from keras_vit.planning.tensors import Kept, total
from keras_vit.planning.variables import variable_shapes


@dataclass(frozen=True)
class Activations:
    """Bytes on one device.

    Attributes:
        names: the parts that follow each other, in the forward pass' order.
        tensors: kept tensors of each.
        copies: weights in the compute dtype, or gathered from other devices, kept by each.
        backward: what each needs beside that, while its own backward pass runs.
        before: kept ahead of the first part.
        behind: kept behind the last.
        held: there at the end of the forward pass, and not kept.
    """

    names: tuple[str, ...]
    tensors: tuple[int, ...]
    copies: tuple[int, ...]
    backward: tuple[int, ...]
    before: int
    behind: int
    held: int = 0

    @property
    def kept(self) -> tuple[int, ...]:
        """Kept by each part in all."""
        return tuple(map(sum, zip(self.tensors, self.copies, strict=True)))


def of(setup: Setup) -> Activations:
    """What a model keeps: stem or ResNet, then blocks."""
    config = setup.config
    symbols = {"B": setup.images} if is_bit(config) else {**sizes(config), "B": setup.images}

    def count(tensors: list[Kept]) -> int:
        return total(tensors, symbols, setup.way.compute, setup.parts)

    convolved = is_bit(config) or config["stem"] is not None
    stem = convolutions.parts(config, setup.way) if convolved else []
    parts = [
        (part.name, count(part.tensors), count(part.weights), count(part.backward)) for part in stem
    ]
    if is_bit(config):
        return _joined(parts, 0, count(_classifier(config)))
    parts += _blocks(setup, count)
    before, behind = trunk.before(config, setup.way), trunk.behind(config, setup.way)
    casts = _other_copies(setup)
    held = count(trunk.held(config, setup.way))
    return _joined(parts, count(before) + casts, count(behind), held)


def _joined(
    parts: list[tuple[str, int, int, int]], before: int, behind: int, held: int = 0
) -> Activations:
    names, tensors, copies, backward = zip(*parts, strict=True)
    return Activations(names, tensors, copies, backward, before, behind, held)


def _blocks(
    setup: Setup, count: Callable[[list[Kept]], int]
) -> Iterator[tuple[str, int, int, int]]:
    """(name, kept tensors, kept copies of weights, workspace of the backward pass) of each."""
    config, way = setup.config, setup.way
    copies, moving = _copies(setup), _moving(setup)
    for index in range(config["num_layers"]):
        name = f"encoder_block_{index}"
        drops = bool(config["drop_path_rate"]) and index > 0
        kept = count(block.block(config, way, drops_path=drops))
        workspace = count(block.in_backward(config)) + moving.get(name, 0)
        if config["remat"]:
            outside = count(block.rematerialised())
            # The block's input is the first of what comes back, and is there already.
            kept, workspace = outside, workspace + kept - outside
        yield name, kept, copies.get(name, 0), workspace


def _copies(setup: Setup) -> dict[str, int]:
    """Bytes of weights that wait for the backward pass beside the weights themselves, by block.

    Cast to 16 bits, they are kept as products read them; with `remat` all enter the recomputed
    part cast, but still cut. Under "fsdp" without `remat` what was gathered is kept.
    """
    remat, gathers = setup.config["remat"], setup.kind == "fsdp" and setup.mesh[0] > 1
    if not setup.way.mixed and (remat or not gathers):
        return {}
    numbers = state.cast(setup, biases=remat, whole=not remat)
    return {name: setup.way.compute * count for name, count in numbers.items()}


def _other_copies(setup: Setup) -> int:
    """Bytes of kernels outside of blocks that are kept in 16 bits."""
    if not setup.way.mixed:
        return 0
    # No gradient passes the projection of a picture's patches.
    first = ["patch_encoder/projection/kernel"] if setup.config["stem"] is not None else []
    kernels = [
        math.prod(shape)
        for path, shape in variable_shapes(setup.config).items()
        if path in first
        or (path.startswith(("pooling/", "pre_logits/")) and path.endswith(("kernel", "probe")))
    ]
    return setup.way.compute * sum(kernels)


def _moving(setup: Setup) -> dict[str, int]:
    """Bytes under "fsdp" of what a block's backward pass gathers and scatters, by block."""
    if setup.kind != "fsdp" or setup.mesh[0] == 1:
        return {}
    whole = {
        name: count for name, count in state.gathered(setup).items() if name.startswith("encoder")
    }
    found = {name: state.FLOAT32 * count for name, count in whole.items()}  # gradients
    if setup.config["remat"]:
        weights = state.cast(setup, biases=True, whole=True)
        for name, count in weights.items():  # its own, and those of the next
            found[name] += 2 * setup.way.compute * count
    return found


def _classifier(config: Mapping[str, Any]) -> list[Kept]:
    """What the head of a BiT ResNet and the loss keep."""
    if config["num_classes"] is None:
        return []
    features = int(64 * config["width_factor"]) * 4 * 2 ** (len(config["block_counts"]) - 1)
    return [
        Kept("features", f"B {features}", "float32"),
        Kept("log-probabilities", f"B {config['num_classes']}", "float32"),
        Kept("labels", "B", "int64"),
    ]
