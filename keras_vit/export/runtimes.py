"""Runs one artifact in its own runtime, without Keras: `python -P runtimes.py job.json`.

A plain script of the standard library, NumPy and the runtime. The job is a JSON object:

    kind, runtime   of `KINDS` and `RUNTIMES`
    artifact        path of the file or directory
    signature       of a SavedModel or .tflite file; what has only one ignores it
    images          .npy, (n, height, width, channels), values 0..255
    outputs         .npz to write, an array for each output
    result          .json to write: what `main` returns, or `error` and `message`
    threads         of the runtime
    batches         images at once, in turn, where the artifact leaves that open
    repeats         runs at batch 1 that are timed, at least 3 of them even if `seconds` are over
    seconds         for timing
"""

import importlib.metadata
import itertools
import json
import os
import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np

# What runs which kind, by default those of `DEFAULTS`.
KINDS = {
    "saved_model": ("tensorflow", "openvino"),
    "tflite": ("ai_edge_litert", "tf.lite", "openvino"),
    "onnx": ("onnxruntime", "openvino"),
    "openvino": ("openvino",),
}
DEFAULTS = {
    "saved_model": ("tensorflow",),
    "tflite": ("ai_edge_litert", "tf.lite"),
    "onnx": ("onnxruntime",),
    "openvino": ("openvino",),
}
OUTPUTS = ("logits", "probabilities", "features")
WARM_UP = 2  # runs before those that are timed
LEAST = 3  # timed runs


class Mismatch(ValueError):
    """The artifact takes other images than it got."""


class TensorFlow:
    """A SavedModel, by TensorFlow's own loader."""

    package = "tensorflow"

    def __init__(self, job):
        tf = _tensorflow(job["threads"])
        self._loaded = tf.saved_model.load(job["artifact"])
        self._function = _named(self._loaded.signatures, job["signature"], "signature")
        ((self._name, spec),) = self._function.structured_input_signature[1].items()
        self._constant = tf.constant
        self.dtype = spec.dtype.as_numpy_dtype if spec.dtype != tf.string else bytes
        self.shape = (None, *([None] * 3)) if self.dtype is bytes else tuple(spec.shape)
        kinds = {variable.dtype.name for variable in self._function.variables}
        self.precision = "float16" if kinds & {"float16", "bfloat16"} else "float32"

    def __call__(self, images):
        if self.dtype is bytes:
            images = self._constant([png(image) for image in images])
        found = self._function(**{self._name: self._constant(images)})
        return {name: value.numpy() for name, value in found.items()}


class TFLite:
    """A .tflite file."""

    package = ""

    @staticmethod
    def interpreter(threads):
        """The class that interprets."""
        raise NotImplementedError

    def __init__(self, job):
        self._options = {"model_path": job["artifact"], "num_threads": job["threads"]}
        self._kind = self.interpreter(job["threads"])
        self._interpreter = self._kind(**self._options)
        self.precision = _tflite_precision(self._interpreter.get_tensor_details())
        signatures = self._interpreter.get_signature_list()
        self._signature = job["signature"] if len(signatures) != 1 else next(iter(signatures))
        _named(signatures, self._signature, "signature")
        self._run, self._batch = self._interpreter.get_signature_runner(self._signature), None
        ((self._name, entry),) = self._run.get_input_details().items()
        shape = entry["shape_signature"] if len(entry["shape_signature"]) else entry["shape"]
        self.shape = tuple(int(n) if n > 0 else None for n in shape)
        self.dtype, self._input = entry["dtype"], entry["quantization_parameters"]
        self._outputs = self._run.get_output_details()

    def __call__(self, images):
        if self._batch not in (None, len(images)):
            # ai-edge-litert 2.3 gives wrong rows for some files of integers when it is resized.
            self._interpreter = self._kind(**self._options)
            self._run = self._interpreter.get_signature_runner(self._signature)
        self._batch = len(images)
        if np.issubdtype(self.dtype, np.integer) and len(self._input["scales"]):
            limits = np.iinfo(self.dtype)
            images = images / self._input["scales"][0] + self._input["zero_points"][0]
            images = np.clip(np.round(images), limits.min, limits.max).astype(self.dtype)
        found = self._run(**{self._name: images})
        return {name: self._plain(name, value) for name, value in found.items()}

    def _plain(self, name, value):
        how = self._outputs[name]["quantization_parameters"]
        if not np.issubdtype(value.dtype, np.integer) or not len(how["scales"]):
            return value
        return ((value.astype("float32") - how["zero_points"][0]) * how["scales"][0]).astype("f4")


