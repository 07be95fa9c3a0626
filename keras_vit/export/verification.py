"""What `verify` found: a table, JSON, and whether it holds."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

_COLUMNS = (
    ("runtime", "<"),
    ("precision", "<"),
    ("max |diff|", ">"),
    ("agreement", ">"),
    ("accuracy", ">"),
    ("p50 ms", ">"),
    ("p95 ms", ">"),
    ("to Keras", ">"),
    ("load s", ">"),
    ("peak MB", ">"),
    ("result", "<"),
)


class VerificationError(ValueError):
    """An artifact does not do what its model does; the message says where and by how much."""


@dataclass(frozen=True)
class Bounds:
    """What an artifact of one precision must keep.

    Attributes:
        tolerance: the largest difference of a logit; `None`: any.
        agreement: the least part of the images whose first class is the model's; `None`: any.
        relative: the largest root mean square of the differences, by that of how the logits vary
            over the images; `None`: any. It tells of models whose first class says nothing.
        scaled: whether the tolerance is for logits whose standard deviation is 1, and grows with
            theirs: rounded weights err in proportion.
    """

    tolerance: float | None = None
    agreement: float | None = None
    scaled: bool = False
    relative: float | None = None


# How the precision of an artifact is told, see `runtimes`.
BOUNDS = {
    "float32": Bounds(tolerance=1e-3),
    "float16": Bounds(tolerance=2e-2, scaled=True),
    "int8": Bounds(agreement=0.98, relative=0.5),
    "int16x8": Bounds(agreement=0.98, relative=0.5),
}


@dataclass(frozen=True)
class Latency:
    """Seconds for one image: median, 95th percentile, and of how many runs."""

    p50: float
    p95: float
    runs: int


@dataclass(frozen=True)
class Run:
    """An artifact in one runtime.

    Attributes:
        runtime: its name, see `runtimes.RUNTIMES`.
        status: `"ran"`, `"missing"` (it is not installed) or `"failed"` (it could not run the
            artifact).
        message: what to install, or what went wrong; empty where it ran.
        version: of the runtime.
        precision: `"float32"`, `"float16"`, `"int8"` or `"int16x8"`, as the artifact says.
        batch: the only batch that the artifact takes, or `None`.
        difference: the largest |difference| of a logit (a feature, without a head).
        bound: the largest that is allowed, or `None`.
        relative: root mean square of the differences, by that of how each output varies.
        most_relative: the largest that is allowed, or `None`.
        agreement: the part of the images whose first class is the model's; `None` where there are
            not several.
        least_agreement: the least that is allowed, or `None`.
        accuracy: the part of the images whose first class is their label, or `None`.
        latency: of one image.
        ratio: of the median to that of the Keras model.
        load_seconds: from the runtime's import until the artifact is ready.
        peak_memory: bytes of the process at most, the runtime included, or `None`.
        threads: of the runtime.
    """

    runtime: str
    status: str
    message: str = ""
    version: str = ""
    precision: str = ""
    batch: int | None = None
    difference: float | None = None
    bound: float | None = None
    relative: float | None = None
    most_relative: float | None = None
    agreement: float | None = None
    least_agreement: float | None = None
    accuracy: float | None = None
    latency: Latency | None = None
    ratio: float | None = None
    load_seconds: float | None = None
    peak_memory: int | None = None
    threads: int | None = None

    @property
    def failure(self) -> str | None:
        """Why it does not hold, or `None` where it does, or did not run for want of a runtime."""
        if self.status == "missing":
            return None
        if self.status == "failed":
            return f"{self.runtime}: {self.message}"
        found, difference = [], self.difference or 0.0
        if not math.isfinite(difference):
            found.append("gives values that are not finite")
        elif self.bound is not None and difference > self.bound:
            found.append(f"differs by {self.difference:.2e} at most, allowed are {self.bound:.2e}")
        if None not in (self.relative, self.most_relative):
            if not self.relative <= self.most_relative:  # type: ignore[operator]
                found.append(
                    f"differs by {self.relative:.0%} of what the outputs vary, allowed are "
                    f"{self.most_relative:.0%}"
                )
        if self.agreement is not None and self.least_agreement is not None:
            if not self.agreement >= self.least_agreement:
                found.append(
                    f"names the model's first class for {self.agreement:.1%} of the images, "
                    f"required are {self.least_agreement:.1%}"
                )
        return f"{self.runtime} ({self.precision}): {'; '.join(found)}" if found else None


@dataclass(frozen=True)
class Verification:
    """An artifact compared with its model.

    Attributes:
        artifact: its path.
        kind: `"saved_model"`, `"tflite"`, `"onnx"` or `"openvino"`.
        signature: the signature that ran.
        size: bytes of its files.
        weights: bytes of the model's weights, as the model holds them.
        images: how many were compared.
        source: `"given"` or `"synthetic"`: pictures made up, which say nothing of accuracy.
        backend: that the Keras model ran on.
        model_latency: of the Keras model, one image, in its own precision, with the threads that
            this process has.
        accuracy: the model's, where labels were given.
        notes: what a reader should know.
        runs: one for each runtime.
    """

    artifact: str
    kind: str
    signature: str
    size: int
    weights: int
    images: int
    source: str
    backend: str
    model_latency: Latency
    accuracy: float | None
    notes: tuple[str, ...]
    runs: tuple[Run, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each runtime in which the artifact does not hold."""
        return tuple(run.failure for run in self.runs if run.failure)

    def check(self) -> Verification:
        """Returns itself; a VerificationError names each failure."""
        if self.failures:
            raise VerificationError(f"{self.artifact} is not its model: {' '.join(self.failures)}")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, with `failures`."""
        found = {**dataclasses.asdict(self), "failures": list(self.failures)}
        return _finite(found)

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def text(self) -> str:
        """A table of the runtimes, below what was compared."""
        size, weights = self.size / 1e6, self.weights / 1e6
        latency = self.model_latency
        lines = [
            f"{self.artifact} ({self.kind}, {self.signature}): {size:,.2f} MB, "
            f"{self.size / max(self.weights, 1):.2f} of the model's {weights:,.2f} MB of weights",
            f"{self.images} {self.source} images; Keras on {self.backend}: "
            f"{1e3 * latency.p50:.2f} ms (p95 {1e3 * latency.p95:.2f})"
            + ("" if self.accuracy is None else f", accuracy {self.accuracy:.4f}"),
            *self.notes,
            "",
            *_table([_cells(run) for run in self.runs]),
        ]
        lines += [f"{run.runtime}: {run.message}" for run in self.runs if run.status == "missing"]
        return "\n".join([*lines, *self.failures])

    def __str__(self) -> str:
        return self.text()


def _finite(value: Any) -> Any:
    """The value with `None` for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cells(run: Run) -> list[str]:
    def number(value, form):
        return "-" if value is None else format(value, form)

    latency = run.latency
    megabytes = None if run.peak_memory is None else run.peak_memory / 1e6
    result = {"missing": "not run", "failed": "FAILED"}.get(run.status)
    return [
        f"{run.runtime} {run.version}".strip(),
        run.precision or "-",
        number(run.difference, ".2e"),
        number(run.agreement, ".4f"),
        number(run.accuracy, ".4f"),
        number(latency and 1e3 * latency.p50, ".2f"),
        number(latency and 1e3 * latency.p95, ".2f"),
        number(run.ratio, ".2f") + ("" if run.ratio is None else "x"),
        number(run.load_seconds, ".1f"),
        number(megabytes, ",.0f"),
        result or ("FAILED" if run.failure else "ok"),
    ]


def _table(rows: list[list[str]]) -> list[str]:
    rows = [[name for name, _ in _COLUMNS], *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [
        [
            f"{cell:{side}{width}}"
            for cell, width, (_, side) in zip(row, widths, _COLUMNS, strict=True)
        ]
        for row in rows
    ]
    return ["  ".join(row).rstrip() for row in aligned]
