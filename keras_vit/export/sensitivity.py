"""What each part of a model loses when it alone is quantised."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import _checks, _deps
from keras_vit.export import quantization, tflite, tflite_graph
from keras_vit.export.calibration import IMAGES, LOOKED_AT, calibration_images, save_images
from keras_vit.export.isolation import with_graph
from keras_vit.export.preparation import serving_of

# Parts by the names of their layers, the first that an operator's scope has; TensorFlow may put
# a number after a name.
_BLOCK = re.compile(r"encoder_block_(\d+)(?:_\d+)?/(attention|mlp)?")
# A block's own operators up to the first sum; what follows belongs to the MLP.
_WITH_ATTENTION = ("Reshape;", "Reshape_1;", "Reshape_2;", "add;")
_UNIT = re.compile(r"/((?:stem_)?block\d+_unit\d+)(?:_\d+)?/")
_STEM = ("rescaling", "stem", "root", "patches", "patch_encoder", "pre_norm", "position_embedding")
EVERYTHING = "everything"


@dataclass(frozen=True)
class PartLoss:
    """What quantising one part costs.

    Attributes:
        part: "stem", "block 0 attention", "block 0 mlp", ..., "head", or "everything"; residual
            units of a ResNet by their names.
        operators: operators that were quantised.
        max_difference: greatest |difference| to the float32 logits.
        mean_difference: mean |difference|.
        disagreement: share of the images whose best class is another one.
    """

    part: str
    operators: int
    max_difference: float
    mean_difference: float
    disagreement: float


@dataclass(frozen=True)
class Sensitivity:
    """Losses part by part, in the order of the model; `print` it for a table.

    Attributes:
        quantize: what was done to each part.
        images: number of images that were compared.
        parts: one for each part, and "everything".
    """

    quantize: str
    images: int
    parts: tuple[PartLoss, ...]

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        width = max(len(each.part) for each in self.parts)
        lines = [
            f"{self.quantize}, one part at a time, {self.images} images",
            f"{'part':<{width}}  operators  max diff.  mean diff.  other class",
        ]
        lines += [
            f"{each.part:<{width}}  {each.operators:9}  {each.max_difference:9.4f}  "
            f"{each.mean_difference:10.5f}  {each.disagreement:11.2%}"
            for each in self.parts
        ]
        return "\n".join(lines)


def sensitivity(
    model: keras.Model,
    images: Any,
    calibration: Any = None,
    quantize: str = "int8",
    *,
    float_ops: Sequence[str] | None = None,
    calibration_size: int = IMAGES,
) -> Sensitivity:
    """Quantises one part of a model at a time and compares logits with float32.

    Args:
        model: see `to_tflite`.
        images: to compare on, 2,048 of them at most, given as calibration is.
        calibration: as in `to_tflite`; `None`: `images`.
        quantize: as in `to_tflite`.
        float_ops: as in `to_tflite`.
        calibration_size: as in `to_tflite`.

    Returns:
        The losses, part by part.

    Raises:
        ValueError: as `to_tflite`.

    Example:
        ```python
        print(keras_vit.export.sensitivity(model, images))
        ```
    """
    if quantize is None:
        raise ValueError(f"`quantize` must be one of {tuple(quantization.QUANTIZATIONS)}.")
    float_ops = quantization.check(quantize, float_ops, "float32")
    serving = serving_of(model)
    _checks.positive_int("calibration_size", calibration_size)
    _deps.require("ai_edge_quantizer", "export", "Quantising TFLite models")
    takes = serving.image_shape, serving.pixels
    compared = calibration_images(images, *takes, LOOKED_AT, "images")
    given = compared if calibration is None else calibration
    chosen = calibration_images(given, *takes, calibration_size)
    with tempfile.TemporaryDirectory(prefix="keras-vit-tflite-") as name:
        folders = [Path(name) / part for part in ("compared", "chosen")]
        for folder in folders:
            folder.mkdir()
        found = with_graph(
            model,
            "keras_vit.export.sensitivity:measure",
            serving,
            outputs=("logits",),
            images=save_images(compared, folders[0]),
            calibration=save_images(chosen, folders[1]),
            quantize=quantize,
            float_ops=float_ops,
            value_range=tflite.value_range(model, serving),
        )
    return Sensitivity(quantize, len(compared), tuple(PartLoss(**each) for each in found))


def measure(
    graph: Path,
    images: str,
    calibration: str,
    quantize: str,
    float_ops: Sequence[str],
    value_range: Sequence[float],
) -> list[dict[str, Any]]:
    """The part of `sensitivity` that needs TensorFlow; the `PartLoss`es as dicts."""
    compared, way = np.load(images), quantization.QUANTIZATIONS[quantize]
    content, ranges = tflite.converted(graph), None
    if way.is_static:
        content, ranges = tflite.prepared(
            content, quantize, np.load(calibration), float_ops, value_range
        )
    expected = _logits(content, compared)
    found = []
    for part, scopes in parts(content).items():
        only = None if part == EVERYTHING else scopes
        made = quantization.quantised(content, quantize, ranges, float_ops, only=only)
        logits = _logits(made, compared)
        difference = np.abs(logits - expected)
        other = logits.argmax(1) != expected.argmax(1)
        found.append(
            asdict(
                PartLoss(
                    part,
                    len(scopes),
                    float(difference.max()),
                    float(difference.mean()),
                    float(other.mean()),
                )
            )
        )
    return found


def parts(content: bytes) -> dict[str, list[str]]:
    """Scopes of the operators of each part of a .tflite file, in the model's order."""
    found: dict[str, list[str]] = {}
    model = tflite_graph.parse(content)
    every = [each.scope for each in tflite_graph.operators(model)]
    for scope in every:
        found.setdefault(part_of(scope), []).append(scope)
    return {**found, EVERYTHING: every}


def part_of(scope: str) -> str:
    """The part of a model that an operator belongs to, by the names of its outputs."""
    if block := _BLOCK.search(scope):
        first = scope.startswith(_WITH_ATTENTION, block.end())
        kind = block[2] or ("attention" if first else "mlp")
        return f"block {block[1]} {kind}"
    if unit := _UNIT.search(scope):
        return unit[1]
    if any(f"/{name}" in scope for name in _STEM):
        return "stem"
    return "head"


def _logits(content: bytes, images: np.ndarray) -> np.ndarray:
    module = _deps.optional("ai_edge_litert.interpreter", "export", "Running TFLite models")
    interpreter = module.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    source, target = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    found = []
    for image in images:
        interpreter.set_tensor(source["index"], image[None])
        interpreter.invoke()
        found.append(interpreter.get_tensor(target["index"])[0])
    return np.stack(found)
