"""A part of a model as a graph of PyTorch's operators, compiled; equal graphs are compiled once."""

from __future__ import annotations

import hashlib
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_vit import _compiling


class Draws:
    """What DropPath draws in a part: counted the first time, given from outside afterwards.

    Its rate differs from block to block, so that blocks with the draw inside would not be equal.

    Attributes:
        rates: of the layers that asked, in their order.
    """

    def __init__(self):
        self.rates: list[float] = []
        self._given: list[Any] | None = None

    def give(self, factors: Sequence[Any]) -> None:
        """From now on, those that ask get these."""
        self._given = list(factors)

    def factors(self, rate: float, inputs: Any) -> Any:
        """A factor of each sample, `(batch, 1, ...)`, for a layer that asks."""
        shape = (inputs.shape[0],) + (1,) * (len(inputs.shape) - 1)
        if self._given is None:
            self.rates.append(rate)
            return keras.ops.ones(shape, inputs.dtype)
        return keras.ops.cast(keras.ops.reshape(self._given.pop(0), shape), inputs.dtype)


class Graph:
    """A compiled graph.

    Args:
        module: a `torch.fx.GraphModule` that returns a tuple.
        arguments: example inputs.
        remat: whether the backward pass starts from the inputs alone.
    """

    def __init__(self, module, arguments, remat: bool):
        import torch
        from torch._functorch import config

        # The share of what a backward pass would like to have kept.
        with config.patch(activation_memory_budget=0.0 if remat else 1.0):
            # Not `torch.compile`, which would check at each call what is known here.
            with warnings.catch_warnings():
                # That float32 is computed as float32 is no reason to warn.
                warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
                self.run: Callable = torch._inductor.compile(module, arguments)


_graphs: weakref.WeakValueDictionary[bytes, Graph] = weakref.WeakValueDictionary()


def record(function: Callable, inputs, variables, values, *, remat: bool) -> tuple[Graph, list]:
    """(the compiled graph of a function, the rates of DropPath in it).

    Args:
        function: takes a tensor; returns a tensor, or a list of tensors.
        inputs: example of the tensor.
        variables: all that the function uses.
        values: theirs. The graph's arguments are inputs, draws of DropPath and values.
        remat: whether the backward pass is to compute its inside again.

    Raises:
        ValueError: if the function cannot be recorded as a graph.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    draws = Draws()
    with torch.no_grad(), _compiling.changed(recording=draws):
        function(inputs)
        factors = [torch.ones(inputs.shape[0], device=inputs.device) for _ in draws.rates]

        def pure(inputs, *arguments):
            draws.give(arguments[: len(factors)])
            mapping = list(zip(variables, arguments[len(factors) :], strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                before = [scope.get_current_value(variable) for variable in variables]
                outputs = function(inputs)
                after = [scope.get_current_value(variable) for variable in variables]
            if any(new is not old for new, old in zip(after, before, strict=True)):
                raise ValueError("a layer changes its variables when it is called")
            return tuple(keras.tree.flatten(outputs))

        module = make_fx(pure, pre_dispatch=True)(inputs, *factors, *values)
    if remat and any(_draws(node.target) for node in module.graph.nodes):
        raise ValueError("dropout inside of a block with remat would draw other numbers again")
    digest = _digest(module, remat, [inputs, *values])
    graph = _graphs.get(digest)
    if graph is None:
        graph = _graphs[digest] = Graph(module, [inputs, *factors, *values], remat)
    return graph, draws.rates


def _draws(operator) -> bool:
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def _digest(module, remat, arguments) -> bytes:
    """Of a graph: what it computes, its constants included, and for which arguments."""
    import torch

    kinds = [(x.shape, x.dtype, x.device, x.requires_grad, x.stride()) for x in arguments]
    about = f"{remat} {torch.is_grad_enabled()} {kinds} {module.code}"
    digest = hashlib.sha256(about.encode())
    for node in module.graph.nodes:
        if node.op == "get_attr":
            constant = getattr(module, node.target).detach()
            digest.update(f"{node.target} {constant.dtype} {tuple(constant.shape)}".encode())
            digest.update(constant.double().cpu().numpy().tobytes())
    return digest.digest()
