"""Weight standardisation, the ResNets' root and their units."""

import harness
import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers import feature_maps

NORMS = {"groups": 2}


def convolve(x, kernel, stride, pads):
    """A plain convolution; `pads` is (before, after) for both sides."""
    x = np.pad(x, ((0, 0), pads, pads, (0, 0)))
    size = kernel.shape[0]
    height, width = ((side - size) // stride + 1 for side in x.shape[1:3])
    out = np.zeros((x.shape[0], height, width, kernel.shape[-1]))
    for i in range(height):
        for j in range(width):
            window = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
            out[:, i, j] = np.tensordot(window, kernel, 3)
    return out


def standardize(kernel, epsilon, mode):
    kernel = kernel.astype("float64")
    centred = kernel - kernel.mean((0, 1, 2))
    variance = kernel.var((0, 1, 2))
    return centred / (np.sqrt(variance) + epsilon if mode == "std" else np.sqrt(variance + epsilon))


@pytest.mark.parametrize("mode", ["std", "variance"])
@pytest.mark.parametrize("epsilon", [1e-10, 0.5])
def test_kernels_are_standardized(mode, epsilon):
    layer = layers.StdConv2D(5, 3, mode=mode, epsilon=epsilon)
    layer.build((None, 7, 7, 4))
    kernel = harness.noise((3, 3, 4, 5), "kernel", scale=2.0) + 3.0
    layer.kernel.assign(kernel)
    found = harness.numpy(layer.standardized(layer.kernel.value))
    np.testing.assert_allclose(found, standardize(kernel, epsilon, mode), atol=1e-5)
    np.testing.assert_allclose(found.mean((0, 1, 2)), 0, atol=1e-6)
    if epsilon < 1e-9:
        np.testing.assert_allclose(found.var((0, 1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("padding", "size", "pads"),
    [
        ("same", 6, (0, 1)),
        ("same", 7, (1, 1)),
        ("symmetric", 6, (1, 1)),
        ("symmetric", 7, (1, 1)),
        ("valid", 6, (0, 0)),
    ],
)
def test_padding_at_stride_2(padding, size, pads):
    x = harness.noise((2, size, size, 4))
    layer = layers.StdConv2D(5, 3, strides=2, padding=padding)
    outputs = harness.numpy(layer(x))
    kernel = standardize(harness.numpy(layer.kernel), 1e-5, "std")
    np.testing.assert_allclose(outputs, convolve(x, kernel, 2, pads), atol=1e-4)
    assert layer.compute_output_shape(x.shape) == outputs.shape


@pytest.mark.parametrize("padding", feature_maps.PADDINGS)
@pytest.mark.parametrize(
    ("side", "strides", "rate"), [(1, (2, 2), 1), (7, (2, 2), 1), (3, (1, 2), 1), (3, (1, 1), 2)]
)
def test_convolution_is_that_of_keras(padding, side, strides, rate):
    x, kernel = harness.noise((2, 9, 12, 4)), harness.noise((side, side, 2, 6), "kernel")
    tensors = [keras.ops.convert_to_tensor(array) for array in (x, kernel)]
    found = feature_maps.conv(*tensors, strides, padding, (rate, rate))
    margin = (side - 1) // 2 if padding == "symmetric" else 0
    padded = np.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    kind = "same" if padding == "same" else "valid"
    options = {"padding": kind, "dilation_rate": rate, "data_format": "channels_last"}
    if padding == "same":
        expected = keras.ops.conv(padded, kernel, strides=list(strides), **options)
    else:  # every place is computed, and those of the strides taken
        expected = keras.ops.conv(padded, kernel, strides=1, **options)
        expected = expected[:, :: strides[0], :: strides[1]]
    np.testing.assert_allclose(harness.numpy(found), harness.numpy(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(4, 5), (7, 8), (1, 2), (112, 3)])
@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_max_pool(padding, size):
    x = harness.noise((2, *size, 3)) - 5.0  # zeros would win
    found = harness.numpy(feature_maps.max_pool(keras.ops.convert_to_tensor(x), padding))
    pads = [(1, 1) if padding == "symmetric" else (side % 2, 1) for side in size]
    padded = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-np.inf)
    assert found.shape == (2, -(-size[0] // 2), -(-size[1] // 2), 3)
    for i, j in np.ndindex(found.shape[1:3]):
        window = padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
        np.testing.assert_array_equal(found[:, i, j], window.max((1, 2)))


@pytest.mark.skipif(harness.BACKEND != "torch", reason="of PyTorch's two orders of memory")
@pytest.mark.parametrize("preactivation", [False, True])
def test_no_map_is_copied_to_another_order(preactivation):
    from torch.utils._python_dispatch import TorchDispatchMode

    copied = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            outputs = func(*args, **(kwargs or {}))
            if func.name() in ("aten::clone", "aten::copy_", "aten::constant_pad_nd"):
                copied.append(tuple(outputs.shape))
            return outputs

    unit = layers.BottleneckUnit(8, 1, True, preactivation=preactivation, **NORMS)
    root = layers.RootBlock(8, preactivation=preactivation, **NORMS)
    x = harness.noise((2, 31, 31, 8))
    unit(x), root(x)  # builds them
    x = keras.ops.convert_to_tensor(x)
    with Copies():
        unit(x), root(x)
    assert [shape for shape in copied if shape[0] == 2] == []


def test_maps_have_four_axes():
    layer, wrong = layers.StdConv2D(4, 3), harness.noise((1, 2, 5, 5, 3))
    with pytest.raises(ValueError, match=r"\(batch, height, width, channels\).*2, 5, 5, 3"):
        layer(wrong)
    layer(wrong[0])
    with pytest.raises(ValueError, match="expected ndim=4, found ndim=5"):
        layer(wrong)


def test_options_of_conv2d_remain():
    layer = layers.StdConv2D(4, 3, groups=2, use_bias=True, activation="relu")
    rebuilt = layers.StdConv2D.from_config(layer.get_config())
    assert rebuilt.get_config() == layer.get_config()
    assert (rebuilt.groups, rebuilt.use_bias, rebuilt.activation) == (2, True, layer.activation)
    assert harness.numpy(rebuilt(harness.noise((1, 5, 5, 6)))).min() >= 0


@pytest.mark.parametrize("preactivation", [False, True])
@pytest.mark.parametrize("size", [(7, 8), (9, 12), (1, 2)])
def test_shapes_odd_and_even(preactivation, size):
    x = harness.noise((1, *size, 8))
    root = layers.RootBlock(6, preactivation=preactivation, **NORMS)
    unit = layers.BottleneckUnit(2, 2, True, preactivation=preactivation, **NORMS)
    for layer, stride, channels in ((root, 4, 6), (unit, 2, 8)):
        expected = (1, -(-size[0] // stride), -(-size[1] // stride), channels)
        assert layer.compute_output_shape(x.shape) == expected
        assert tuple(harness.run(layer, x).shape) == expected
    assert root.compute_output_shape((None, None, 8, 3)) == (None, None, 2, 6)


def test_channels_come_last_whatever_keras_is_set_to():
    x = harness.noise((2, 9, 8, 8))
    makers = [
        lambda: layers.StdConv2D(4, 3, strides=2, padding="symmetric"),
        lambda: layers.RootBlock(4, **NORMS),
        lambda: layers.RootBlock(4, preactivation=True, **NORMS),
        lambda: layers.BottleneckUnit(4, 2, True, **NORMS),
        lambda: layers.Patches((3, 2)),
    ]
    for make in makers:
        outputs = []
        for data_format in ("channels_last", "channels_first"):
            keras.config.set_image_data_format(data_format)
            layer = make()
            layer.build(x.shape)
            harness.randomize_by_order(layer)
            outputs.append(harness.run(layer, x))
        harness.assert_same(outputs[1], outputs[0], type(layer).__name__)


def test_a_unit_starts_as_the_identity():
    """Post-activation: the last scale is zero. Pre-activation: it is one, as published."""
    x = np.abs(harness.noise((2, 5, 5, 8)))
    unit = layers.BottleneckUnit(2, **NORMS)
    harness.assert_same(unit(x), x)
    second = layers.BottleneckUnit(2, preactivation=True, **NORMS)
    assert np.abs(harness.numpy(second(x)) - x).max() > 0.1


def test_the_pool_of_a_map_that_is_not_activated_pads_with_minus_infinity():
    root = layers.RootBlock(4, preactivation=True)
    x = harness.noise((1, 9, 9, 3))
    outputs = harness.numpy(root(x))
    mapped = harness.numpy(root.conv(x))[0]
    windows = np.pad(mapped, ((1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    for i in range(3):
        for j in range(3):
            window = windows[2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            np.testing.assert_allclose(outputs[0, i, j], window.max((0, 1)), atol=1e-5)


def test_a_unit_without_projection_needs_its_channels():
    with pytest.raises(ValueError, match=r"4 \* filters = 16 channels.*channels=8"):
        layers.BottleneckUnit(4, **NORMS).build((None, 5, 5, 8))
