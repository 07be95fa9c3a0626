"""Whether an artifact does what its model does, in the runtimes that it is for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import _checks, _deps
from keras_vit.evaluation.batches import Predictor, as_array, batches
from keras_vit.export import runtimes as script
from keras_vit.export.calibration import check_values
from keras_vit.export.comparison import accuracy, probabilities_of, relative_error
from keras_vit.export.preparation import exportable, serving_of
from keras_vit.export.synthetic import pictures
from keras_vit.export.verification import BOUNDS, Bounds, Latency, Run, Verification

IMAGES = 64  # made up, where none are given
BATCH_SIZE = 8
_SUFFIXES = {".tflite": "tflite", ".onnx": "onnx", ".xml": "openvino"}
# What a runtime needs: a module to look for, and the extra that installs it.
_NEEDS = {
    "tensorflow": ("tensorflow", "export"),
    "tf.lite": ("tensorflow", "export"),
    "ai_edge_litert": ("ai_edge_litert", "export"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino"),
}
_OUTPUTS = ("logits", "features")  # what is compared: the first that there is
_LINES = 8  # of what a dead process said last


def verify(
    artifact: Any,
    model: keras.Model,
    images: Any = None,
    *,
    labels: Any = None,
    runtimes: Sequence[str] | None = None,
    signature: str = "serving_default",
    batch_sizes: Sequence[int] = (BATCH_SIZE,),
    threads: int = 1,
    repeats: int = 50,
    seconds: float = 10.0,
    tolerance: float | None = None,
    agreement: float | None = None,
    timeout: float = 900.0,
) -> Verification:
    """Runs an artifact in its own runtimes, and compares it with the model that it came from.

    Each runtime has a fresh process, in which Keras cannot be imported. What is compared are the
    logits (features, without a head) of the model's float32 weights.

    Args:
        artifact: a SavedModel's directory, or a `.tflite`, `.onnx` or (OpenVINO) `.xml` file.
        model: the model that it was made of, on any backend.
        images: `(n, height, width, channels)`, of the model's size, pixels 0..255; `None`: made
            up, always the same, which the result says.
        labels: `(n,)` class numbers, for accuracies.
        runtimes: names of `keras_vit.export.runtimes.KINDS`; `None`: the usual ones. A .tflite
            file runs in ai-edge-litert and in TensorFlow's interpreter: they do not always agree.
        signature: of a SavedModel: `"serving_default"`, `"serve_uint8"`, `"serve_bytes"` (images
            are sent as PNG files) or `"features"`. The last two are for pixels 0..255.
        batch_sizes: how many images run at once, in turn, where the artifact takes any batch.
        threads: of the runtimes. The Keras model's are those of this process.
        repeats: timed runs at batch 1, of the artifact and of the model.
        seconds: after which no more runs are begun, but for three.
        tolerance: the largest difference of a logit; `None`: 1e-3 for float32, for float16 2e-2
            times the standard deviation of the logits where that is above 1, any for integers.
        agreement: the least part of the images with the model's first class; `None`: 0.98 for
            integer formats, any for others.
        timeout: seconds for one runtime.

    Returns:
        What was found; `.check()` raises unless it holds, `.text()` is a table.

    Raises:
        ValueError: if there is no such artifact, it cannot be read, or it is another model's.
        ImportError: if none of the runtimes is installed.
    """
    path, kind = _kind(artifact)
    names = _names(runtimes, kind)
    batch_sizes = _checks.int_tuple("batch_sizes", batch_sizes)
    if not batch_sizes:
        raise ValueError("`batch_sizes` must name at least one size. Received: none")
    if _checks.positive_int("threads", threads) > (cores := os.cpu_count() or 1):
        raise ValueError(f"`threads` must be at most the {cores} cores. Received: {threads}")
    _checks.positive_int("repeats", repeats)
    _checks.positive_float("timeout", timeout)
    _checks.positive_float("seconds", seconds)
    if tolerance is not None and not (_is_number(tolerance) and tolerance >= 0):
        raise ValueError(f"`tolerance` must be a number of at least 0. Received: {tolerance!r}")
    if agreement is not None and not (_is_number(agreement) and 0 <= agreement <= 1):
        raise ValueError(f"`agreement` must lie between 0 and 1. Received: {agreement!r}")
    if signature != "serving_default" and kind != "saved_model":
        raise ValueError(f"`signature` is of SavedModels. Received: {signature!r} for {path}")
    serving = serving_of(model)
    if labels is not None and serving.num_classes is None:
        raise ValueError("`labels` need a model with a head.")
    pixels, labels, source = _images(images, labels, serving)
    if signature != "serving_default":
        pixels = np.round(pixels)  # what other signatures take
    expected = _expected(model, pixels, signature)
    classes = serving.num_classes is not None and signature != "features"
    missing = {name: _missing(name) for name in names}
    if all(missing.values()):
        raise ImportError(f"{path} cannot be verified: {' '.join(map(str, missing.values()))}")
    latency = _latency(model, pixels[:1], repeats, seconds)
    job = {"kind": kind, "artifact": str(path), "signature": signature, "threads": threads}
    job |= {"repeats": repeats, "seconds": seconds, "batches": batch_sizes}
    runs = []
    for name in names:
        if missing[name]:
            runs.append(Run(name, "missing", str(missing[name])))
            continue
        try:
            found, outputs = _run({**job, "runtime": name}, pixels, timeout)
        except _Refused as refused:
            runs.append(Run(name, "failed", str(refused)))
            continue
        wanted = expected
        if classes and "logits" not in outputs and "probabilities" in outputs:
            wanted = probabilities_of(expected, serving.probabilities)
        values = _output(outputs, wanted, path)
        given = Bounds(tolerance, agreement)
        runs.append(_compare(name, found, values, wanted, labels, given, latency, classes))
    ran = [run for run in runs if run.status == "ran"]
    if not ran:
        reasons = " ".join(f"{run.runtime}: {run.message}" for run in runs if run.message)
        raise ValueError(f"{path} cannot be run as {kind}. {reasons}")
    return Verification(
        artifact=str(path),
        kind=kind,
        signature=signature,
        size=_size(path, kind),
        weights=sum(_bytes(variable) for variable in model.weights),
        images=len(pixels),
        source=source,
        backend=keras.backend.backend(),
        model_latency=latency,
        accuracy=accuracy(expected, labels),
        notes=_notes(model, source, expected),
        runs=tuple(runs),
    )


class _Refused(Exception):
    """A runtime that could not run the artifact; the message says why."""


def _kind(artifact: Any) -> tuple[Path, str]:
    if not isinstance(artifact, str | os.PathLike):
        raise ValueError(f"`artifact` must be a path. Received: {artifact!r}")
    path = Path(os.fsdecode(artifact))
    if not path.exists():
        raise ValueError(f"`artifact` does not exist: {path}")
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return path.absolute(), "saved_model"
        versions = sorted(p.parent.name for p in path.glob("*/saved_model.pb"))
        hint = f"; name a version in it: {', '.join(versions)}" if versions else ""
        raise ValueError(f"`artifact` has no saved_model.pb, so it is no SavedModel{hint}. {path}")
    kind = _SUFFIXES.get(path.suffix)
    if kind is None:
        raise ValueError(
            "`artifact` must be a SavedModel's directory or end in "
            f"{', '.join(_SUFFIXES)}. Received: {path}"
        )
    if kind == "openvino" and not path.with_suffix(".bin").is_file():
        raise ValueError(f"The weights of {path} are missing: {path.with_suffix('.bin')}")
    return path.absolute(), kind


def _names(runtimes: Sequence[str] | None, kind: str) -> tuple[str, ...]:
    if runtimes is None:
        return script.DEFAULTS[kind]
    names = (runtimes,) if isinstance(runtimes, str) else tuple(runtimes)
    wrong = [name for name in names if name not in script.KINDS[kind]]
    if wrong or not names:
        raise ValueError(
            f"`runtimes` of {kind} must be of {script.KINDS[kind]}. Received: {runtimes!r}"
        )
    return names


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _images(images, labels, serving) -> tuple[np.ndarray, np.ndarray | None, str]:
    shape = serving.image_shape
    source = "synthetic" if images is None else "given"
    if images is None:
        if labels is not None:
            raise ValueError("`labels` need `images`.")
        images = pictures(IMAGES, shape)
    images = as_array(images)
    if images.ndim != 4 or images.shape[1:] != tuple(shape) or not len(images):
        raise ValueError(
            f"`images` must have shape (n, {', '.join(map(str, shape))}). Received: {images.shape}"
        )
    if serving.pixels and source == "given":
        check_values(images, True, "images")
    if labels is not None:
        labels = as_array(labels)
        if labels.size and not 0 <= labels.min() <= labels.max() < serving.num_classes:
            raise ValueError(
                f"`labels` must lie between 0 and {serving.num_classes - 1}. "
                f"Received: {labels.min()} to {labels.max()}"
            )
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            raise ValueError(
                "`labels` must be a class number for each image. "
                f"Received: shape {labels.shape}, {labels.dtype}, for {len(images)} images"
            )
    return images.astype("float32"), labels, source


def _expected(model: keras.Model, images: np.ndarray, signature: str) -> np.ndarray:
    """What the float32 weights give: logits, or features."""
    predictor = Predictor(exportable(model))
    found = [predictor(part) for part, _ in batches(images, BATCH_SIZE)]
    order = _OUTPUTS[::-1] if signature == "features" else _OUTPUTS
    name = next(name for name in order if name in found[0])
    return np.concatenate([np.asarray(part[name], "float32") for part in found])


def _latency(model: keras.Model, image: np.ndarray, repeats: int, seconds: float) -> Latency:
    predictor = Predictor(model)
    return Latency(**script.measure(lambda: predictor(image), repeats, seconds))


def _missing(name: str) -> ImportError | None:
    module, extra = _NEEDS[name]
    try:
        _deps.require(module, extra, f"Verifying in {name}")
    except ImportError as error:
        return error
    return None


def _run(job: dict[str, Any], images: np.ndarray, timeout: float):
    """Runs the script in a process of its own; what it found, and the outputs."""
    with tempfile.TemporaryDirectory(prefix="keras-vit-verify-") as name:
        folder = Path(name)
        places = {"images": "images.npy", "outputs": "outputs.npz", "result": "result.json"}
        job = {**job, **{key: str(folder / place) for key, place in places.items()}}
        np.save(job["images"], images)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-P", script.__file__, str(folder / "job.json")]
        with open(folder / "log.txt", "wb") as log:
            try:
                code = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(job["threads"]),
                    timeout=timeout,
                ).returncode
            except subprocess.TimeoutExpired:
                raise _Refused(
                    f"it took longer than {timeout:g} s; pass a larger `timeout`, or fewer images."
                ) from None
        if not Path(job["result"]).exists():
            raise _Refused(_last_words(code, folder / "log.txt"))
        found = json.loads(Path(job["result"]).read_text(encoding="utf-8"))
        if found.get("error") == "Mismatch":
            raise ValueError(
                f"{job['artifact']} is another model's: {found['message']} (of `model`'s size)."
            )
        if "error" in found:
            raise _Refused(f"{found['error']}: {found['message'].strip()}")
        with np.load(job["outputs"], allow_pickle=False) as outputs:
            return found, dict(outputs)


def _environment(threads: int) -> dict[str, str]:
    count = str(threads)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def _last_words(code: int, log: Path) -> str:
    end = f"status {code}"
    if code < 0:
        end = f"signal {signal.Signals(-code).name}"
        end += " (as when memory runs out)" if code == -signal.SIGKILL else ""
    lines = log.read_text(errors="replace").strip().splitlines()[-_LINES:]
    return "\n".join([f"its process ended with {end}.", *lines])


def _output(outputs: dict[str, np.ndarray], expected: np.ndarray, path: Path) -> np.ndarray:
    """The output to compare; a ValueError if the artifact is another model's."""
    known = [outputs[name] for name in _OUTPUTS if name in outputs]
    fitting = [v for v in known or outputs.values() if v.shape == expected.shape]
    if not fitting:
        shapes = ", ".join(f"{name} {values.shape[1:]}" for name, values in outputs.items())
        raise ValueError(
            f"{path} is another model's: it gives {shapes}, and `model` gives {expected.shape[1:]}."
        )
    # OpenVINO does not know the names in a .tflite file: probabilities are far from logits.
    return min(fitting, key=lambda v: float(np.abs(v - expected).max())).astype("float32")