class LiteRT(TFLite):
    """By ai-edge-litert."""

    package = "ai-edge-litert"

    @staticmethod
    def interpreter(threads):
        """The class that interprets."""
        from ai_edge_litert.interpreter import Interpreter

        return Interpreter


class TensorFlowLite(TFLite):
    """By the interpreter inside TensorFlow."""

    package = "tensorflow"

    @staticmethod
    def interpreter(threads):
        """The class that interprets."""
        return _tensorflow(threads).lite.Interpreter


class OnnxRuntime:
    """An ONNX file."""

    package = "onnxruntime"

    def __init__(self, job):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job["threads"]
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(job["artifact"], options, providers=providers)
        (entry,) = self._session.get_inputs()
        self._name = entry.name
        self.shape = tuple(n if isinstance(n, int) else None for n in entry.shape)
        self.dtype = {"tensor(uint8)": np.uint8}.get(entry.type, np.float32)
        self._names = [output.name for output in self._session.get_outputs()]
        self.precision = _onnx_precision(job["artifact"])

    def __call__(self, images):
        return dict(zip(self._names, self._session.run(None, {self._name: images}), strict=True))


class OpenVINO:
    """OpenVINO's own files, and what else it reads: ONNX, .tflite, SavedModel."""

    package = "openvino"

    def __init__(self, job):
        _forbid("openvino_telemetry")  # so that nothing is sent
        import openvino

        core = openvino.Core()
        model = core.read_model(job["artifact"])
        threads = job["threads"]
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        self._model = core.compile_model(model, "CPU", settings)
        (entry,) = self._model.inputs
        self.shape = tuple(
            size.get_length() if size.is_static else None for size in entry.partial_shape
        )
        self.dtype = np.dtype(entry.element_type.to_dtype())
        outputs = self._model.outputs
        self._outputs = [(_plain_name(output, i), output) for i, output in enumerate(outputs)]
        kinds = [
            node.get_element_type().get_type_name()
            for node in model.get_ordered_ops()
            if node.get_type_name() == "Constant" and np.prod(list(node.shape)) > 16
        ]
        integers = {"i8", "u8", "i4", "u4"} & set(kinds)
        self.precision = "int8" if integers else "float16" if "f16" in kinds else "float32"

    def __call__(self, images):
        found = self._model(images)
        return {name: found[output] for name, output in self._outputs}


RUNTIMES = {
    "tensorflow": TensorFlow,
    "ai_edge_litert": LiteRT,
    "tf.lite": TensorFlowLite,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVINO,
}


def main(job):
    """Runs a job, see the module; returns what `result` gets."""
    started = time.perf_counter()
    network = RUNTIMES[job["runtime"]](job)
    loaded = time.perf_counter() - started
    images = np.load(job["images"], allow_pickle=False)
    wanted = network.shape[1:]
    if any(n not in (None, m) for n, m in zip(wanted, images.shape[1:], strict=True)):
        raise Mismatch(f"it takes images of shape {wanted}, and got {images.shape[1:]}")
    if network.dtype is not bytes and np.issubdtype(network.dtype, np.floating):
        images = images.astype(network.dtype)
    elif network.dtype is bytes or network.dtype == np.uint8:
        images = np.round(images).astype("uint8")
    fixed = network.shape[0]
    times = measure(lambda: network(_batch(images[:1], fixed)), job["repeats"], job["seconds"])
    memory = _peak_memory()
    parts = _parts(images, [fixed] if fixed else job["batches"])
    found = [_cut(network(_batch(part, fixed)), len(part)) for part in parts]
    numeric = {name for name, value in found[0].items() if value.dtype.kind == "f"}
    arrays = {name: np.concatenate([part[name] for part in found]) for name in numeric}
    np.savez(job["outputs"], **arrays)  # type: ignore[arg-type]
    return {
        "version": importlib.metadata.version(network.package),
        "precision": network.precision,
        "batch": fixed,
        "load_seconds": loaded,
        "latency": times,
        "peak_memory": memory,
        "threads": job["threads"],
        "keras": sys.modules.get("keras") is not None,
    }


