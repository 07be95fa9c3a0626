"""Requests that TF Serving makes to itself before it takes others'."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit import _deps
from keras_vit.export.preparation import Serving

PACKAGE = "tensorflow_serving"
REQUESTS = "tf_serving_warmup_requests"


def available() -> bool:
    """Whether the package that describes requests is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def write_requests(folder: Path, name: str, signatures: Sequence[str], serving: Serving) -> None:
    """Writes a request of one grey image for each signature.

    Args:
        folder: the SavedModel's `assets.extra`.
        name: of the model on the server.
        signatures: their names.
        serving: of the model.
    """
    import tensorflow as tf

    apis = "tensorflow_serving.apis"
    predict, log = (
        _deps.optional(f"{apis}.{module}", "export", "Writing warm-up requests")
        for module in ("predict_pb2", "prediction_log_pb2")
    )
    with tf.io.TFRecordWriter(str(folder / REQUESTS)) as writer:
        for signature in signatures:
            request = predict.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = signature
            key, value = _example(signature, serving)
            request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
            record = log.PredictionLog(predict_log=log.PredictLog(request=request))
            writer.write(record.SerializeToString())


def _example(signature: str, serving: Serving) -> tuple[str, Any]:
    import tensorflow as tf

    image = tf.fill(serving.image_shape, tf.constant(127, tf.uint8))
    if signature == "serve_bytes":
        return "image_bytes", [tf.io.encode_png(image).numpy()]
    dtype = tf.uint8 if signature == "serve_uint8" else tf.float32
    return "images", tf.cast(image[None], dtype).numpy()
