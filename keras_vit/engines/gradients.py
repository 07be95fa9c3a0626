"""Gradients outside of training, and calls that keep nothing for any."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras


def untracked() -> contextlib.AbstractContextManager:
    """A context in which PyTorch keeps nothing for a backward pass; others need none."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def pull_back(function: Callable, inputs: Sequence[Any], cotangent: Any) -> list[Any]:
    """Gradients of a function by its inputs, weights left out.

    Args:
        function: of tensors, to one tensor.
        inputs: the tensors at which it is taken.
        cotangent: the gradient by the function's output, of its shape and dtype.

    Returns:
        A tensor for each of the inputs: the gradient of the sum of output times cotangent.
    """
    return _WAYS[keras.backend.backend()](function, list(inputs), cotangent)


def _torch(function, inputs, cotangent):
    import torch

    def tracked(x):  # what was made in inference mode has no gradients, a copy has
        return x.clone() if x.is_inference() else x.detach()

    with torch.inference_mode(False), torch.enable_grad():
        leaves = [tracked(x).requires_grad_() for x in inputs]
        return list(torch.autograd.grad(function(*leaves), leaves, tracked(cotangent)))


def _jax(function, inputs, cotangent):
    import jax

    _, pull = jax.vjp(function, *inputs)
    return list(pull(cotangent))


def _tensorflow(function, inputs, cotangent):
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        output = function(*inputs)
    return tape.gradient(output, inputs, output_gradients=cotangent)


_WAYS = {"torch": _torch, "jax": _jax, "tensorflow": _tensorflow}
