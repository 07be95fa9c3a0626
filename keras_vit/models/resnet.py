"""BiT ResNets: the paper's baselines, and the stems of its hybrids."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit import _checks, layers
from keras_vit.layers.std_conv import STD_CONV_MODES
from keras_vit.models import base

# What the two generations of the code do where nothing else is said: preactivation ->
# (GroupNorm epsilon, StdConv epsilon, StdConv mode).
NORM_DEFAULTS = {True: (1e-5, 1e-10, "variance"), False: (1e-6, 1e-5, "std")}


_NORMS = (
    "preactivation",
    "groups",
    "group_norm_epsilon",
    "std_conv_epsilon",
    "std_conv_mode",
)


def resnet_blocks(x, block_counts, width, *, prefix="", dtype=None, **norms):
    """Root block and residual blocks.

    Args:
        x: `(batch, height, width, channels)`.
        block_counts: units in each block; `()` for the root alone.
        width: channels after the root, and of the first block's bottleneck.
        prefix: put before the layers' names.
        dtype: dtype policy of the layers.
        **norms: `preactivation` and the epsilons of `layers.BottleneckUnit`.

    Returns:
        `(batch, ceil(height / s), ceil(width / s), channels)`; `s` is 4 for the root and first
        block, twice that for each block after it.
    """
    x = layers.RootBlock(width, dtype=dtype, name=f"{prefix}root", **norms)(x)
    for block, units in enumerate(block_counts):
        for unit in range(units):
            x = layers.BottleneckUnit(
                width * 2**block,
                strides=2 if block > 0 and unit == 0 else 1,
                project=unit == 0,
                dtype=dtype,
                name=f"{prefix}block{block + 1}_unit{unit + 1}",
                **norms,
            )(x)
    return x


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTResNet(base.FlatModel):
    """A BiT ResNet classifier: GroupNorm, weight standardisation, no BatchNorm.

    Input `images`: `(batch, height, width, channels)`, pixels 0..255, uint8 or float. Output
    `logits`: `(batch, num_classes)`, float32. Comes compiled, as `VisionTransformer` does.

    Args:
        image_shape: `(height, width, channels)`.
        block_counts: units in each block, such as `(3, 4, 6, 3)` for R50.
        width_factor: multiplies all widths; the root has `64 * width_factor` channels, which
            must come out whole.
        num_classes: classes; `None` leaves the head off.
        preactivation: `True` for the published BiT (V2), `False` for V1, as in the hybrids.
        pooling: `"gap"`, or `None` for the feature map (needs `num_classes=None`).
        classifier_activation: `None` for logits, `"softmax"` or `"sigmoid"`.
        groups: groups of the GroupNorms.
        group_norm_epsilon: their epsilon; `None`: 1e-5 (V2), 1e-6 (V1).
        std_conv_epsilon: of the weight standardisation; `None`: 1e-10 (V2), 1e-5 (V1).
        std_conv_mode: `"std"` or `"variance"`; `None`: `"variance"` (V2), `"std"` (V1).
        include_rescaling: whether the model maps pixels 0..255 to its range itself.
        pixel_range: `"inception"`, `"imagenet"`, `"clip"` or `"unit"`.
        dtype: dtype or dtype policy of the layers; logits are float32 always.
        name: name of the model.

    Raises:
        ValueError: before any weight is made, naming the argument, what was expected and what
            came.

    Reference:
        arXiv 1912.11370; big_vision `models/bit_paper.py` (V2) and `models/bit.py` (V1).
    """

    def __init__(
        self,
        *,
        image_shape=(224, 224, 3),
        block_counts=(3, 4, 6, 3),
        width_factor=1,
        num_classes=1000,
        preactivation=True,
        pooling="gap",
        classifier_activation=None,
        groups=32,
        group_norm_epsilon=None,
        std_conv_epsilon=None,
        std_conv_mode=None,
        include_rescaling=True,
        pixel_range="inception",
        dtype=None,
        name=None,
    ):
        arguments = dict(locals())
        for key in ("self", "dtype", "name", "__class__"):
            arguments.pop(key, None)
        config = resolve(arguments)
        norms = {key: config[key] for key in _NORMS}
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        images = x = keras.Input(shape=config["image_shape"], name="images")
        if include_rescaling:
            x = layers.PixelScaling(pixel_range, dtype=policy, name="rescaling")(x)
        width = int(64 * config["width_factor"])
        x = resnet_blocks(x, config["block_counts"], width, dtype=policy, **norms)
        if preactivation:
            x = keras.layers.GroupNormalization(
                groups=norms["groups"],
                epsilon=norms["group_norm_epsilon"],
                dtype=policy,
                name="final_norm",
            )(x)
            x = keras.layers.Activation("relu", dtype=policy, name="final_activation")(x)
        if pooling == "gap":
            x = keras.layers.GlobalAveragePooling2D(
                data_format="channels_last", dtype=policy, name="pooling"
            )(x)
        outputs = base.head(x, config["num_classes"], classifier_activation)
        super().__init__(images, outputs, config, policy, name)


def resolve(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config in its normal form.

    Args:
        config: all arguments of `BiTResNet` but `dtype` and `name`.

    Returns:
        The same keys: tuples where lists came, defaults of the generation filled in.

    Raises:
        ValueError: naming the argument, what was expected and what came.
    """
    shared = base.check_shared(
        **{key: config[key] for key in ("image_shape", "num_classes", "classifier_activation")},
        **{key: config[key] for key in ("include_rescaling", "pixel_range")},
    )
    norms = _resolve_norms(**{key: config[key] for key in _NORMS})
    _root_width(config["width_factor"], norms["groups"])
    _checks.choice("pooling", config["pooling"], ("gap", None))
    if config["pooling"] is None and config["num_classes"] is not None:
        raise ValueError(
            "A head needs pooled features: choose pooling='gap', or num_classes=None. "
            f"Received: pooling=None, num_classes={config['num_classes']}"
        )
    counts = _checks.int_tuple("block_counts", config["block_counts"])
    return {**config, **shared, **norms, "block_counts": counts}


def _resolve_norms(preactivation, groups, group_norm_epsilon, std_conv_epsilon, std_conv_mode):
    _checks.boolean("preactivation", preactivation)
    given = (group_norm_epsilon, std_conv_epsilon, std_conv_mode)
    group_norm_epsilon, std_conv_epsilon, std_conv_mode = (
        default if value is None else value
        for value, default in zip(given, NORM_DEFAULTS[preactivation], strict=True)
    )
    return {
        "preactivation": preactivation,
        "groups": _checks.positive_int("groups", groups),
        "group_norm_epsilon": _checks.positive_float("group_norm_epsilon", group_norm_epsilon),
        "std_conv_epsilon": _checks.positive_float("std_conv_epsilon", std_conv_epsilon),
        "std_conv_mode": _checks.choice("std_conv_mode", std_conv_mode, STD_CONV_MODES),
    }


def _root_width(width_factor, groups) -> None:
    width = 64 * _checks.positive_float("width_factor", width_factor)
    if width != int(width) or int(width) % groups:
        raise ValueError(
            f"64 * `width_factor` must be a whole multiple of groups={groups}. "
            f"Received: width_factor={width_factor!r}"
        )
