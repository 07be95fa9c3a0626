"""What is planned: a model, how it is trained, and on what. All checks are made here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_vit import _checks
from keras_vit.engines.layouts import BATCH, KINDS, MODEL, kind_of
from keras_vit.planning import devices
from keras_vit.planning.devices import Device
from keras_vit.planning.way import BACKENDS, PRECISIONS, Way
from keras_vit.recipe import OPTIMIZERS

SLOTS = {"adamw": 2, "sgd": 1}


@dataclass(frozen=True)
class Setup:
    """A training run, as far as memory and speed depend on it.

    Attributes:
        config: of `planning.model.complete`.
        device: one of the devices.
        count: how many there are.
        batch: images an update, on all devices together.
        kind: "data", "model" or "fsdp".
        mesh: devices along "batch" and along "model".
        shard_optimizer: whether the optimizer's state is cut along "batch".
        optimizer: "adamw" or "sgd".
        accumulate: forward passes an update.
        ema: whether the weights' average is kept.
        way: backend and precision.
    """

    config: Mapping[str, Any]
    device: Device
    count: int = 1
    batch: int = 128
    kind: str = "data"
    mesh: tuple[int, int] = (1, 1)
    shard_optimizer: bool = False
    optimizer: str = "adamw"
    accumulate: int = 1
    ema: bool = False
    way: Way = dataclasses.field(default_factory=Way)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh as `engines.layouts` takes it."""
        return {BATCH: self.mesh[0], MODEL: self.mesh[1]}

    @property
    def step(self) -> int:
        """Least number of images of which a batch must be a multiple."""
        return self.mesh[0] * self.accumulate

    @property
    def images(self) -> int:
        """Images that a device gets in one forward pass."""
        return self.batch // self.step

    @property
    def parts(self) -> int:
        """Devices that share one image, by model parallelism."""
        return self.mesh[1]

    def replace(self, **changes: Any) -> Setup:
        """A setup with other values, checked as a whole."""
        changed = dataclasses.replace(self, **changes)
        check(changed)
        return changed

    def on_cpu(self) -> Setup:
        """The setup as a CPU runs it: without fused kernels."""
        return dataclasses.replace(self, way=dataclasses.replace(self.way, gpu=False))

    def with_remat(self) -> Setup:
        """The setup with `remat`."""
        return self.replace(config={**self.config, "remat": True})


def make(
    config: Mapping[str, Any],
    device: Device,
    count: int = 1,
    *,
    batch: int = 128,
    kind: str | None = None,
    mesh: tuple[int, int] | None = None,
    shard_optimizer: bool = False,
    optimizer: str = "adamw",
    accumulate: int = 1,
    ema: bool = False,
    precision: str = "mixed_bfloat16",
    backend: str = "jax",
) -> Setup:
    """A checked setup.

    Args:
        config: of `planning.model.complete`.
        device: one of the devices.
        count: how many there are.
        batch: images an update, on all devices together.
        kind: "data", "model" or "fsdp"; `None`: as `mesh` says, else "data".
        mesh: devices along "batch" and along "model"; `None`: all along the one that `kind` cuts.
        shard_optimizer: whether the optimizer's state is cut along "batch".
        optimizer: "adamw" or "sgd".
        accumulate: forward passes an update.
        ema: whether the weights' average is kept.
        precision: dtype policy.
        backend: "jax" or "torch".

    Raises:
        ValueError: on values out of range, or that do not go together.
    """
    _checks.choice("distribution", kind, (None, *KINDS))
    kind = kind_of(kind, mesh)
    _checks.choice("precision", precision, PRECISIONS)
    _checks.choice("optimizer", optimizer, OPTIMIZERS)
    _checks.choice("backend", backend, BACKENDS)
    _checks.positive_int("batch", batch)
    _checks.positive_int("accumulate", accumulate)
    _checks.positive_int("devices", count)
    if mesh is None:
        mesh = (1, count) if kind == "model" else (count, 1)
    way = Way(backend, precision, gpu=not device.is_tpu)
    found = Setup(
        config, device, count, batch, kind, mesh, shard_optimizer, optimizer, accumulate, ema, way
    )
    check(found)
    return found


def check(setup: Setup) -> None:
    """Raises a ValueError where the values of a setup do not go together."""
    rows, columns = setup.mesh
    if rows * columns != setup.count:
        raise ValueError(
            f"`mesh` must have as many places as there are devices, {setup.count}. "
            f"Received: mesh={rows}x{columns}"
        )
    one_device = setup.way.backend == "torch" and (setup.kind != "data" or setup.shard_optimizer)
    if one_device:
        raise ValueError(
            "PyTorch trains with distribution='data' and whole weights on every device: take the "
            f"backend 'jax'. Received: backend='torch', distribution={setup.kind!r}, "
            f"shard_optimizer={setup.shard_optimizer}"
        )
    if setup.way.precision == "mixed_bfloat16" and not setup.device.bfloat16:
        raise ValueError(
            f"{setup.device.name} does not compute in bfloat16: take precision=mixed_float16 "
            "or float32. Received: precision='mixed_bfloat16'"
        )
    if setup.batch % setup.step:
        low = setup.batch // setup.step * setup.step
        near = f"{low} or {low + setup.step}" if low else f"{setup.step}"
        words = f"{rows} replicas"
        if setup.accumulate > 1:
            words += f" x {setup.accumulate} accumulation steps"
        raise ValueError(
            f"`batch` must be a multiple of {setup.step} ({words}): take {near}. "
            f"Received: batch={setup.batch}"
        )
    heads = setup.config.get("num_heads")
    if columns > 1 and heads is not None and heads % columns:
        raise ValueError(
            "Model parallelism cuts the attention by heads, so that the second side of `mesh` "
            f"must divide `num_heads`. Received: mesh={rows}x{columns}, num_heads={heads}"
        )


def parse_devices(spec: str, gib: float | None = None) -> tuple[int, Device]:
    """`planning.devices.parse`, with the memory checked."""
    if gib is not None:
        _checks.positive_float("memory", gib)
    return devices.parse(spec, gib)
