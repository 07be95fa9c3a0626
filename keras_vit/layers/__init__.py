"""Layers of Vision Transformers and BiT ResNets, all serialisable under `keras_vit`."""

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.bottleneck import BottleneckUnit, RootBlock
from keras_vit.layers.dense import Dense
from keras_vit.layers.mlp import MLP
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.patches import Patches
from keras_vit.layers.pixel_scaling import PixelScaling
from keras_vit.layers.pooling import (
    AttentionPooling,
    PatchAveragePooling,
    TokenAveragePooling,
    TokenPooling,
)
from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.layers.regularization import DropPath, LayerScale, PatchDropout
from keras_vit.layers.relative_position import RelativePosition
from keras_vit.layers.std_conv import StdConv2D
from keras_vit.layers.transformer_block import TransformerBlock

__all__ = [
    "MLP",
    "AttentionPooling",
    "BottleneckUnit",
    "Dense",
    "DropPath",
    "LayerScale",
    "MultiHeadSelfAttention",
    "PatchAveragePooling",
    "PatchDropout",
    "PatchEncoder",
    "Patches",
    "PixelScaling",
    "PositionEmbedding",
    "RelativePosition",
    "RootBlock",
    "StdConv2D",
    "TokenAveragePooling",
    "TokenPooling",
    "TransformerBlock",
]
