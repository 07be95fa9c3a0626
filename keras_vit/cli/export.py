"""Writes a model for where it will run, and proves that it gives the same there.

keras-vit export --model runs/a --to saved_model --output serving/vit
keras-vit export --model runs/a --to tflite --output vit.tflite --quantize int8 --images pictures/

The artifact is run by its own runtime, without Keras, and compared with the model: on `--images`,
or on made-up pictures. If it differs too much, nothing is left of it, and the status is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import Any

from keras_vit.cli import options as shared

# Format -> the options that it alone takes, as Python names them.
FORMATS = {
    "saved_model": ("probabilities", "interpolation", "top", "max_batch_size"),
    "tflite": ("quantize", "fixed_batch", "float_ops", "io_dtype"),
    "onnx": ("opset", "fixed_batch", "probabilities"),
    "openvino": ("fixed_batch", "probabilities"),
}
QUANTIZATIONS = ("float16", "dynamic", "int8", "int16x8")
CALIBRATED = ("int8", "int16x8")
PROBABILITIES = ("softmax", "sigmoid")
_SUFFIXES = {"tflite": ".tflite", "onnx": ".onnx", "openvino": ".xml"}
# Files that an artifact may have beside it.
_COMPANIONS = {"onnx": ("{0.name}.data",), "openvino": ("{0.stem}.bin",)}
_GPU_BATCH = 64
_BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    shared.add_source_option(parser)
    parser.add_argument("--to", required=True, choices=FORMATS, help="format")
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="PATH",
        help="file to write; of a SavedModel the directory of versions, or a version",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    shared.add_data_option(parser, "--images")
    parser.add_argument(
        "--examples", type=shared.positive, default=256, metavar="N", help="of --images (256)"
    )
    parser.add_argument("--crop", choices=shared.EVALUATION_CROPS, help=shared.CROPS)
    parser.add_argument("--no-verify", action="store_true", help="do not run what was written")
    parser.add_argument(
        "--tolerance", type=float, metavar="X", help="largest difference of logits (by precision)"
    )
    parser.add_argument(
        "--agreement", type=float, metavar="X", help="least share of equal first classes (0.98)"
    )
    parser.add_argument(
        "--threads", type=shared.positive, default=1, metavar="N", help="of the runtimes (1)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    shared.add_backend_option(parser)
    own = parser.add_argument_group("of some formats")
    own.add_argument("--quantize", choices=QUANTIZATIONS, help="tflite")
    own.add_argument(
        "--calibration", metavar="DATA", help="tflite int8: as --images (by default half of those)"
    )
    own.add_argument(
        "--float-ops",
        nargs="*",
        metavar="GROUP",
        help="tflite int8: what stays float: softmax, activation, arithmetic, attention, stem, "
        "head (all by default); no GROUP: nothing, for hardware without floating point",
    )
    own.add_argument("--io-dtype", metavar="DTYPE", help="tflite int8: of input and output")
    own.add_argument("--fixed-batch", type=shared.positive, metavar="N", help="not SavedModel")
    own.add_argument("--opset", type=shared.positive, metavar="N", help="onnx")
    own.add_argument("--probabilities", choices=PROBABILITIES, help="what makes them of logits")
    own.add_argument(
        "--interpolation", choices=("bilinear", "bicubic"), help="SavedModel: resizing"
    )
    own.add_argument(
        "--top", type=shared.positive, metavar="N", help="SavedModel: classes named (5)"
    )
    own.add_argument(
        "--gpu-batching",
        dest="max_batch_size",
        type=shared.positive,
        nargs="?",
        const=_GPU_BATCH,
        metavar="N",
        help=f"SavedModel: write batching parameters for a GPU ({_GPU_BATCH} images at most)",
    )


def check(options: argparse.Namespace) -> None:
    """Raises a ValueError on bad arguments, before Keras is imported."""
    shared.check_model("--model", options.model)
    for option, data in (("--images", options.images), ("--calibration", options.calibration)):
        shared.check_data(option, data)
    for option, value, most in (
        ("tolerance", options.tolerance, float("inf")),
        ("agreement", options.agreement, 1),
    ):
        if value is not None and not 0 <= value <= most:
            raise ValueError(f"--{option} must lie between 0 and {most}. Received: {value}")
    taken = FORMATS[options.to]
    names = dict.fromkeys(name for group in FORMATS.values() for name in group)
    for name in names:
        if getattr(options, name) is not None and name not in taken:
            option = "gpu-batching" if name == "max_batch_size" else name.replace("_", "-")
            takers = ", ".join(format for format, group in FORMATS.items() if name in group)
            raise ValueError(
                f"--{option} is of {takers}; leave it out. Received: --to {options.to}"
            )
    calibrated = options.quantize in CALIBRATED
    if calibrated and options.images is None and options.calibration is None:
        raise ValueError(
            f"--quantize {options.quantize} is calibrated on pictures like those that will come: "
            "name some by --calibration or --images."
        )
    if options.calibration is not None and not calibrated:
        raise ValueError(f"--calibration is of --quantize {' and '.join(CALIBRATED)}.")
    suffix = _SUFFIXES.get(options.to, options.output.suffix)
    if options.output.suffix != suffix:
        raise ValueError(f"--output must end in {suffix}. Received: {options.output}")


def run(options: argparse.Namespace) -> int:
    """Exports and compares; the status is 1 if the artifact differs too much."""
    # Told to end, it takes away what it has begun.
    before = signal.signal(signal.SIGTERM, _end)
    try:
        return _run(options)
    except RuntimeError as error:  # of TensorFlow, or a process that died
        raise ValueError(str(error)) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame) -> None:
    raise SystemExit(128 + number)


def _run(options: argparse.Namespace) -> int:
    from keras_vit.cli.models import load
    from keras_vit.export.batching import BATCHING
    from keras_vit.export.folders import staged
    from keras_vit.export.saved_model import version_of

    model, known = load(options.model)
    target = options.output.expanduser()
    if options.to == "saved_model":
        target = version_of(target)
    images, labels = _pictures(options.images, model, known, options)
    calibration = None
    if options.calibration is not None:
        calibration = _pictures(options.calibration, model, known, options)[0]
    elif options.quantize in CALIBRATED and images is not None and labels is not None:
        # What calibrates does not judge as well.
        if len(images) < 2:
            raise ValueError("--images must have pictures to calibrate on, and others to judge by.")
        calibration, images, labels = images[::2], images[1::2], labels[1::2]
    companions = tuple(name.format(target) for name in _COMPANIONS.get(options.to, ()))
    with staged(target, options.overwrite, companions) as path:
        _write(options, path, model, known, calibration)
        found: dict[str, Any] = {"path": str(target), "format": options.to}
        files = [path, *(path.with_name(name) for name in companions)]
        size = sum(shared.bytes_on_disk(file) for file in files if file.exists())
        text = f"wrote {target}, {shared.megabytes(size)}"
        if options.max_batch_size:
            text += f"\nwrote {target.with_name(BATCHING)}"
        if not options.no_verify:
            result = _verify(options, path, model, images, labels)
            result = dataclasses.replace(result, artifact=str(target))
            found["verification"], text = result.to_dict(), f"{result.text()}\n{text}"
            failures = result.failures
            if failures:
                print(json.dumps(found, indent=2) if options.json else result.text())
                raise ValueError(
                    f"{target} was not written, for what was made of it failed: "
                    f"{'; '.join(failures)}. --no-verify writes it all the same."
                )
    print(json.dumps(found, indent=2) if options.json else text)
    return 0


def _write(options: argparse.Namespace, path: Path, model, known: dict, calibration) -> None:
    from keras_vit import export

    arguments = {name: getattr(options, name) for name in FORMATS[options.to]}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if "fixed_batch" in arguments:
        arguments["batch_size"] = arguments.pop("fixed_batch")
    if options.to == "saved_model":
        arguments["crop"] = _crop(options, known)
    if calibration is not None:
        arguments["calibration"] = calibration
    writer = getattr(export, f"to_{options.to}")
    writer(model, path, class_names=known.get("class_names"), **arguments)


def _verify(options: argparse.Namespace, path: Path, model, images, labels):
    from keras_vit.export import verify

    bounds = {"tolerance": options.tolerance, "agreement": options.agreement}
    bounds = {name: value for name, value in bounds.items() if value is not None}
    return verify(path, model, images, labels=labels, threads=options.threads, **bounds)


def _crop(options: argparse.Namespace, known: dict) -> str:
    return options.crop or known.get("evaluation") or "squash"


def _pictures(spec: str | None, model, known: dict, options: argparse.Namespace):
    """`--examples` images spread over the data, and their labels; `None` twice without data."""
    if spec is None:
        return None, None
    import numpy as np

    from keras_vit.cli.models import open_data
    from keras_vit.data import Pipeline
    from keras_vit.data.source import Subset

    config = model.flat_config
    height, width, channels = config["image_shape"]
    source = open_data(spec, known)
    number = min(options.examples, source.size)
    spread = np.linspace(0, source.size - 1, number).astype("int64")
    pipeline = Pipeline(
        Subset(source, spread, f"{number} of {source.description}"),
        training=False,
        image_size=(height, width),
        channels=channels,
        batch_size=min(number, _BATCH),
        crop=_crop(options, known),
        num_classes=config["num_classes"],
    )
    batches = list(pipeline.dataset.as_numpy_iterator())
    unreadable = pipeline.bad.report()
    if unreadable:
        print(unreadable, file=sys.stderr)
    if not batches:
        raise ValueError(f"No picture of {spec} could be read.")
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)
