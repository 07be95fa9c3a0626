"""Bytes of what a run keeps from step to step on one device: weights and their optimizer's state.

Each device has the same share: `engines.layouts` cuts an axis only where the devices divide it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

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


def gathered(setup: Setup) -> dict[str, int]:
    """Numbers of each part's weights when they are whole along "batch", as a layer uses them.

    Returns:
        Part -> numbers; the parts are "encoder_block_0" and so on, and the name of each other
        layer.
    """
    return _by_part(setup, whole=True)


def shared(setup: Setup) -> dict[str, int]:
    """Numbers of each part's weights as they lie on one device."""
    return _by_part(setup, whole=False)


def _by_part(setup: Setup, whole: bool) -> dict[str, int]:
    kind = "model" if whole else setup.kind
    found: dict[str, int] = {}
    for path, shape in variable_shapes(setup.config).items():
        axes = variable_axes(path, shape, setup.axes, kind)
        part = path.partition("/")[0]
        count = math.prod(shape) // parts_of(axes, setup.axes)
        found[part] = found.get(part, 0) + count
    return found


def products(setup: Setup) -> Iterator[tuple[str, str, int]]:
    """(part, path, numbers on one device when gathered) of what is cast to the compute dtype.

    Kernels and biases of layers that compute in 16 bits: the head computes in float32, and norms
    cast up instead.
    """
    for path, shape in variable_shapes(setup.config).items():
        part, name = path.partition("/")[0], path.rpartition("/")[2]
        if part in ("head", "head_dist"):
            continue
        scale = part.startswith("encoder_block") and path.endswith("scale/gamma")
        if name in ("kernel", "bias", "probe") or scale or "relative_position" in path:
            axes = variable_axes(path, shape, setup.axes, "model")
            yield part, path, math.prod(shape) // parts_of(axes, setup.axes)
