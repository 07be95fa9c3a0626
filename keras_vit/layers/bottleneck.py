"""The building blocks of BiT ResNets: root, and bottleneck units of both generations."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import feature_maps
from keras_vit.layers.std_conv import STD_CONV_MODES, StdConv2D


class _ResNetLayer(keras.layers.Layer):
    """What root and units share: how they convolve and normalise.

    Args:
        groups: groups of the GroupNorms.
        group_norm_epsilon: their epsilon.
        std_conv_epsilon: epsilon of the weight standardisation.
        std_conv_mode: `"std"` or `"variance"`, see `StdConv2D`.
        preactivation: `True` for the pre-activation ResNet (V2, the published BiT, symmetric
            padding), `False` for the post-activation one (V1, the hybrids' stem, SAME padding).
    """

    def __init__(
        self,
        *,
        groups=32,
        group_norm_epsilon=1e-6,
        std_conv_epsilon=1e-5,
        std_conv_mode="std",
        preactivation=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.groups = _checks.positive_int("groups", groups)
        self.group_norm_epsilon = _checks.positive_float("group_norm_epsilon", group_norm_epsilon)
        self.std_conv_epsilon = _checks.positive_float("std_conv_epsilon", std_conv_epsilon)
        self.std_conv_mode = _checks.choice("std_conv_mode", std_conv_mode, STD_CONV_MODES)
        self.preactivation = _checks.boolean("preactivation", preactivation)

    @property
    def _padding(self):
        return "symmetric" if self.preactivation else "same"

    def _conv(self, filters, kernel_size, name, strides=1):
        return StdConv2D(
            filters,
            kernel_size,
            strides=strides,
            padding=self._padding,
            epsilon=self.std_conv_epsilon,
            mode=self.std_conv_mode,
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name, gamma_initializer="ones"):
        return keras.layers.GroupNormalization(
            groups=self.groups,
            epsilon=self.group_norm_epsilon,
            gamma_initializer=gamma_initializer,
            dtype=self.dtype_policy,
            name=name,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "groups": self.groups,
            "group_norm_epsilon": self.group_norm_epsilon,
            "std_conv_epsilon": self.std_conv_epsilon,
            "std_conv_mode": self.std_conv_mode,
            "preactivation": self.preactivation,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class RootBlock(_ResNetLayer):
    """A ResNet's first layers: 7x7 convolution at stride 2 and 3x3 max-pool at stride 2.

    Without `preactivation`, GroupNorm and ReLU stand between the two.

    Args:
        filters: output channels.
        **kwargs: `groups`, `group_norm_epsilon`, `std_conv_epsilon`, `std_conv_mode` and
            `preactivation`, as for `BottleneckUnit`.

    Call arguments:
        inputs: `(batch, height, width, channels)`.

    Returns:
        `(batch, ceil(height / 4), ceil(width / 4), filters)`.

    Reference:
        arXiv 1912.11370; official Flax `models_resnet.py`.
    """

    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.filters = _checks.positive_int("filters", filters)
        self.conv = self._conv(self.filters, 7, "conv", strides=2)
        self.norm = None if self.preactivation else self._norm("norm")

    def build(self, input_shape):
        if self.norm is not None:
            _checks.divides("groups", self.groups, "filters", self.filters)
        self.conv.build(input_shape)
        if self.norm is not None:
            self.norm.build(self.conv.compute_output_shape(input_shape))
        self.built = True

    def call(self, inputs):
        x = self.conv(inputs)
        if self.norm is not None:
            x = ops.relu(self.norm(x))
        return feature_maps.max_pool(x, self._padding)

    def compute_output_shape(self, input_shape):
        batch, height, width, _ = input_shape
        return (batch, _ceil_div(height, 4), _ceil_div(width, 4), self.filters)

    def get_config(self):
        return {**super().get_config(), "filters": self.filters}


@keras.saving.register_keras_serializable(package="keras_vit")
class BottleneckUnit(_ResNetLayer):
    """One residual unit: 1x1, 3x3 (with the stride) and 1x1 convolutions.

    Args:
        filters: channels of the first two convolutions; the output has four times as many.
        strides: stride of the 3x3 convolution and of the projected shortcut.
        project: whether the shortcut is projected (the first unit of each block).
        **kwargs: `groups` (32), `group_norm_epsilon` (1e-6), `std_conv_epsilon` (1e-5),
            `std_conv_mode` (`"std"`), and `preactivation` (`False`): `True` for the
            pre-activation unit (V2, the published BiT, symmetric padding), `False` for the
            post-activation one (V1, the hybrids' stem, SAME padding).

    Call arguments:
        inputs: `(batch, height, width, channels)`.

    Returns:
        `(batch, ceil(height / strides), ceil(width / strides), 4 * filters)`.

    Raises:
        ValueError: on arguments out of range, or channels that the groups do not divide.

    Reference:
        arXiv 1512.03385, 1603.05027, 1912.11370; official Flax `models_resnet.py`.
    """

    def __init__(self, filters, strides=1, project=False, **kwargs):
        super().__init__(**kwargs)
        self.filters = _checks.positive_int("filters", filters)
        self.strides = _checks.positive_int("strides", strides)
        self.project = _checks.boolean("project", project)
        self.conv1 = self._conv(self.filters, 1, "conv1")
        self.conv2 = self._conv(self.filters, 3, "conv2", strides=self.strides)
        self.conv3 = self._conv(4 * self.filters, 1, "conv3")
        self.norm1 = self._norm("norm1")
        self.norm2 = self._norm("norm2")
        # A post-activation unit starts as the identity: its last scale is zero.
        self.norm3 = self._norm("norm3", "ones" if self.preactivation else "zeros")
        self.conv_proj = self.norm_proj = None
        if self.project:
            self.conv_proj = self._conv(4 * self.filters, 1, "conv_proj", strides=self.strides)
            self.norm_proj = None if self.preactivation else self._norm("norm_proj")

    def build(self, input_shape):
        _checks.divides("groups", self.groups, "filters", self.filters)
        batch, height, width, channels = input_shape
        inner, wide = (batch, None, None, self.filters), (batch, None, None, 4 * self.filters)
        if not self.project and channels != wide[-1]:
            raise ValueError(
                f"Without a projection the unit needs 4 * filters = {wide[-1]} channels. "
                f"Received: channels={channels}"
            )
        v2 = self.preactivation
        self.norm1.build((batch, None, None, channels) if v2 else inner)
        self.conv1.build((batch, height, width, channels))
        self.norm2.build(inner)
        self.conv2.build(inner)
        self.norm3.build(inner if v2 else wide)
        self.conv3.build(inner)
        if self.conv_proj is not None:
            self.conv_proj.build(input_shape)
        if self.norm_proj is not None:
            self.norm_proj.build(wide)
        self.built = True

    def call(self, inputs):
        return self._v2(inputs) if self.preactivation else self._v1(inputs)

    def _v1(self, inputs):
        shortcut = inputs
        if self.conv_proj is not None and self.norm_proj is not None:
            shortcut = self.norm_proj(self.conv_proj(inputs))
        x = ops.relu(self.norm1(self.conv1(inputs)))
        x = ops.relu(self.norm2(self.conv2(x)))
        return ops.relu(shortcut + self.norm3(self.conv3(x)))

    def _v2(self, inputs):
        x = ops.relu(self.norm1(inputs))
        shortcut = inputs if self.conv_proj is None else self.conv_proj(x)
        x = self.conv1(x)
        x = self.conv2(ops.relu(self.norm2(x)))
        x = self.conv3(ops.relu(self.norm3(x)))
        return shortcut + x

    def compute_output_shape(self, input_shape):
        batch, height, width, _ = input_shape
        height, width = _ceil_div(height, self.strides), _ceil_div(width, self.strides)
        return (batch, height, width, 4 * self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
            "project": self.project,
        }


def _ceil_div(size: int | None, divisor: int) -> int | None:
    return None if size is None else -(-size // divisor)
