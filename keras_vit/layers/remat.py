"""Gradient checkpointing that holds on all backends, random layers included."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops


def recompute(layer: keras.layers.Layer, function: Callable, inputs):
    """Runs `function(inputs)` so that the backward pass computes its inside again.

    The layer's trainable weights enter the recomputed part as arguments, its random states as
    copies, and new states leave it as results. So TensorFlow meets no captured variable, JAX no
    leaked tracer, PyTorch no tensor changed in place, and all three draw the same dropout masks
    the second time.

    Args:
        layer: the layer whose variables, random states included, the function uses.
        function: takes a tensor, returns a tensor; uses no other variables.
        inputs: tensor, `(batch, ...)`.

    Returns:
        What `function(inputs)` returns.
    """
    weights = [variable for variable in layer.variables if variable.trainable]
    states = [variable for variable in layer.variables if not variable.trainable]
    snapshot = [(state, ops.copy(state.value)) for state in states]

    def pure(inputs, *values):
        mapping = [*zip(weights, values, strict=True), *snapshot]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = function(inputs)
        return (outputs, *(scope.get_current_value(state) for state in states))

    outputs, *new_values = keras.remat(pure)(inputs, *(v.value for v in weights))
    for state, value in zip(states, new_values, strict=True):
        # Frozen weights are no states: nothing changes them.
        if not keras.backend.is_float_dtype(state.dtype):
            state.assign(value)
    return outputs
