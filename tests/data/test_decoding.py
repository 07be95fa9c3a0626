"""Pictures of all kinds, and what is no picture."""

import io
import struct
import zlib

import harness
import numpy as np
import pytest
from PIL import Image

from keras_vit import data
from keras_vit.data import decoding

COLOURS = {(2, 3): (200, 30, 60), (12, 3): (10, 220, 90), (2, 13): (40, 50, 240)}


def picture(mode="RGB", size=(17, 19)):
    """Four flat quarters, so that lossy formats keep their colours."""
    image = Image.new("RGB", size, (128, 128, 128))
    half = (size[0] // 2, size[1] // 2)
    image.paste((200, 30, 60), (0, 0, *half))
    image.paste((10, 220, 90), (half[0], 0, size[0], half[1]))
    image.paste((40, 50, 240), (0, half[1], half[0], size[1]))
    return image.convert(mode)


def saved(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def check_quarters(pixels, tolerance):
    assert pixels.dtype == np.uint8 and pixels.shape == (19, 17, 3)
    for (x, y), colour in COLOURS.items():
        np.testing.assert_allclose(pixels[y, x].astype(int), colour, atol=tolerance)


@pytest.mark.parametrize(
    ("form", "mode", "options", "tolerance"),
    [
        ("JPEG", "RGB", {"quality": 95, "subsampling": 0}, 4),
        ("JPEG", "RGB", {"quality": 95, "progressive": True, "subsampling": 0}, 4),
        ("JPEG", "CMYK", {"quality": 95}, 8),
        ("PNG", "RGB", {}, 0),
        ("PNG", "RGBA", {}, 0),
        ("PNG", "P", {}, 12),
        ("GIF", "P", {}, 12),
        ("BMP", "RGB", {}, 0),
        ("WEBP", "RGB", {"lossless": True}, 0),
        ("WEBP", "RGBA", {"lossless": True}, 0),
    ],
)
def test_formats(form, mode, options, tolerance):
    image = picture()
    image = image.quantize(32) if mode == "P" else image.convert(mode)
    check_quarters(data.decode(saved(image, form, **options)), tolerance)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "WEBP", "GIF"])
def test_grey_is_grey_in_all_channels(form):
    pixels = data.decode(saved(picture("L"), form))
    spread = pixels.max(axis=-1).astype(int) - pixels.min(axis=-1)
    assert pixels.shape == (19, 17, 3) and spread.max() <= 1
    grey = data.decode(saved(picture("L"), form), channels=1)
    assert grey.shape == (19, 17, 1)
    # ITU-R 601 luma of the red quarter.
    assert abs(int(grey[3, 2, 0]) - (0.299 * 200 + 0.587 * 30 + 0.114 * 60)) <= 3


def test_black_and_white():
    bits = Image.fromarray(np.eye(8, dtype=bool))
    np.testing.assert_array_equal(data.decode(saved(bits, "PNG"), 1)[..., 0], 255 * np.eye(8))


def png_of_16_bits(samples):
    """A PNG file written by hand: (h, w) or (h, w, 3) of uint16."""
    height, width = samples.shape[:2]
    kind = 0 if samples.ndim == 2 else 2
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)

    def chunk(name, body):
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_16_bits_keep_the_high_byte(shape):
    samples = harness.random_for("16 bits").integers(0, 65536, shape)
    pixels = data.decode(png_of_16_bits(samples))
    expected = (samples >> 8).reshape(5, 7, -1) * np.ones((1, 1, 3), int)
    np.testing.assert_array_equal(pixels, expected[..., :3])


def test_transparent_pixels_show_white():
    rgba = np.zeros((2, 3, 4), "uint8")
    rgba[0, 0] = (200, 100, 0, 255)
    rgba[0, 1] = (200, 100, 0, 128)
    for form in ("PNG", "WEBP"):
        options = {"lossless": True} if form == "WEBP" else {}
        pixels = data.decode(saved(Image.fromarray(rgba), form, **options)).astype(int)
        np.testing.assert_array_equal(pixels[0, 0], (200, 100, 0))
        share = 128 / 255
        half = share * np.array([200, 100, 0]) + (1 - share) * 255
        np.testing.assert_allclose(pixels[0, 1], half, atol=1)
        np.testing.assert_array_equal(pixels[1], np.full((3, 3), 255))
    palette = Image.fromarray(np.array([[0, 1]], "uint8"))
    palette.putpalette([9, 8, 7, 30, 40, 50])
    for form in ("PNG", "GIF"):
        pixels = data.decode(saved(palette, form, transparency=0))
        np.testing.assert_array_equal(pixels[0], [(255, 255, 255), (30, 40, 50)])