def _compare(name, found, values, expected, labels, given, latency: Latency, classes) -> Run:
    usual = BOUNDS[found["precision"]]
    bound = given.tolerance
    if bound is None and usual.tolerance is not None:
        bound = usual.tolerance * (max(1.0, float(expected.std())) if usual.scaled else 1.0)
    classes = classes and values.shape[1] > 1
    same = float(np.mean(values.argmax(-1) == expected.argmax(-1))) if classes else None
    own = Latency(**found["latency"])
    return Run(
        runtime=name,
        status="ran",
        version=found["version"],
        precision=found["precision"],
        batch=found["batch"],
        difference=float(np.abs(values - expected).max()),
        relative=relative_error(values, expected),
        most_relative=usual.relative if given.tolerance is None else None,
        bound=bound,
        agreement=same,
        least_agreement=usual.agreement if given.agreement is None else given.agreement,
        accuracy=accuracy(values, labels),
        latency=own,
        ratio=own.p50 / latency.p50,
        load_seconds=found["load_seconds"],
        peak_memory=found["peak_memory"],
        threads=found["threads"],
    )


def _size(path: Path, kind: str) -> int:
    files = {
        "saved_model": lambda: [file for file in path.rglob("*") if file.is_file()],
        "onnx": lambda: [path, *path.parent.glob(f"{path.name}.data")],
        "openvino": lambda: [path, path.with_suffix(".bin")],
        "tflite": lambda: [path],
    }[kind]()
    return sum(file.stat().st_size for file in files)


def _bytes(variable) -> int:
    width = {"float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}
    return int(np.prod(variable.shape)) * width.get(str(variable.dtype), 4)


def _notes(model: keras.Model, source: str, expected: np.ndarray) -> tuple[str, ...]:
    found = []
    if not expected.any():
        found.append(
            "All outputs are zero, as an untrained head's: what is below it was not compared."
        )
    policies = {layer.dtype_policy.compute_dtype for layer in model._flatten_layers()}
    half = sorted(policies & {"float16", "bfloat16"})
    if half:
        found.append(
            f"The model computes in {half[0]}: compared are its weights in float32, which were "
            "exported; the latency is that of the model as it is."
        )
    if source == "synthetic":
        found.append("Synthetic images: pass real ones to see what users would.")
    return tuple(found)
