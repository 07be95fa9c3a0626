"""Pictures decoded inside a TensorFlow graph are those of `keras_vit.data`, to the bit.

One traced function for each setting decodes all kinds of pictures in one batch.
"""

import io
import re
import struct
import warnings
import zlib
from functools import cache
from types import SimpleNamespace

import harness
import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.data import BadPicture, Preparation
from keras_vit.data.decoding import open_picture

pytestmark = [
    pytest.mark.export,
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow",
        reason="the graph is TensorFlow's, whatever the backend: run on TensorFlow",
    ),
]

RNG = np.random.default_rng(7)
SETTINGS = {
    "squash": ((24, 40, 3), "squash", "bilinear"),
    "centre": ((31, 23, 1), "resize_small", "bicubic"),
    "none": ((19, 17, 3), "none", "bilinear"),
}
FRACTION = 0.8


@cache
def decoder(name):
    """The graph and the pipeline of a setting."""
    import tensorflow as tf

    from keras_vit.export.decoding_graph import decode_images

    shape, crop, interpolation = SETTINGS[name]
    settings = {"crop": crop, "crop_fraction": FRACTION, "interpolation": interpolation}
    serving = SimpleNamespace(image_shape=shape, **settings)
    spec = tf.TensorSpec((None,), tf.string, name="image_bytes")
    graph = tf.function(lambda data: decode_images(data, serving), input_signature=[spec])
    return graph, Preparation(shape[:2], shape[2], **settings)


def in_graph(name, files):
    import tensorflow as tf

    return decoder(name)[0](tf.constant(files, tf.string, (len(files),))).numpy()


def problems(name, files):
    """Index -> what the graph says of it; and what it expects."""
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        in_graph(name, files)
    listed, expected = re.search(
        r"\[(image_bytes.*)\. (Expected: .*)\]\n", str(error.value)
    ).groups()
    found = re.findall(r"image_bytes\[(\d+)\] (.*?)(?=; image_bytes|$)", listed)
    return {int(index): reason for index, reason in found}, expected


def in_python(name, file):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about damaged metadata
        return decoder(name)[1](open_picture(file), RNG)


def check(files, names=("squash", "centre"), differ=None):
    """The graph gives what the pipeline gives; `differ`: by how much some may differ."""
    for name in names:
        found = in_graph(name, list(files.values()))
        for label, pixels, file in zip(files, found, files.values(), strict=True):
            expected = in_python(name, file)
            assert pixels.shape == expected.shape and pixels.dtype == np.uint8
            difference = np.abs(pixels.astype(int) - expected).max()
            assert difference <= (differ or {}).get(label, 0), f"{label}, {name}: {difference}"


