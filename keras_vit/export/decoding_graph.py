"""Files' bytes become pictures inside a TensorFlow graph, as `keras_vit.data` makes them.

JPEG and PNG. The pixels equal those of `keras_vit.data.read_images` to the bit, but for this:

- GIF, BMP and WebP are refused, and so is a PNG with a side of more than 65,535.
- CMYK JPEGs may differ by a level or two: TensorFlow's conversion to RGB cuts, Pillow's rounds.
- Orientation is not looked for in a PNG's compressed text chunks.
- Damage: a PNG whose pixels have a wrong checksum, or that lacks its end, is refused here; one with
  a wrong checksum in its metadata is refused there. A damaged JPEG that both decode may differ.

Nothing in a graph can catch an error, but a `tf.data` pipeline can leave out elements that raise
one. So the batch is decoded by a pipeline inside of the function, which also decodes in parallel.
What it has left out is named.
"""

from __future__ import annotations

from typing import Any

from keras_vit.export.header_graph import FIELDS, JPEG, read_header
from keras_vit.export.resizing_graph import resample

# `keras_vit.data.decoding.MAX_PIXELS`, whose import needs Pillow.
MAX_PIXELS = 89_478_485
# JPEG's own limit. A longer PNG could be a small file, and take gigabytes of weights to resize.
MAX_SIDE = 65_535
_EMPTY, _UNKNOWN, _HEADER, _LARGE, _DAMAGED, _SIZE = range(1, 7)
# Adobe's marker of a CMYK JPEG, which has inverted inks: TensorFlow needs it to know.
_ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"


_REASONS = (
    "",
    "is empty",
    "is no JPEG or PNG",
    "has a damaged header",
    f"declares more than {MAX_PIXELS:,} pixels or a side of more than {MAX_SIDE:,}",
    "is damaged or truncated",
    "is of another size",
)


def _expected(serving: Any) -> str:
    height, width = serving.image_shape[:2]
    size = f", of height {height} and width {width}" if serving.crop == "none" else ""
    return f". Expected: the bytes of JPEG or PNG files{size}"


def _upright_size(header: dict[str, Any]) -> tuple[Any, Any]:
    import tensorflow as tf

    turned = header["orientation"] >= 5
    width, height = header["width"], header["height"]
    return tf.where(turned, height, width), tf.where(turned, width, height)


def _reason(data: Any, header: dict[str, Any], serving: Any) -> Any:
    """Index into `_REASONS`; 0 if the header is sound."""
    import tensorflow as tf

    width, height = _upright_size(header)
    # JPEG of 8 bits a sample, with 1, 3 or 4 components.
    known = tf.not_equal(header["format"], JPEG) | (
        tf.equal(header["bits"], 8)
        & tf.reduce_any([tf.equal(header["kind"], count) for count in (1, 3, 4)])
    )
    checks = [
        (tf.equal(tf.strings.length(data), 0), _EMPTY),
        (tf.equal(header["format"], 0), _UNKNOWN),
        (tf.equal(width * height, 0) | ~known, _HEADER),
        ((width * height > MAX_PIXELS) | (tf.maximum(width, height) > MAX_SIDE), _LARGE),
    ]
    if serving.crop == "none":
        other = tf.not_equal(height, serving.image_shape[0])
        checks.append((other | tf.not_equal(width, serving.image_shape[1]), _SIZE))
    reason = tf.constant(0)
    for wrong, code in reversed(checks):
        reason = tf.where(wrong, code, reason)
    return reason


