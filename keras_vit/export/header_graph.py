"""What JPEG and PNG files say of themselves, with TensorFlow's operations: nothing is decoded.

ITU-T T.81 annex B, Exif 2.3, CIPA DC-007 (several pictures in a file); PNG, third edition.
"""

from __future__ import annotations

from typing import Any

from keras_vit.export.bytes_graph import big_endian, octets, part, size, starts_with
from keras_vit.export.exif_graph import NUMBER_OF_IMAGES, orientation, tiff_number

JPEG, PNG = 1, 2
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_XMP_MARK = b"http://ns.adobe.com/xap/1.0/\0"
_ITXT_XMP = b"XML:com.adobe.xmp\0\0\0"
# More segments or chunks are not walked through: metadata behind them is not found.
_MOST = 20_000
# Start of a frame: T.81, table B.1, without DHT, JPG and DAC.
_FRAMES = tuple(code for code in range(0xC0, 0xD0) if code not in (0xC4, 0xC8, 0xCC))
# Markers that no length follows; 0 is no marker, but a byte of data.
_ALONE = (0x00, 0x01, *range(0xD0, 0xDA))

# What is read: name -> (dtype, value that stands for "not found").
FIELDS = {
    "width": ("int64", 0),
    "height": ("int64", 0),
    "orientation": ("int64", 1),
    # JPEG: components; PNG: colour type.
    "kind": ("int64", -1),
    # PNG: bits a sample. JPEG: whether Adobe's marker is there, whether it is one of several.
    "bits": ("int64", 0),
    "adobe": ("bool", False),
    "several": ("bool", False),
    # PNG's transparency chunk.
    "transparency": ("string", ""),
    "format": ("int64", 0),
}


def _none() -> dict[str, Any]:
    import tensorflow as tf

    return {name: tf.constant(value, dtype) for name, (dtype, value) in FIELDS.items()}


def _among(value: Any, options: tuple[int, ...]) -> Any:
    import tensorflow as tf

    return tf.reduce_any(tf.equal(value, tf.constant(options, tf.int64)))


def _walk(step: Any, first: int, state: dict[str, Any]) -> dict[str, Any]:
    """Runs `step(position, state) -> (position, state)` until the position is negative."""
    import tensorflow as tf

    _, state = tf.while_loop(
        lambda at, state: at >= 0,
        step,
        (tf.constant(first, tf.int64), state),
        parallel_iterations=1,
        maximum_iterations=_MOST,
    )
    return state


