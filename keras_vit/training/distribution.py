"""One way to say on which devices to train: `with scope(...):`, on the engine of each backend.

| backend    | "data"                                    | "model", "fsdp"                   |
|------------|-------------------------------------------|-----------------------------------|
| TensorFlow | MirroredStrategy; TPUStrategy; with       | refused: tf.distribute has none   |
|            | TF_CONFIG MultiWorkerMirroredStrategy     | for Keras 3                       |
| JAX        | `keras.distribution`, one process or many | `keras.distribution`, with the    |
|            |                                           | layouts of this package           |
| PyTorch    | DistributedDataParallel, under torchrun   | refused                           |

Batch sizes are global ones. With several processes each runs the same program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import keras

from keras_vit import _checks
from keras_vit.engines.engine import Engine, PeerLostError, current
from keras_vit.engines.environment import processes
from keras_vit.engines.layouts import KINDS, kind_of

__all__ = ["Engine", "PeerLostError", "current", "is_one_of_several", "scope"]


@contextlib.contextmanager
def scope(
    distribution: str | None = None,
    devices: int | None = None,
    *,
    mesh: tuple[int, int] | None = None,
    shard_optimizer: bool = False,
    strategy: Any = None,
    tpu: str | None = None,
) -> Iterator[Engine]:
    """Inside, models are built for, and trained on, several devices.

    Args:
        distribution: "data": each device has the whole model and a part of the batch. "model":
            attention and MLP are cut over devices (JAX). "fsdp": every large weight and its
            optimizer state are cut along the batch's devices (JAX). `None`: as `mesh` says,
            else "data".
        devices: how many, in all processes; `None`: all there are.
        mesh: devices along the batch and along the model, such as `(4, 2)` (JAX).
        shard_optimizer: whether the optimizer's state is cut along the batch's devices though the
            weights are not (JAX; with this package's optimizers).
        strategy: a tf.distribute strategy of your own.
        tpu: name of a Cloud TPU, or "local", for TensorFlow's TPUStrategy.

    Yields:
        The `Engine`: `devices`, `replicas`, `processes`, `is_chief`, `shard`, `description`.

    Raises:
        ValueError: if the backend's engine cannot do it, or there are not so many devices.

    Example:
        ```python
        with keras_vit.training.distribution.scope("data", devices=2):
            model = keras_vit.ViTB16(num_classes=10)
            keras_vit.training.train(model, "pictures/", "finetune", "runs/a")
        ```
    """
    _checks.choice("distribution", distribution, (None, *KINDS))
    if devices is not None:
        _checks.positive_int("devices", devices)
    if mesh is not None:
        sides = _checks.int_tuple("mesh", mesh, length=2)
        mesh = (sides[0], sides[1])
    _checks.boolean("shard_optimizer", shard_optimizer)
    backend = keras.backend.backend()
    given = {"strategy": strategy, "tpu": tpu}
    own = {name: value for name, value in given.items() if value is not None}
    if own and backend != "tensorflow":
        raise ValueError(f"{', '.join(own)} is TensorFlow's. Received: the {backend} backend")
    engine = import_module(f"keras_vit.engines.{backend}_engine").make(
        kind_of(distribution, mesh), devices, mesh, shard_optimizer, **own
    )
    with engine.scope():
        yield engine


def is_one_of_several() -> bool:
    """Whether the environment says that this is one of several processes of the backend."""
    return processes(keras.backend.backend()) > 1