def png(image):
    """A uint8 image `(height, width, 1 or 3)` as the bytes of a PNG file, without loss."""
    height, width, channels = image.shape
    rows = np.concatenate([np.zeros((height, 1), "uint8"), image.reshape(height, -1)], axis=1)
    header = struct.pack(">2I5B", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    found = [b"\x89PNG\r\n\x1a\n"]
    for name, data in chunks:
        found += [struct.pack(">I", len(data)), name, data]
        found.append(struct.pack(">I", zlib.crc32(name + data)))
    return b"".join(found)


def percentiles(times):
    """What is told of seconds that runs took."""
    p50, p95 = np.percentile(times, (50, 95))
    return {"p50": float(p50), "p95": float(p95), "runs": len(times)}


def measure(run, repeats, seconds):
    """Times runs, see `repeats` and `seconds` of a job, after some that warm up."""
    for _ in range(WARM_UP):
        run()
    times, started = [], time.perf_counter()
    while len(times) < repeats:
        if len(times) >= LEAST and time.perf_counter() - started > seconds:
            break
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return percentiles(times)


def _parts(images, sizes):
    """Batches of these sizes, in turn, until all images are in one."""
    parts, start, turn = [], 0, itertools.cycle(sizes)
    while start < len(images):
        size = next(turn)
        parts.append(images[start : start + size])
        start += size
    return parts


def _batch(images, fixed):
    """The images, filled up to the batch that the artifact insists on."""
    if fixed is None or len(images) == fixed:
        return np.ascontiguousarray(images)
    return np.concatenate([images, np.repeat(images[-1:], fixed - len(images), axis=0)])


def _cut(outputs, count):
    return {name: np.array(value[:count]) for name, value in outputs.items()}


def _peak_memory():
    """Bytes that this process had at most, or `None` where nobody counts."""
    status = Path("/proc/self/status")
    if status.exists():
        # `getrusage` would count the process that started this one, too.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _forbid(*names):
    """Has imports of these modules fail from here on."""
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]


def _tensorflow(threads):
    _forbid("keras", "tf_keras", "jax")  # JAX only takes time and memory
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def _named(available, name, what):
    if name not in list(available):
        raise ValueError(f"it has no {what} {name!r}, but {', '.join(map(repr, available))}")
    return available[name]


def _plain_name(output, place):
    """The exporter's name of one of OpenVINO's outputs, or its place where that is lost."""
    names = {name.split(":")[0] for name in output.get_names()}
    return next((name for name in OUTPUTS if name in names), f"output {place}")


def _tflite_precision(tensors):
    """By the types of a file's tensors: quantised numbers have scales."""
    kinds = {
        np.dtype(entry["dtype"]).name
        for entry in tensors
        if entry["dtype"] is np.float16 or len(entry["quantization_parameters"]["scales"])
    }
    if "int16" in kinds:
        return "int16x8"
    return "int8" if kinds & {"int8", "uint8"} else "float16" if "float16" in kinds else "float32"


def _onnx_precision(path):
    """By the operators and weights; float32, the strictest, where onnx is not installed."""
    try:
        import onnx
    except ImportError:
        return "float32"
    graph = onnx.load(path, load_external_data=False).graph
    kinds = {tensor.data_type for tensor in graph.initializer}
    if any("Quantize" in node.op_type for node in graph.node):
        return "int8"
    return "float16" if onnx.TensorProto.FLOAT16 in kinds else "float32"


if __name__ == "__main__":
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        answer = main(task)
    except Exception as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    partial = task["result"] + ".partial"
    Path(partial).write_text(json.dumps(answer), encoding="utf-8")
    os.replace(partial, task["result"])
