"""Devices of JAX, by `keras.distribution`: a mesh, along whose axes data and variables are cut."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from keras_vit.engines.batches import check_batches
from keras_vit.engines.engine import Engine, PeerLostError, in_scope
from keras_vit.engines.environment import whole_number
from keras_vit.engines.layouts import BATCH, MODEL, output_axes, variable_axes

# Environment that Keras' own `keras.distribution.initialize` reads.
_ADDRESS = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
_COUNT = "KERAS_DISTRIBUTION_NUM_PROCESSES"
_NUMBER = "KERAS_DISTRIBUTION_PROCESS_ID"
_HEARTBEAT = 30  # seconds without a sign of life after which a process counts as lost
_SHUTDOWN = 30  # seconds that a process waits for the others when it ends


def make(
    kind: str, devices: int | None, mesh: tuple[int, int] | None, shard_optimizer: bool
) -> Engine:
    """The engine for so many devices, or for a mesh (batch, model).

    Args:
        kind: one of `layouts.KINDS`.
        devices: how many; `None`: all.
        mesh: devices along "batch" and along "model"; `None`: all along the one of the kind.
        shard_optimizer: whether the optimizer's state is cut along "batch".

    Raises:
        ValueError: if there are not so many devices.
    """
    _join()
    known = keras.distribution.list_devices()
    if mesh is None:
        count = len(known) if devices is None else devices
        mesh = (1, count) if kind == "model" else (count, 1)
    count = mesh[0] * mesh[1]
    if devices not in (None, count):
        raise ValueError(f"`mesh` {mesh} has {count} devices. Received: devices={devices}")
    if count > len(known):
        kind_of = known[0].partition(":")[0]
        virtual = (
            f" Set XLA_FLAGS=--xla_force_host_platform_device_count={count} for virtual ones."
            if kind_of == "cpu"
            else ""
        )
        raise ValueError(
            f"{count} devices were asked for, and there are {len(known)} ({kind_of}).{virtual}"
        )
    if jax.process_count() > 1 and count != len(known):
        raise ValueError(
            f"{jax.process_count()} processes use all of their {len(known)} devices. "
            f"Received: {count}"
        )
    if count == 1:
        return Engine()
    grid = keras.distribution.DeviceMesh(mesh, [BATCH, MODEL], known[:count])
    return JaxEngine(ViTParallel(grid, kind, shard_optimizer), kind)


def _join() -> None:
    """Joins the other processes, as the environment says, unless that was done."""
    if jax.distributed.is_initialized():
        return
    if not os.environ.get(_ADDRESS):
        if whole_number(_COUNT, default=1) > 1:  # each would train on its own
            raise ValueError(
                f"{_COUNT}={os.environ[_COUNT]}, but {_ADDRESS} is not set: set it to the address "
                f"of the first process, such as host0:2222, in all of them; or unset {_COUNT}."
            )
        return
    count, number = whole_number(_COUNT), whole_number(_NUMBER, least=0)
    if number >= count:
        raise ValueError(f"{_NUMBER} must be below {_COUNT}={count}. Received: {_NUMBER}={number}")
    jax.distributed.initialize(
        os.environ[_ADDRESS].partition(",")[0],
        num_processes=count,
        process_id=number,
        heartbeat_timeout_seconds=_HEARTBEAT,
        shutdown_timeout_seconds=_SHUTDOWN,
    )


class ViTParallel(keras.distribution.ModelParallel):
    """`ModelParallel` with the layouts of this package's models.

    Args:
        mesh: `keras.distribution.DeviceMesh` with the axes "batch" and "model".
        kind: one of `layouts.KINDS`.
        shard_optimizer: whether an optimizer's state is cut along "batch".
    """

    def __init__(self, mesh, kind: str = "data", shard_optimizer: bool = False):
        # Processes feed their own part.
        super().__init__(
            layout_map=keras.distribution.LayoutMap(mesh),
            batch_dim_name=BATCH,
            auto_shard_dataset=False,
        )
        self.kind = kind
        self.shard_optimizer = shard_optimizer
        # Whether a model is being called on a batch that the mesh divides.
        self.divides = False

    def get_tensor_layout(self, path):
        """The layout of a layer's output: weights that are cut must not draw the images along."""
        axes = output_axes(path) if self.divides else None
        return axes and keras.distribution.TensorLayout(axes, self.device_mesh)

    def get_variable_layout(self, variable):
        """The variable's layout, by `layouts.variable_axes`."""
        return getattr(variable, "_layout", None) or self._layout(variable)

    def state_layout(self, variable):
        """The layout of an optimizer's state of a variable."""
        return self._layout(variable, is_state=True)

    def _layout(self, variable, is_state: bool = False):
        mesh = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        axes = variable_axes(
            variable.path,
            variable.shape,
            mesh,
            self.kind,
            is_state=is_state,
            shard_optimizer=self.shard_optimizer,
        )
        return keras.distribution.TensorLayout(axes, self.device_mesh)


