"""Along which axes of a device mesh each variable is cut: arithmetic on paths and shapes.

A mesh has the axes "batch", along which the images of a batch lie, and "model". Attention and MLP
are cut as Megatron-LM cuts them (arXiv 1909.08053): the first product of each pair by columns,
the second by rows. "fsdp" cuts every large variable along "batch" too (ZeRO's third stage, arXiv
1910.02054); an optimizer's state may be cut so while the weights are whole (its first).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

BATCH, MODEL = "batch", "model"
KINDS = ("data", "model", "fsdp")

# Path of a variable -> its axis that is cut along "model". Convolutions of a stem stay whole.
_MODEL_AXES: tuple[tuple[str, int], ...] = (
    (r"attention/qkv/kernel", 1),
    (r"attention/qkv/bias", 0),
    (r"attention/out/kernel", 0),
    (r"mlp/(fc1|gate)/kernel", 1),
    (r"mlp/(fc1|gate)/bias", 0),
    (r"mlp/fc2/kernel", 0),
    (r"(head|head_dist|pre_logits)/kernel", 1),
    (r"(head|head_dist|pre_logits)/bias", 0),
)
_SMALLEST = 4096  # numbers; to gather less costs more than it saves


def variable_axes(
    path: str,
    shape: Sequence[int],
    mesh: Mapping[str, int],
    kind: str,
    *,
    is_state: bool = False,
    shard_optimizer: bool = False,
) -> tuple[str | None, ...]:
    """The mesh axis along which each axis of a variable is cut; None where it is whole.

    Args:
        path: `variable.path`; of an optimizer's state, that of its variable.
        shape: its shape.
        mesh: axis of the mesh -> number of devices.
        kind: one of `KINDS`.
        is_state: whether this is an optimizer's state.
        shard_optimizer: whether such state is cut along "batch" with any `kind`.

    Returns:
        One entry for each axis of the variable.
    """
    axes: list[str | None] = [None] * len(shape)
    parts = mesh.get(MODEL, 1)
    if parts > 1:
        for pattern, axis in _MODEL_AXES:
            if re.search(rf"(^|/){pattern}$", path) and shape[axis] % parts == 0:
                axes[axis] = MODEL
    parts = mesh.get(BATCH, 1)
    cut = kind == "fsdp" or (is_state and shard_optimizer)
    if cut and parts > 1 and math.prod(shape) >= _SMALLEST:
        free = [
            axis for axis, name in enumerate(axes) if name is None and shape[axis] % parts == 0
        ]
        if free:
            axes[max(free, key=lambda axis: shape[axis])] = BATCH
    return tuple(axes)


def parts_of(axes: Sequence[str | None], mesh: Mapping[str, int]) -> int:
    """Into how many equal parts the axes cut a variable."""
    return math.prod(mesh[name] for name in axes if name is not None)
