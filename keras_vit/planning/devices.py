"""Accelerators: their memory and peak speed, as their makers state them."""

from __future__ import annotations

import re
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One accelerator, or one core of those TPUs that show their two cores as two devices.

    Attributes:
        name: such as "H100-80G".
        gib: memory that a program can take, in GiB: for GPUs the total that CUDA reports, which is
            less than the maker's GB; for TPUs the maker's figure.
        half_tflops: 10^12 dense operations a second in 16 bits; `None` if unknown.
        float32_tflops: the same in float32, outside of matrix units on GPUs.
        bfloat16: whether the matrix units know bfloat16; if not, the figure is float16's.
    """

    name: str
    gib: float
    half_tflops: float | None = None
    float32_tflops: float | None = None
    bfloat16: bool = True

    @property
    def memory(self) -> int:
        """Bytes that a program can take."""
        return int(self.gib * GIB)

    def peak(self, precision: str) -> float | None:
        """Operations a second at best, in a dtype policy."""
        tflops = self.float32_tflops if precision == "float32" else self.half_tflops
        return None if tflops is None else tflops * 1e12

    @property
    def is_tpu(self) -> bool:
        """Whether this is a TPU."""
        return self.name.startswith("TPU")


# Sources: NVIDIA's data sheets of each card (SXM where there are several; dense, without
# sparsity), AWS for the A10G; Google Cloud's pages on TPU versions. TPUs compute products of
# float32 in bfloat16 unless JAX is told otherwise, so that they have one figure.
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("H100-80G", 79.1, 989.4, 66.9),
        Device("H200-141G", 139.8, 989.4, 66.9),
        Device("A100-40G", 39.4, 312.0, 19.5),
        Device("A100-80G", 79.1, 312.0, 19.5),
        Device("V100-16G", 15.8, 125.0, 15.7, bfloat16=False),
        Device("V100-32G", 31.7, 125.0, 15.7, bfloat16=False),
        Device("L4-24G", 22.0, 121.0, 30.3),
        Device("L40S-48G", 44.4, 362.0, 91.6),
        Device("T4-16G", 14.6, 65.0, 8.1, bfloat16=False),
        Device("A10G-24G", 22.0, 70.0, 35.0),
        Device("RTX4090-24G", 23.6, 165.2, 82.6),
        Device("TPUv2-core", 8.0, 22.5, 22.5),  # 45 a chip of two cores
        Device("TPUv3-core", 16.0, 61.5, 61.5),  # 123 a chip of two cores
        Device("TPUv4-chip", 32.0, 275.0, 275.0),
        Device("TPUv5e-chip", 16.0, 197.0, 197.0),
        Device("TPUv5p-chip", 95.0, 459.0, 459.0),
        Device("TPUv6e-chip", 32.0, 918.0, 918.0),
    )
}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _aliases() -> dict[str, Device]:
    """Names in any case, and without memory or "core" where that leaves one device."""
    found: dict[str, list[Device]] = {}
    for device in DEVICES.values():
        for name in {device.name, device.name.rpartition("-")[0], f"{device.name}B"}:
            found.setdefault(_key(name), []).append(device)
    return {name: devices[0] for name, devices in found.items() if len(devices) == 1}


def parse(spec: str, gib: float | None = None) -> tuple[int, Device]:
    """Reads how many devices of which kind there are.

    Args:
        spec: such as "8xH100-80G", "H100-80G" for one, or a number, with `gib`.
        gib: memory of a device in GiB; takes the place of the table's.

    Returns:
        The number, and the device.

    Raises:
        ValueError: if the device is unknown, or nothing says how much memory it has.
    """
    matched = re.fullmatch(r"(?:(\d+)(?:[x*](?=.)|$))?(.*)", spec.strip(), re.IGNORECASE)
    count = int(matched[1]) if matched and matched[1] else 1
    name = matched[2] if matched else spec
    if count < 1:
        raise ValueError(f"`devices` must name at least one device. Received: devices={spec!r}")
    if not name:
        if gib is None:
            raise ValueError(
                "`devices` without a name needs their memory: pass --memory GIB, or name them as "
                f"NxNAME, of {', '.join(DEVICES)}. Received: devices={spec!r}"
            )
        return count, Device(f"{gib:g} GiB", gib)
    device = _aliases().get(_key(name))
    if device is None:
        raise ValueError(
            f"Unknown device {name!r}. Expected NxNAME with one of {', '.join(DEVICES)}, or a "
            f"number and --memory GIB. Received: devices={spec!r}"
        )
    if gib is not None:
        device = Device(
            device.name, gib, device.half_tflops, device.float32_tflops, device.bfloat16
        )
    return count, device
