"""Model classes, building by name, surgery and loading; `applications` has a function a variant."""

from keras_vit.models.applications import create_model
from keras_vit.models.loading import load_model
from keras_vit.models.resnet import BiTResNet
from keras_vit.models.surgery import replace_head, resize
from keras_vit.models.vit import VisionTransformer

__all__ = [
    "BiTResNet",
    "VisionTransformer",
    "create_model",
    "load_model",
    "replace_head",
    "resize",
]
