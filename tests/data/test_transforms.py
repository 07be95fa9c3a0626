"""Crops, flips and erasing: in range, as often as said, and equal to what arrays say."""

import harness
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import data
from keras_vit.data import geometry
from keras_vit.data.transforms import erased


def rng(name="rng"):
    return harness.random_for(name)


def noise(height, width, channels=3):
    return rng("picture").integers(0, 256, (height, width, channels)).astype("uint8")


@pytest.mark.parametrize("size", [(50, 37), (37, 50), (500, 90), (7, 3), (1, 1)])
@pytest.mark.parametrize("area", [(0.05, 1.0), (0.3, 0.6)])
def test_inception_boxes_keep_to_their_ranges(size, area):
    width, height = size
    generator, whole = rng("boxes"), 0
    for _ in range(300):
        left, top, right, bottom = geometry.inception_box(width, height, area, generator)
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
        w, h = right - left, bottom - top
        if (w, h) == size:
            whole += 1
            continue
        assert area[0] <= w * h / (width * height) <= area[1]
        # A pixel's rounding on either side.
        assert (w + 0.5) / max(h - 0.5, 0.5) >= 3 / 4 and (w - 0.5) / (h + 0.5) <= 4 / 3
    fits = area[0] * width * height <= min(size) ** 2 * 4 / 3
    assert whole < 300 if fits and min(size) > 2 else whole == 300


def test_inception_boxes_are_distributed_as_tensorflows():
    width, height, count = 160, 120, 3000
    generator = rng("ours")
    ours = np.array(
        [geometry.inception_box(width, height, (0.05, 1.0), generator) for _ in range(count)]
    )

    @tf.function
    def theirs():
        def one(seed):
            begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
                (height, width, 3),
                tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
                seed=tf.stack([seed, 0]),
                min_object_covered=0.0,
                aspect_ratio_range=(3 / 4, 4 / 3),
                area_range=(0.05, 1.0),
                max_attempts=100,
            )
            return tf.stack([begin[1], begin[0], begin[1] + size[1], begin[0] + size[0]])

        return tf.map_fn(one, tf.range(count))

    theirs = theirs().numpy()

    def figures(boxes):
        w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        return np.stack(
            [w * h / (width * height), w / h, boxes[:, 0] / width, boxes[:, 1] / height]
        )

    mine, other = figures(ours), figures(theirs)
    # Means agree within four standard errors, and so do the deciles' places.
    error = np.sqrt((mine.var(axis=1) + other.var(axis=1)) / count)
    assert (np.abs(mine.mean(axis=1) - other.mean(axis=1)) < 4 * error).all()
    for one, two in zip(mine, other, strict=True):
        deciles = np.quantile(two, np.linspace(0.1, 0.9, 9))
        shares = (one[:, None] < deciles).mean(axis=0)
        assert np.abs(shares - (two[:, None] < deciles).mean(axis=0)).max() < 0.05


def test_centre_box_is_resize_then_crop():
    # 400 x 300 with the smaller side resized to 256: 341 x 256, of which 224 stay in the middle.
    left, top, right, bottom = geometry.centre_box(400, 300, (224, 224), 224 / 256)
    side = 300 * 224 / 256
    np.testing.assert_allclose((right - left, bottom - top), (side, side))
    np.testing.assert_allclose((left, top), ((400 - side) / 2, (300 - side) / 2))
    # A wide result: the side that has to be covered decides.
    left, top, right, bottom = geometry.centre_box(100, 100, (50, 100), 1.0)
    np.testing.assert_allclose((left, top, right, bottom), (0, 25, 100, 75))


def test_a_box_is_cut_out_exactly():
    pixels = noise(29, 31)
    prepare = data.Preparation((13, 11), crop="resize_small", crop_fraction=13 / 29)
    left, top = (31 - 11) / 2, (29 - 13) / 2
    found = prepare(pixels, rng())
    np.testing.assert_array_equal(
        found, pixels[int(top) : int(top) + 13, int(left) : int(left) + 11]
    )


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_squash_is_an_antialiased_resize(interpolation):
    pixels = np.asarray(Image.fromarray(noise(9, 8)).resize((61, 47), Image.Resampling.BICUBIC))
    prepare = data.Preparation((17, 23), crop="squash", interpolation=interpolation)
    # Pillow's bicubic has a = -0.5, Keys' as well.
    method = {"bilinear": "bilinear", "bicubic": tf.image.ResizeMethod.BICUBIC}[interpolation]
    expected = tf.image.resize(pixels, (17, 23), method, antialias=True).numpy()
    assert np.abs(prepare(pixels, rng()) - np.clip(expected, 0, 255)).max() <= 1.5


