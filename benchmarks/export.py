"""What exports cost and keep: differences by backend, latency beside timm, accuracy of integers.

    python benchmarks/export.py parity
    python benchmarks/export.py timm timm_s16.onnx                # where timm and torch are
    python benchmarks/export.py latency --timm timm_s16.onnx
    python benchmarks/export.py accuracy model.keras --test test.npz --calibration train.npz

`parity`: ViT-Ti/16, ViT-B/32, R26+ViT-S/32 and BiT-R50x1 at 224 px with random heads, from each
backend to SavedModel, TFLite (float32, float16), ONNX and OpenVINO, batches of 1, 4 and 7, in fresh
processes without Keras; the status is 1 if a difference is above 1e-4 (float16: 2e-2).
`latency`: ViT-S/16 at batch 1, one thread, all in one process, in turns. `accuracy`: all
quantisations of a trained model; the files hold arrays `images` (pixels 0..255) and `labels`.
`--json FILE` keeps what was printed. `--smoke` takes tiny models.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _children import python_path

BACKENDS = ("tensorflow", "jax", "torch")
MODELS = {
    "ViT-Ti/16": {},
    "ViT-B/32": {},
    "R26+ViT-S/32": {},
    "BiT R50x1": {},
}
SMOKE = {
    "ViT-Ti/16": {"image_shape": (32, 32, 3), "hidden_dim": 24, "num_layers": 1, "mlp_dim": 8},
    "BiT R50x1": {"image_shape": (32, 32, 3), "block_counts": (1, 1), "width": 32},
}
BATCHES = (1, 4, 7)
# Name -> the exporting function's name, the file's name, its arguments, the largest difference.
FORMATS = {
    "SavedModel": ("to_saved_model", "vit", {}, 1e-4),
    "TFLite": ("to_tflite", "a.tflite", {}, 1e-4),
    "TFLite float16": ("to_tflite", "b.tflite", {"quantize": "float16"}, 2e-2),
    "ONNX": ("to_onnx", "a.onnx", {}, 1e-4),
    "OpenVINO": ("to_openvino", "a.xml", {}, 1e-4),
}
# Name -> arguments of `to_tflite`; calibration images are added where they are taken.
QUANTIZATIONS = {
    "float32": {},
    "float16": {"quantize": "float16"},
    "dynamic": {"quantize": "dynamic"},
    "int8": {"quantize": "int8"},
    "int8, integers alone": {"quantize": "int8", "float_ops": ()},
    "int16x8": {"quantize": "int16x8"},
}
ROUNDS = 40


def processor() -> str:
    """The processor's name and how many cores there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def with_random_head(model):
    """The model, its head filled: a fresh one is zero, and all logits with it."""
    import numpy as np

    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        if variable.path.startswith("head/"):
            variable.assign(rng.normal(0, 0.05, variable.shape))
    return model


def parity_of(name, changes):
    """Rows of one model, on this process' backend."""
    import keras
    import numpy as np

    import keras_vit
    from keras_vit import export

    model = with_random_head(keras_vit.create_model(name, num_classes=1000, **changes))
    rng = np.random.default_rng(1)
    images = rng.uniform(0, 255, (sum(BATCHES), *model.flat_config["image_shape"]))
    images = images.astype("float32")
    for format, (function, file, arguments, bound) in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = getattr(export, function)(model, Path(folder, file), **arguments)
            found = export.verify(
                path, model, images, batch_sizes=BATCHES, repeats=3, tolerance=bound
            )
        yield {
            "backend": keras.backend.backend(),
            "model": name,
            "format": format,
            "difference": max(run.difference for run in found.runs),
            "bound": bound,
            "runtimes": sorted({f"{run.runtime} {run.version}" for run in found.runs}),
            "bytes": found.size,
            "holds": not found.failures,
        }


def parity(options):
    """Every model from every backend, a process each."""
    models = SMOKE if options.smoke else MODELS
    if options.only:
        for row in parity_of(options.only, models[options.only]):
            print(json.dumps(row), flush=True)
        return []
    rows = []
    for backend in options.backends:
        for name in models:
            command = [sys.executable, __file__, "parity", "--only", name]
            command += ["--smoke"] if options.smoke else []
            environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": python_path()}
            done = subprocess.run(
                command, env=environment, text=True, stdout=subprocess.PIPE, check=True
            )
            for line in done.stdout.splitlines():
                rows.append(row := json.loads(line))
                print(
                    f"{row['backend']:10} {row['model']:12} {row['format']:14} "
                    f"{row['difference']:.1e} (at most {row['bound']:.0e}) "
                    f"{row['bytes'] / 1e6:7.1f} MB",
                    flush=True,
                )
    return rows


def timm_onnx(options):
    """Writes timm's ViT-S/16 by PyTorch's own exporter."""
    import timm
    import torch

    model = timm.create_model("vit_small_patch16_224").eval()
    batch = torch.export.Dim("batch", min=1)
    program = torch.onnx.export(
        model, (torch.zeros(2, 3, 224, 224),), dynamo=True, dynamic_shapes=[{0: batch}]
    )
    program.save(options.path)
    return []


