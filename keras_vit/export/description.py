"""What an artifact says of itself."""

from __future__ import annotations

import json
from importlib import import_module

from keras_vit.export.preparation import Serving


def describe(serving: Serving) -> dict[str, str]:
    """What an artifact says of itself, by the keys of ONNX' metadata and OpenVINO's `rt_info`."""
    height, width, channels = serving.image_shape
    pixels = "0..255" if serving.pixels else "scaled by the caller"
    found = {
        "producer": "keras_vit",
        "producer_version": import_module("keras_vit").__version__,
        "image_size": json.dumps([height, width]),
        "channels": "RGB" if channels == 3 else str(channels),
        "layout": "NHWC",
        "pixel_range": pixels,
    }
    if serving.num_classes is not None:
        found["num_classes"] = str(serving.num_classes)
        found["probabilities"] = serving.probabilities
    if serving.class_names is not None:
        found["class_names"] = json.dumps(list(serving.class_names), ensure_ascii=False)
    return found
