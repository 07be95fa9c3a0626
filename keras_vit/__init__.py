"""Vision Transformers for Keras 3, on TensorFlow, JAX and PyTorch."""

from keras_vit import _deps

_deps.select_backend()

from importlib import import_module  # noqa: E402

from keras_vit import layers, models  # noqa: E402
from keras_vit.counts import count_flops, count_params  # noqa: E402
from keras_vit.models import *  # noqa: E402, F403
from keras_vit.models import __all__ as _models  # noqa: E402
from keras_vit.variants import list_variants  # noqa: E402

__version__ = "0.1.0"

# Imported when first touched: they bring packages that a mere model does not need.
_LAZY = ("checkpoints", "inspection")

__all__ = [
    "__version__",
    "count_flops",
    "count_params",
    "layers",
    "list_variants",
    "models",
    *_LAZY,
    *_models,
]


def __getattr__(name):
    if name in _LAZY:
        return import_module(f"keras_vit.{name}")
    raise AttributeError(f"module 'keras_vit' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
