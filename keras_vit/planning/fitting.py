"""Whether a run fits, the largest batch that does, and what would make it fit: all computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keras_vit.checkpoints.shapes import is_bit
from keras_vit.planning.memory import Memory, memory
from keras_vit.planning.setup import Setup

_MOST_DEVICES = 4096


@dataclass(frozen=True)
class Remedy:
    """A change with which the run fits.

    Attributes:
        option: as the command line says it.
        setup: with the change.
        memory: what it needs then.
    """

    option: str
    setup: Setup
    memory: Memory


def fits(setup: Setup) -> bool:
    """Whether the devices have the memory."""
    return memory(setup).needed <= setup.device.memory


def largest_batch(setup: Setup) -> int | None:
    """The largest batch that fits, of those that replicas and accumulation divide.

    Returns:
        Images an update; `None` if not even one image a replica fits.
    """
    step = setup.step

    def holds(times: int) -> bool:
        return fits(setup.replace(batch=times * step))

    if not holds(1):
        return None
    low, high = 1, 2
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low * step


def remedies(setup: Setup) -> list[Remedy]:
    """The changes that make a run fit which does not, each alone, then pairs; at most a few."""
    single = [Remedy(option, changed, memory(changed)) for option, changed in _changes(setup)]
    found = [remedy for remedy in single if _fits(remedy)]
    # Going with `--remat`, a few forward passes an update may do where else many are needed.
    firsts = [remedy for remedy in single if not found or remedy.option == "--remat"]
    for first in firsts:
        if not _fits(first):
            for option, changed in _changes(first.setup):
                remedy = Remedy(f"{first.option} {option}", changed, memory(changed))
                if _fits(remedy) and not _seen(remedy, found):
                    found.append(remedy)
    batch = largest_batch(setup)
    if batch is not None:
        changed = setup.replace(batch=batch)
        found.append(Remedy(f"--batch {batch}", changed, memory(changed)))
    devices = _more_devices(setup)
    return [*found, *([devices] if devices else [])]


def _fits(remedy: Remedy) -> bool:
    return remedy.memory.needed <= remedy.setup.device.memory


def _seen(remedy: Remedy, found: list[Remedy]) -> bool:
    return any(other.setup == remedy.setup for other in found)


def _changes(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """What can be changed without another batch or other devices."""
    if not is_bit(setup.config) and not setup.config["remat"]:
        yield "--remat", setup.with_remat()
    if setup.way.backend == "jax" and setup.count > 1:
        if setup.mesh[0] > 1 and setup.kind != "fsdp":
            if not setup.shard_optimizer:
                yield "--shard-optimizer", setup.replace(shard_optimizer=True)
            option = "--distribution fsdp"
            if setup.mesh[1] > 1:
                option += f" --mesh {setup.mesh[0]}x{setup.mesh[1]}"
            yield option, setup.replace(kind="fsdp", shard_optimizer=False)
        if setup.kind == "model" and setup.mesh[0] == 1:
            mesh = (setup.count, 1)
            if setup.batch % (setup.count * setup.accumulate) == 0:
                yield "--distribution fsdp", setup.replace(kind="fsdp", mesh=mesh)
    times = 2
    while setup.batch % (setup.step * times) == 0:
        changed = setup.replace(accumulate=setup.accumulate * times)
        if memory(changed).needed <= setup.device.memory:
            yield f"--accumulate {setup.accumulate * times}", changed
            break
        times *= 2


def _more_devices(setup: Setup) -> Remedy | None:
    """The least number of devices, by doubling along the batch, with which the run fits."""
    rows, columns = setup.mesh
    while rows * columns * 2 <= _MOST_DEVICES:
        rows *= 2
        if setup.batch % (rows * setup.accumulate):
            return None
        changed = setup.replace(mesh=(rows, columns), count=rows * columns)
        found = memory(changed)
        if found.needed <= setup.device.memory:
            option = f"--devices {changed.count}x{setup.device.name}"
            if setup.kind != "data" and columns > 1:
                option += f" --mesh {rows}x{columns}"
            return Remedy(option, changed, found)
    return None
