"""Arithmetic of a run, the time it takes at some utilisation, and the paper's runs beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_vit.checkpoints.shapes import is_bit
from keras_vit.counts import BIT_DEFAULTS, VIT_DEFAULTS, count_flops
from keras_vit.planning.setup import Setup

DAY = 24 * 60 * 60


@dataclass(frozen=True)
class Measured:
    """A training speed that was measured on one H100-80G, in mixed bfloat16.

    Attributes:
        what: model and program.
        images: a second.
        gflops: of one image's forward pass, a multiply and its add as two.
    """

    what: str
    images: float
    gflops: float

    @property
    def mfu(self) -> float:
        """Part of the maker's peak, 989.4 TFLOP/s, that the model's arithmetic took."""
        return self.images * 3 * self.gflops * 1e9 / 989.4e12


# One H100-80G, JAX 0.11.2 and PyTorch 2.11, at 224 pixels, AdamW, batch 256 (L: 128).
MEASURED: dict[str, tuple[Measured, ...]] = {
    "jax": (
        Measured("ViT-S/16, plain JAX", 9092, 9.20),
        Measured("ViT-B/16, Keras layers in fit", 3347, 35.13),
        Measured("ViT-L/16, plain JAX", 1139, 123.1),
    ),
    "torch": (
        Measured("ViT-S/16, Keras layers compiled, own loop", 8155, 9.20),
        Measured("ViT-B/16, Keras layers compiled, own loop", 3632, 35.13),
        Measured("ViT-L/16, Keras layers compiled, own loop", 1130, 123.1),
    ),
}


@dataclass(frozen=True)
class PaperRun:
    """A pre-training run of arXiv 2010.11929: tables 2 and 6.

    Attributes:
        variant: name.
        epochs: over JFT-300M; `None` where only ImageNet-21k is meant.
        exaflops: 10^18 floating-point operations, as the paper counts.
        core_days: TPUv3-core-days; `None` where the paper gives none.
        data: what it was trained on.
    """

    variant: str
    epochs: int | None
    exaflops: float | None = None
    core_days: float | None = None
    data: str = "JFT-300M"


# Section 4.1 of the paper.
JFT_IMAGES = 303_000_000
PAPER_RUNS: tuple[PaperRun, ...] = (
    PaperRun("ViT-B/32", 7, 164),
    PaperRun("ViT-B/16", 7, 743),
    PaperRun("ViT-L/32", 7, 574),
    PaperRun("ViT-L/16", 7, 2586, 680),
    PaperRun("ViT-L/16", 14, 5172),
    PaperRun("ViT-L/16", None, None, 230, "ImageNet-21k"),
    PaperRun("ViT-H/14", 14, 12826, 2500),
    PaperRun("BiT R50x1", 7, 150),
    PaperRun("BiT R50x2", 7, 592),
    PaperRun("BiT R101x1", 7, 285),
    PaperRun("BiT R152x1", 7, 427),
    PaperRun("BiT R152x2", 7, 1681),
    PaperRun("BiT R152x2", 14, 3362),
    PaperRun("BiT R200x3", 14, 10212),
    PaperRun("R50+ViT-B/32", 7, 315),
    PaperRun("R50+ViT-B/16", 7, 855),
    PaperRun("R50+ViT-L/32", 7, 725),
    PaperRun("R50+ViT-L/16", 7, 2704),
    PaperRun("R50+ViT-L/16", 14, 5165),
)


def forward_flops(config: Mapping[str, Any]) -> int:
    """Floating-point operations of one image's forward pass: multiply-adds, doubled."""
    return 2 * count_flops(_counted(config))


def _counted(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in (BIT_DEFAULTS if is_bit(config) else VIT_DEFAULTS)}


def block_flops(config: Mapping[str, Any]) -> int:
    """The part of `forward_flops` that lies in the Transformer blocks."""
    if is_bit(config):
        return 0
    two = count_flops({**_counted(config), "num_layers": 2})
    one = count_flops({**_counted(config), "num_layers": 1})
    return 2 * (two - one) * config["num_layers"]


@dataclass(frozen=True)
class Speed:
    """What a step and a run take.

    Attributes:
        step_flops: of an update on all devices, as the model needs them: three times the forward
            pass. Utilisation is measured on these.
        executed_flops: with what `remat` does a second time.
        mfu: part of the peak that is reached.
        mfu_source: where that is from.
        seconds: a step; `None` where the device's peak is unknown.
        images: a second, on all devices.
        examples: of the whole run; `None` if not asked for.
        run_flops: of the whole run.
        device_days: of the whole run.
    """

    step_flops: int
    executed_flops: int
    mfu: float
    mfu_source: str
    seconds: float | None = None
    images: float | None = None
    examples: float | None = None
    run_flops: float | None = None
    device_days: float | None = None


def speed(
    setup: Setup,
    mfu: float | None = None,
    *,
    epochs: float | None = None,
    examples: int | None = None,
) -> Speed:
    """The time of a step and a run.

    Args:
        setup: what is planned.
        mfu: part of the peak that is reached in the arithmetic that is executed; `None`: as
            measured on one H100 with the model nearest in size.
        epochs: passes over the data.
        examples: in the data.
    """
    forward = forward_flops(setup.config)
    step = 3 * forward * setup.batch
    executed = step
    if setup.config.get("remat"):
        executed += block_flops(setup.config) * setup.batch
    source = "given"
    if mfu is None:
        near = min(
            MEASURED[setup.way.backend],
            key=lambda known: abs(math.log(known.gflops * 1e9 / forward)),
        )
        mfu = near.mfu
        source = f"measured on one H100-80G in bfloat16: {near.what}, {near.images:,} images/s"
    found = Speed(step, executed, mfu, source)
    peak = setup.device.peak(setup.way.precision)
    total = None if epochs is None or examples is None else epochs * examples
    seconds = None if peak is None else executed / (peak * setup.count * mfu)
    images = None if seconds is None else setup.batch / seconds
    days = None
    if total is not None and images is not None:
        days = total / images / DAY * setup.count
    return Speed(
        found.step_flops,
        found.executed_flops,
        mfu,
        source,
        seconds,
        images,
        total,
        None if total is None else 3.0 * forward * total,
        days,
    )
