"""A plan as plain JSON values: the answer first, then what it rests on."""

from __future__ import annotations

import math
from typing import Any

from keras_vit import variants
from keras_vit.checkpoints.shapes import is_bit
from keras_vit.planning import fitting, state
from keras_vit.planning.devices import GIB
from keras_vit.planning.memory import Memory, memory
from keras_vit.planning.setup import Setup
from keras_vit.planning.speed import DAY, JFT_IMAGES, PAPER_RUNS, Speed, speed
from keras_vit.planning.variables import variable_shapes

_JAX_SHARE = 0.75  # of a GPU's memory, that JAX takes unless told otherwise


def report(
    setup: Setup,
    name: str,
    *,
    mfu: float | None = None,
    epochs: float | None = None,
    examples: int | None = None,
) -> dict[str, Any]:
    """Everything that is known of a run before it begins.

    Args:
        setup: what is planned.
        name: of the variant that the model was derived from.
        mfu: as in `speed.speed`.
        epochs: passes over the data, with `examples`.
        examples: in the data, with `epochs`.
    """
    needs, takes = memory(setup), speed(setup, mfu, epochs=epochs, examples=examples)
    fits = needs.needed <= setup.device.memory
    remedies = [] if fits else fitting.remedies(setup)
    return {
        "answer": _answer(setup, needs, remedies),
        "fits": fits,
        "needed": needs.needed,
        "available": setup.device.memory,
        "remedies": [{"option": r.option, "needed": r.memory.needed} for r in remedies],
        "model": _name(setup, name),
        "parameters": _count(setup),
        "image": " x ".join(map(str, setup.config["image_shape"][:2])),
        "training": _training(setup),
        "devices": _devices(setup),
        "memory": _memory(setup, needs),
        "whole": _whole(setup),
        "largest_batch": fitting.largest_batch(setup),
        "step": {
            "flops": takes.step_flops,
            "executed_flops": takes.executed_flops,
            "mfu": takes.mfu,
            "mfu_source": takes.mfu_source,
            "seconds": takes.seconds,
            "images_per_second": takes.images,
        },
        "run": _run(setup, takes),
        "paper": _paper(name, setup, takes),
        "notes": _notes(setup, needs),
    }


def _count(setup: Setup) -> int:
    return sum(math.prod(shape) for shape in variable_shapes(setup.config).values())


def _name(setup: Setup, name: str) -> str:
    variant = variants.parse(name)
    changed = [
        key for key, value in variant.config().items() if not _same(setup.config[key], value)
    ]
    return variant.name if not changed else f"{variant.name} with another {', '.join(changed)}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return all(one.get(key) == value for key, value in other.items())
    return one in (other, (other, other))


def _answer(setup: Setup, needs: Memory, remedies: list[fitting.Remedy]) -> str:
    have, need = setup.device.memory / GIB, needs.needed / GIB
    if needs.needed <= setup.device.memory:
        return f"fits: {need:.1f} of {have:.1f} GiB a device"
    words = f"does not fit: {need:.1f} of {have:.1f} GiB a device"
    if not remedies:
        return f"{words}; no option, smaller batch or number of devices here would do"
    listed = "; ".join(f"{r.option} ({r.memory.needed / GIB:.1f} GiB)" for r in remedies)
    return f"{words}; would fit with {listed}"


def _training(setup: Setup) -> str:
    words = [f"{setup.way.backend}, {setup.way.precision}, {setup.optimizer}, batch {setup.batch}"]
    words += [f"accumulation of {setup.accumulate}"] if setup.accumulate > 1 else []
    words += ["average of the weights"] if setup.ema else []
    words += ["remat"] if setup.config.get("remat") else []
    return ", ".join(words)


def _devices(setup: Setup) -> dict[str, Any]:
    rows, columns = setup.mesh
    words = f"{setup.count} x {setup.device.name} ({setup.device.gib:g} GiB), {setup.kind}"
    words += f", mesh {rows} x {columns}" if setup.count > 1 else ""
    words += ", optimizer sharded" if setup.shard_optimizer else ""
    return {
        "words": words,
        "count": setup.count,
        "name": setup.device.name,
        "memory": setup.device.memory,
        "distribution": setup.kind,
        "mesh": list(setup.mesh),
        "shard_optimizer": setup.shard_optimizer,
    }


def _memory(setup: Setup, needs: Memory) -> dict[str, Any]:
    other: dict[bool, int] = {}
    if not is_bit(setup.config):
        for remat in (False, True):
            changed = setup.replace(config={**setup.config, "remat": remat})
            other[remat] = memory(changed).needed
    return {
        "images": setup.images,
        "rows": dict(needs.rows),
        "peak": needs.peak,
        "moment": needs.moment,
        "outside": needs.outside,
        "without_remat": other.get(False),
        "with_remat": other.get(True),
    }


def _whole(setup: Setup) -> dict[str, int]:
    """Bytes on all devices together of what lasts, copies on several devices counted."""
    return {
        "parameters": setup.count * state.parameters(setup),
        **{name: setup.count * count for name, count in state.states(setup).items()},
    }


def _run(setup: Setup, takes: Speed) -> dict[str, Any] | None:
    if takes.examples is None or takes.run_flops is None:
        return None
    days = None if takes.images is None else takes.examples / takes.images / DAY
    return {
        "images": takes.examples,
        "exaflops": takes.run_flops / 1e18,
        "device_days": takes.device_days,
        "days": days,
    }


def _paper(name: str, setup: Setup, takes: Speed) -> list[dict[str, Any]]:
    """The paper's pre-training runs of the variant, and what as many images would take here."""
    variant = variants.parse(name).name
    found = []
    for run in PAPER_RUNS:
        if run.variant != variant:
            continue
        here = days = None
        if run.epochs is not None:
            images = run.epochs * JFT_IMAGES
            here = takes.step_flops / setup.batch * images / 1e18
            if takes.images is not None:
                days = images / takes.images / DAY * setup.count
        found.append(
            {
                "data": run.data,
                "epochs": run.epochs,
                "exaflops": run.exaflops,
                "core_days": run.core_days,
                "here_exaflops": here,
                "here_device_days": days,
                "ratio": here / run.exaflops if here and run.exaflops else None,
                "run_ratio": takes.run_flops / 1e18 / run.exaflops
                if takes.run_flops and run.exaflops
                else None,
            }
        )
    return found


def _notes(setup: Setup, needs: Memory) -> list[str]:
    notes = []
    on_gpu = not setup.device.is_tpu
    share = _JAX_SHARE * setup.device.memory
    if setup.way.backend == "jax" and on_gpu and share < needs.peak <= setup.device.memory:
        notes.append(
            "JAX takes 75% of a GPU's memory, which is less than this: set "
            "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95"
        )
    return notes