def test_floats_and_odd_channels_go_the_same_way():
    pixels = noise(29, 31)
    kwargs = {"image_size": (17, 13), "crop": "inception", "flip": True}
    for name in ("one", "two", "three"):
        expected = data.Preparation(**kwargs)(pixels, rng(name)).astype("float32")
        found = data.Preparation(**kwargs)(pixels.astype("float32"), rng(name))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1)
        five = np.concatenate([pixels, pixels[..., :2]], axis=-1)
        found = data.Preparation(channels=5, **kwargs)(five, rng(name))
        assert found.dtype == np.uint8 and found.shape == (17, 13, 5)
        np.testing.assert_allclose(found, expected[..., [0, 1, 2, 0, 1]], atol=1)


def test_half_are_mirrored():
    pixels = noise(5, 7)
    prepare, generator = data.Preparation((5, 7), crop="none", flip=True), rng("flips")
    found = [prepare(pixels, generator) for _ in range(400)]
    mirrored = [np.array_equal(image, pixels[:, ::-1]) for image in found]
    same = [np.array_equal(image, pixels) for image in found]
    assert sum(mirrored) + sum(same) == 400
    assert 160 < sum(mirrored) < 240


def test_grey_becomes_colour_where_wanted():
    grey = noise(5, 7, 1)
    for dtype in ("uint8", "float32"):
        found = data.Preparation((5, 7), crop="none")(grey.astype(dtype), rng())
        np.testing.assert_array_equal(found, np.repeat(grey, 3, axis=-1))
        assert found.dtype == dtype
    one = data.Preparation((5, 7), channels=1, crop="none")(grey, rng())
    np.testing.assert_array_equal(one, grey)


def test_erasing_takes_its_share_and_no_more():
    pixels = np.zeros((40, 50, 3), "uint8")
    areas, generator = [], rng("erasing")
    for _ in range(200):
        found = erased(pixels, generator)
        rows, columns = np.nonzero(found.any(axis=-1))
        h, w = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert found[rows.min() :, columns.min() :][:h, :w].any(axis=-1).mean() > 0.9
        areas.append(h * w / (40 * 50))
        assert not pixels.any()  # the original is as it was
    assert 0.015 < min(areas) < 0.05 and 0.28 < max(areas) < 0.36
    prepare = data.Preparation((40, 50), crop="none", erasing=0.25)
    hit = [prepare(pixels, generator).any() for _ in range(400)]
    assert 60 < sum(hit) < 140


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"crop": "center"}, "crop"),
        ({"crop_area": (0.5, 0.1)}, "crop_area"),
        ({"crop_area": 0.5}, "crop_area"),
        ({"crop_fraction": 1.5}, "crop_fraction"),
        ({"interpolation": "nearest"}, "interpolation"),
        ({"randaugment": (0, 10)}, "randaugment"),
        ({"randaugment": (2, 31)}, "randaugment"),
        ({"randaugment": (2, 10), "channels": 5}, "randaugment"),
        ({"erasing": 1.5}, "erasing"),
        ({"flip": 1}, "flip"),
        ({"image_size": (0, 5)}, "image_size"),
    ],
)
def test_arguments_out_of_range(kwargs, message):
    with pytest.raises(ValueError, match=message):
        data.Preparation(**{"image_size": (5, 5), **kwargs})


def test_pictures_that_do_not_fit():
    with pytest.raises(ValueError, match="height 6, width 7"):
        data.Preparation((5, 7), crop="none")(noise(6, 7), rng())
    with pytest.raises(ValueError, match="channels"):
        data.Preparation((5, 7))(noise(6, 7, 2), rng())
    with pytest.raises(ValueError, match="uint8"):
        data.Preparation((5, 7), randaugment=(2, 10))(noise(6, 7).astype("float32"), rng())
