"""Vision Transformers for Keras 3, on TensorFlow, JAX and PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING

from keras_vit import _deps

# The command line loads what a command needs, after it has read its arguments.
if not _deps.runs_command():
    _deps.select_backend()
    from keras_vit import layers, models, training
    from keras_vit.counts import count_flops, count_params
    from keras_vit.models import (
        BiTResNet,
        VisionTransformer,
        convert_checkpoint,
        create_model,
        decode_predictions,
        from_checkpoint,
        list_pretrained,
        load_model,
        replace_head,
        resize,
        to_checkpoint,
    )
    from keras_vit.models.applications import (
        BiTR50x1,
        BiTR50x2,
        BiTR50x3,
        BiTR101x1,
        BiTR101x3,
        BiTR152x1,
        BiTR152x2,
        BiTR152x4,
        BiTR200x3,
        R26ViTB32,
        R26ViTS32,
        R50ViTB16,
        R50ViTB32,
        R50ViTL16,
        R50ViTL32,
        RViTTi16,
        ViTB8,
        ViTB16,
        ViTB32,
        ViTG14,
        ViTg14,
        ViTH14,
        ViTL14,
        ViTL16,
        ViTL32,
        ViTS16,
        ViTS32,
        ViTTi16,
    )
    from keras_vit.variants import list_variants

if TYPE_CHECKING:
    from keras_vit import checkpoints, data, evaluation, export, inspection

__version__ = "0.1.0"

# Imported when first touched: they bring packages that a mere model does not need.
_LAZY = ("checkpoints", "data", "evaluation", "export", "inspection")

__all__ = [
    "BiTR50x1",
    "BiTR50x2",
    "BiTR50x3",
    "BiTR101x1",
    "BiTR101x3",
    "BiTR152x1",
    "BiTR152x2",
    "BiTR152x4",
    "BiTR200x3",
    "BiTResNet",
    "R26ViTB32",
    "R26ViTS32",
    "R50ViTB16",
    "R50ViTB32",
    "R50ViTL16",
    "R50ViTL32",
    "RViTTi16",
    "ViTB8",
    "ViTB16",
    "ViTB32",
    "ViTG14",
    "ViTH14",
    "ViTL14",
    "ViTL16",
    "ViTL32",
    "ViTS16",
    "ViTS32",
    "ViTTi16",
    "ViTg14",
    "VisionTransformer",
    "convert_checkpoint",
    "create_model",
    "decode_predictions",
    "from_checkpoint",
    "load_model",
    "replace_head",
    "resize",
    "to_checkpoint",
    "__version__",
    "checkpoints",
    "count_flops",
    "count_params",
    "data",
    "evaluation",
    "export",
    "inspection",
    "layers",
    "list_pretrained",
    "list_variants",
    "models",
    "training",
]


def __getattr__(name):
    if name in _LAZY:
        return import_module(f"keras_vit.{name}")
    raise AttributeError(f"module 'keras_vit' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
