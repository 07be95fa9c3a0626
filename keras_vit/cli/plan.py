"""Says what training a model will need: memory a device, arithmetic, time; nothing is built.

keras-vit plan --model vit_g14 --devices 8xH100-80G --batch 1024 --remat

The first line says whether it fits; the exit status is 0 if so, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from keras_vit.cli import options as shared
from keras_vit.cli.devices import mesh
from keras_vit.engines.layouts import KINDS
from keras_vit.planning.check import compile_step
from keras_vit.planning.devices import GIB
from keras_vit.planning.model import complete
from keras_vit.planning.report import report
from keras_vit.planning.setup import Setup, make, parse_devices
from keras_vit.planning.way import BACKENDS, PRECISIONS
from keras_vit.recipe import OPTIMIZERS

_OWN_OPTIONS = {
    "image_shape": "--image-size",
    "image_size": "--image-size",
    "remat": "--remat",
    "dtype": "--precision",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--model", required=True, metavar="NAME", help="a variant, such as vit_l16")
    parser.add_argument(
        "--devices", required=True, metavar="NxNAME", help="such as 8xH100-80G; or N, with --memory"
    )
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory of a device, in GiB")
    parser.add_argument(
        "--batch",
        type=shared.positive,
        default=128,
        metavar="N",
        help="images an update, in all (128)",
    )
    parser.add_argument(
        "--distribution", choices=KINDS, help="what is cut: data, unless --mesh cuts the model"
    )
    parser.add_argument(
        "--mesh", type=mesh, metavar="BxM", help="devices along batch and model, such as 4x2"
    )
    parser.add_argument(
        "--shard-optimizer", action="store_true", help="cut the optimizer's state over replicas"
    )
    parser.add_argument("--remat", action="store_true", help="compute blocks again going backward")
    parser.add_argument("--precision", choices=PRECISIONS, default="mixed_bfloat16")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument(
        "--accumulate",
        type=shared.positive,
        default=1,
        metavar="N",
        help="forward passes an update",
    )
    parser.add_argument("--ema", action="store_true", help="an average of the weights is kept")
    parser.add_argument(
        "--image-size",
        type=shared.positive,
        nargs="+",
        metavar="N",
        help="side, or height and width",
    )
    parser.add_argument(
        "--set",
        type=shared.setting,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="another argument of the model, such as num_layers=48",
    )
    # Not `backend`, which would have to be installed.
    parser.add_argument(
        "--backend",
        dest="planned",
        choices=BACKENDS,
        default="jax",
        help="what trains the model; for TensorFlow nothing is known",
    )
    parser.add_argument(
        "--mfu", type=float, metavar="PART", help="part of the peak that is reached; else measured"
    )
    parser.add_argument("--epochs", type=float, metavar="N", help="of a run")
    parser.add_argument("--examples", type=shared.positive, metavar="N", help="in its data")
    parser.add_argument(
        "--check",
        action="store_true",
        help="compile the step for as many virtual devices with JAX, and compare",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def check(options: argparse.Namespace) -> None:
    """Raises a ValueError on bad arguments, before anything is computed."""
    setup_of(options)
    if options.mfu is not None and not 0 < options.mfu <= 1:
        raise ValueError(f"--mfu must be above 0 and at most 1. Received: {options.mfu}")
    if (options.epochs is None) != (options.examples is None):
        raise ValueError("--epochs and --examples go together: a run is their product.")
    if options.epochs is not None and not 0 < options.epochs < math.inf:
        raise ValueError(f"--epochs must be a positive number. Received: {options.epochs}")
    if options.check and options.planned != "jax":
        raise ValueError("--check compiles with JAX: leave out --backend torch.")


def setup_of(options: argparse.Namespace) -> Setup:
    """What is planned, checked."""
    arguments = dict(options.set)
    for name, remedy in _OWN_OPTIONS.items():
        if name in arguments:
            raise ValueError(f"--set {name}: pass {remedy} instead.")
    if options.image_size is not None:
        if len(options.image_size) > 2:
            raise ValueError("--image-size must be N, or HEIGHT WIDTH.")
        arguments["image_shape"] = (options.image_size[0], options.image_size[-1], 3)
    if options.remat:
        arguments["remat"] = True
    count, device = parse_devices(options.devices, options.memory)
    return make(
        complete(options.model, **arguments),
        device,
        count,
        batch=options.batch,
        kind=options.distribution,
        mesh=options.mesh,
        shard_optimizer=options.shard_optimizer,
        optimizer=options.optimizer,
        accumulate=options.accumulate,
        ema=options.ema,
        precision=options.precision,
        backend=options.planned,
    )


def run(options: argparse.Namespace) -> int:
    """Prints the plan; the status says whether it fits."""
    setup = setup_of(options)
    found = report(
        setup, options.model, mfu=options.mfu, epochs=options.epochs, examples=options.examples
    )
    if options.check:
        found["check"] = compile_step(setup)
    print(json.dumps(found, indent=2) if options.json else in_words(found))
    return 0 if found["fits"] else 1


def in_words(found: dict[str, Any]) -> str:
    """A plan as lines of text."""
    memory, step = found["memory"], found["step"]
    rows = [
        ("model", f"{found['model']}, {found['parameters']:,} parameters, {found['image']} px"),
        ("training", found["training"]),
        ("devices", found["devices"]["words"]),
        ("a device", f"{memory['images']} images at a time"),
        *((f"  {name}", shown(count)) for name, count in memory["rows"].items() if count),
        ("  peak", f"{shown(memory['peak'])}, in {memory['moment']}"),
    ]
    if memory["outside"]:
        rows.append(("  beside it", f"{shown(memory['outside'])}: context and libraries (assumed)"))
    whole = ", ".join(f"{name} {shown(count)}" for name, count in found["whole"].items() if count)
    rows += [
        ("all devices", whole),
        ("remat", f"{shown(memory['without_remat'])} without, {shown(memory['with_remat'])} with")
        if memory["with_remat"]
        else ("remat", "none: a ResNet has no Transformer blocks"),
        ("largest batch", found["largest_batch"] or "none: not one image a replica fits"),
        ("arithmetic", f"{step['flops'] / 1e12:,.1f} TFLOP a step"),
    ]
    if step["executed_flops"] != step["flops"]:
        rows.append(("", f"{step['executed_flops'] / 1e12:,.1f} TFLOP with what remat repeats"))
    rows.append(("utilisation", f"{step['mfu']:.1%} of the peak ({step['mfu_source']})"))
    if step["seconds"] is None:
        rows.append(("step", "unknown: the device has no peak in the table"))
    else:
        words = f"{step['seconds']:.3f} s, {step['images_per_second']:,.0f} images/s"
        alone = found["devices"]["count"] == 1
        rows.append(("step", words + ("" if alone else ", communication left out")))
    if found["run"]:
        rows.append(("run", _run_in_words(found["run"])))
    rows += [("paper", _paper_in_words(run)) for run in found["paper"]]
    if "check" in found:
        rows += [("check", line) for line in found["check"]["lines"]]
    rows += [("note", note) for note in found["notes"]]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join([found["answer"], *(f"{name:<{width}}{text}" for name, text in rows)])


def _run_in_words(run: dict[str, Any]) -> str:
    words = f"{run['images']:,.0f} images, {run['exaflops']:,.1f} exaFLOP"
    if run["device_days"] is None:
        return words
    return f"{words}, {run['device_days']:,.1f} device-days ({run['days']:,.2f} days)"


def _paper_in_words(run: dict[str, Any]) -> str:
    """One of the paper's runs; its operations are counted by other rules than ours."""
    words = [run["data"] + (f", {run['epochs']} epochs" if run["epochs"] else "")]
    if run["exaflops"]:
        words.append(f"{run['exaflops']:,} exaFLOP")
    if run["core_days"]:
        words.append(f"{run['core_days']:,} TPUv3-core-days")
    if run["here_exaflops"]:
        here = (
            f"as many images here: {run['here_exaflops']:,.0f} exaFLOP ({run['ratio']:.2f} of the "
            "paper's count)"
        )
        days = run["here_device_days"]
        words.append(here + ("" if days is None else f", {days:,.1f} device-days"))
    if run["run_ratio"]:
        words.append(f"this run: {run['run_ratio']:.3g} of its exaFLOP")
    return "; ".join(words)


def shown(count: int) -> str:
    """Bytes in words."""
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 100 else f"{count / 2**20:,.2f} MiB"
