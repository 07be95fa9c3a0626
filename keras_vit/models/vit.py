"""The Vision Transformer, plain or on a ResNet stem."""

from __future__ import annotations

import keras

from keras_vit import layers
from keras_vit.models import base, vit_config
from keras_vit.models.resnet import resnet_blocks


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(base.FlatModel):
    """A Vision Transformer (ViT), or a hybrid with a ResNet stem, as a functional Keras model.

    Input `images`: `(batch, height, width, channels)`, pixels 0..255, uint8 or float. Output
    `logits`: `(batch, num_classes)`, float32. The model comes compiled (AdamW, cross-entropy on
    integer labels, accuracy), so `fit` works at once; your own `compile` replaces that.

    Args:
        image_shape: `(height, width, channels)`; `patch_size` must divide it, unless there is a
            stem.
        patch_size: int or `(height, width)`, in pixels, or in cells of the stem's feature map.
        hidden_dim: width of a token.
        num_layers: Transformer blocks.
        num_heads: attention heads; must divide `hidden_dim`.
        mlp_dim: width of the MLPs after the activation.
        num_classes: classes; `None` leaves the head off and gives features.
        pooling: `"token"` (class token), `"gap"` (mean of the patch tokens), `"mean"` (mean of
            all tokens, as KerasHub's "gap"), `"token_gap"` (class token and mean of the patch
            tokens side by side, `2 * hidden_dim` wide, as DINOv2's classifiers), `"map"`
            (attention pooling) or `None` (all tokens, `(batch, tokens, hidden_dim)`; needs
            `num_classes=None`).
        distillation: `None`; `"token"` (DeiT's distillation token follows the class token, which
            alone is classified) or `"head"` (a second head reads that token; logits are the mean
            of both heads', features without a head the mean of both tokens).
        representation_size: width of a Dense-tanh layer before the head, as in the paper's
            ImageNet-21k models; `None` for none.
        classifier_activation: `None` for logits, `"softmax"` or `"sigmoid"`.
        head_bias: whether the head has a bias; CLIP's projection has none.
        stem: `None`, or a dict that describes a hybrid's ResNet: `block_counts` (`()` for the
            root block alone), `width` (64), `groups` (32), `group_norm_epsilon` (1e-6),
            `std_conv_epsilon` (1e-5), `std_conv_mode` (`"std"` or `"variance"`).
        position_embedding: `"learned"` (over the sequence), `"learned_2d"`, `"sincos2d"`,
            `"relative"` (through attention) or `"none"`.
        position_placement: `"stem"`, `"every_layer"` (a table each) or `"shared"` (one table,
            added at every layer).
        class_token: whether there is one; `None`: as pooling and distillation need.
        class_token_position: whether class and distillation token have position entries.
        num_registers: register tokens after the class and distillation token.
        activation: `"gelu_tanh"` (Google), `"gelu"` (erf), `"quick_gelu"` or `"swiglu"`.
        norm_epsilon: epsilon of all LayerNorms.
        qkv_bias: whether queries, keys and values have biases.
        qk_norm: whether queries and keys are normalised.
        pre_norm: CLIP's layout: a LayerNorm before the first block, no bias in the projection.
        norm_after_pooling: whether the final LayerNorm follows the pooling.
        layer_scale_init: initial LayerScale; `None` for none.
        dropout_rate: dropout of embeddings, attention outputs and MLPs.
        attention_dropout_rate: dropout of attention probabilities.
        drop_path_rate: stochastic depth of the last block; grows linearly from 0 at the first.
        patch_dropout_rate: part of the patches left out in training.
        remat: whether each block is computed again in the backward pass, to save memory.
        include_rescaling: whether the model maps pixels 0..255 to its range itself. Without it,
            inputs must be scaled already.
        pixel_range: `"inception"` ([-1, 1]), `"imagenet"`, `"clip"` or `"unit"`.
        dtype: dtype or dtype policy of the layers, such as `"mixed_bfloat16"`; `None` for Keras'
            global one. Logits are float32 always.
        name: name of the model.

    Raises:
        ValueError: before any weight is made, naming the argument, what was expected and what
            came.

    Example:
        ```python
        model = VisionTransformer(image_shape=(48, 80, 3), patch_size=8, hidden_dim=64,
                                  num_layers=4, num_heads=4, mlp_dim=128, num_classes=10)
        model.fit(images, labels)
        ```

    Reference:
        arXiv 2010.11929.
    """

    def __init__(
        self,
        *,
        image_shape=(224, 224, 3),
        patch_size=16,
        hidden_dim=768,
        num_layers=12,
        num_heads=12,
        mlp_dim=3072,
        num_classes=1000,
        pooling="token",
        distillation=None,
        representation_size=None,
        classifier_activation=None,
        head_bias=True,
        stem=None,
        position_embedding="learned",
        position_placement="stem",
        class_token=None,
        class_token_position=True,
        num_registers=0,
        activation="gelu_tanh",
        norm_epsilon=1e-6,
        qkv_bias=True,
        qk_norm=False,
        pre_norm=False,
        norm_after_pooling=False,
        layer_scale_init=None,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.0,
        patch_dropout_rate=0.0,
        remat=False,
        include_rescaling=True,
        pixel_range="inception",
        dtype=None,
        name=None,
    ):
        arguments = dict(locals())
        for key in ("self", "dtype", "name", "__class__"):
            arguments.pop(key, None)
        config = vit_config.resolve(arguments)
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        images = keras.Input(shape=config["image_shape"], name="images")
        x = _embed(images, config, policy)
        x = _encode(x, config, policy)
        distilled = None
        if config["distillation"] == "head":
            distilled = layers.TokenPooling(1, dtype=policy, name="distillation_pooling")(x)
        x = _pool(x, config, policy)
        outputs = base.head(
            x,
            config["num_classes"],
            config["classifier_activation"],
            use_bias=config["head_bias"],
            distilled=distilled,
        )
        super().__init__(images, outputs, config, policy, name)

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Patches along height and width."""
        return vit_config.grid_shape(dict(self._flat_config))

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: class token, distillation token and registers."""
        return _prefix(self._flat_config)

    @property
    def encoder_blocks(self) -> list[layers.TransformerBlock]:
        """The Transformer blocks, first to last."""
        count = self._flat_config["num_layers"]
        return [self.get_layer(f"encoder_block_{index}") for index in range(count)]


