"""Labelled pictures as batches for training and evaluation: tf.data, whatever the backend.

What reads single pictures needs Pillow alone, so each name is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_vit.data.arrays import ArraySource
    from keras_vit.data.checks import check_pixels
    from keras_vit.data.decoding import BadPicture, decode
    from keras_vit.data.folder import FileSource
    from keras_vit.data.pipelines import Pipeline, pipeline
    from keras_vit.data.reading import decode_image, read_images, throughput
    from keras_vit.data.records import RecordSource, write_tfrecords
    from keras_vit.data.source import Source, Subset, split_source
    from keras_vit.data.sources import open_source, open_splits
    from keras_vit.data.transforms import Preparation

# Module -> what of it is public.
_HOMES = {
    "arrays": ("ArraySource",),
    "checks": ("check_pixels",),
    "decoding": ("BadPicture", "decode"),
    "folder": ("FileSource",),
    "pipelines": ("Pipeline", "pipeline"),
    "reading": ("decode_image", "read_images", "throughput"),
    "records": ("RecordSource", "write_tfrecords"),
    "source": ("Source", "Subset", "split_source"),
    "sources": ("open_source", "open_splits"),
    "transforms": ("Preparation",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ArraySource",
    "BadPicture",
    "FileSource",
    "Pipeline",
    "Preparation",
    "RecordSource",
    "Source",
    "Subset",
    "check_pixels",
    "decode",
    "decode_image",
    "open_source",
    "open_splits",
    "pipeline",
    "read_images",
    "split_source",
    "throughput",
    "write_tfrecords",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
