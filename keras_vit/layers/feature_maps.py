"""Convolution and max-pool of feature maps `(batch, height, width, channels)`.

Keras' own functions on PyTorch first copy each map to channels-first order, which the kernels then
undo; theirs of the other backends are used as they are.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

PADDINGS = ("same", "symmetric", "valid")
_Margins = tuple[tuple[int, int], tuple[int, int]]


def conv(inputs, kernel, strides, padding, dilation_rate=(1, 1)):
    """Convolution.

    Args:
        inputs: `(batch, height, width, channels)`.
        kernel: `(height, width, channels / groups, filters)`.
        strides: `(height, width)`.
        padding: `"same"`, `"symmetric"` or `"valid"`, see `StdConv2D`.
        dilation_rate: `(height, width)`.

    Returns:
        `(batch, new_height, new_width, filters)`.
    """
    sides = kernel.shape[:2]
    if keras.backend.backend() == "torch":
        if padding == "symmetric":
            margins = _symmetric(sides)
        elif padding == "same":
            margins = _same(inputs.shape[1:3], sides, strides, dilation_rate)
        else:
            margins = ((0, 0), (0, 0))
        return _torch_conv(inputs, kernel, strides, margins, dilation_rate)
    if padding == "symmetric":
        (rows, _), (columns, _) = margins = _symmetric(sides)
        inputs = ops.pad(inputs, ((0, 0), *margins, (0, 0))) if rows or columns else inputs
    return ops.conv(
        inputs,
        kernel,
        strides=list(strides),
        padding="same" if padding == "same" else "valid",
        dilation_rate=dilation_rate,
        data_format="channels_last",
    )


def max_pool(inputs, padding):
    """Maxima of windows of 3 x 3 at stride 2; what the padding adds never wins.

    Args:
        inputs: `(batch, height, width, channels)`.
        padding: `"same"` or `"symmetric"`.

    Returns:
        `(batch, ceil(height / 2), ceil(width / 2), channels)`.
    """
    if keras.backend.backend() == "torch":
        return _torch_max_pool(inputs, padding)
    if padding == "symmetric":
        margins = ((0, 0), (1, 1), (1, 1), (0, 0))
        inputs = ops.pad(inputs, margins, constant_values=float("-inf"))
        padding = "valid"
    return ops.max_pool(inputs, 3, strides=2, padding=padding, data_format="channels_last")


def _symmetric(sides) -> _Margins:
    """Rows and columns of zeros (before, after) the map."""
    rows, columns = ((side - 1) // 2 for side in sides)
    return (rows, rows), (columns, columns)


def _same(sizes, sides, strides, dilation_rate) -> _Margins:
    """As `_symmetric`, of TensorFlow's SAME."""
    rows, columns = (
        max((-(-size // stride) - 1) * stride + (side - 1) * rate + 1 - size, 0)
        for size, side, stride, rate in zip(sizes, sides, strides, dilation_rate, strict=True)
    )
    return (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2)


def _torch_conv(inputs, kernel, strides, margins, dilation_rate) -> Any:
    import torch
    from torch.nn import functional

    # A view, which PyTorch takes for the order channels_last.
    maps = inputs.permute(0, 3, 1, 2)
    kernel = kernel.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    (above, below), (left, right) = margins
    inside = (above, left)
    if margins != ((above, above), (left, left)):
        maps, inside = functional.pad(maps, (left, right, above, below)), (0, 0)
    found = functional.conv2d(
        maps,
        kernel,
        stride=tuple(strides),
        padding=inside,
        dilation=tuple(dilation_rate),
        groups=inputs.shape[-1] // kernel.shape[1],
    )
    return found.permute(0, 2, 3, 1)


def _torch_max_pool(inputs, padding) -> Any:
    from torch.nn import functional

    _, height, width, _ = inputs.shape
    # SAME adds one row at both ends of an odd height, and one behind an even height: there
    # `ceil_mode` lets the last window reach over the end.
    inside = (1, 1) if padding == "symmetric" else (height % 2, width % 2)
    maps = inputs.permute(0, 3, 1, 2)
    found = functional.max_pool2d(maps, 3, 2, padding=inside, ceil_mode=padding == "same")
    return found.permute(0, 2, 3, 1)
