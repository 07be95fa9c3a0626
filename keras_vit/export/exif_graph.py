"""EXIF's and XMP's orientation, with TensorFlow's operations.

What Pillow's `getexif` finds (EXIF 2.3 and TIFF 6.0; XMP part 2), damaged data included.
"""

from __future__ import annotations

from typing import Any

from keras_vit.export.bytes_graph import (
    big_endian,
    little_endian,
    octets,
    part,
    size,
    starts_with,
)

ORIENTATION = 0x0112
NUMBER_OF_IMAGES = 0xB001  # in the index of a multi-picture file, CIPA DC-007
_HEADERS = (b"II*\0", b"MM\0*", b"II\0*", b"MM*\0")
_ENTRY = 12
# TIFF's types of field: code -> bytes a value.
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
# Those that hold integers that can be an orientation.
_SHORTS, _LONGS, _BYTES = (3, 8), (4, 9, 13), (6,)
_XMP = r'(?s)^\C*?tiff:Orientation(?:="|>)([0-9])\C*$'


def tiff_number(data: Any, tag: int) -> tuple[Any, Any, Any]:
    """Looks up an integer in the first directory of TIFF data.

    Args:
        data: scalar string that starts with TIFF's header.
        tag: the field's number.

    Returns:
        Whether the header is one; whether the field is there; its first value (-1 if it is no
        integer).
    """
    import tensorflow as tf

    head = octets(data, 0, 8)
    valid = tf.reduce_any([starts_with(data, header) for header in _HEADERS])
    little = tf.equal(head[0], ord("I"))

    def read(values):
        return tf.where(little, little_endian(values), big_endian(values))

    start = read(head[4:])
    room = tf.maximum((size(data) - start - 2) // _ENTRY, 0)
    count = tf.minimum(read(octets(data, start, 2)), room)
    fields = tf.io.decode_raw(part(data, start + 2, count * _ENTRY), tf.uint8)
    # A row of zeros at the end stands for "not found".
    fields = tf.pad(tf.reshape(tf.cast(fields, tf.int64), (-1, _ENTRY)), ((0, 1), (0, 0)))
    kinds, counts = read(fields[:, 2:4]), read(fields[:, 4:8])
    table = [_SIZES.get(kind, 0) for kind in range(max(_SIZES) + 2)]
    widths = tf.gather(tf.constant(table, tf.int64), tf.clip_by_value(kinds, 0, len(table) - 1))
    places = read(fields[:, 8:12])
    lengths = counts * widths
    inline = lengths <= 4
    # Values that together cannot be in the data are passed over; one that points out of it ends
    # the directory.
    fit = inline | (tf.cumsum(tf.where(inline, tf.zeros_like(lengths), lengths)) <= size(data))
    broken = ~inline & fit & (places + lengths > size(data))
    alive = tf.equal(tf.cumsum(tf.cast(broken, tf.int32)), 0)
    hits = tf.equal(read(fields[:, :2]), tag) & (lengths > 0) & fit & alive
    row = tf.argmax(tf.cast(hits, tf.int32))
    raw = tf.where(inline[row], fields[row, 8:12], octets(data, places[row], 4))
    kind = kinds[row]

    def among(kinds):
        return tf.reduce_any([tf.equal(kind, one) for one in kinds])

    value = tf.where(among(_SHORTS), read(raw[:2]), tf.constant(-1, tf.int64))
    value = tf.where(among(_LONGS), read(raw), value)
    value = tf.where(among(_BYTES), raw[0], value)
    return valid, valid & tf.reduce_any(hits), value


def orientation(exif: Any, xmp: Any) -> Any:
    """How a picture has to be turned.

    Args:
        exif: scalar string, TIFF data, perhaps after "Exif" and two zeros; empty if there is none.
        xmp: scalar string of XML; empty if there is none. It counts where EXIF has no orientation.

    Returns:
        1 to 8, int64; 1 if it is not said, or not readable.
    """
    import tensorflow as tf

    for _ in range(2):  # as some writers have it
        exif = tf.where(starts_with(exif, b"Exif\0\0"), part(exif, 6, size(exif)), exif)
    valid, found, value = tiff_number(exif, ORIENTATION)
    digit = tf.strings.regex_replace(xmp, _XMP, r"\1")
    said = tf.strings.regex_full_match(digit, "[0-9]")
    in_xmp = tf.strings.to_number(tf.where(said, digit, "1"), tf.int64)
    value = tf.where(found, value, in_xmp)
    value = tf.where(valid | tf.equal(size(exif), 0), value, 1)
    return tf.where((value >= 1) & (value <= 8), value, 1)