def _box(width: Any, height: Any, serving: Any) -> tuple[Any, Any, Any, Any]:
    """`keras_vit.data.transforms.Preparation`'s, float64."""
    import tensorflow as tf

    width, height = tf.cast(width, tf.float64), tf.cast(height, tf.float64)
    zero = tf.zeros_like(width)
    if serving.crop != "resize_small":
        return zero, zero, width, height
    wanted_height, wanted_width = serving.image_shape[:2]
    scale = tf.maximum(wanted_height / height, wanted_width / width) / serving.crop_fraction
    w, h = tf.minimum(wanted_width / scale, width), tf.minimum(wanted_height / scale, height)
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def _ratio(width: Any, height: Any, box: tuple[Any, ...], serving: Any) -> Any:
    """1, 2, 4 or 8: what a JPEG's sides can be divided by, as `Encoded.decode` has it."""
    import tensorflow as tf

    wanted_height, wanted_width = serving.image_shape[:2]
    whole = []
    for side, wanted, part in (
        (width, wanted_width, box[2] - box[0]),
        (height, wanted_height, box[3] - box[1]),
    ):
        enough = tf.cast(side, tf.float64) * wanted / part
        whole.append(side // (tf.cast(2 * enough, tf.int64) + 1))
    most = tf.minimum(*whole)
    return tf.where(most >= 8, 8, tf.where(most >= 4, 4, tf.where(most >= 2, 2, 1)))


def _over_white(pixels: Any, alpha: Any) -> Any:
    """Pillow's `alpha_composite` over opaque white: 7 more binary places, a shift for / 255."""
    import tensorflow as tf

    pixels, alpha = tf.cast(pixels, tf.int32), tf.cast(alpha, tf.int32)
    sums = (pixels * alpha + 255 * (255 - alpha) + 128) * 128
    quotient = tf.bitwise.right_shift(tf.bitwise.right_shift(sums, 8) + sums, 8)
    return tf.cast(tf.bitwise.right_shift(quotient, 7), tf.uint8)


def _decode_jpeg(data: Any, header: dict[str, Any], ratio: Any) -> Any:
    import tensorflow as tf

    bare = tf.equal(header["kind"], 4) & ~header["adobe"]
    start, rest = tf.strings.substr(data, 0, 2), tf.strings.substr(data, 2, -1)
    data = tf.cond(bare, lambda: tf.strings.join([start, _ADOBE, rest]), lambda: data)

    def at(ratio):
        # The accurate transform is Pillow's.
        return lambda: tf.io.decode_jpeg(
            data, channels=3, ratio=ratio, dct_method="INTEGER_ACCURATE"
        )

    which = tf.where(ratio >= 8, 3, tf.where(ratio >= 4, 2, tf.where(ratio >= 2, 1, 0)))
    return tf.switch_case(which, [at(1), at(2), at(4), at(8)])


def _decode_png(data: Any, header: dict[str, Any]) -> Any:
    import tensorflow as tf

    kind, transparency = header["kind"], header["transparency"]
    opaque = lambda: tf.io.decode_png(data, channels=3)  # noqa: E731

    def with_alpha():
        pixels = tf.io.decode_png(data, channels=4)
        return _over_white(pixels[..., :3], pixels[..., 3:])

    def with_key():
        # One colour is transparent; Pillow compares the low bytes of what the chunk says.
        grey = tf.equal(kind, 0)
        key = tf.io.decode_raw(transparency, tf.uint8, fixed_length=6)
        low = tf.where(grey, tf.stack([key[1]] * 3), key[1::2])
        one_bit = tf.reduce_any(tf.not_equal(key[:2], 0))
        low = tf.where(
            tf.equal(header["bits"], 1), tf.where(one_bit, 255, 0), tf.cast(low, tf.int32)
        )
        pixels = opaque()
        hit = tf.reduce_all(tf.equal(tf.cast(pixels, tf.int32), low), axis=-1, keepdims=True)
        return tf.where(hit, tf.constant(255, tf.uint8), pixels)

    told = tf.strings.length(transparency) > 0
    palette = tf.equal(kind, 3)
    # Of 16-bit grey Pillow's conversion forgets the key.
    keyed = told & (tf.equal(kind, 2) | (tf.equal(kind, 0) & (header["bits"] < 16)))
    alpha = tf.equal(kind, 4) | tf.equal(kind, 6) | (told & palette)
    return tf.cond(alpha, with_alpha, lambda: tf.cond(keyed, with_key, opaque))


def _luma(pixels: Any) -> Any:
    """Pillow's conversion of RGB to grey: ITU-R 601 in 16 binary places."""
    import tensorflow as tf

    red, green, blue = tf.unstack(tf.cast(pixels, tf.int32), axis=-1)
    grey = tf.bitwise.right_shift(red * 19595 + green * 38470 + blue * 7471 + 0x8000, 16)
    return tf.cast(grey, tf.uint8)[..., None]


def _decode(data: Any, header: dict[str, Any], serving: Any) -> Any:
    """One picture `(H, W, C)` uint8; an error if it is damaged."""
    import tensorflow as tf

    turned = header["orientation"] >= 5
    width, height = _upright_size(header)
    box = _box(width, height, serving)
    ratio = tf.where(header["several"], 1, _ratio(width, height, box, serving))
    is_jpeg = tf.equal(header["format"], JPEG)
    ratio = tf.where(is_jpeg, ratio, 1)
    pixels = tf.cond(
        is_jpeg,
        lambda: _decode_jpeg(data, header, ratio),
        lambda: _decode_png(data, header),
    )
    if serving.image_shape[2] == 1:
        pixels = _luma(pixels)
    mirrored = tuple(
        tf.reduce_any([tf.equal(header["orientation"], one) for one in ones])
        for ones in ((2, 3, 6, 7), (3, 4, 7, 8))
    )
    # Where the upright picture lies in the decoded one, see `Encoded.place`.
    scale = tf.cast(ratio, tf.float64)
    found = tf.cast(tf.shape(pixels), tf.float64)
    found = (tf.where(turned, found[0], found[1]), tf.where(turned, found[1], found[0]))
    offsets = [
        tf.where(mirror, here - tf.cast(side, tf.float64) / scale, 0.0)
        for mirror, here, side in zip(mirrored, found, (width, height), strict=True)
    ]
    box = tuple(edge / scale + offsets[i % 2] for i, edge in enumerate(box))
    size = serving.image_shape[:2]
    return resample(pixels, turned, mirrored, box, size, serving.interpolation)


def decode_images(image_bytes: Any, serving: Any) -> Any:
    """Decodes, crops and resizes a batch of encoded pictures.

    Args:
        image_bytes: `(batch,)` strings, JPEG or PNG files, of any sizes.
        serving: has `image_shape` (height, width, 1 or 3 channels), `crop`, `crop_fraction` and
            `interpolation`, see `keras_vit.data.Preparation`.

    Returns:
        `(batch, height, width, channels)` uint8.

    Raises:
        tf.errors.InvalidArgumentError: when it runs, if any entry is no such picture, or damaged;
            the message names all of them by their index and says why.
    """
    import tensorflow as tf

    # Nothing in it is Python that has to become a graph, so it is traced as it stands.
    return tf.autograph.experimental.do_not_convert(_decode_images)(image_bytes, serving)


def _decode_images(image_bytes: Any, serving: Any) -> Any:
    import tensorflow as tf

    count = tf.shape(image_bytes, out_type=tf.int64)[0]

    def examine(data):
        header = read_header(data)
        return {**header, "reason": _reason(data, header, serving)}

    specs = {name: tf.TensorSpec((), dtype) for name, (dtype, _) in FIELDS.items()}
    specs["reason"] = tf.TensorSpec((), tf.int32)
    headers = tf.map_fn(examine, image_bytes, fn_output_signature=specs)

    def decoded(index, data, header):
        sound = tf.debugging.Assert(tf.equal(header["reason"], 0), ["unsound"], name="sound")
        with tf.control_dependencies([sound]):
            data = tf.identity(data)
        return index, _decode(data, header, serving)

    pictures = tf.data.Dataset.from_tensor_slices((tf.range(count), image_bytes, headers))
    pictures = pictures.map(decoded, num_parallel_calls=tf.data.AUTOTUNE).ignore_errors()
    # One more, so that there is a batch, whatever is left.
    blank = tf.zeros(serving.image_shape, tf.uint8)
    end = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), blank))
    batch = pictures.concatenate(end).batch(count + 1)
    indices, pixels = tf.data.Dataset.get_single_element(batch)
    indices, pixels = indices[:-1], pixels[:-1]
    missing = tf.sets.difference(tf.range(count)[None], indices[None]).values
    code = tf.gather(headers["reason"], missing)
    code = tf.where(tf.equal(code, 0), _DAMAGED, code)
    entries = tf.strings.join(
        ["image_bytes[", tf.strings.as_string(missing), "] ", tf.gather(_REASONS, code)]
    )
    message = tf.strings.reduce_join(entries, separator="; ") + _expected(serving)
    sound = tf.debugging.Assert(tf.equal(tf.size(missing), 0), [message], name="image_bytes")
    with tf.control_dependencies([sound]):
        return tf.ensure_shape(pixels, (None, *serving.image_shape))
