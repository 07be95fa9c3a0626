"""Bytes of what a run keeps from step to step on one device: weights and their optimizer's state.

Each device has the same share: `engines.layouts` cuts an axis only where the devices divide it.
"""

from __future__ import annotations

import math

from keras_vit.engines.layouts import parts_of, variable_axes
from keras_vit.planning.setup import SLOTS, Setup
from keras_vit.planning.variables import Shape, random_states, variable_shapes

FLOAT32 = 4


def share(setup: Setup, path: str, shape: Shape, *, is_state: bool = False) -> int:
    """How many numbers of a variable, or of its optimizer's state, one device has."""
    axes = variable_axes(
        path,
        shape,
        setup.axes,
        setup.kind,
        is_state=is_state,
        shard_optimizer=setup.shard_optimizer,
    )
    return math.prod(shape) // parts_of(axes, setup.axes)


def parameters(setup: Setup) -> int:
    """Bytes of the weights on one device, in float32."""
    shapes = variable_shapes(setup.config)
    return sum(FLOAT32 * share(setup, path, shape) for path, shape in shapes.items())


def slot(setup: Setup) -> int:
    """Bytes on one device of one state of every weight."""
    shapes = variable_shapes(setup.config)
    return sum(FLOAT32 * share(setup, path, shape, is_state=True) for path, shape in shapes.items())


def states(setup: Setup) -> dict[str, int]:
    """Bytes of the optimizer's state on one device, by kind."""
    one = slot(setup)
    found = {f"{setup.optimizer} state": SLOTS[setup.optimizer] * one}
    if setup.accumulate > 1:
        found["accumulated gradients"] = one
    if setup.ema:
        found["average of the weights"] = one
    return found


def scalars(setup: Setup) -> int:
    """Bytes of the optimizer's counter and rate, and of the random layers' states."""
    return 8 + 8 * random_states(setup.config)


def shared(setup: Setup) -> dict[str, int]:
    """Numbers of weights on one device, by the first name of their paths."""
    return _by_part(setup, setup.kind)


def gathered(setup: Setup) -> dict[str, int]:
    """The same when they are whole along "batch", as a layer uses them."""
    return _by_part(setup, "data")


def _by_part(setup: Setup, kind: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for path, shape in variable_shapes(setup.config).items():
        part = path.partition("/")[0]
        axes = variable_axes(path, shape, setup.axes, kind)
        found[part] = found.get(part, 0) + math.prod(shape) // parts_of(axes, setup.axes)
    return found


def cast(setup: Setup, *, biases: bool, whole: bool) -> dict[str, int]:
    """Numbers of those weights of blocks that layers cast to the compute dtype, by block.

    Norms and the head compute in float32; convolutions standardise their kernels, see
    `planning.convolutions`.

    Args:
        setup: what is planned.
        biases: whether biases count.
        whole: whether along "batch", as a layer uses them, or as they lie on one device.
    """
    kind = "data" if whole else setup.kind
    found: dict[str, int] = {}
    for path, shape in variable_shapes(setup.config).items():
        part, name = path.partition("/")[0], path.rpartition("/")[2]
        kernel = name == "kernel" or path.endswith("_scale/gamma") or "relative_position" in path
        if part.startswith("encoder_block_") and (kernel or (biases and name == "bias")):
            axes = variable_axes(path, shape, setup.axes, kind)
            found[part] = found.get(part, 0) + math.prod(shape) // parts_of(axes, setup.axes)
    return found
