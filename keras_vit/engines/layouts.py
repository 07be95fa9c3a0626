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

# Path of a variable -> its axis that is cut along "model", and the one along "batch" under "fsdp":
# that of the tokens' width. Cut along its heads, a weight would draw the attention's images along.
_AXES: tuple[tuple[str, int, int | None], ...] = (
    (r"attention/qkv/kernel", 1, 0),
    (r"attention/qkv/bias", 0, None),
    (r"attention/out/kernel", 0, 1),
    (r"mlp/fc1/kernel", 1, 0),
    (r"mlp/fc1/bias", 0, None),
    (r"mlp/fc2/kernel", 0, 1),
    (r"(head|head_dist|pre_logits)/kernel", 1, 0),
    (r"(head|head_dist|pre_logits)/bias", 0, None),
)
# Path of a layer -> the mesh axes of its output.
_OUTPUT_AXES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"attention/qkv|mlp/fc1", (BATCH, MODEL)),  # (images * tokens, width)
    (r"attention/out|mlp/fc2|encoder_block_\d+", (BATCH,)),
)
_SMALLEST = 4096  # numbers; to gather less costs more than it saves


def kind_of(kind: str | None, mesh: Sequence[int] | None) -> str:
    """What is cut, where that is left to the mesh: with a second side above 1, the model.

    Raises:
        ValueError: if `kind` and the mesh contradict each other.
    """
    cuts = mesh is not None and mesh[1] > 1
    if kind is None:
        return "model" if cuts else "data"
    if kind == "data" and mesh is not None and cuts:
        raise ValueError(
            "distribution='data' cuts along batches alone: leave `distribution` out, or take "
            f"mesh={mesh[0] * mesh[1]}x1. Received: mesh={mesh[0]}x{mesh[1]}"
        )
    return kind


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
    along_model, along_batch = _wanted(path)
    parts = mesh.get(MODEL, 1)
    if parts > 1 and along_model is not None and shape[along_model] % parts == 0:
        axes[along_model] = MODEL
    parts = mesh.get(BATCH, 1)
    cut = kind == "fsdp" or (is_state and shard_optimizer)
    if cut and parts > 1 and math.prod(shape) >= _SMALLEST:
        free = [axis for axis, name in enumerate(axes) if name is None and shape[axis] % parts == 0]
        if along_batch in free:
            axes[along_batch] = BATCH
        elif free:
            axes[max(free, key=lambda axis: shape[axis])] = BATCH
    return tuple(axes)


def _wanted(path: str) -> tuple[int | None, int | None]:
    for pattern, along_model, along_batch in _AXES:
        if re.search(rf"(^|/){pattern}$", path):
            return along_model, along_batch
    return None, None


def parts_of(axes: Sequence[str | None], mesh: Mapping[str, int]) -> int:
    """Into how many equal parts the axes cut a variable."""
    return math.prod(mesh[name] for name in axes if name is not None)


def output_axes(path: str) -> tuple[str, ...] | None:
    """The mesh axes along which a layer's output is cut; `None` where that is left open.

    Args:
        path: of the layer, with "/output" behind it, as Keras asks.
    """
    for pattern, axes in _OUTPUT_AXES:
        if re.search(rf"(^|/)({pattern})/output$", path):
            return axes
    return None
