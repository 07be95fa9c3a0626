"""A check of the plan: the step compiled ahead of time by JAX over virtual devices.

What it can tell: that the step compiles with these layouts; to the byte, what weights, optimizer
and batch take on each device; and, by temporaries far above the plan, that a layout gathers
activations. What it cannot: how much a GPU or TPU needs for activations. XLA for CPUs has no fused
attention, computes products of bfloat16 in float32 and fuses less; and it gathers all weights
before the first block and sums whole gradients at the end, where others do so block by block. So
its temporaries bound what other devices need, roughly, and under "fsdp" they hold all weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from keras_vit.checkpoints.shapes import is_bit
from keras_vit.planning import activations, state
from keras_vit.planning.memory import batch_bytes
from keras_vit.planning.setup import Setup

_FLAGS = (
    # XLA for CPUs drops the barriers that `remat` rests on, and then merges what is computed twice.
    "--xla_disable_hlo_passes=cse_barrier_expander",
    # Nothing is run, so that good machine code would be a waste of time.
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)
LIMITS = (
    "XLA for CPUs has no fused attention, widens bfloat16, fuses less, gathers all weights at once "
    "and sums whole gradients: its temporaries bound what a GPU or TPU needs, roughly"
)


def compile_step(setup: Setup) -> dict[str, Any]:
    """Compiles the step in a child process and lays XLA's account beside the plan's.

    Args:
        setup: what is planned; its backend is "jax".

    Returns:
        XLA's bytes on one device, the plan's, and "lines" in words.

    Raises:
        ImportError: if JAX is not installed.
        ValueError: if the step does not compile; the message ends as XLA's does.
    """
    account = _child(_asked(setup))
    planned = expected_arguments(setup)
    found = activations.of(setup.on_cpu())
    kept = found.before + sum(found.kept) + found.behind + max(found.backward, default=0)
    same = account["arguments"] == planned
    lines = [
        f"compiled for {setup.count} virtual devices in {sum(account['seconds']):.0f} s",
        f"weights, optimizer and batch: {account['arguments']:,} bytes a device, "
        + ("as planned" if same else f"but {planned:,} planned"),
        f"temporaries: {account['temporaries']:,} bytes; planned for a CPU: {kept:,} of "
        f"activations, {4 * sum(state.shared(setup).values()):,} of gradients",
        LIMITS,
    ]
    return {**account, "planned_arguments": planned, "planned_activations": kept, "lines": lines}


def expected_arguments(setup: Setup) -> int:
    """Bytes of the step's arguments on one device."""
    states = sum(state.states(setup).values())
    return state.parameters(setup) + states + state.scalars(setup) + batch_bytes(setup)


def _asked(setup: Setup) -> dict[str, Any]:
    return {
        "kind": "bit" if is_bit(setup.config) else "vit",
        "config": dict(setup.config),
        "dtype": setup.way.precision,
        "distribution": setup.kind,
        "mesh": setup.mesh,
        "shard_optimizer": setup.shard_optimizer,
        "optimizer": setup.optimizer,
        "accumulate": setup.accumulate,
        "ema": setup.ema,
        "images": setup.batch // setup.accumulate,
    }


def _child(asked: dict[str, Any]) -> dict[str, Any]:
    count = asked["mesh"][0] * asked["mesh"][1]
    flags = [f"--xla_force_host_platform_device_count={count}", *_FLAGS]
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip(),
    }
    for name in [name for name in environment if name.startswith("KERAS_DISTRIBUTION_")]:
        del environment[name]
    done = subprocess.run(
        [sys.executable, "-c", "from keras_vit.planning.compiled import main; main()"],
        input=json.dumps(asked),
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"The step could not be compiled for --check: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])
