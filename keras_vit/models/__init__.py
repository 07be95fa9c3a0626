"""Model classes, building by name, surgery and loading; `applications` has a function a variant."""

from keras_vit.checkpoints.pretrained import list_pretrained
from keras_vit.models.applications import create_model
from keras_vit.models.checkpoints import (
    convert_checkpoint,
    from_checkpoint,
    to_checkpoint,
)
from keras_vit.models.class_names import decode_predictions
from keras_vit.models.loading import load_model
from keras_vit.models.resnet import BiTResNet
from keras_vit.models.surgery import replace_head, resize
from keras_vit.models.vit import VisionTransformer

__all__ = [
    "BiTResNet",
    "VisionTransformer",
    "convert_checkpoint",
    "create_model",
    "decode_predictions",
    "from_checkpoint",
    "list_pretrained",
    "load_model",
    "replace_head",
    "resize",
    "to_checkpoint",
]