def _prefix(config) -> int:
    distilled = config["distillation"] is not None
    return int(config["class_token"]) + int(distilled) + config["num_registers"]


def _embed(images, config, policy):
    """From images to tokens: scaling, stem, patches, projection, prefix, positions."""
    x = images
    if config["include_rescaling"]:
        x = layers.PixelScaling(config["pixel_range"], dtype=policy, name="rescaling")(x)
    if config["stem"] is not None:
        norms = {k: v for k, v in config["stem"].items() if k not in ("block_counts", "width")}
        counts, width = config["stem"]["block_counts"], config["stem"]["width"]
        x = resnet_blocks(x, counts, width, prefix="stem_", dtype=policy, **norms)
    grid = vit_config.grid_shape(config)
    surplus = [
        side - cells * patch
        for side, cells, patch in zip(x.shape[1:3], grid, config["patch_size"], strict=True)
    ]
    if any(surplus):
        margins = ((0, surplus[0]), (0, surplus[1]))
        x = keras.layers.Cropping2D(
            margins, data_format="channels_last", dtype=policy, name="stem_crop"
        )(x)
    x = layers.Patches(config["patch_size"], dtype=policy, name="patches")(x)
    kind, at_stem = config["position_embedding"], config["position_placement"] == "stem"
    x = layers.PatchEncoder(
        config["hidden_dim"],
        grid_shape=grid,
        position_embedding="none" if kind == "relative" or not at_stem else kind,
        class_token=config["class_token"],
        class_token_position=config["class_token_position"],
        distillation_token=config["distillation"] is not None,
        num_registers=config["num_registers"],
        use_bias=not config["pre_norm"],
        dropout_rate=config["dropout_rate"],
        dtype=policy,
        name="patch_encoder",
    )(x)
    if config["patch_dropout_rate"]:
        x = layers.PatchDropout(
            config["patch_dropout_rate"], _prefix(config), dtype=policy, name="patch_dropout"
        )(x)
    return _norm(x, config, policy, "pre_norm") if config["pre_norm"] else x


def _encode(x, config, policy):
    """The Transformer blocks, with positions before each where the config says so."""
    count, shared = config["num_layers"], None
    for index in range(count):
        if config["position_placement"] == "every_layer":
            x = _positions(config, policy, f"position_embedding_{index}")(x)
        elif config["position_placement"] == "shared":
            shared = shared or _positions(config, policy, "position_embedding")
            x = shared(x)
        x = layers.TransformerBlock(
            config["num_heads"],
            config["mlp_dim"],
            activation=config["activation"],
            dropout_rate=config["dropout_rate"],
            attention_dropout_rate=config["attention_dropout_rate"],
            drop_path_rate=config["drop_path_rate"] * index / max(count - 1, 1),
            layer_scale_init=config["layer_scale_init"],
            norm_epsilon=config["norm_epsilon"],
            qkv_bias=config["qkv_bias"],
            qk_norm=config["qk_norm"],
            relative_position=config["position_embedding"] == "relative",
            num_prefix_tokens=_prefix(config),
            remat=config["remat"],
            dtype=policy,
            name=f"encoder_block_{index}",
        )(x)
    return x if config["norm_after_pooling"] else _norm(x, config, policy, "encoder_norm")


def _positions(config, policy, name):
    return layers.PositionEmbedding(
        config["position_embedding"],
        grid_shape=vit_config.grid_shape(config),
        num_prefix_tokens=_prefix(config),
        class_token_position=config["class_token"] and config["class_token_position"],
        distillation_token=config["distillation"] is not None,
        dtype=policy,
        name=name,
    )


def _norm(x, config, policy, name):
    return keras.layers.LayerNormalization(epsilon=config["norm_epsilon"], dtype=policy, name=name)(
        x
    )


def _pool(x, config, policy):
    """From tokens to the features that the head reads."""
    if config["pooling"] == "token":
        x = layers.TokenPooling(dtype=policy, name="pooling")(x)
    elif config["pooling"] in ("gap", "mean"):
        left_out = _prefix(config) if config["pooling"] == "gap" else 0
        x = layers.PatchAveragePooling(left_out, dtype=policy, name="pooling")(x)
    elif config["pooling"] == "token_gap":
        x = layers.TokenAveragePooling(_prefix(config), dtype=policy, name="pooling")(x)
    elif config["pooling"] == "map":
        x = layers.AttentionPooling(
            config["num_heads"],
            config["mlp_dim"],
            activation=config["activation"],
            norm_epsilon=config["norm_epsilon"],
            dtype=policy,
            name="pooling",
        )(x)
    if config["norm_after_pooling"]:
        x = _norm(x, config, policy, "pooled_norm")
    if config["representation_size"] is not None:
        x = layers.Dense(
            config["representation_size"],
            activation="tanh",
            kernel_initializer="lecun_normal",
            dtype=policy,
            name="pre_logits",
        )(x)
    return x
