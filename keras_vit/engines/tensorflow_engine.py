"""Devices of TensorFlow, by tf.distribute: each has the whole model and a part of the batch."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.engines.batches import check_batches
from keras_vit.engines.engine import Engine, PeerLostError, in_scope
from keras_vit.engines.tensorflow_patches import repaired
from keras_vit.engines.tensorflow_strategies import choose_strategy

_UNEQUAL = "The replicas got parts of different size"
_JAX = "KERAS_BACKEND=jax, or --backend jax"
# Options of Keras' optimizers that act on each replica's gradients by themselves, and the remedy.
_UNFIT = {
    "clipnorm": "clip_norm",
    "global_clipnorm": "clip_norm",
    "clipvalue": "clip_norm",
    "gradient_accumulation_steps": "accumulation_steps",
}
# In what TensorFlow raises where collectives do not fit each other, or another process is gone. A
# killed one closes its connections, which is seen at once; one that hangs, by the coordination
# service's heartbeats within 10 seconds (TensorFlow 2.21), whatever the others wait for.
_OUT_OF_STEP = ("but got type", "Shape mismatch in the collective instance")
_LOST = (
    "Collective ops is aborted",
    "heartbeat",
    "Heartbeat",
    "onnection reset",
    "failed to connect",
)


def make(
    kind: str,
    devices: int | None,
    mesh: tuple[int, int] | None,
    shard_optimizer: bool,
    *,
    strategy: Any = None,
    tpu: str | None = None,
) -> Engine:
    """The engine for so many devices, or for a strategy.

    Args:
        kind: "data"; tf.distribute has no other for Keras 3.
        devices: how many, in all processes; `None`: all.
        mesh: (devices, 1), or `None`.
        shard_optimizer: must be False.
        strategy: a tf.distribute strategy of the user's own, instead of one by `devices`.
        tpu: name of a TPU, or "local", for a TPUStrategy.

    Raises:
        ValueError: if TensorFlow cannot do it, or there are not so many devices.
    """
    unable = {
        f"distribution={kind!r}": kind != "data",
        f"mesh={mesh}": mesh is not None and mesh[1] > 1,
        "shard_optimizer=True": shard_optimizer,
    }
    if any(unable.values()):
        raise ValueError(
            "With TensorFlow each device holds the whole model and its optimizer, since "
            "tf.distribute has nothing else for Keras 3: take the JAX backend "
            f"({_JAX}). Received: {', '.join(name for name, bad in unable.items() if bad)}"
        )
    if mesh is not None:
        if devices not in (None, mesh[0]):
            raise ValueError(f"`mesh` {mesh} has {mesh[0]} devices. Received: devices={devices}")
        devices = mesh[0]
    chosen, description = choose_strategy(devices, strategy=strategy, tpu=tpu)
    return Engine() if chosen is None else TensorFlowEngine(chosen, description)


class TensorFlowEngine(Engine):
    """A tf.distribute strategy.

    Args:
        strategy: the strategy.
        description: it, in words.
    """

    def __init__(self, strategy: tf.distribute.Strategy, description: str):
        self.strategy: Any = strategy
        self.description = description
        self.devices = self.replicas = strategy.num_replicas_in_sync
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            self.process, self.processes = _place(strategy.cluster_resolver)
            self.shard = (self.process, self.processes)
        self._forward: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._summing: Any = None

    @contextlib.contextmanager
    def scope(self):
        """Everything made inside is mirrored on the devices."""
        repairs = repaired(self.strategy, several_processes=self.processes > 1)
        with repairs, self.strategy.scope(), in_scope(self):
            yield self

    def check_model(self, model):
        """See `Engine`: what differs from one device with tf.distribute is refused."""
        self._check_place(model)
        if self.replicas == 1:
            return
        if model.jit_compile:
            raise ValueError(
                f"XLA does not compile a step of {self.description}: compile the model with "
                '`jit_compile="auto"`, or take the JAX backend '
                f"({_JAX}). Received: jit_compile=True"
            )
        if model.steps_per_execution > 1:
            raise ValueError(
                f"TensorFlow runs one step at a time on {self.description}: compile the model "
                f"without it. Received: steps_per_execution={model.steps_per_execution}"
            )
        optimizer = model.optimizer
        scaled = hasattr(optimizer, "inner_optimizer")
        if scaled or any(layer.compute_dtype == "float16" for layer in model.layers):
            raise ValueError(
                "Keras looks for float16's overflow in the first replica's gradients alone, and "
                "another's makes the weights NaN: build the model with "
                'dtype="mixed_bfloat16", or train on one device. Received: mixed_float16 (or a '
                "LossScaleOptimizer)"
            )
        for name, remedy in _UNFIT.items():
            if getattr(optimizer, name, None) is not None:
                raise ValueError(
                    f"Keras' {type(optimizer).__name__} applies {name} to each replica's gradient "
                    f"by itself, which is wrong over {self.replicas} replicas. Use "
                    f"keras_vit.training.AdamW(..., {remedy}=...), or SGD from there. "
                    f"Received: {name}={getattr(optimizer, name)}"
                )
        if getattr(model.loss, "reduction", None) == "mean_with_sample_weight":
            raise ValueError(
                'A loss with reduction="mean_with_sample_weight" divides by each replica\'s own '
                f'weights, not by the batch\'s: take reduction="sum_over_batch_size" with '
                f"{self.description}. Received: loss={model.loss!r}"
            )

    def _check_place(self, model) -> None:
        parts = {"The model": model.variables, "Its metrics": model.metrics_variables}
        if model.optimizer is not None:
            parts["Its optimizer"] = model.optimizer.variables
        for name, variables in parts.items():
            for variable in variables:
                value = getattr(variable, "value", variable)
                if not self.strategy.extended.variable_created_in_scope(value):
                    raise ValueError(
                        f"{name} ({variable.path}) was made outside of the scope of "
                        f"{self.description}: build and compile the model inside of it."
                    )

    def check_data(self, x, batch_size, *, training=False):
        """See `Engine`; a smaller last batch is right in evaluation."""
        if training and not isinstance(x, tf.distribute.DistributedDataset):
            check_batches(x, batch_size, self.replicas, self.description, last=True)

    def attach(self, model):
        """See `Engine`."""
        self.vary_random(model)

    def call(self, model, forward, args, kwargs):
        """See `Engine`: in training the replicas' parts must be equal; elsewhere one may be empty.

        This is checked here and not by `check_step`, so that no weight changes before it fails. An
        empty part, for which not every layer is made, is filled by an image of zeros whose outputs
        are dropped.
        """
        images: Any = args[0] if args else None
        if (
            self.replicas == 1
            or tf.distribute.in_cross_replica_context()
            or not tf.is_tensor(images)
            or images.shape.rank in (None, 0)
            or images.shape[0] is not None
        ):
            return forward(*args, **kwargs)
        if kwargs.get("training"):
            with tf.control_dependencies([self._equal_parts(images)]):
                return forward(tf.identity(images), *args[1:], **kwargs)
        count = tf.shape(images)[0]
        missing = tf.maximum(1 - count, 0)
        filled = tf.pad(images, [[0, missing]] + [[0, 0]] * (images.shape.rank - 1))
        outputs = forward(filled, *args[1:], **kwargs)
        return keras.tree.map_structure(lambda output: output[:count], outputs)

    def _equal_parts(self, images):
        """An operation that fails unless all replicas have as many images."""
        count = tf.cast(tf.shape(images)[0], "int64")
        context: Any = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
        return tf.debugging.assert_equal(
            count * self.replicas,
            total,
            f"{_UNEQUAL}, so that images would not count alike. Choose a batch size that the "
            f"{self.replicas} replicas divide, and batch with drop_remainder=True.",
        )

    def feed(self, batches, batch_size):
        """See `Engine`: over several processes, which must call it together, a distributed set.

        `batches` may also be an iterator of them, or a tuple of arrays.
        """
        if self.processes == 1:
            return batches
        if not isinstance(batches, tf.data.Dataset):
            batches = _dataset(batches, batch_size // self.processes)
        if self.replicas > self.processes:
            batches = batches.rebatch(batch_size // self.replicas)
        own = int(batches.cardinality())
        total, squares = self._sum(np.array([own, own * own], "float64"))
        if total * total != self.processes * squares:
            # Each process would stop after its own batches. Without a length, all go to the end.
            batches = batches.filter(lambda *_: True)
        return self.strategy.distribute_datasets_from_function(lambda context: batches)

    def arrays(self, variables, *, summed: bool = False):
        """See `Engine`. Metrics' variables are summed by TensorFlow where they are read."""
        with self.strategy.scope():
            return [tf.convert_to_tensor(variable.value).numpy() for variable in variables]

    def assign(self, variable, array, *, summed: bool = False):
        """See `Engine`."""
        with self.strategy.scope():
            if getattr(variable, "synchronization", None) != "on_read":
                variable.assign(array)
                return
            # Its parts are summed where it is read.
            parts = self.strategy.experimental_local_results(variable.value)
            for index, part in enumerate(parts):
                first = index == 0 and self.process == 0
                part.assign(array if first else np.zeros_like(array))

    def vary_random(self, model):
        """See `Engine`: seeds of replica `i` are the first's plus a multiple of `i`."""
        if self.replicas == 1:
            return
        local = self.replicas // self.processes
        for variable in model.non_trainable_variables:
            if variable.name != "seed_generator_state":
                continue
            parts = self.strategy.experimental_local_results(variable.value)
            state = np.array(parts[0].numpy(), "int64")
            if self.processes > 1:
                state = self._sum(state if self.process == 0 else np.zeros_like(state))
            for index, part in enumerate(parts):
                replica = self.process * local + index
                seed = (int(state[0]) + replica * _SEED_STEP) % 2**32
                part.assign(np.array([seed, state[1]]).astype(part.dtype.as_numpy_dtype))

    def _sum(self, array: np.ndarray | np.floating) -> np.ndarray:
        """The sum of the processes' arrays."""
        local = self.replicas // self.processes

        def part(own):
            context: Any = tf.distribute.get_replica_context()
            first = context.replica_id_in_sync_group % local == 0
            own = tf.where(first, own, tf.zeros_like(own))
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        if self._summing is None:
            # As a function: TensorFlow warns of each collective outside of one.
            self._summing = tf.function(lambda own: self.strategy.run(part, (own,)))
        with self.strategy.scope():
            results = self._summing(tf.constant(array))
        return self.strategy.experimental_local_results(results)[0].numpy()

    def total(self, value):
        """See `Engine`."""
        if self.processes == 1:
            return float(value)
        return float(self._sum(np.float64(value)))

    def predict(self, model, images):
        """See `Engine`."""
        each = len(images) // self.replicas

        def part(context):
            start = context.replica_id_in_sync_group * each
            return tf.constant(images[start : start + each])

        if model not in self._forward:
            self._forward[model] = tf.function(self._whole_outputs(weakref.proxy(model)))
        with self.strategy.scope(), in_scope(self):
            spread = self.strategy.experimental_distribute_values_from_function(part)
            outputs = self._forward[model](spread)
            return keras.tree.map_structure(
                lambda output: self.strategy.experimental_local_results(output)[0].numpy(), outputs
            )

    def _whole_outputs(self, model):
        """A function of the replicas' parts of a batch, giving each the outputs for all."""

        def whole(own):
            context: Any = tf.distribute.get_replica_context()
            before = context.replica_id_in_sync_group * tf.shape(own)[0]
            after = self.replicas * tf.shape(own)[0] - before - tf.shape(own)[0]
            filled = tf.pad(own, [[before, after]] + [[0, 0]] * (own.shape.rank - 1))
            return context.all_reduce(tf.distribute.ReduceOp.SUM, filled)

        def step(own):
            return keras.tree.map_structure(whole, model(own, training=False))

        return lambda spread: self.strategy.run(step, (spread,))

    @contextlib.contextmanager
    def alone(self):
        """See `Engine`: outside of the scope, where each new variable is sent to all processes.

        Keras makes some where one would not think of it, such as in `save`.
        """
        if self.processes == 1:
            yield
            return
        # A strategy's scope cannot be left inside of it; but it belongs to the default graph.
        eager = tf.__internal__.eager_context.eager_mode()
        with in_scope(Engine()), tf.Graph().as_default(), eager:
            yield

    def explain(self, error):
        """See `Engine`."""
        text = str(error)
        if _UNEQUAL in text:
            return ValueError(text[text.index(_UNEQUAL) :].partition("]")[0])
        if self.processes == 1 or not isinstance(error, tf.errors.OpError):
            return None
        if any(word in text for word in _OUT_OF_STEP):
            return RuntimeError(
                f"The {self.processes} processes do not do the same: each must run the same "
                "program, on models of the same shape, and call fit, evaluate and this package's "
                "functions in the same order."
            )
        if any(word in text for word in _LOST):
            return PeerLostError(self.process, self.processes)
        return None


_SEED_STEP = 0x9E3779B1  # a large odd number: neighbouring replicas' seeds lie far apart


def _dataset(batches: Any, size: int) -> tf.data.Dataset:
    """A data set of arrays, or of what an iterator gives: the first shows the others' form."""
    if isinstance(batches, tuple):
        return tf.data.Dataset.from_tensor_slices(batches).batch(size)
    first = keras.tree.map_structure(np.asarray, next(batches))
    signature = keras.tree.map_structure(
        lambda part: tf.TensorSpec((None, *part.shape[1:]), part.dtype), first
    )
    rest = itertools.chain([first], batches)
    return tf.data.Dataset.from_generator(lambda: rest, output_signature=signature)


def _place(resolver: Any) -> tuple[int, int]:
    """(number of this process, number of processes); the chief comes first."""
    if resolver is None:
        return 0, 1
    cluster = resolver.cluster_spec().as_dict()
    chiefs, workers = len(cluster.get("chief", ())), len(cluster.get("worker", ()))
    if chiefs + workers < 2:
        return 0, 1
    index = resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)
    return index, chiefs + workers
