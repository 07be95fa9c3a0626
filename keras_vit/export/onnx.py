"""ONNX files, by tf2onnx from the plain SavedModel."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np

from keras_vit import _checks, _deps
from keras_vit.export.description import describe
from keras_vit.export.isolation import with_graph
from keras_vit.export.onnx_rewriting import REWRITERS
from keras_vit.export.placing import placing, target
from keras_vit.export.preparation import serving_of

# tf2onnx 1.17 writes up to 18; below 13 its operators differ from those that are tested.
OPSETS = range(13, 19)
# The newest brings LayerNormalization (17) and is read by onnxruntime since 1.14 and by OpenVINO.
OPSET = 18
# The IR version of each opset; older runtimes refuse a newer one.
_IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8}
# A protocol buffer ends at 2 GiB; weights of larger models lie in a file of their own.
EXTERNAL_ABOVE = 1_900_000_000
_EXTERNAL_TENSOR = 1024  # bytes of the smallest tensor that goes there

_TASK = "keras_vit.export.onnx:convert"


def to_onnx(
    model: keras.Model,
    path: Any,
    *,
    opset: int = OPSET,
    batch_size: int | None = None,
    class_names: Sequence[str] | None = None,
    probabilities: str | None = None,
    overwrite: bool = False,
    external_above: int = EXTERNAL_ABOVE,
) -> Path:
    """Writes a model as ONNX, float32, for onnxruntime, OpenVINO, TensorRT and others.

    Input `images`: `(batch, height, width, channels)` float32, pixels 0..255 (unless the model
    has no rescaling). Outputs `logits` and `probabilities`, `(batch, classes)` float32; `features`
    for a model without a head. The file's metadata have `class_names` (JSON), `image_size`,
    `pixel_range` and `probabilities`.

    Args:
        model: a model on any backend, in any precision; float32 weights are written.
        path: the file, ending in `.onnx`. Weights of models above 2 GB lie beside it, in
            `<name>.onnx.data`, which moves with it.
        opset: of ONNX' operators, 13 to 18. From 17 LayerNormalization is one operator.
        batch_size: the only size of batches; `None`: any, the dimension is named `batch`.
        class_names: names in the order of the classes; `None`: those of the checkpoint that the
            model came from, if it had any.
        probabilities: `"softmax"` or `"sigmoid"`; `None`: as the model's classifier.
        overwrite: whether an existing file is replaced.
        external_above: bytes of weights above which they get a file of their own.

    Returns:
        The path of the file.

    Raises:
        ValueError: if an argument does not fit, or the model cannot be exported.
        FileExistsError: if the file exists and `overwrite` is False.
        ImportError: if onnx, tf2onnx or TensorFlow is not installed.
    """
    if isinstance(opset, bool) or opset not in OPSETS:
        raise ValueError(
            f"`opset` must lie between {OPSETS[0]} and {OPSETS[-1]}: tf2onnx writes no newer one, "
            f"and older ones lack operators. Received: opset={opset!r}"
        )
    if batch_size is not None:
        _checks.positive_int("batch_size", batch_size)
    _checks.non_negative_int("external_above", external_above)
    place = target(path, ".onnx", overwrite)
    serving = serving_of(model, class_names, probabilities)
    for module in ("onnx", "tf2onnx"):
        _deps.require(module, "onnx", "Writing ONNX")
    with placing(place, (".onnx.data",)) as folder:
        with_graph(
            model,
            _TASK,
            serving,
            batch_size=batch_size,
            path=str(folder / place.name),
            opset=int(opset),
            metadata=describe(serving),
            external_above=external_above,
        )
    return place


def convert(
    graph: Path, *, path: str, opset: int, metadata: dict[str, str], external_above: int
) -> dict[str, Any]:
    """Writes a plain SavedModel as ONNX; called by `isolation.with_graph`.

    Args:
        graph: directory of the SavedModel, of the signature `serving_default` alone.
        path: the file to write.
        opset: see `to_onnx`.
        metadata: of the file, see `describe`.
        external_above: see `to_onnx`.

    Returns:
        `opset`, `external` (whether weights lie beside the file) and `operators` (how many).

    Raises:
        ValueError: if tf2onnx leaves operators of TensorFlow's, or onnx' checker finds a fault.
    """
    onnx = _deps.optional("onnx", "onnx", "Writing ONNX")
    import tensorflow as tf

    loaded = tf.saved_model.load(str(graph))
    signature = loaded.signatures["serving_default"]
    # Variables are float32, the artifact's only large part.
    size = sum(4 * int(np.prod(variable.shape)) for variable in signature.variables)
    external = size > external_above
    proto = _by_tf2onnx(signature, opset, external)
    _dress(onnx, proto, opset, metadata)
    if external:
        options = {"all_tensors_to_one_file": True, "location": f"{Path(path).name}.data"}
        options["size_threshold"] = _EXTERNAL_TENSOR
        onnx.save_model(proto, path, save_as_external_data=True, **options)
    else:
        onnx.save_model(proto, path)
    try:
        onnx.checker.check_model(path, full_check=True)
    except onnx.checker.ValidationError as error:
        raise ValueError(f"The model cannot be written as ONNX {opset}: {error}") from error
    return {"opset": opset, "external": external, "operators": len(proto.graph.node)}


def _by_tf2onnx(signature, opset: int, external: bool):
    import tensorflow as tf

    tf2onnx = _deps.optional("tf2onnx", "onnx", "Writing ONNX")
    images = signature.structured_input_signature[1]["images"]
    serve = tf.function(lambda images: signature(images=images), input_signature=[images])
    # tf2onnx 1.17 calls `np.product`, which NumPy 2 has not, for large models.
    with mock.patch.object(np, "product", np.prod, create=True), _quiet() as complaints:
        proto, weights = tf2onnx.convert.from_function(
            serve,
            [images],
            opset=opset,
            custom_rewriter=list(REWRITERS),
            large_model=external,
        )
    strange = sorted(
        {node.op_type for node in proto.graph.node if node.domain.startswith("ai.onnx.")}
    )
    if complaints or strange:
        raise ValueError(
            f"The model cannot be written as ONNX {opset}: {'; '.join(complaints + strange)}"
        )
    if external:
        _fill(proto, weights.name_to_tensor_data)
    return proto


def _fill(proto, weights: dict[str, bytes]) -> None:
    """Puts weights that tf2onnx holds apart into the model, which is serialised without them."""
    from onnx import TensorProto

    for tensor in proto.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            (name,) = [entry.value for entry in tensor.external_data if entry.key == "location"]
            del tensor.external_data[:]
            tensor.data_location = TensorProto.DEFAULT
            tensor.raw_data = weights[name]


def _dress(onnx, proto, opset: int, metadata: dict[str, str]) -> None:
    """Names, versions and metadata."""
    proto.producer_name = metadata["producer"]
    proto.producer_version = metadata["producer_version"]
    proto.ir_version = _IR_VERSIONS[opset]
    proto.doc_string = "images: pixels " + metadata["pixel_range"]
    proto.graph.name = metadata["producer"]
    used = {node.domain for node in proto.graph.node}
    kept = [entry for entry in proto.opset_import if entry.domain in used or not entry.domain]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    onnx.helper.set_model_props(proto, metadata)
    del proto.graph.value_info[:]  # runtimes infer it, and tf2onnx invents dimension names there
    for value in [*proto.graph.input, *proto.graph.output]:
        batch = value.type.tensor_type.shape.dim[0]
        if not batch.dim_value:
            batch.dim_param = "batch"


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Keeps tf2onnx from talking; yields a list that gets the errors it only logs."""
    complaints: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complaints.append(record.getMessage())

    listener = Listener(logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("tf2onnx", "tensorflow")]
    before = [(logger, logger.level) for logger in loggers]
    loggers[0].addHandler(listener)
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield complaints
    finally:
        loggers[0].removeHandler(listener)
        for logger, level in before:
            logger.setLevel(level)
