"""ONNX files, by tf2onnx from TensorFlow's graph of the model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_vit import _checks, _deps
from keras_vit.export.description import describe
from keras_vit.export.folders import staged, target
from keras_vit.export.graph import computation
from keras_vit.export.isolation import under_tensorflow
from keras_vit.export.onnx_rewriting import REWRITERS
from keras_vit.export.onnx_weights import insert_weights
from keras_vit.export.preparation import Serving, exportable, serving_of

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
_OUTPUTS = ("logits", "probabilities")  # where there is a head


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
    with staged(place, overwrite, (f"{place.name}.data",)) as partial:
        under_tensorflow(
            model,
            _TASK,
            serving,
            path=str(partial),
            opset=int(opset),
            batch_size=batch_size,
            external_above=external_above,
        )
    return place


def convert(
    model: keras.Model,
    serving: Serving,
    *,
    path: str,
    opset: int = OPSET,
    batch_size: int | None = None,
    external_above: int = EXTERNAL_ABOVE,
) -> None:
    """Writes a model as ONNX, where Keras runs on TensorFlow; for `isolation.under_tensorflow`.

    The weights stay out of TensorFlow's graph, as arguments of its function: inside it, they
    would be copied dozens of times, and end at 2 GB.

    Args:
        model: see `preparation.exportable`.
        serving: of the model.
        path: the file to write.
        opset: see `to_onnx`.
        batch_size: see `to_onnx`.
        external_above: see `to_onnx`.

    Raises:
        ValueError: if tf2onnx leaves operators of TensorFlow's, or onnx' checker finds a fault.
    """
    onnx = _deps.optional("onnx", "onnx", "Writing ONNX")
    network = exportable(model)
    proto = _by_tf2onnx(network, serving, opset, batch_size)
    variables = zip(_names(network.variables), network.variables, strict=True)
    weights = {name: variable.numpy() for name, variable in variables}
    insert_weights(proto, weights)
    _dress(onnx, proto, opset, describe(serving))
    if sum(values.nbytes for values in weights.values()) > external_above:
        options = {"all_tensors_to_one_file": True, "location": f"{Path(path).name}.data"}
        options["size_threshold"] = _EXTERNAL_TENSOR
        onnx.save_model(proto, path, save_as_external_data=True, **options)
    else:
        onnx.save_model(proto, path)
    try:
        onnx.checker.check_model(path, full_check=True)
    except onnx.checker.ValidationError as error:
        raise ValueError(f"The model cannot be written as ONNX {opset}: {error}") from error


def _names(variables) -> list[str]:
    """A name for each: its path, with a number where others have the same, as in nested models."""
    paths = [variable.path for variable in variables]
    return [
        path if paths.count(path) == 1 else f"{path}:{number}" for number, path in enumerate(paths)
    ]


def _by_tf2onnx(network: keras.Model, serving: Serving, opset: int, batch_size: int | None):
    """The graph, with an input for each variable, named by its path."""
    import tensorflow as tf

    tf2onnx = _deps.optional("tf2onnx", "onnx", "Writing ONNX")
    compute, variables = computation(network, serving), network.variables

    def serve(images, *weights):
        with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
            found = compute(images)
        return {name: found[name] for name in _OUTPUTS if name in found} or found

    specs = [tf.TensorSpec((batch_size, *serving.image_shape), tf.float32, name="images")]
    for number, variable in enumerate(variables):
        specs.append(tf.TensorSpec(variable.shape, variable.dtype, name=f"weight_{number}"))
    with _quiet() as complaints:
        proto, _ = tf2onnx.convert.from_function(
            tf.function(serve), specs, opset=opset, custom_rewriter=list(REWRITERS)
        )
    strange = sorted({node.op_type for node in proto.graph.node if node.domain})
    if complaints or strange:
        raise ValueError(
            f"The model cannot be written as ONNX {opset}: {'; '.join(complaints + strange)}"
        )
    names = {f"weight_{number}": name for number, name in enumerate(_names(variables))}
    for value in proto.graph.input:
        value.name = names.get(value.name, value.name)
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return proto


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
            """Keeps the message."""
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
