"""Which images a quantisation is fitted to, and what it refuses."""

import keras
import numpy as np
import pytest

from keras_vit.export.calibration import calibration_images

if keras.backend.backend() != "tensorflow":
    pytest.skip("it does not depend on the backend", allow_module_level=True)

SHAPE = (4, 6, 3)


def numbered(count):
    """Images that are told apart by their values."""
    return np.stack([np.full(SHAPE, index, "uint8") for index in range(count)])


def numbers(images):
    assert images.dtype == np.float32 and images.shape[1:] == SHAPE
    return [int(image[0, 0, 0]) for image in images]


def test_all_are_taken_where_there_are_few():
    assert numbers(calibration_images(numbered(5), SHAPE, count=8)) == [0, 1, 2, 3, 4]


def test_they_are_spread_over_an_array():
    images = numbered(101)
    assert numbers(calibration_images(images, SHAPE, count=5)) == [0, 25, 50, 75, 100]
    labels = np.arange(101)
    assert numbers(calibration_images((images, labels), SHAPE, count=3)) == [0, 50, 100]


@pytest.mark.parametrize("labelled", [False, True])
def test_they_are_spread_over_batches(labelled):
    images = numbered(40)
    parts = [images[start : start + 8] for start in range(0, 40, 8)]
    data = [(part, np.zeros(len(part))) for part in parts] if labelled else parts
    # Fewer than there are batches: one of each of those chosen.
    assert numbers(calibration_images(data, SHAPE, count=3)) == [0, 16, 32]
    # More: from every batch its first and its last at least.
    found = numbers(calibration_images(data, SHAPE, count=10))
    assert found == [0, 7, 8, 15, 16, 23, 24, 31, 32, 39]


def test_a_stream_of_unknown_length_is_read_up_to_a_limit():
    read = 0

    def stream():
        nonlocal read
        while True:
            read += 1
            yield numbered(128)

    found = calibration_images(stream(), SHAPE, count=17)
    assert read == 2048 // 128 and len(found) == 17
    short = (numbered(8)[index : index + 2] for index in range(0, 8, 2))
    assert numbers(calibration_images(short, SHAPE, count=4)) == [0, 2, 5, 7]


def test_tf_data_and_pipelines():
    tf = pytest.importorskip("tensorflow")
    from keras_vit.data import ArraySource, Pipeline

    images = numbered(12)
    data = tf.data.Dataset.from_tensor_slices((images, np.arange(12))).batch(4)
    assert numbers(calibration_images(data, SHAPE, count=3)) == [0, 4, 8]
    assert len(calibration_images(data.repeat(), SHAPE, count=7)) == 7
    source = ArraySource(images, np.arange(12))
    pipeline = Pipeline(source, SHAPE[:2], batch_size=4)
    assert numbers(calibration_images(pipeline, SHAPE, count=3)) == [0, 4, 8]
    training = Pipeline(source, SHAPE[:2], batch_size=4, training=True)
    with pytest.raises(ValueError, match="without augmentation.*training=False"):
        calibration_images(training, SHAPE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((0, *SHAPE)), "holds no image"),
        ([], "holds no image"),
        (np.zeros((3, 4, 5, 3)), r"shape \(4, 6, 3\).*Received: an image of shape \(4, 5, 3\)"),
        (np.zeros(SHAPE), r"\(n, height, width, channels\).*shape \(4, 6, 3\)"),
        ([np.zeros(SHAPE)], r"in batches.*Received: an image of shape \(6, 3\)"),
        (np.full((2, *SHAPE), 0.7), "shares of 1: multiply them by 255"),
        (np.full((2, *SHAPE), -0.7), "pixels 0..255.*from -0.7 to -0.7"),
        (np.full((2, *SHAPE), 256.0), "pixels 0..255.*from 256 to 256"),
        (np.full((2, *SHAPE), np.nan), "not finite"),
        (np.full((2, *SHAPE), "a"), "must hold numbers"),
        (7, "Received: int"),
    ],
)
def test_what_the_model_cannot_take_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        calibration_images(data, SHAPE)


def test_a_model_without_scaling_takes_any_range():
    images = np.linspace(-1, 1, 2 * 72).reshape(2, *SHAPE)
    found = calibration_images(images, SHAPE, pixels=False)
    np.testing.assert_allclose(found, images, rtol=1e-6)
