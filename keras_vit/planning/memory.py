"""Memory of one device through a training step, and when it is highest.

A step is followed from the first layer to the optimizer: what is kept piles up in the forward
pass, falls block by block in the backward pass while gradients pile up, and the optimizer comes
last. The peak is the highest of these moments, not the sum of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from keras_vit.planning import activations, state
from keras_vit.planning.setup import Setup


@dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Attributes:
        rows: what there is -> bytes, each at its own highest.
        peak: the most at one time, as the backend's allocator counts.
        moment: when that is, in words.
        outside: what the device holds beside that: context and libraries.
    """

    rows: Mapping[str, int]
    peak: int
    moment: str
    outside: int = 0

    @property
    def needed(self) -> int:
        """Bytes that the device must have."""
        return self.peak + self.outside


# A CUDA context with cuBLAS, cuDNN and NCCL loaded, as `nvidia-smi` shows beside what the
# allocator has: an assumption, since it differs by driver.
CUDA_CONTEXT = 700 * 2**20
# cuBLAS' workspaces, which PyTorch's allocator counts: measured on an H200, between steps.
CUBLAS = 70 * 2**20
# Steps of PyTorch that need a smaller share of a GPU's memory are replayed as CUDA graphs, whose
# gradients keep their places and are copied at the end. As `models.replayed.SHARE`.
REPLAYED_BELOW = 0.4
_REST = "what is not in a part"


def memory(setup: Setup) -> Memory:
    """Follows one step.

    Args:
        setup: what is planned.

    Returns:
        Its memory on one device.
    """
    found = _followed(setup)
    if setup.way.backend == "torch" and setup.way.gpu and setup.count == 1:
        if found.peak < REPLAYED_BELOW * setup.device.memory:
            return _followed(setup, replayed=True)
    return found


def _followed(setup: Setup, replayed: bool = False) -> Memory:
    """As `memory`; steps may be replayed."""
    buckets = setup.way.backend == "torch" and setup.count > 1  # lie ready from step to step
    found = activations.of(setup)
    gradients = _gradients(setup, found.names)
    lasting = {
        "parameters": state.parameters(setup),
        **state.states(setup),
        "images and labels": batch_bytes(setup),
    }
    base = sum(lasting.values()) + state.scalars(setup)
    total = sum(gradients.values())
    base += total if buckets or replayed else 0
    base += CUBLAS if setup.way.backend == "torch" and setup.way.gpu else 0

    moments: dict[str, int] = {}
    kept = found.before + sum(found.kept) + found.behind
    if setup.way.backend == "torch":
        # Keras' step drops the last step's gradients between forward and backward pass.
        before = 0 if buckets else total
        moments["the forward pass"] = base + before + kept + found.held
    done = gradients[_REST]
    for index in reversed(range(len(found.kept))):
        kept -= found.kept[index]
        name = f"the backward pass of {found.names[index]}"
        live = base + kept + (0 if buckets or replayed else done)
        moments[name] = live + found.kept[index] + found.backward[index]
        done += gradients[found.names[index]]
    optimizer = _optimizer(setup, total)
    moments["the optimizer"] = base + (0 if buckets else total) + optimizer
    moment = max(moments, key=lambda name: moments[name])
    rows = {
        **lasting,
        "gradients": total,
        "activations": found.before + sum(found.tensors) + found.behind,
        "copies of weights": sum(found.copies),
        "workspace": max(found.backward, default=0),
        "workspace of the optimizer": optimizer,
    }
    outside = 0 if setup.device.is_tpu else CUDA_CONTEXT
    return Memory(rows, moments[moment], moment, outside)


def batch_bytes(setup: Setup) -> int:
    """Images in float32, and labels."""
    return setup.images * (math.prod(setup.config["image_shape"]) * 4 + 4)


def _gradients(setup: Setup, names: tuple[str, ...]) -> dict[str, int]:
    """Bytes of gradients by part of the model, in float32, cut as the weights are."""
    parts = state.shared(setup)
    found = {name: state.FLOAT32 * parts[name] for name in names}
    rest = sum(count for name, count in parts.items() if name not in found)
    return {**found, _REST: state.FLOAT32 * rest}


def _optimizer(setup: Setup, gradients: int) -> int:
    """Bytes that an update needs beside gradients and state.

    PyTorch makes a list of scaled gradients, and before it one of sums where it accumulates. XLA
    updates in place, but may sum gradients over replicas into new memory.
    """
    if setup.way.backend == "torch":
        return gradients * (2 if setup.accumulate > 1 else 1)
    return gradients if setup.mesh[0] > 1 and setup.kind != "fsdp" else 0