def _jpeg(data: Any) -> dict[str, Any]:
    import tensorflow as tf

    no, empty = tf.constant(False), tf.constant("")
    state = {name: _none()[name] for name in ("width", "height", "kind", "bits", "adobe")}
    state.update(exif=empty, xmp=empty, index=empty, high_range=no)

    def step(at, state):
        # A marker is a byte of 255, any more of them, and its code.
        head = octets(data, at, 12)
        mark, code = head[0], head[1]
        length = big_endian(head[2:4])
        alone = _among(code, _ALONE)
        marker = tf.equal(mark, 0xFF) & tf.not_equal(code, 0xFF)
        segment = marker & ~alone
        frame = segment & _among(code, _FRAMES)
        size_of_frame = octets(data, at + 4, 6)
        new = {
            "bits": size_of_frame[0],
            "height": big_endian(size_of_frame[1:3]),
            "width": big_endian(size_of_frame[3:5]),
            "kind": size_of_frame[5],
        }
        state = {**state, **{key: tf.where(frame, new[key], state[key]) for key in new}}

        def application(state):
            body = part(data, at + 4, length - 2)
            is_app1, is_app2 = tf.equal(code, 0xE1), tf.equal(code, 0xE2)
            exif = is_app1 & starts_with(body, b"Exif\0\0")
            # Several segments of EXIF make one.
            later = tf.greater(size(state["exif"]), 0)
            content = tf.where(later, part(body, 6, size(body)), body)
            xmp = is_app1 & starts_with(body, _XMP_MARK)
            index = is_app2 & starts_with(body, b"MPF\0")
            high = tf.strings.regex_full_match(body, r'(?s)\C* hdrgm:Version="\C*')
            cut = part(body, len(_XMP_MARK), size(body))
            return {
                **state,
                "exif": tf.where(exif, state["exif"] + content, state["exif"]),
                "xmp": tf.where(xmp, cut, state["xmp"]),
                "index": tf.where(index, part(body, 4, size(body)), state["index"]),
                "adobe": state["adobe"] | (tf.equal(code, 0xEE) & starts_with(body, b"Adobe")),
                "high_range": state["high_range"] | (is_app1 & high),
            }

        told = segment & _among(code, (0xE1, 0xE2, 0xEE))
        state = tf.cond(told, lambda: application(state), lambda: dict(state))
        last = (segment & tf.equal(code, 0xDA)) | (at >= size(data))
        short = tf.where(marker, tf.constant(2, tf.int64), 1)
        following = at + tf.where(segment, 2 + tf.maximum(length, 2), short)
        # Junk between segments is skipped as far as the next 255.
        window = octets(data, at + 1, 1024)
        junk = tf.argmax(tf.cast(tf.equal(tf.concat([window, [0xFF]], 0), 0xFF), tf.int32))
        following = tf.where(tf.equal(mark, 0xFF), following, at + 1 + junk)
        return tf.where(last, tf.constant(-1, tf.int64), following), state

    state = _walk(step, 2, state)
    valid, there, images = tiff_number(state["index"], NUMBER_OF_IMAGES)
    return {
        **_none(),
        **{key: state[key] for key in ("width", "height", "kind", "bits", "adobe")},
        "orientation": orientation(state["exif"], state["xmp"]),
        "several": valid & there & (images > 1) & ~state["high_range"],
        "format": tf.constant(JPEG, tf.int64),
    }


def _png(data: Any) -> dict[str, Any]:
    import tensorflow as tf

    empty = tf.constant("")
    head = octets(data, 8, 18)
    right = tf.reduce_all(tf.equal(head[4:8], tf.constant(list(b"IHDR"), tf.int64)))
    state = {"exif": empty, "xmp": empty, "transparency": empty}

    def step(at, state):
        start = octets(data, at, 8)
        length, name = big_endian(start[:4]), part(data, at + 4, 4)

        def read(key, wanted, value):
            return tf.cond(tf.equal(name, wanted) & right, value, lambda: state[key])

        def body():
            return part(data, at + 8, length)

        def xmp():
            text = body()
            # After the keyword and two flags, a language and a translated keyword.
            text = tf.where(starts_with(text, _ITXT_XMP), text, state["xmp"])
            return text

        state = {
            "exif": read("exif", b"eXIf", body),
            "xmp": read("xmp", b"iTXt", xmp),
            "transparency": read("transparency", b"tRNS", body),
        }
        end = tf.equal(name, b"IEND") | (at + 8 >= size(data))
        return tf.where(end, tf.constant(-1, tf.int64), at + 12 + length), state

    state = _walk(step, 8, state)
    zero = tf.constant(0, tf.int64)
    return {
        **_none(),
        "width": tf.where(right, big_endian(head[8:12]), zero),
        "height": tf.where(right, big_endian(head[12:16]), zero),
        "bits": head[16],
        "kind": head[17],
        "orientation": orientation(state["exif"], state["xmp"]),
        "transparency": state["transparency"],
        "format": tf.constant(PNG, tf.int64),
    }


def read_header(data: Any) -> dict[str, Any]:
    """Reads a file's header; whatever the bytes are, it does not fail.

    Args:
        data: scalar string, the file.

    Returns:
        Scalars by name, `FIELDS`: width and height as stored (0 if they are not found), EXIF's
        orientation, format (`JPEG`, `PNG` or 0), and what decoding has to know.
    """
    import tensorflow as tf

    return tf.cond(
        starts_with(data, _JPEG),
        lambda: _jpeg(data),
        lambda: tf.cond(starts_with(data, _PNG), lambda: _png(data), _none),
    )