def photo(width, height, channels=3, rng=RNG):
    """Waves and noise."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (5 + c) + y / (9 - c)) * 100 + 128 for c in range(channels)]
    pixels = np.stack(waves, -1) + rng.normal(0, 15, (height, width, channels))
    pixels = pixels.clip(0, 255).astype("uint8")
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels)


def saved(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return {"exif": exif}


# Files written by hand ----------------------------------------------------------------------


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(bits, kind, before=b"", width=21, height=14, samples=None):
    """A PNG of random samples; `before`: chunks before the pixels."""
    per_pixel = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    length = (width * per_pixel * bits + 7) // 8
    if samples is None:
        samples = RNG.integers(0, 256, (height, length))
    rows = b"".join(b"\0" + bytes(row.astype("uint8")) for row in samples)
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    end = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + end


def palette(bits):
    return chunk(b"PLTE", bytes(RNG.integers(0, 256, 3 << bits).astype("uint8")))


def transparency(*values):
    return chunk(b"tRNS", struct.pack(f">{len(values)}H", *values))


def segment(code, body):
    return b"\xff" + bytes([code]) + struct.pack(">H", len(body) + 2) + body


JPEG = saved(photo(61, 45), "JPEG", quality=85)
EXIF, XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"


def tiff(order, *fields):
    """Exif data; a field is (tag, type, count, value's bytes)."""
    mark = "<" if order == b"II" else ">"
    rows = b"".join(
        struct.pack(mark + "HHI", tag, kind, count) + value.ljust(4, b"\0")
        for tag, kind, count, value in fields
    )
    head = order + struct.pack(mark + "HIH", 42, 8, len(fields))
    return head + rows + b"\0\0\0\0"


def jpeg_with(*segments):
    return JPEG[:2] + b"".join(segments) + JPEG[2:]


def with_exif(*fields, order=b"II"):
    return jpeg_with(segment(0xE1, EXIF + tiff(order, *fields)))


SIX = (0x0112, 3, 1, b"\6\0")


# Equal pixels -------------------------------------------------------------------------------


def test_jpegs():
    files = {
        f"quality {quality}, {sampling}, progressive {progressive}": saved(
            photo(203, 171), "JPEG", quality=quality, subsampling=sampling, progressive=progressive
        )
        for quality, sampling, progressive in ((30, 2, True), (75, 1, False), (95, 0, True))
    }
    files["grey"] = saved(photo(133, 77, 1), "JPEG")
    # These are decoded at a half, a quarter and an eighth; their last columns are padding.
    for side in (171, 403, 1003):
        for orientation in (1, 3, 6):
            options = {"quality": 90, **turned(orientation)}
            files[f"{side}, {orientation}"] = saved(photo(side, side - 30), "JPEG", **options)
    several = {"save_all": True, "append_images": [photo(403, 300)]}
    files["several pictures"] = saved(photo(403, 300), "MPO", **several)
    check(files)


def test_inks_are_within_two_levels():
    inks = Image.fromarray(RNG.integers(0, 256, (5, 6, 4)).astype("uint8")).resize((60, 48))
    file = saved(Image.frombytes("CMYK", (60, 48), inks.tobytes()), "JPEG", quality=95)
    start = file.index(b"\xff\xee")
    files = {"Adobe's marker": file, "no marker": file[:start] + file[start + 16 :]}
    check(files, differ=dict.fromkeys(files, 2))


def test_pngs_of_every_kind():
    files = {}
    for kind, depths in {0: (1, 2, 4, 8, 16), 2: (8, 16), 4: (8, 16), 6: (8, 16)}.items():
        for bits in depths:
            files[f"kind {kind}, {bits} bits"] = png(bits, kind)
    for bits in (1, 2, 4, 8):
        files[f"palette, {bits} bits"] = png(bits, 3, palette(bits))
        alphas = bytes(RNG.integers(0, 256, 1 << bits).astype("uint8"))
        for label, values in {"all": alphas, "one": b"\xff\0", "short": b"\x80"}.items():
            before = palette(bits) + chunk(b"tRNS", values)
            files[f"palette, {bits} bits, {label} transparent"] = png(bits, 3, before)
        for key in (0, 1, 255, 257):
            files[f"grey, {bits} bits, key {key}"] = png(bits, 0, transparency(key))
    few = RNG.integers(0, 2, (14, 63)) * 255
    for key in ((0, 0, 0), (255, 0, 255), (65535, 0, 0)):
        files[f"colour, key {key}"] = png(8, 2, transparency(*key), samples=few)
    files["gamma"] = png(8, 2, chunk(b"gAMA", struct.pack(">I", 100_000)))
    files["grey, 16 bits, key"] = png(16, 0, transparency(7))
    check(files)


def test_sizes_and_orientations():
    """Enlarged, reduced, one pixel, long and thin; both orders of Pillow's passes."""
    rng = harness.random_for("sizes")
    files = {"as wanted": saved(photo(40, 24), "PNG"), "one pixel": saved(photo(1, 1), "PNG")}
    for number in range(60):
        width, height = (int(side) for side in np.exp(rng.uniform(0, 6.2, 2)))
        orientation, form = number % 9 + 1, ("JPEG", "PNG")[number % 2]
        image = photo(width, height, (3, 1)[number % 3 == 0])
        label = f"{form} of {width} x {height}, orientation {orientation}"
        files[label] = saved(image, form, **turned(orientation))
    check(files)


def test_crop_none_takes_pictures_of_its_size_only():
    files = {"JPEG": saved(photo(17, 19), "JPEG"), "PNG": saved(photo(17, 19, 4), "PNG")}
    files["turned"] = saved(photo(19, 17), "JPEG", **turned(8))
    check(files, ["none"])
    found, expected = problems("none", [files["PNG"], saved(photo(19, 17), "PNG")])
    assert found == {1: "is of another size"}
    assert expected.endswith("JPEG or PNG files, of height 19 and width 17")


def test_metadata():
    xmp = lambda text: segment(0xE1, XMP + text + b"\xff\xfe")  # noqa: E731
    data = tiff(b"II", SIX)
    outside = b"\xff\xff\xff\0"
    files = {
        "big-endian": with_exif((0x0112, 3, 1, b"\0\6"), order=b"MM"),
        "behind others": jpeg_with(
            segment(0xE0, b"junk" * 9), segment(0xED, b"x" * 99), segment(0xE1, EXIF + data)
        ),
        "long": with_exif((0x0112, 4, 1, b"\5")),
        "bytes": with_exif((0x0112, 1, 1, b"\5")),
        "signed byte": with_exif((0x0112, 6, 1, b"\5")),
        "text": with_exif((0x0112, 2, 2, b"6")),
        "two values": with_exif((0x0112, 3, 2, b"\6\0\3\0")),
        "values elsewhere": with_exif((0x0112, 3, 3, b"\x0e\0")),
        "no value": with_exif((0x0112, 3, 0, b"\6")),
        "unknown type": with_exif((0x0112, 99, 1, b"\6"), SIX),
        "9": with_exif((0x0112, 3, 1, b"\x09")),
        "twice": with_exif((0x0112, 3, 1, b"\3"), SIX),
        "after one that points outside": with_exif((0x11, 5, 1, outside), SIX),
        "after one that is too long": with_exif((0x11, 5, 999, b"\x10"), SIX),
        "marked twice": jpeg_with(segment(0xE1, EXIF * 2 + data)),
        "marked three times": jpeg_with(segment(0xE1, EXIF * 3 + data)),
        "in two parts": jpeg_with(segment(0xE1, EXIF + data[:12]), segment(0xE1, EXIF + data[12:])),
        "cut": jpeg_with(segment(0xE1, EXIF + data[:18])),
        "cut in the head": jpeg_with(segment(0xE1, EXIF + data[:7])),
        "nothing": jpeg_with(segment(0xE1, EXIF)),
        "no TIFF": jpeg_with(segment(0xE1, EXIF + b"rubbish" * 9)),
        "fill bytes": jpeg_with(b"\xff\xff\xff", segment(0xE1, EXIF + data)),
        "junk between": jpeg_with(segment(0xE0, b""), b"\0\1\2" * 900, segment(0xE1, EXIF + data)),
        "XMP": jpeg_with(xmp(b'<x tiff:Orientation="6" y>')),
        "XMP, an element": jpeg_with(xmp(b"<tiff:Orientation>3<")),
        "XMP, 9": jpeg_with(xmp(b"<tiff:Orientation>9<")),
        "XMP twice": jpeg_with(xmp(b'tiff:Orientation="6"'), xmp(b'tiff:Orientation="8"')),
        "XMP and EXIF": jpeg_with(xmp(b'tiff:Orientation="8"'), segment(0xE1, EXIF + data)),
        "XMP and other EXIF": jpeg_with(
            xmp(b'tiff:Orientation="8"'),
            segment(0xE1, EXIF + tiff(b"II", (0x0113, 3, 1, b"\6"))),
        ),
        "XMP and broken EXIF": jpeg_with(
            xmp(b'tiff:Orientation="8"'), segment(0xE1, EXIF + b"rubbish" * 9)
        ),
        "PNG": png(8, 2, chunk(b"eXIf", tiff(b"MM", (0x0112, 3, 1, b"\0\6")))),
        "PNG, marked": png(8, 2, chunk(b"eXIf", EXIF + data)),
        "PNG, behind": png(8, 2)[:-12] + chunk(b"eXIf", data) + chunk(b"IEND", b""),
        "PNG, XMP": png(8, 2, chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<tiff:Orientation>8<")),
    }
    check(files, ["squash"])
    upright = in_graph("squash", [JPEG])[0]
    assert (in_graph("squash", [files["big-endian"]])[0] != upright).any()


@pytest.mark.parametrize("reorders", [False, True])
def test_the_order_of_passes_is_that_of_pillows_version(monkeypatch, reorders):
    """Tall noise: the two orders round differently, and both follow from one definition."""
    import tensorflow as tf

    from keras_vit.export import resizing_graph

    monkeypatch.setattr(resizing_graph, "_may_reorder", lambda: reorders)
    pixels = RNG.integers(0, 256, (60, 8, 1))
    box = [tf.constant(edge, tf.float64) for edge in (0, 0, 8, 60)]
    no = tf.constant(False)
    found = resizing_graph.resample(
        tf.constant(pixels, tf.uint8), no, (no, no), box, (5, 6), "bilinear"
    )

    def weights(whole, length):
        scale = whole / length
        centres = (np.arange(length) + 0.5) * scale
        distance = np.abs(np.arange(whole) + 0.5 - centres[:, None]) / max(scale, 1)
        rows = np.maximum(1 - distance, 0)
        return rows / rows.sum(1, keepdims=True)

    down = lambda a: np.floor(weights(60, 5) @ a + 0.5)  # noqa: E731
    across = lambda a: np.floor(a @ weights(8, 6).T + 0.5)  # noqa: E731
    orders = {False: down(across(pixels[..., 0])), True: across(down(pixels[..., 0]))}
    np.testing.assert_array_equal(found[..., 0], orders[reorders])
    assert (orders[False] != orders[True]).any()


# What cannot be read ------------------------------------------------------------------------


def test_bad_entries_are_named_and_the_rest_goes_on():
    bomb = png(8, 2)[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    long = png(8, 2)[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 80_000_000, 8, 2, 0, 0, 0))
    files = [
        *(JPEG, b"", b"<html>", JPEG[:-40], png(8, 2)[:200], JPEG[:2] + b"\xff\xe0" + bytes(50)),
        *(bomb, long, saved(photo(9, 9), "GIF"), png(8, 2)),
    ]
    found, expected = problems("squash", files)
    assert expected == "Expected: the bytes of JPEG or PNG files"
    assert set(found) == set(range(1, 9))
    assert found[1] == "is empty"
    assert found[2] == found[8] == "is no JPEG or PNG"
    assert found[3] == found[4] == "is damaged or truncated"
    assert found[5] == "has a damaged header"
    assert found[6] == found[7]
    assert found[6].startswith("declares more than 89,478,485 pixels")
    assert problems("squash", [b""])[0] == {0: "is empty"}
    check({"afterwards": JPEG})


def test_an_empty_batch_is_empty():
    assert in_graph("squash", []).shape == (0, 24, 40, 3)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_truncated_anywhere(form):
    whole = saved(photo(24, 31), form)
    lengths = [*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 3, len(whole) - 2]
    refused, _ = problems("squash", [whole[:length] for length in lengths])
    assert set(refused) == set(range(len(lengths)))


def test_damaged_jpegs_are_taken_and_refused_alike():
    """A byte changed in each; what both decode is the same picture, nearly always."""
    rng = harness.random_for("damage")
    whole, files = saved(photo(31, 24), "JPEG", progressive=True), []
    for _ in range(150):
        file = bytearray(whole)
        file[rng.integers(2, len(file))] = rng.integers(256)
        files.append(bytes(file))
    refused, expected = problems("squash", files)[0], {}
    for number, file in enumerate(files):
        try:
            expected[number] = in_python("squash", file)
        except BadPicture:
            continue
    assert set(refused) == set(range(len(files))) - set(expected)
    assert 10 < len(expected) < 150
    found = in_graph("squash", [files[number] for number in expected])
    same = [(a == b).all() for a, b in zip(found, expected.values(), strict=True)]
    assert np.mean(same) > 0.95
