"""OpenVINO's own files (`.xml` and `.bin`), from the ONNX graph.

OpenVINO reads the SavedModel too, but runs the ONNX graph of hybrids and ResNets in half the time:
there normalisations are single operators, with channels first as its convolutions.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import keras

from keras_vit import _checks, _deps
from keras_vit.export import onnx
from keras_vit.export.description import describe
from keras_vit.export.folders import staged, target
from keras_vit.export.isolation import under_tensorflow
from keras_vit.export.preparation import Serving, serving_of

_TASK = "keras_vit.export.openvino:convert"
_PURPOSE = "Writing OpenVINO's files"
# Under this key of `rt_info` OpenVINO's tools look for what a model says of itself.
_INFO = "model_info"
_TELEMETRY = "openvino_telemetry"


def to_openvino(
    model: keras.Model,
    path: Any,
    *,
    compress_to_fp16: bool = False,
    batch_size: int | None = None,
    class_names: Sequence[str] | None = None,
    probabilities: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a model as OpenVINO's `.xml` (graph) and `.bin` (weights), both or neither.

    Input `images`: `(batch, height, width, channels)` float32, pixels 0..255 (unless the model
    has no rescaling). Outputs `logits` and `probabilities`, `(batch, classes)` float32; `features`
    for a model without a head. What ONNX metadata hold stands in `rt_info`, under `model_info`.

    OpenVINO computes in a half precision where the processor has one; for the float32 result
    compile with `{"INFERENCE_PRECISION_HINT": "f32"}`. Nothing is sent to OpenVINO's telemetry.

    Args:
        model: a model on any backend, in any precision.
        path: the file, ending in `.xml`; the other has the same name and ends in `.bin`.
        compress_to_fp16: whether weights are stored as float16, in half the size.
        batch_size: the only size of batches; `None`: any.
        class_names: names in the order of the classes; `None`: those of the checkpoint that the
            model came from, if it had any.
        probabilities: `"softmax"` or `"sigmoid"`; `None`: as the model's classifier.
        overwrite: whether existing files are replaced.

    Returns:
        The path of the `.xml`.

    Raises:
        ValueError: if an argument does not fit, or the model cannot be exported.
        FileExistsError: if the file exists and `overwrite` is False.
        ImportError: if openvino, onnx, tf2onnx or TensorFlow is not installed.
    """
    _checks.boolean("compress_to_fp16", compress_to_fp16)
    if batch_size is not None:
        _checks.positive_int("batch_size", batch_size)
    place = target(path, ".xml", overwrite)
    serving = serving_of(model, class_names, probabilities)
    for module in ("openvino", "onnx", "tf2onnx"):
        _deps.require(module, "openvino", _PURPOSE)
    with staged(place, overwrite, (f"{place.stem}.bin",)) as partial:
        under_tensorflow(
            model,
            _TASK,
            serving,
            path=str(partial),
            compress_to_fp16=compress_to_fp16,
            batch_size=batch_size,
        )
    return place


def convert(
    model: keras.Model,
    serving: Serving,
    *,
    path: str,
    compress_to_fp16: bool = False,
    batch_size: int | None = None,
) -> None:
    """Writes a model as OpenVINO's files, where Keras runs on TensorFlow; as `onnx.convert`.

    Args:
        model: see `preparation.exportable`.
        serving: of the model.
        path: the `.xml` to write.
        compress_to_fp16: see `to_openvino`.
        batch_size: see `to_openvino`.
    """
    openvino = without_telemetry()
    with tempfile.TemporaryDirectory(prefix="keras-vit-openvino-") as folder:
        between = str(Path(folder) / "graph.onnx")
        onnx.convert(model, serving, path=between, batch_size=batch_size)
        network = openvino.Core().read_model(between)
        network.set_friendly_name("keras_vit")
        for key, value in describe(serving).items():
            network.set_rt_info(value, [_INFO, key])
        openvino.save_model(network, path, compress_to_fp16=compress_to_fp16)


def without_telemetry() -> ModuleType:
    """OpenVINO, imported so that it finds its telemetry package missing, and does without.

    Where it is imported already, that has happened; reading and writing models sends nothing.
    """
    if "openvino" in sys.modules:
        return sys.modules["openvino"]
    before = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # has its import fail
    try:
        return _deps.optional("openvino", "openvino", _PURPOSE)
    finally:
        del sys.modules[_TELEMETRY]
        if before is not None:
            sys.modules[_TELEMETRY] = before
