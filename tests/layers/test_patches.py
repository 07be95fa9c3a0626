"""Cutting into patches, and scaling pixels."""

import harness
import keras
import numpy as np
import pytest

from keras_vit import layers


def reference(images, patch):
    """Patches row by row; row, column, channel within each: plain loops."""
    batch, height, width, channels = images.shape
    grid = [(y, x) for y in range(0, height, patch[0]) for x in range(0, width, patch[1])]
    out = np.zeros((batch, len(grid), patch[0] * patch[1] * channels), images.dtype)
    for b in range(batch):
        for n, (y, x) in enumerate(grid):
            i = 0
            for row in range(patch[0]):
                for column in range(patch[1]):
                    for channel in range(channels):
                        out[b, n, i] = images[b, y + row, x + column, channel]
                        i += 1
    return out


@pytest.mark.parametrize("shape", [(2, 10, 21, 3), (1, 5, 3, 1), (3, 15, 6, 2)])
def test_equal_to_plain_loops(shape):
    images = harness.noise(shape)
    outputs = layers.Patches((5, 3))(images)
    np.testing.assert_array_equal(harness.numpy(outputs), reference(images, (5, 3)))


def test_projection_is_a_convolution():
    images, kernel = harness.noise((2, 10, 21, 3)), harness.noise((5, 3, 3, 7), "kernel")
    conv = keras.ops.conv(
        images, kernel, strides=(5, 3), padding="valid", data_format="channels_last"
    )
    patches = harness.numpy(layers.Patches((5, 3))(images))
    flat = harness.numpy(conv).reshape(2, -1, 7)
    np.testing.assert_allclose(patches @ kernel.reshape(-1, 7), flat, atol=1e-4)


@pytest.mark.parametrize("policy", harness.POLICIES)
def test_values_survive_every_input_dtype(policy):
    whole = harness.random_for("whole").integers(0, 256, (2, 10, 21, 3)).astype("uint8")
    whole[0, 0, 0] = 0, 255, 251
    expected = reference(whole, (5, 3)).astype("float32")
    layer = layers.Patches((5, 3), dtype=policy)
    for dtype in ("uint8", "int32", "float16", "float32"):
        outputs = layer(keras.ops.convert_to_tensor(whole.astype(dtype)))
        assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
        np.testing.assert_array_equal(harness.numpy(outputs), expected, err_msg=dtype)


@pytest.mark.parametrize(
    ("shape", "numbers"), [((1, 11, 21, 3), ("11", "5")), ((1, 10, 22, 3), ("22", "3"))]
)
def test_an_image_that_the_patch_does_not_divide(shape, numbers):
    layer = layers.Patches((5, 3))
    for call in (layer, lambda x: layer(keras.KerasTensor(x.shape))):
        with pytest.raises(ValueError, match=rf"image \w+={numbers[0]}, patch \w+={numbers[1]}"):
            call(np.zeros(shape, "float32"))


def test_images_of_unknown_size():
    layer = layers.Patches((5, 3))
    assert layer.compute_output_shape((None, None, 21, 3)) == (None, None, 45)
    assert layer.compute_output_shape((None, 10, 21, None)) == (None, 14, None)


@pytest.mark.parametrize("policy", harness.POLICIES)
def test_pixel_scaling_is_computed_in_float32(policy):
    images = harness.pixels((2, 5, 7, 3))
    original = images.copy()
    layer = layers.PixelScaling("imagenet", dtype=policy)
    once, twice = layer(images), layer(images)
    np.testing.assert_array_equal(images, original)
    harness.assert_same(once, twice)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (images / 255 - mean) / deviation
    expected = harness.numpy(keras.ops.cast(expected.astype("float32"), layer.compute_dtype))
    step = {"float32": 1e-6, "bfloat16": 2**-7, "float16": 2**-10}[layer.compute_dtype]
    np.testing.assert_allclose(harness.numpy(once), expected, rtol=step, atol=step)


def test_pixel_scaling_takes_whole_numbers():
    whole = harness.random_for("whole").integers(0, 256, (1, 5, 7, 3)).astype("uint8")
    outputs = harness.numpy(layers.PixelScaling("inception")(whole))
    np.testing.assert_allclose(outputs, whole / 127.5 - 1, atol=1e-6)
    assert layers.PixelScaling("unit")(whole[..., :1]).shape == (1, 5, 7, 1)
    with pytest.raises(ValueError, match="3 channels.*channels=1"):
        layers.PixelScaling("clip")(whole[..., :1])
