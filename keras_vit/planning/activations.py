"""Bytes that one device keeps between forward and backward pass, part by part of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keras_vit.planning import block, state, trunk
from keras_vit.planning.model import sizes
from keras_vit.planning.setup import Setup
from keras_vit.planning.tensors import Kept, total


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
    """

    names: tuple[str, ...]
    tensors: tuple[int, ...]
    copies: tuple[int, ...]
    backward: tuple[int, ...]
    before: int
    behind: int

    @property
    def kept(self) -> tuple[int, ...]:
        """Kept by each part in all."""
        return tuple(map(sum, zip(self.tensors, self.copies, strict=True)))


def of(setup: Setup) -> Activations:
    """What a Vision Transformer or hybrid keeps; for a BiT ResNet, `convolutions.of`."""
    config, way = setup.config, setup.way
    symbols = {**sizes(config), "B": setup.images}

    def count(tensors: list[Kept]) -> int:
        return total(tensors, symbols, way.compute, setup.parts)

    names, tensors, backward = [], [], []
    casts = dict(_copies(setup))
    for index in range(config["num_layers"]):
        names.append(f"encoder_block_{index}")
        full = count(block.block(config, way, drops_path=_drops_path(config, index)))
        inside = count(block.in_backward(config, way))
        if config["remat"]:
            tensors.append(count(block.rematerialised()))
            # The block's input is there already, as the first of what comes back.
            backward.append(full - tensors[-1] + inside)
        else:
            tensors.append(full)
            backward.append(inside)
    return Activations(
        tuple(names),
        tuple(tensors),
        tuple(casts.get(name, 0) for name in names),
        tuple(backward),
        count(trunk.before(config, way)),
        count(trunk.behind(config, way)),
    )


def _drops_path(config, index: int) -> bool:
    return bool(config["drop_path_rate"]) and index > 0


def _copies(setup: Setup) -> Iterator[tuple[str, int]]:
    """Bytes of weights in the compute dtype that wait for the backward pass, by block."""
    found: dict[str, int] = {}
    for part, path, numbers in state.products(setup):
        # Without `remat`, biases are added and forgotten.
        forgotten = path.endswith("/bias") and not setup.config["remat"]
        if setup.way.mixed and not forgotten:
            found[part] = found.get(part, 0) + numbers * setup.way.compute
    yield from found.items()