def latency(options):
    """Runs all runtimes in turns; medians, and their ratios."""
    os.environ.update(OMP_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
    import keras
    import numpy as np

    import keras_vit
    from keras_vit import export
    from keras_vit.evaluation.batches import Predictor

    changes = SMOKE["ViT-Ti/16"] if options.smoke else {}
    model = with_random_head(keras_vit.create_model("ViT-S/16", num_classes=1000, **changes))
    image = np.random.default_rng(1).uniform(0, 255, (1, *model.flat_config["image_shape"]))
    image = image.astype("float32")
    predictor = Predictor(model)
    runs = {f"Keras, {keras.backend.backend()}": lambda: predictor(image)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, arguments in {"float32": {}, "dynamic": {"quantize": "dynamic"}}.items():
            path = folder / f"{label}.tflite"
            export.to_tflite(model, path, **arguments)
            runs[f"TFLite, {label}"] = tflite_runner(path, image)
        path = export.to_onnx(model, folder / "a.onnx")
        runs["ONNX"] = onnx_runner(path, image)
        runs["OpenVINO"] = openvino_runner(export.to_openvino(model, folder / "a.xml"), image)
        if options.timm:
            channels_first = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
            runs["timm, ONNX"] = onnx_runner(options.timm, channels_first)
        times = {label: [] for label in runs}
        for turn in range(5 if options.smoke else ROUNDS + 5):
            for label, run in runs.items():
                started = time.perf_counter()
                run()
                if turn >= 3:
                    times[label].append(time.perf_counter() - started)
    medians = {label: statistics.median(values) for label, values in times.items()}
    peers = [label for label in medians if label.startswith(("Keras", "timm"))]
    print(f"{processor()}; ViT-S/16, batch 1, one thread, medians of {ROUNDS} in turns")
    rows = []
    for label, seconds in medians.items():
        ratios = {peer: round(seconds / medians[peer], 3) for peer in peers}
        rows.append({"runtime": label, "ms": round(1e3 * seconds, 2), "ratios": ratios})
        print(f"{label:18} {1e3 * seconds:8.1f} ms  {ratios}")
    return rows


def tflite_runner(path, image):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=1)
    run = interpreter.get_signature_runner("serving_default")
    run(images=image)  # allocates
    return lambda: run(images=image)


def onnx_runner(path, image):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: image})


def openvino_runner(path, image):
    import openvino

    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(str(path), "CPU", hints)
    return lambda: compiled(image)


def accuracy(options):
    """All quantisations of one model, in both interpreters."""
    import numpy as np

    import keras_vit
    from keras_vit import export

    model = keras_vit.load_model(options.model, compile=False)
    test, calibration = np.load(options.test), np.load(options.calibration)
    chosen = slice(options.skip, options.limit)
    images, labels = test["images"][chosen], test["labels"][chosen]
    rows = []
    print(f"{processor()}; {options.model.name}, {len(images):,} test pictures")
    for label in options.quantizations:
        arguments = QUANTIZATIONS[label]
        if arguments.get("quantize", "").startswith("int"):
            arguments = {**arguments, "calibration": calibration["images"]}
        with tempfile.TemporaryDirectory() as folder:
            path = export.to_tflite(model, Path(folder, "a.tflite"), **arguments)
            found = export.verify(
                path, model, images, labels=labels, tolerance=np.inf, agreement=0.0
            )
        for run in found.runs:
            row = {
                "quantization": label,
                "runtime": f"{run.runtime} {run.version}",
                "bytes": found.size,
                "model_accuracy": found.accuracy,
                "accuracy": run.accuracy,
                "agreement": run.agreement,
                "difference": run.difference,
                "ms": 1e3 * run.latency.p50,
            }
            rows.append(row)
            print(
                f"{label:20} {row['runtime']:22} {row['bytes'] / 1e6:6.2f} MB  "
                f"accuracy {row['accuracy']:.2%} (Keras {row['model_accuracy']:.2%})  "
                f"agreement {row['agreement']:.2%}  {row['ms']:.1f} ms",
                flush=True,
            )
    return rows


TASKS = {"parity": parity, "timm": timm_onnx, "latency": latency, "accuracy": accuracy}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="task", required=True)
    tasks = {name: commands.add_parser(name) for name in TASKS}
    for task in tasks.values():
        task.add_argument("--json", type=Path, metavar="FILE")
        task.add_argument("--smoke", action="store_true")
    tasks["parity"].add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    tasks["parity"].add_argument("--only", help=argparse.SUPPRESS)
    tasks["timm"].add_argument("path")
    tasks["latency"].add_argument("--timm", type=Path, metavar="ONNX")
    tasks["accuracy"].add_argument("model", type=Path)
    tasks["accuracy"].add_argument("--test", type=Path, required=True, metavar="NPZ")
    tasks["accuracy"].add_argument("--calibration", type=Path, required=True, metavar="NPZ")
    tasks["accuracy"].add_argument(
        "--quantizations", nargs="+", choices=QUANTIZATIONS, default=list(QUANTIZATIONS)
    )
    tasks["accuracy"].add_argument("--skip", type=int, default=0, metavar="N", help="pictures")
    tasks["accuracy"].add_argument("--limit", type=int, metavar="N", help="the last picture; all")
    options = parser.parse_args()
    rows = TASKS[options.task](options)
    if options.json:
        found = {"machine": processor(), "rows": rows}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(any(not row.get("holds", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
