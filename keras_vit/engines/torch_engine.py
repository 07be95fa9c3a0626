"""Processes of PyTorch under torchrun, each with one device, by DistributedDataParallel."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import torch
import torch.distributed as dist

from keras_vit.engines.engine import Engine, in_scope
from keras_vit.engines.torch_gradients import Joined
from keras_vit.engines.torch_processes import FIT, PREDICT, RANDOM, STEP, Processes
from keras_vit.engines.torch_processes import size_of_environment as _size

_SEED_STATE = "seed_generator_state"
# Odd, and far from 0 in both directions: processes' seeds lie far apart (2 ** 32 / golden ratio).
_SEED_STRIDE = 0x9E3779B9


def make(
    kind: str, devices: int | None, mesh: tuple[int, int] | None, shard_optimizer: bool
) -> Engine:
    """The engine for the processes that torchrun started; one device without it.

    Args:
        kind: "data"; PyTorch has no other here.
        devices: how many processes there must be; `None`: as many as there are.
        mesh: `None`, or `(devices, 1)`.
        shard_optimizer: must be False.

    Raises:
        ValueError: if Keras cannot do it with PyTorch, or the processes are not so many.
    """
    asked: dict[str, Any] = {"distribution": kind} if kind != "data" else {}
    if mesh is not None and mesh[1] > 1:
        asked["mesh"] = mesh
    if shard_optimizer:
        asked["shard_optimizer"] = True
    if asked:
        raise ValueError(
            "With PyTorch each device holds the whole model and optimizer, as Keras cannot cut its "
            "variables there: take the JAX backend (KERAS_BACKEND=jax, or --backend jax), or "
            'distribution="data". '
            f"Received: {', '.join(f'{name}={value!r}' for name, value in asked.items())}"
        )
    if mesh is not None:
        if devices not in (None, mesh[0]):
            raise ValueError(f"`mesh` {mesh} has {mesh[0]} devices. Received: devices={devices}")
        devices = mesh[0]
    count = _size()
    if count == 1 and devices in (None, 1):
        return Engine()
    if count == 1:
        raise ValueError(
            f"With PyTorch each device has a process of its own. Start all {devices} by\n"
            f"  torchrun --nproc-per-node {devices} -m keras_vit train ...\n"
            f"or, for a script,\n  torchrun --nproc-per-node {devices} script.py\n"
            f"Received: devices={devices}, in a single process"
        )
    if devices not in (None, count):
        raise ValueError(
            f"`devices` must be the number of processes: there are {count}. "
            f"Received: devices={devices}"
        )
    if not dist.is_available():
        raise ValueError("This build of PyTorch has no torch.distributed: install another.")
    return TorchEngine(Processes(_device()))


def _device() -> torch.device:
    """This process' device, which becomes PyTorch's current one."""
    wanted = os.environ.get("KERAS_TORCH_DEVICE", "cuda")
    if torch.cuda.is_available() and wanted.startswith("cuda"):
        local, found = os.environ.get("LOCAL_RANK"), torch.cuda.device_count()
        if local is not None:
            if int(local) >= found:
                raise ValueError(
                    f"Each process needs a GPU of its own, and there are {found} here: start "
                    f"torchrun with --nproc-per-node {found}. Received: LOCAL_RANK={local}"
                )
            torch.cuda.set_device(int(local))
        elif not dist.is_initialized():  # else the user has set the device, too
            raise ValueError(
                "LOCAL_RANK is not set, so that this process' GPU is not known: start the "
                "processes by torchrun."
            )
        expected = torch.device("cuda", torch.cuda.current_device())
    else:
        expected = torch.device("cpu")
    found = keras.ops.zeros(()).device
    if found != expected:
        raise ValueError(
            f"Keras puts variables on {found}, and this process can only train on {expected}: "
            + (
                "unset KERAS_TORCH_DEVICE."
                if "KERAS_TORCH_DEVICE" in os.environ and expected.type == "cuda"
                else "set KERAS_TORCH_DEVICE=cpu."
            )
        )
    return expected


class TorchEngine(Engine):
    """Data parallelism over processes.

    Args:
        processes: all processes, joined.
    """

    partial_metrics = True

    def __init__(self, processes: Processes):
        self._all = processes
        self.process = processes.process
        self.devices = self.replicas = self.processes = processes.count
        self.shard = (self.process, self.processes)
        self.description = f"{self.devices} processes ({processes.device.type}, torch.distributed)"
        # Kept beside the models: Keras would track a module, and save it.
        self._joined: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._inside = False

    @contextlib.contextmanager
    def scope(self) -> Iterator[Engine]:
        """Everything made inside is for this process' device; the end parts the processes."""
        failed = True
        try:
            with in_scope(self), self._all.explained():
                yield self
            failed = False
        finally:
            self._all.leave(failed)

    def check_model(self, model):
        """See `Engine`: one that lies here, and has no statistics of batches."""
        trained = {variable.path.rpartition("/")[0] for variable in model.trainable_variables}
        for variable in model.variables:
            layer, _, name = variable.path.rpartition("/")
            if name == "moving_mean" and layer in trained:
                raise ValueError(
                    "Batch normalization would see each process' part of the batch alone, and "
                    f"keep other statistics in each: freeze it (layer.trainable = False). "
                    f"Received: a trainable layer {layer!r}"
                )
        for variable in model.variables:
            if variable.value.device != self._all.device:
                raise ValueError(
                    f"The model lies on {variable.value.device}, not on this process' device, "
                    f"{self._all.device}: build it inside of the scope."
                )

    def check_data(self, x, batch_size, *, training=False):
        """See `Engine`: all processes train on equally many images, where that is known."""
        if not training:
            return  # sums of unequal parts are right
        sizes = [len(part) for part in keras.tree.flatten(x) if len(getattr(part, "shape", ()))]
        self._all.meet(FIT, sizes[0] if sizes else -1, "to {} images")

    def attach(self, model):
        """See `Engine`: gives all processes the first one's weights and optimizer state."""
        optimizer = getattr(model, "optimizer", None)
        states = optimizer.variables if optimizer is not None and optimizer.built else []
        shared = [v for v in [*model.variables, *states] if not v.path.endswith(_SEED_STATE)]
        paths = [f"{variable.path} {tuple(variable.shape)} {variable.dtype}" for variable in shared]
        unnumbered = [path for path in paths if "seed" not in path]
        self._all.meet(
            FIT,
            zlib.crc32("\n".join(unnumbered).encode()),
            "a model whose weights have checksum {}",
        )
        self._all.broadcast([variable.value for variable in shared])
        known = self._joined.get(model)
        if known is None or not known.fits(model):
            if known is not None:
                known.close()
            self._joined[model] = Joined(model, self._all)
        self._joined[model].steps = 0

    def call(self, model, forward, args, kwargs):
        """See `Engine`: through DistributedDataParallel, where gradients are wanted."""
        training = kwargs.get("training", args[1] if len(args) > 1 else None)
        if not training or self._inside or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        inputs = keras.tree.flatten(args[0] if args else list(kwargs.values()))
        if any(isinstance(part, keras.KerasTensor) for part in inputs):
            return forward(*args, **kwargs)
        joined = self._joined.get(model)
        if joined is None:
            raise ValueError(
                f"The model {model.name!r} is called for training, but its gradients would not be "
                "joined with the other processes': train it by its own `fit` or by "
                "keras_vit.training.train; in a loop of your own, call "
                "keras_vit.training.distribution.current().attach(model) first."
            )
        if joined.has_changed():  # a callback froze or unfroze layers
            self.attach(model)
            joined = self._joined[model]
        self._all.meet(STEP, len(inputs[0]), "on {} images")
        if joined.steps == 0:
            self._compare(inputs[0])
        joined.steps += 1
        self._inside = True
        try:
            return joined(forward, args, kwargs)
        finally:
            self._inside = False

    def _compare(self, images) -> None:
        """Warns if all processes got the same images."""
        array = torch.as_tensor(images).detach().cpu().contiguous().view(torch.uint8).numpy()
        found = self._all.gather(np.array([zlib.crc32(array.tobytes())], "int64"))
        if len({int(value[0]) for value in found}) == 1:
            warnings.warn(
                f"All {self.processes} processes train on the same images, so that they learn no "
                "more than one would: give each its own part, such as rows "
                "[engine.process :: engine.processes].",
                stacklevel=4,
            )

    def arrays(self, variables: Sequence[Any], *, summed: bool = False):
        """See `Engine`: weights are the same everywhere; metrics are summed, in float64."""
        own = super().arrays(variables)
        if not summed or not own:
            return own
        found: list[Any] = [None] * len(own)
        for wide in ("float64", "int64"):
            chosen = [i for i, a in enumerate(own) if (a.dtype.kind in "iub") == (wide == "int64")]
            if not chosen:
                continue
            flat = np.concatenate([own[i].reshape(-1).astype(wide) for i in chosen])
            parts = np.split(self._all.sum(flat), np.cumsum([own[i].size for i in chosen])[:-1])
            for i, part in zip(chosen, parts, strict=True):
                found[i] = part.reshape(own[i].shape).astype(own[i].dtype)
        return found

    def assign(self, variable, array, *, summed=False):
        """See `Engine`: of a sum, the first process holds all."""
        variable.assign(np.zeros_like(array) if summed and not self.is_chief else array)

    def vary_random(self, model):
        """See `Engine`: only where states are as in the first process, so that it may be repeated.

        A state follows from the first process' and the number of this one, so that a run that is
        resumed from the first one's states draws what it would have drawn.
        """
        states = [v for v in model.variables if v.path.endswith(_SEED_STATE)]
        own = [keras.ops.convert_to_numpy(v.value).astype("int64") for v in states]
        generators = [torch.get_rng_state()]
        if self._all.device.type == "cuda":
            generators.append(torch.cuda.get_rng_state())
        digests = [zlib.crc32(state.numpy().tobytes()) for state in generators]
        flat = np.concatenate([digests, *(state.reshape(-1) for state in own)]).astype("int64")
        first = self._all.gather(flat, RANDOM)[0]
        if self.is_chief:
            return
        if first[0] == digests[0]:  # a GPU's may have been restored for another GPU
            torch.manual_seed(sum(map(int, first[: len(digests)])) + self.process * _SEED_STRIDE)
        pairs = first[len(digests) :].reshape(-1, 2)  # seed, count of draws
        for variable, state, (seed, drawn) in zip(states, own, pairs, strict=True):
            if np.array_equal(state, (seed, drawn)):
                moved = (int(seed) + self.process * _SEED_STRIDE + 2**31) % 2**32 - 2**31
                variable.assign(np.array([moved, drawn], "int32"))

    def total(self, value):
        """See `Engine`."""
        return float(self._all.sum(np.array([value], "float64"))[0])

    def local_model(self, model):
        """See `Engine`: each process has a whole one in any case."""
        return model

    def predict(self, model, images):
        """See `Engine`: each process computes as many rows; the last ones are computed twice."""
        rows = -(-len(images) // self.processes)
        self._all.meet(PREDICT, len(images), "{} images")
        chosen = np.arange(self.process * rows, (self.process + 1) * rows)
        own = keras.Model.predict_on_batch(model, images[np.minimum(chosen, len(images) - 1)])

        def whole(part):
            return np.concatenate(self._all.gather(np.asarray(part)))[: len(images)]

        return keras.tree.map_structure(whole, own)

    def explain(self, error):
        """See `Engine`."""
        return self._all.explain(error)
