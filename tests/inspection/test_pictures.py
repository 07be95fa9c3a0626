"""Maps laid over pictures, and pictures as PNG files."""

import base64
import io
import zlib

import harness
import numpy as np
import pytest

from keras_vit import inspection
from keras_vit.inspection import pictures


def test_png_is_what_was_drawn():
    image = harness.pixels((5, 7, 3)).astype("uint8")
    data = pictures.png(image)
    assert data[16:24] == (7).to_bytes(4, "big") + (5).to_bytes(4, "big")
    start = data.index(b"IDAT") + 4
    size = int.from_bytes(data[start - 8 : start - 4], "big")
    rows = np.frombuffer(zlib.decompress(data[start : start + size]), "uint8").reshape(5, 22)
    assert not rows[:, 0].any()
    np.testing.assert_array_equal(rows[:, 1:].reshape(5, 7, 3), image)
    read = pytest.importorskip("matplotlib.image").imread
    path = io.BytesIO(data)
    np.testing.assert_array_equal(np.rint(read(path, format="png") * 255), image)


def test_overlays_are_warm_where_the_attention_is():
    grey = np.full((40, 60, 3), 128, "uint8")
    shares = np.zeros((2, 3), "float32")
    shares[1, 2] = 1
    drawn = pictures.overlay(grey, shares).astype(int)
    warmth = drawn[..., 0] - drawn[..., 2]
    assert np.unravel_index(warmth.argmax(), warmth.shape) >= (25, 45)
    assert warmth[35, 55] > 50 > warmth[5, 5]
    flat = pictures.overlay(grey, np.full((2, 3), 1 / 6, "float32"))
    assert (flat == flat[0, 0]).all()
    assert pictures.as_rgb(np.zeros((4, 4, 2), "uint8")).shape == (4, 4, 3)
    assert pictures.reduce(np.zeros((999, 1500, 3), "uint8"), 320).shape == (333, 500, 3)


def test_an_address_holds_the_picture():
    image = harness.pixels((5, 7, 3)).astype("uint8")
    head, _, data = pictures.data_url(image).partition(",")
    assert head == "data:image/png;base64" and base64.b64decode(data) == pictures.png(image)


@pytest.mark.parametrize("shape", [(1, 5), (4, 1), (1, 1)])
def test_maps_of_one_row(shape):
    maps = np.arange(float(np.prod(shape))).reshape(shape)
    found = inspection.upsampled(maps, (8, 10))
    assert found.shape == (8, 10) and found.min() == 0 and found.max() == maps.max()


def test_upsampled():
    maps = harness.noise((2, 3, 2, 3))
    found = inspection.upsampled(maps, (16, 24))
    assert found.shape == (2, 3, 16, 24) and found.dtype == "float32"
    np.testing.assert_allclose(found[..., 0, 0], maps[..., 0, 0], atol=1e-6)
    np.testing.assert_allclose(found[..., -1, -1], maps[..., -1, -1], atol=1e-6)
    # Halfway between two cells' centres.
    between = found[..., 0, 7:9].mean(-1)
    np.testing.assert_allclose(between, maps[..., 0, :2].mean(-1), atol=1e-5)
