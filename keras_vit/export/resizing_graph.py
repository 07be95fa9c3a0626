"""Pillow's resizing of 8-bit pictures, to the bit, with TensorFlow's operations.

Pillow resizes with an antialiasing filter in two passes, one along the rows and one along the
columns, in fixed-point arithmetic: weights of 22 binary places, rounding to 8 bits after each pass.
Here a pass is the product of a sparse matrix of weights with the pixels, in 32-bit integers, which
hold every partial sum as Pillow's do. A large picture is worked on in strips, so that it is never
there as 32-bit integers at once.

Which pass comes first decides about the rounding. Up to Pillow 12 it is the one along the rows;
from 13 on it is the other one where the height shrinks by more than twice what the width does. The
graph does as the Pillow that is installed when it is made.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

_PLACES = 22
_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}
_STRIP = 1 << 21  # pixels times channels, about
_A = -0.5  # of the bicubic filter
_REORDERS = 13  # Pillow's version


def _may_reorder() -> bool:
    try:
        version = importlib.metadata.version("pillow")
    except importlib.metadata.PackageNotFoundError:
        return True
    return int(version.partition(".")[0]) >= _REORDERS


def _filter(distance: Any, interpolation: str) -> Any:
    import tensorflow as tf

    x = tf.abs(distance)
    if interpolation == "bilinear":
        return tf.maximum(1.0 - x, 0.0)
    near = ((_A + 2.0) * x - (_A + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * _A
    return tf.where(x < 1.0, near, tf.where(x < 2.0, far, tf.zeros_like(x)))


def _weights(start: Any, end: Any, whole: Any, length: Any, interpolation: str) -> tuple[Any, Any]:
    """Positions `(length, k)` int64 of the pixels that count, and their weights, int32.

    Args:
        start: where the part begins, float32, as Pillow has it.
        end: where it ends.
        whole: number of pixels there are, int64.
        length: number of pixels wanted, int64.
        interpolation: the filter.
    """
    import tensorflow as tf

    scale = tf.cast(end - start, tf.float64) / tf.cast(length, tf.float64)
    stretch = tf.maximum(scale, 1.0)
    support = _SUPPORT[interpolation] * stretch
    count = tf.cast(tf.math.ceil(support), tf.int64) * 2 + 1
    steps = tf.cast(tf.range(length), tf.float64)
    centres = tf.cast(start, tf.float64) + (steps + 0.5) * scale
    # A cast cuts towards zero, as C's does.
    first = tf.maximum(tf.cast(centres - support + 0.5, tf.int64), 0)[:, None]
    last = tf.minimum(tf.cast(centres + support + 0.5, tf.int64), whole)[:, None]
    places = first + tf.range(count)
    distances = (tf.cast(places, tf.float64) - centres[:, None] + 0.5) * (1.0 / stretch)
    weights = _filter(distances, interpolation)
    weights = tf.where(places < last, weights, 0.0)
    # One after the other, as a sum in another order may round otherwise.
    sums = tf.cumsum(weights, axis=1)[:, -1:]
    weights = tf.where(tf.equal(sums, 0), weights, weights / sums)
    fixed = weights * (1 << _PLACES)
    fixed = tf.cast(fixed + 0.5 * tf.sign(fixed), tf.int32)
    return tf.minimum(places, whole - 1), fixed


def _matrix(places: Any, weights: Any, length: Any, whole: Any) -> Any:
    """Sparse `(length, whole)` int32."""
    import tensorflow as tf

    rows = tf.broadcast_to(tf.range(length)[:, None], tf.shape(places))
    indices = tf.stack([tf.reshape(rows, [-1]), tf.reshape(places, [-1])], axis=1)
    return tf.SparseTensor(indices, tf.reshape(weights, [-1]), tf.stack([length, whole]))


def _product(matrix: Any, pixels: Any) -> Any:
    """A pass along the first axis: `(n, m, channels)` uint8 becomes `(length, m, channels)`."""
    import tensorflow as tf

    shape = tf.shape(pixels)
    flat = tf.cast(tf.reshape(pixels, (shape[0], -1)), tf.int32)
    sums = tf.sparse.sparse_dense_matmul(matrix, flat) + (1 << (_PLACES - 1))
    new = tf.cast(tf.clip_by_value(tf.bitwise.right_shift(sums, _PLACES), 0, 255), tf.uint8)
    return tf.reshape(new, (-1, shape[1], pixels.shape[-1]))


def _along_second(matrix: Any, pixels: Any) -> Any:
    """A pass along the second axis: `(m, n, channels)` uint8 becomes `(m, length, channels)`."""
    import tensorflow as tf

    channels = pixels.shape[-1]
    count = tf.shape(pixels)[0]
    height = tf.maximum(_STRIP // (tf.shape(pixels)[1] * channels), 1)
    strips = (count + height - 1) // height

    def one(i, done):
        strip = pixels[i * height : (i + 1) * height]
        new = _product(matrix, tf.transpose(strip, (1, 0, 2)))
        return i + 1, done.write(i, tf.transpose(new, (1, 0, 2)))

    done = tf.TensorArray(tf.uint8, strips, infer_shape=False, element_shape=(None, None, channels))
    _, done = tf.while_loop(lambda i, _: i < strips, one, (0, done), parallel_iterations=1)
    return done.concat()


def resample(
    pixels: Any,
    turned: Any,
    mirrored: tuple[Any, Any],
    box: tuple[Any, Any, Any, Any],
    size: tuple[int, int],
    interpolation: str,
) -> Any:
    """Resizes a part of a picture as `PIL.Image.Image.resize(size, box=box)` does.

    Args:
        pixels: `(n, m, channels)` uint8, as stored; channels known.
        turned: whether rows are columns of the upright picture.
        mirrored: whether after that it is mirrored left to right, and top to bottom.
        box: left, top, right, bottom, float64 scalars, of the upright picture.
        size: (height, width) of the result.
        interpolation: "bilinear" or "bicubic".

    Returns:
        `(height, width, channels)` uint8.
    """
    import tensorflow as tf

    stored = tf.shape(pixels, out_type=tf.int64)
    across = tf.where(turned, stored[0], stored[1])
    down = tf.where(turned, stored[1], stored[0])
    left, top, right, bottom = (tf.cast(edge, tf.float32) for edge in box)
    height, width = (tf.constant(side, tf.int64) for side in size)
    horizontal = (left, right, across, width, mirrored[0])
    vertical = (top, bottom, down, height, mirrored[1])
    less = down - height
    vertical_first = (less > 0) & (less > 2 * (across - width)) & _may_reorder()
    # The first pass runs along the second axis.
    swap = tf.not_equal(turned, vertical_first)
    pixels = tf.cond(swap, lambda: tf.transpose(pixels, (1, 0, 2)), lambda: pixels)
    bounds, matrices = [], []
    for pair in (zip(vertical, horizontal), zip(horizontal, vertical)):  # noqa: B905
        start, end, whole, length, mirror = (tf.where(vertical_first, *two) for two in pair)
        places, weights = _weights(start, end, whole, length, interpolation)
        places = tf.where(mirror, whole - 1 - places, places)
        low, high = tf.reduce_min(places), tf.reduce_max(places) + 1
        matrices.append(_matrix(places - low, weights, length, high - low))
        bounds.append((low, high))
    (q0, q1), (p0, p1) = bounds
    pixels = tf.ensure_shape(pixels[p0:p1, q0:q1], (None, None, pixels.shape[-1]))
    pixels = _product(matrices[1], _along_second(matrices[0], pixels))
    pixels = tf.cond(vertical_first, lambda: tf.transpose(pixels, (1, 0, 2)), lambda: pixels)
    return tf.ensure_shape(pixels, (*size, pixels.shape[-1]))
