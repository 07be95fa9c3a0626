"""Finds the engine that a model is on, also where the user set up the backend's own by hand."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.engines.engine import Engine, current, is_in_scope
from keras_vit.engines.environment import processes

_VARIABLES = "WORLD_SIZE (PyTorch), TF_CONFIG or KERAS_DISTRIBUTION_NUM_PROCESSES (JAX)"
_DOOR = "keras_vit.training.distribution.scope"


def engine_for(model: keras.Model) -> Engine:
    """The scope's engine; else one around what the backend is set to; else one device."""
    adopt = _ADOPT.get(keras.backend.backend())
    return (adopt and not is_in_scope() and adopt(model)) or current()


def _tensorflow(model) -> Engine | None:
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return _unjoined(processes("tensorflow"))
    from keras_vit.engines import tensorflow_engine

    return tensorflow_engine.make("data", None, None, False, strategy=strategy)


def _jax(model) -> Engine | None:
    distribution = keras.distribution.distribution()
    if distribution is None:
        import jax

        return _unjoined(max(processes("jax"), jax.process_count()))
    from keras_vit.engines import jax_engine

    return jax_engine.JaxEngine(distribution, type(distribution).__name__)


def _torch(model) -> Engine | None:
    # Looked up, not imported: a model on one device has no need of it.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _unjoined(distributed.get_world_size())
    return _unjoined(processes("torch"))


def _unjoined(count: int) -> Engine | None:
    return _Unjoined(count) if count > 1 else None


class _Unjoined(Engine):
    """One of several processes outside of a scope: it may do anything but train."""

    def __init__(self, count: int):
        self.count = count

    def check_model(self, model):
        """See `Engine`."""
        also = {"torch": "; a DistributedDataParallel around the model is passed by in `fit`"}.get(
            keras.backend.backend(), ""
        )
        raise ValueError(
            f"This is one of {self.count} processes, and each would train on its own{also}. Build "
            f"and fit the model inside `with {_DOOR}():`, or unset {_VARIABLES}."
        )


_ADOPT = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}


@contextlib.contextmanager
def explained(engine: Engine) -> Iterator[None]:
    """Turns what an engine can explain into a clear error."""
    try:
        yield
    except Exception as error:
        clear = engine.explain(error)
        if clear is None:
            raise
        raise clear from error


@contextlib.contextmanager
def entered(engine: Engine) -> Iterator[None]:
    """The engine's scope, unless it is entered already."""
    with contextlib.nullcontext() if engine is current() else engine.scope(), explained(engine):
        yield
