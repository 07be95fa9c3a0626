"""Reading numbers out of strings, with TensorFlow's operations."""

from __future__ import annotations

from typing import Any


def size(data: Any) -> Any:
    """Length of a scalar string in bytes, int64."""
    import tensorflow as tf

    return tf.cast(tf.strings.length(data), tf.int64)


def part(data: Any, start: Any, length: Any) -> Any:
    """`data[start : start + length]`, as Python cuts: what lies outside is left out."""
    import tensorflow as tf

    whole = size(data)
    start = tf.clip_by_value(tf.cast(start, tf.int64), 0, whole)
    length = tf.clip_by_value(tf.cast(length, tf.int64), 0, whole - start)
    return tf.strings.substr(data, start, length)


def octets(data: Any, start: Any, count: int) -> Any:
    """`count` bytes as an int64 vector; 0 stands for those beyond the end."""
    import tensorflow as tf

    found = tf.io.decode_raw(part(data, start, count), tf.uint8, fixed_length=count)
    return tf.cast(found, tf.int64)


def big_endian(values: Any) -> Any:
    """The number that bytes `(..., n)` spell, int64."""
    import tensorflow as tf

    count = values.shape[-1]
    return tf.reduce_sum(values * [256**i for i in reversed(range(count))], axis=-1)


def little_endian(values: Any) -> Any:
    """As `big_endian`, the lowest byte first."""
    import tensorflow as tf

    return big_endian(tf.reverse(values, axis=[-1]))


def starts_with(data: Any, prefix: bytes) -> Any:
    """Whether a scalar string starts with `prefix`."""
    import tensorflow as tf

    return tf.equal(part(data, 0, len(prefix)), tf.constant(prefix))
