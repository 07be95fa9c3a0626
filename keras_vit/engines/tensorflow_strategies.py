"""Which tf.distribute strategy is meant: by devices, by TF_CONFIG, by a TPU's name."""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any

import tensorflow as tf

_JAX_ON_TPU = (
    "The JAX backend is the better way to a TPU: KERAS_BACKEND=jax on the TPU's own machine."
)
_VIRTUAL = (
    "Before anything has run, tf.config.set_logical_device_configuration("
    'tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * {}) '
    "makes virtual ones of the CPU."
)


def choose_strategy(
    devices: int | None, *, strategy: Any = None, tpu: str | None = None
) -> tuple[Any, str]:
    """(strategy, it in words); `None` for the strategy on one device.

    Args:
        devices: how many, in all processes; `None`: all.
        strategy: the user's own.
        tpu: name of a TPU.

    Raises:
        ValueError: if there are not so many devices, or no such TPU, or TF_CONFIG is wrong.
    """
    if strategy is not None:
        return _given(strategy, devices)
    if tpu is not None:
        return _tpu(tpu, devices)
    workers = _workers()
    if workers > 1:
        return _multi_worker(workers, devices)
    return _local(devices)


def _given(strategy: Any, devices: int | None) -> tuple[Any, str]:
    if not isinstance(strategy, tf.distribute.Strategy):
        raise ValueError(f"`strategy` must be a tf.distribute.Strategy. Received: {strategy!r}")
    name = type(strategy).__name__
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise ValueError(
            f"Keras 3 does not train with parameter servers: take MirroredStrategy or "
            f"MultiWorkerMirroredStrategy. Received: {name}"
        )
    count = strategy.num_replicas_in_sync
    if devices not in (None, count):
        raise ValueError(f"`strategy` has {count} devices. Received: devices={devices}")
    return strategy, f"{name} of {count} device{'s' * (count > 1)}"


def _tpu(tpu: str, devices: int | None) -> tuple[Any, str]:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except ValueError as error:
        raise ValueError(
            f'No TPU has this name or address; give the Cloud TPU\'s name, or "local" on the '
            f"TPU's own machine. {_JAX_ON_TPU} Received: tpu={tpu!r} ({_line(error)})"
        ) from error
    except (tf.errors.OpError, RuntimeError) as error:
        raise ValueError(
            "TensorFlow finds no TPU here: run on a machine that has one, with a TensorFlow that "
            f"is built for it (tensorflow-tpu). {_JAX_ON_TPU} Received: tpu={tpu!r} "
            f"({_line(error)})"
        ) from error
    return _given(tf.distribute.TPUStrategy(resolver), devices)


def _line(error: BaseException) -> str:
    text = getattr(error, "message", None) or str(error)
    return " ".join(text.split())[:200]


def _workers() -> int:
    """Processes that TF_CONFIG names; 1 without it."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        return 1
    try:
        config = json.loads(text)
        jobs = {job: len(addresses) for job, addresses in config.get("cluster", {}).items()}
        count = jobs.pop("chief", 0) + jobs.pop("worker", 0)
        if count > 1 or jobs:
            task = config["task"]["type"], int(config["task"]["index"])
            known = task[0] in ("chief", "worker")
            if not known or not 0 <= task[1] < len(config["cluster"][task[0]]):
                raise ValueError(f"its task is {task}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            "TF_CONFIG must be JSON such as "
            '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, '
            '"task": {"type": "worker", "index": 0}}: the same cluster and another index for each '
            f"process. Received: TF_CONFIG={text} ({type(error).__name__}: {error})"
        ) from error
    if jobs:
        raise ValueError(
            f"TF_CONFIG names tasks that Keras 3 does not train with: {sorted(jobs)}. Leave "
            '"worker" (and "chief") alone.'
        )
    return max(count, 1)


def _multi_worker(workers: int, devices: int | None) -> tuple[Any, str]:
    each = max(len(tf.config.list_physical_devices("GPU")), 1)
    if devices not in (None, workers * each):
        raise ValueError(
            f"The {workers} processes of TF_CONFIG use all of their {workers * each} devices; "
            f"leave `devices` out, or hide some by CUDA_VISIBLE_DEVICES. Received: {devices}"
        )
    # Said before: TensorFlow waits in silence, and with Python's lock held.
    print(
        f"Waiting for the {workers} processes of TF_CONFIG to start.", file=sys.stderr, flush=True
    )
    try:
        strategy = _multi_worker_mirrored()
    except RuntimeError as error:
        raise ValueError(
            "TensorFlow already runs in this process. With TF_CONFIG, enter the scope before "
            f"anything has run: first thing in the program. ({_line(error)})"
        ) from error
    count = strategy.num_replicas_in_sync
    return strategy, f"MultiWorkerMirroredStrategy of {count} devices in {workers} processes"


@functools.cache
def _multi_worker_mirrored():
    """The process' one strategy, see `_mirrored`."""
    return tf.distribute.MultiWorkerMirroredStrategy()


def _local(devices: int | None) -> tuple[Any, str]:
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    known = [device.name for device in tf.config.list_logical_devices(kind)]
    count = len(known) if devices is None else devices
    if count > len(known):
        virtual = f" {_VIRTUAL.format(count)}" if kind == "CPU" else ""
        raise ValueError(
            f"{count} devices were asked for, and there {'are' if len(known) > 1 else 'is'} "
            f"{len(known)} ({kind}).{virtual} Received: devices={devices}"
        )
    if count == 1:
        return None, ""
    return _mirrored(tuple(known[:count])), f"MirroredStrategy of {count} {kind}s"


@functools.cache
def _mirrored(devices: tuple[str, ...]):
    """The process' one strategy on these devices.

    A second would number its collectives as the first did, and a step would fail with "Shape
    mismatch in the collective instance".
    """
    return tf.distribute.MirroredStrategy(devices)
