"""Labelled pictures as batches for training and evaluation: tf.data, whatever the backend."""

from keras_vit import _deps

_deps.optional("tensorflow", "data", "keras_vit.data")


def _leave_accelerators() -> None:
    """Keeps TensorFlow off the GPU where another backend needs it."""
    import keras
    import tensorflow as tf

    if keras.backend.backend() != "tensorflow":
        try:
            tf.config.set_visible_devices([], "GPU")
        except (RuntimeError, ValueError):
            return  # TensorFlow already runs, as its user has set it up


_leave_accelerators()

from keras_vit.data.arrays import ArraySource  # noqa: E402
from keras_vit.data.checks import check_pixels  # noqa: E402
from keras_vit.data.decoding import BadPicture, decode  # noqa: E402
from keras_vit.data.folder import FileSource  # noqa: E402
from keras_vit.data.pipeline import Pipeline, pipeline  # noqa: E402
from keras_vit.data.reading import read_images, throughput  # noqa: E402
from keras_vit.data.records import RecordSource, write_tfrecords  # noqa: E402
from keras_vit.data.source import Source, Subset, split_source  # noqa: E402
from keras_vit.data.sources import open_source, open_splits  # noqa: E402
from keras_vit.data.transforms import Preparation  # noqa: E402

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
    "open_source",
    "open_splits",
    "pipeline",
    "read_images",
    "split_source",
    "throughput",
    "write_tfrecords",
]
