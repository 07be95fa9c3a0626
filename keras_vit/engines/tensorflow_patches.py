"""Two repairs of Keras' trainer for tf.distribute, made on entering a scope and undone on leaving.

1. To build a model, `fit` takes the mean of the replicas' parts of the first batch, which fails
   where they differ in size and over several processes, and reads that batch, which a generator
   gives but once. The form of the data will do.
2. Over several processes a step's metrics are averaged along their first axis; they have none.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

# Releases of Keras under which the tests of this package have run with these repairs.
TESTED = ("3.15",)
_BUILD, _REDUCE = "_maybe_symbolic_build", "reduce_per_replica"
_DATA = "_get_iterator"  # of what `_BUILD` is given: the distributed data set
# What both must take. Their names and arguments are all that is relied on.
_ARGUMENTS = {
    _BUILD: ["self", "iterator", "data_batch"],
    _REDUCE: ["values", "strategy", "reduction"],
}


@contextlib.contextmanager
def repaired(strategy: tf.distribute.Strategy, *, several_processes: bool) -> Iterator[None]:
    """Inside, Keras' trainer works with the strategy.

    Args:
        strategy: the strategy.
        several_processes: whether it spans some, so that nothing works without the repairs.

    Raises:
        RuntimeError: if it does, and this release of Keras is unknown and differs.
    """
    trainer, module = _trainer()
    found = {_BUILD: getattr(trainer, _BUILD, None), _REDUCE: getattr(module, _REDUCE, None)}
    if not all(_takes(function, _ARGUMENTS[name]) for name, function in found.items()):
        if several_processes:
            raise RuntimeError(
                f"Keras {keras.__version__} is not known to train over several processes of "
                f"TensorFlow, and cannot be repaired for it. Take Keras {TESTED[-1]}, one process "
                "for all devices of a machine (without TF_CONFIG), or the JAX backend: "
                "KERAS_BACKEND=jax, or --backend jax."
            )
        yield
        return
    setattr(trainer, _BUILD, _build_from_form(found[_BUILD]))
    if several_processes:
        setattr(module, _REDUCE, _reduce_scalars(found[_REDUCE]))
    try:
        yield
    finally:
        setattr(trainer, _BUILD, found[_BUILD])
        setattr(module, _REDUCE, found[_REDUCE])


def _trainer() -> tuple[Any, Any]:
    """The class that gives a Keras model its `fit`, and its module."""
    for cls in keras.Model.__mro__:
        if _BUILD in vars(cls):
            return cls, sys.modules[cls.__module__]
    return None, None


def _takes(function: Any, arguments: list[str]) -> bool:
    return callable(function) and list(inspect.signature(function).parameters) == arguments


def _build_from_form(original):
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        data = getattr(iterator, _DATA, lambda: None)()
        if data is not None and hasattr(data, "element_spec"):
            return original(self, None, tf.nest.map_structure(_part, data.element_spec))
        return original(self, iterator, data_batch)

    return _maybe_symbolic_build


def _part(spec):
    """The form of the first replica's part; `None` for what is not there."""
    first = tf.nest.flatten(spec, expand_composites=True)[:1]
    return first[0] if first and isinstance(first[0], tf.TensorSpec) else None


def _reduce_scalars(original):
    def reduce_per_replica(values, strategy, reduction):
        if reduction == "concat":
            return original(values, strategy, reduction)
        return keras.tree.map_structure(
            lambda value: strategy.reduce("MEAN", value, axis=None), values
        )

    return reduce_per_replica