def test_the_first_frame_of_several():
    frames = [Image.new("RGB", (4, 5), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    for form in ("GIF", "WEBP"):
        options = {"lossless": True} if form == "WEBP" else {}
        moving = saved(frames[0], form, save_all=True, append_images=frames[1:], **options)
        np.testing.assert_array_equal(data.decode(moving)[2, 2], (255, 0, 0))


# What a viewer does to a stored picture, as array operations; EXIF 2.3, table of orientations.
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_orientation(orientation, form):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if form == "WEBP" else {}
    stored = saved(picture(), form, exif=exif, **options)
    raw = np.asarray(Image.open(io.BytesIO(stored)).convert("RGB"))
    expected = UPRIGHT.get(orientation, UPRIGHT[1])(raw)
    np.testing.assert_array_equal(data.decode(stored), expected)
    opened = decoding.open_picture(stored)
    assert opened.size == expected.shape[1::-1]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's
def test_damaged_metadata_spares_the_picture():
    stored = saved(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + b"\xff" * 40)
    check_quarters(data.decode(stored), 40)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_large_jpeg_is_decoded_small_and_looks_the_same(orientation):
    smooth = harness.random_for("large").integers(60, 190, (5, 6, 3)).astype("uint8")
    exif = Image.Exif()
    exif[0x0112] = orientation
    # At an eighth, the last column and row stand for 3 and 1 pixels.
    image = Image.fromarray(smooth).resize((1003, 801), Image.Resampling.BICUBIC)
    stored = saved(image, "JPEG", quality=95, exif=exif)
    wanted = (100, 80) if orientation < 5 else (80, 100)
    small = decoding.open_picture(stored).decode(3, wanted)
    assert max(small.size) == 251  # a quarter
    prepare = data.Preparation((40, 50), crop="squash")
    rng = np.random.default_rng(0)
    fast = prepare(decoding.open_picture(stored), rng).astype(int)
    slow = prepare(data.decode(stored), rng).astype(int)
    assert np.abs(fast - slow).mean() <= 0.4
    assert np.abs(fast - slow).max() <= 3


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_truncated_at_any_byte(form):
    """An error that says so, or the very picture: nothing else."""
    noisy = harness.random_for("noisy").integers(0, 256, (24, 31, 3)).astype("uint8")
    whole = saved(Image.fromarray(noisy), form)
    expected = data.decode(whole)
    failed = 0
    for length in [*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1]:
        try:
            pixels = data.decode(whole[:length])
        except data.BadPicture as error:
            assert str(error)
            failed += 1
        else:
            np.testing.assert_array_equal(pixels, expected)
    assert failed >= 39


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"<html>not found</html>", "not a picture"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 50, "not a picture"),
        (saved(Image.new("RGB", (3, 3)), "TIFF"), "not a picture"),
        (saved(Image.new("RGB", (3, 3)), "PPM"), "not a picture"),
    ],
)
def test_what_is_no_picture(content, reason):
    with pytest.raises(data.BadPicture, match=reason):
        data.decode(content)


def bomb(width, height):
    """A PNG that declares a size and has hardly any data."""
    body = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + body
    head = struct.pack(">I", len(body)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + head + struct.pack(">I", 0) + b"IDAT" + b"\0" * 8


@pytest.mark.parametrize("size", [(60_000, 60_000), (12_000, 12_000), (2**31 - 1, 2**31 - 1)])
def test_bombs_are_refused_by_size(size, monkeypatch):
    monkeypatch.setattr(decoding.Encoded, "decode", None)  # must not come so far
    with pytest.raises(data.BadPicture, match="pixels"):
        data.decode(bomb(*size))


def test_the_limit_is_a_parameter():
    stored = saved(picture(), "PNG")
    assert data.decode(stored, max_pixels=17 * 19).shape == (19, 17, 3)
    with pytest.raises(data.BadPicture, match="declares 17 x 19 pixels, more than 322 in all"):
        data.decode(stored, max_pixels=17 * 19 - 1)