class JaxEngine(Engine):
    """A `keras.distribution`, this package's or the user's own.

    Args:
        distribution: the distribution.
        kind: one of `layouts.KINDS`, or what else to call it.
    """

    def __init__(self, distribution: keras.distribution.Distribution, kind: str):
        self.distribution: Any = distribution
        self.kind = kind
        mesh = distribution.device_mesh
        self.devices = int(np.prod(mesh.shape))
        self.replicas = self.distribution.num_model_replicas
        self.processes = jax.process_count()
        self.process = jax.process_index()
        # Fewer parts than processes: several feed the same part.
        self.shard = (self.distribution.data_shard_id, min(self.processes, self.replicas))
        sides = " x ".join(map(str, mesh.shape))
        self.description = f"{self.devices} devices ({kind}, mesh {sides})"
        self._forward: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    @contextlib.contextmanager
    def scope(self):
        """Everything made inside lies on the mesh."""
        with self.distribution.scope(), in_scope(self):
            yield self

    def check_model(self, model):
        """See `Engine`: the model must lie on the mesh."""
        expected = set(self.distribution.device_mesh.backend_mesh.devices.flat)
        for variable in model.variables:
            if variable.value.sharding.device_set != expected:
                raise ValueError(
                    f"The model does not lie on {self.description}: build it inside of the scope. "
                    f"Received: {variable.path} on "
                    f"{sorted(map(str, variable.value.sharding.device_set))}"
                )

    def check_data(self, x, batch_size, *, training=False):
        """See `Engine`: JAX can cut no batch that the replicas do not divide."""
        parts = self.replicas // self.shard[1]
        check_batches(x, batch_size, max(parts, 1), self.description, last=True)

    def check_predict(self):
        """See `Engine`: Keras' `predict` fetches what lies in other processes."""
        if self.processes > 1:
            raise ValueError(
                "`predict` cannot work over several processes with JAX: call "
                "keras_vit.evaluation.predict_all, in every process and with the same images."
            )

    @contextlib.contextmanager
    def guard(self, model):
        """See `Engine`: while Keras works, it takes the values out of the variables."""
        variables = [*model.variables, *model.metrics_variables]
        if model.optimizer is not None:
            variables += model.optimizer.variables
        values = [variable.value for variable in variables]
        try:
            yield
        except Exception:
            model.jax_state_sync()
            for variable, value in zip(variables, values, strict=True):
                if variable._value is None and not value.is_deleted():
                    variable.assign(value)
            raise

    def inside(self, model, forward, args, kwargs):
        """See `Engine`: outputs inside keep the images along "batch", where that divides them."""
        images = keras.tree.flatten((args, kwargs))[0]
        size = getattr(images, "shape", (None,))[0]
        before = getattr(self.distribution, "divides", None)
        if before is None:
            return forward(*args, **kwargs)
        self.distribution.divides = size is not None and size % self.replicas == 0
        try:
            return forward(*args, **kwargs)
        finally:
            self.distribution.divides = before

    def state_layout(self, variable):
        """See `Engine`."""
        layout = getattr(self.distribution, "state_layout", None)
        return None if layout is None else layout(variable)

    def build_metrics(self, model, labels, outputs):
        """See `Engine`; traced, since values of this process and of all do not mix."""
        with keras.StatelessScope():
            jax.eval_shape(lambda *args: model.compute_metrics(None, *args), labels, outputs)

    def arrays(self, variables: Sequence[Any], *, summed: bool = False):
        """See `Engine`."""
        return [_whole(variable.value) for variable in variables]

    def assign(self, variable, array, *, summed: bool = False):
        """See `Engine`."""
        array = np.asarray(array).reshape(variable.shape)
        sharding = variable.value.sharding
        variable.assign(jax.make_array_from_callback(array.shape, sharding, lambda i: array[i]))

    def total(self, value):
        """See `Engine`."""
        if self.processes == 1:
            return float(value)
        # As bits, since JAX would round to float32.
        bits = multihost_utils.process_allgather(np.array([value], "float64").view("uint32"))
        return float(np.ascontiguousarray(bits).view("float64").sum())

    def predict(self, model, images):
        """See `Engine`."""
        layout = self.distribution.get_data_layout(images.shape).backend_layout
        spread = jax.make_array_from_callback(images.shape, layout, lambda i: images[i])
        if model not in self._forward:
            everywhere = jax.sharding.NamedSharding(layout.mesh, jax.sharding.PartitionSpec())

            def forward(trainable, fixed, x):
                return model.stateless_call(trainable, fixed, x, training=False)[0]

            self._forward[model] = jax.jit(forward, out_shardings=everywhere)
        with self.distribution.scope(), in_scope(self):
            outputs = self._forward[model](
                [v.value for v in model.trainable_variables],
                [v.value for v in model.non_trainable_variables],
                spread,
            )
        return keras.tree.map_structure(np.asarray, outputs)

    @contextlib.contextmanager
    def alone(self):
        """See `Engine`."""
        if self.processes == 1:
            yield
            return
        current = keras.distribution.distribution()
        keras.distribution.set_distribution(None)
        try:
            with in_scope(Engine()):
                yield
        finally:
            keras.distribution.set_distribution(current)

    def explain(self, error):
        """See `Engine`."""
        text = str(error)
        if self.processes > 1 and any(word in text for word in _LOST):
            return PeerLostError(self.process, self.processes)
        if any(word in text for word in _NOT_EQUAL):
            return ValueError(
                "The processes' models differ: call keras.utils.set_random_seed with the same "
                "seed in all of them before the model is built, and give them the same weights."
            )
        if isinstance(error, ValueError) and any(word in text for word in _INDIVISIBLE):
            return ValueError(
                f"{self.description} can only take batches that they divide into {self.replicas} "
                "equal parts: batch with drop_remainder=True for training, and evaluate by "
                "keras_vit.evaluation.predict_all, which fills the last batch up."
            )
        return None


_LOST = (
    "onnection closed",
    "onnection reset",
    "Gloo",
    "heartbeat",
    "oordination service",
    "barrier",
)
_NOT_EQUAL = ("must be the same on all processes", "to be equal across processes")
_INDIVISIBLE = ("evenly divide", "divisible", "is not a multiple")


def _whole(value) -> np.ndarray:
    if value.is_fully_addressable or value.is_fully_replicated:
        return np.asarray(value)
    return np.asarray(multihost_utils.process_allgather(value, tiled=True))
