"""Models as .tflite files, for phones and small devices."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import _checks, _deps
from keras_vit.export import quantization, tflite_graph, tflite_metadata
from keras_vit.export.calibration import (
    IMAGES,
    activation_ranges,
    calibration_images,
    save_images,
)
from keras_vit.export.folders import staged, target
from keras_vit.export.isolation import with_graph
from keras_vit.export.preparation import Serving, serving_of
from keras_vit.layers.pixel_scaling import PIXEL_RANGES
from keras_vit.models.base import FlatModel

OUTPUTS = ("logits", "probabilities")


def to_tflite(
    model: keras.Model,
    path: str | Path,
    quantize: str | None = None,
    calibration: Any = None,
    *,
    batch_size: int | None = None,
    output: str = "logits",
    float_ops: Sequence[str] | None = None,
    io_dtype: str = "float32",
    class_names: Sequence[str] | None = None,
    probabilities: str | None = None,
    about: Mapping[str, str] | None = None,
    calibration_size: int = IMAGES,
    overwrite: bool = False,
) -> Path:
    """Writes a model as a .tflite file of builtin operators, from any backend.

    The file has one signature, `serving_default`, from `images` `(batch, height, width,
    channels)`, pixels 0..255, to `logits` `(batch, classes)`; a model without a head gives
    `features`. Metadata tells Android's and iOS' tools of both, and of the classes' names.

    Args:
        model: see `to_saved_model`.
        path: ending in `.tflite`.
        quantize: `None`: float32; `"float16"`: half the size; `"dynamic"`: weights of 8 bits, a
            quarter of the size and the fastest on most CPUs, the one to choose for phones;
            `"int8"`: activations of 8 bits too, for hardware that needs it; `"int16x8"`: weights
            of 8 bits, activations of 16, exact but slow on CPUs.
        calibration: typical images, which `"int8"` and `"int16x8"` are fitted to: an array
            `(n, height, width, channels)`, `(images, labels)`, an iterable of batches, or a
            `keras_vit.data.Pipeline`.
        batch_size: the only size of batches; `None`: any, of which interpreters take 1 unless
            they are resized. Of files of integers ai-edge-litert 2.3 gave wrong rows after it
            had run one image and was resized: make a new interpreter for another size of batch.
        output: `"logits"` or `"probabilities"`.
        float_ops: what stays float32 in a file of integers, out of "softmax", "activation"
            (GELU), "arithmetic" (LayerNorm, residuals), "attention" (its products), "stem" (the
            patches' embedding) and "head"; the weights of these have 8 bits still. `None`: all
            of them for `"int8"`, which leaves the other products with weights, and the first
            three for `"int16x8"`; `()`: nothing, for hardware without floating point, at a cost
            in accuracy.
        io_dtype: dtype of input and output; also "int8" and "uint8" for `"int8"`, and "int16" for
            `"int16x8"`. Their scales are in the file.
        class_names: see `to_saved_model`.
        probabilities: see `to_saved_model`.
        about: for the metadata: "name", "description", "version", "author", "license".
        calibration_size: how many images to fit to at most, spread over `calibration`.
        overwrite: whether `path` may exist.

    Returns:
        The path.

    Raises:
        ValueError: on arguments that do not go together, a model that needs other operators, or
            one above 2 GiB. Nothing is written then.
        FileExistsError: if `path` exists, unless `overwrite`.
        ImportError: if a package is missing; the message says what to install.

    Example:
        ```python
        keras_vit.export.to_tflite(model, "vit.tflite", quantize="dynamic")
        keras_vit.export.to_tflite(model, "vit_int8.tflite", "int8", calibration=images)
        ```
    """
    path = target(path, ".tflite", overwrite)
    serving = serving_of(model, class_names, probabilities)
    float_ops = quantization.check(quantize, float_ops, io_dtype)
    _checks.choice("output", output, OUTPUTS)
    if batch_size is not None:
        batch_size = _checks.positive_int("batch_size", batch_size)
    images = _calibration(quantize, calibration, serving, calibration_size)
    for name, text in (about or {}).items():
        _checks.choice("about", name, tflite_metadata.ABOUT)
        if not isinstance(text, str):
            raise ValueError(f"`about` must hold text. Received: {name}={text!r}")
    with (
        staged(path, overwrite) as partial,
        tempfile.TemporaryDirectory(prefix="keras-vit-tflite-") as folder,
    ):
        with_graph(
            model,
            "keras_vit.export.tflite:convert",
            serving,
            batch_size=batch_size,
            outputs=(output,),
            path=str(partial),
            quantize=quantize,
            calibration=None if images is None else save_images(images, Path(folder)),
            float_ops=float_ops,
            io_dtype=io_dtype,
            labels=serving.labels,
            value_range=value_range(model, serving),
            metadata=_metadata(model, serving, output, about or {}),
        )
    return path


def convert(
    graph: Path,
    path: str,
    quantize: str | None,
    calibration: str | None,
    float_ops: Sequence[str],
    io_dtype: str,
    value_range: Sequence[float],
    labels: Sequence[str],
    metadata: Mapping[str, Any],
) -> None:
    """Makes the file of a SavedModel: the part of `to_tflite` that needs TensorFlow."""
    content = converted(graph)
    if quantize is not None:
        ranges = None
        if calibration is not None:
            content, ranges = prepared(
                content, quantize, np.load(calibration), float_ops, value_range
            )
        content = quantization.quantised(content, quantize, ranges, float_ops, io_dtype)
    tflite_graph.check_builtin(tflite_graph.parse(content))
    content = tflite_metadata.with_metadata(content, metadata, labels)
    Path(path).write_bytes(content)


def converted(graph: Path) -> bytes:
    """The float32 .tflite file of a SavedModel, in bytes."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the converter's own deprecations
        converter = tf.lite.TFLiteConverter.from_saved_model(
            str(graph), signature_keys=[quantization.SIGNATURE]
        )
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        try:
            return converter.convert()
        except Exception as error:  # of a class that is not public
            raise _explained(error) from error


def _explained(error: Exception) -> Exception:
    """What a failed conversion comes to: its messages are pages of compiler output."""
    text = str(error)
    if names := re.findall(r"^(?:Custom|TF Select|Flex) ops: (.+)$", text, re.MULTILINE):
        return tflite_graph.not_builtin(names)
    return ValueError(f"TFLite's converter cannot read the model: {text[:1000]}")


def prepared(
    content: bytes,
    quantize: str,
    images: np.ndarray,
    float_ops: Sequence[str],
    value_range: Sequence[float],
) -> tuple[bytes, dict[str, dict]]:
    """A float32 file ready for static quantisation, and the ranges of its values."""
    if "arithmetic" not in float_ops:
        model = tflite_graph.parse(content)
        bits = quantization.QUANTIZATIONS[quantize].activations or 0
        tflite_graph.make_integer_ready(model, bits)
        content = tflite_graph.serialise(model)
    return content, activation_ranges(content, images, value_range)


def _calibration(
    quantize: str | None, calibration: Any, serving: Serving, count: int
) -> np.ndarray | None:
    if quantize is None or not quantization.QUANTIZATIONS[quantize].is_static:
        if calibration is not None:
            raise ValueError(
                f"`calibration` is for a quantisation that is fitted to images. "
                f"Received: quantize={quantize!r}"
            )
    elif calibration is None:
        raise ValueError(
            f"quantize={quantize!r} needs `calibration`: some 100 typical images, as an array "
            "(n, height, width, channels) of pixels 0..255, batches of them, or a "
            'keras_vit.data.Pipeline. quantize="dynamic" needs none.'
        )
    else:
        _deps.require("ai_edge_quantizer", "export", "Quantising TFLite models")
        return calibration_images(calibration, serving.image_shape, serving.pixels, count)
    if quantize is not None:
        _deps.require("ai_edge_quantizer", "export", "Quantising TFLite models")
    return None


def pixel_range(model: keras.Model, serving: Serving) -> tuple[Sequence[float], Sequence[float]]:
    """(mean, standard deviation) by which an app has to scale pixels for the model."""
    if not serving.pixels and isinstance(model, FlatModel):
        return PIXEL_RANGES[model.flat_config["pixel_range"]]
    return (0.0,), (1.0,)


def value_range(model: keras.Model, serving: Serving) -> tuple[float, float]:
    """The least and the greatest value of an image as the model takes it."""
    scales = list(zip(*pixel_range(model, serving), strict=True))
    ends = [(end - mean) / deviation for end in (0.0, 255.0) for mean, deviation in scales]
    return min(ends), max(ends)


def _metadata(
    model: keras.Model, serving: Serving, output: str, about: Mapping[str, str]
) -> dict[str, Any]:
    return tflite_metadata.describe(
        {"name": model.name, **about},
        serving.image_shape,
        *pixel_range(model, serving),
        value_range(model, serving),
        output if serving.num_classes is not None else "features",
        serving.labels,
    )
