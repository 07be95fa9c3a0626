"""What the rest of the package asks of several devices; by itself, one device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

_current: list[Engine] = []


class PeerLostError(RuntimeError):
    """Another process of the run ended, so that this one cannot go on.

    Args:
        process: number of this process.
        processes: number of all.
    """

    def __init__(self, process: int, processes: int):
        super().__init__(
            f"Process {process} of {processes} lost another one. Start all of them again with the "
            "same output directory: the run goes on from its last checkpoint."
        )


class Engine:
    """One device in one process. Engines of several devices override what differs.

    A global batch is what a recipe speaks of. With several processes each feeds its own part:
    of every global batch the examples `shard[0] :: shard[1]`.

    Attributes:
        kind: "data", "model" or "fsdp".
        devices: devices in all processes.
        replicas: parts that a global batch is cut into; must divide it.
        processes: number of processes.
        process: number of this one; 0 is the chief, which alone writes files.
        shard: `(index, count)` of this process' part of each global batch.
        description: in words.
    """

    kind = "data"
    devices = 1
    replicas = 1
    processes = 1
    process = 0
    shard = (0, 1)
    description = "one device"
    # Whether each process' metrics are of its own part of the data.
    partial_metrics = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.description}>"

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.process == 0

    @contextlib.contextmanager
    def scope(self) -> Iterator[Engine]:
        """Everything made inside is for this engine's devices."""
        with in_scope(self):
            yield self

    def check_batch(self, batch_size: int, accumulation_steps: int = 1) -> None:
        """Raises a ValueError unless every replica gets as many images in each forward pass."""
        parts = self.replicas * accumulation_steps
        if batch_size % parts:
            near = max(batch_size // parts, 1) * parts
            times = f" times accumulation_steps={accumulation_steps}"
            raise ValueError(
                f"`batch_size` must be a multiple of the {self.replicas} replicas of "
                f"{self.description}{times if accumulation_steps > 1 else ''}: take {near} or "
                f"{near + parts}. Received: batch_size={batch_size}"
            )

    def check_model(self, model: keras.Model) -> None:
        """Raises a ValueError if a model, compiled or not, cannot be trained here."""

    def check_data(self, x: Any, batch_size: int | None, *, training: bool = False) -> None:
        """Raises a ValueError if `fit` or its like would meet a batch that cannot be divided."""

    def check_predict(self) -> None:
        """Raises a ValueError if `keras.Model.predict` cannot work here."""

    def guard(self, model: keras.Model) -> contextlib.AbstractContextManager:
        """Around `fit` and its like: after an error the model is as after its last step."""
        return contextlib.nullcontext()

    def attach(self, model: keras.Model) -> None:
        """Readies a built model for training; called before each `fit`, and cheap when repeated."""

    def call(self, model: keras.Model, forward, args: tuple, kwargs: dict) -> Any:
        """Calls `forward(*args, **kwargs)`, the model's own call, as training here needs it."""
        return forward(*args, **kwargs)

    def inside(self, model: keras.Model, forward, args: tuple, kwargs: dict) -> Any:
        """The same for the model's `call`, which Keras' steps on JAX call at once."""
        return forward(*args, **kwargs)

    def check_step(self, images: Any) -> None:
        """Called with each batch of a training step where the backend builds or runs it."""

    def feed(self, batches: Any, batch_size: int) -> Any:
        """What `fit` takes, from this process' `tf.data.Dataset` of `batch_size` // `shard[1]`."""
        return batches

    def arrays(self, variables: Sequence[Any], *, summed: bool = False) -> list[np.ndarray]:
        """Values of variables, whole, on every process; all processes must call it together.

        Args:
            variables: Keras variables.
            summed: whether they are sums (of metrics), of which each process may hold a part.
        """
        return [keras.ops.convert_to_numpy(variable.value) for variable in variables]

    def assign(self, variable: Any, array: np.ndarray, *, summed: bool = False) -> None:
        """Sets a variable everywhere from what `arrays` gave, on every process."""
        variable.assign(array)

    def state_layout(self, variable: Any) -> Any:
        """How an optimizer's state of a variable lies; `None`: as the variable itself."""
        return None

    def build_metrics(self, model: keras.Model, labels: np.ndarray, outputs: np.ndarray) -> None:
        """Makes the variables of a compiled model's metrics; their values stay as they are."""
        with keras.StatelessScope():
            model.compute_metrics(None, *map(keras.ops.convert_to_tensor, (labels, outputs)))

    def vary_random(self, model: keras.Model) -> None:
        """Gives processes that draw by themselves (dropout) different random numbers, once."""

    def total(self, value: float) -> float:
        """The sum of the processes' numbers; all must call it together. Also a barrier."""
        return float(value)

    def predict(self, model: keras.Model, images: np.ndarray) -> Any:
        """Outputs for a batch that all processes hold alike and `replicas` divides, as NumPy."""
        return model.predict_on_batch(images)

    def local_model(self, model: keras.Model) -> keras.Model:
        """The model for this process `alone`, after training; all must call it together."""
        if self.processes == 1:
            return model
        arrays = self.arrays(model.variables)
        with self.alone():
            copy = type(model).from_config(model.get_config())
            for variable, array in zip(copy.variables, arrays, strict=True):
                variable.assign(array)
        return copy

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, `local_model` can be used by one of several processes without the others."""
        with contextlib.nullcontext() if self.processes == 1 else in_scope(Engine()):
            yield

    def explain(self, error: BaseException) -> BaseException | None:
        """A clear error for one that training raised here; `None` to let it pass."""
        return None


_ONE_DEVICE = Engine()


def current() -> Engine:
    """The engine whose scope this is; outside of any, that of one device."""
    return _current[-1] if _current else _ONE_DEVICE


def is_in_scope() -> bool:
    """Whether this is the scope of some engine."""
    return bool(_current)


@contextlib.contextmanager
def in_scope(engine: Engine) -> Iterator[None]:
    """Makes an engine the current one."""
    _current.append(engine)
    try:
        yield
    finally:
        _current.pop()
