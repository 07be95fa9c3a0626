"""A part of a model as a graph of PyTorch's operators, compiled; equal graphs are compiled once."""

from __future__ import annotations

import hashlib
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from keras_vit import _compiling
from keras_vit.models import folded
from keras_vit.models.watched import foreign, layers_of


class Unrecordable(ValueError):
    """What a part does cannot be recorded as a graph."""


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
        once: whether it runs once at most, so that it may write over what was kept for it.
        moving: how many arguments come before the weights, where it has no gradients; `None`: where
            it has some.

    Attributes:
        run: takes the arguments before the weights, and what `prepared` makes of these.
    """

    def __init__(self, module, arguments, remat: bool, once: bool, moving: int | None):
        self._sources: list[int | None] | None = None
        parts = None if moving is None else folded.split(module, moving)
        if parts is not None:
            first, self._sources, module = parts
            weights = arguments[moving:]
            self._prepare = _compiled(first, weights, remat, once)
            arguments = [*arguments[:moving], *self.prepared(weights)]
        self.run: Any = _compiled(module, arguments, remat, once)

    def prepared(self, weights: Iterable[Any]) -> Sequence[Any]:
        """What a run needs of weights, such as their copies in the compute dtype."""
        given = list(weights)
        if self._sources is None:
            return given
        made = iter(self._prepare(*given))
        return [next(made) if number is None else given[number] for number in self._sources]


def _compiled(module, arguments, remat, once) -> Any:
    import torch
    from torch._functorch import config

    # The share of what a backward pass would like to have kept.
    budget = 0.0 if remat else 1.0
    with config.patch(activation_memory_budget=budget, donated_buffer=once):
        # Not `torch.compile`, which would check at each call what is known here.
        with warnings.catch_warnings():
            # That float32 is computed as float32 is no reason to warn.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
            return torch._inductor.compile(module, arguments)


_graphs: weakref.WeakValueDictionary[bytes, Graph] = weakref.WeakValueDictionary()


def record(
    function: Callable, inputs, model: keras.Model, values, *, remat: bool, once: bool
) -> tuple[Graph, list[float]]:
    """(the compiled graph of a function, the rates of DropPath in it).

    Args:
        function: takes a tensor; returns a tensor, or a list of tensors.
        inputs: example of the tensor.
        model: whose variables the function uses.
        values: theirs. The graph's arguments are inputs, draws of DropPath and values.
        remat: whether the backward pass is to compute its inside again.
        once: see `Graph`.

    Raises:
        Unrecordable: if the function does more than a graph can.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    name = foreign(layers_of(model))
    if name is not None:
        raise Unrecordable(f"layer {name!r} is not one of Keras or keras_vit")
    draws, variables = Draws(), model.variables
    differentiates = torch.is_grad_enabled()
    with torch.no_grad(), _compiling.changed(recording=draws):
        _pure(function, inputs, variables, values)
        factors = [torch.ones(inputs.shape[0], device=inputs.device) for _ in draws.rates]

        def pure(inputs, *arguments):
            draws.give(arguments[: len(factors)])
            return _pure(function, inputs, variables, arguments[len(factors) :])

        module = make_fx(pure, pre_dispatch=True)(inputs, *factors, *values)
    constants = _constants(module)
    if any(constant.requires_grad for constant in constants.values()):
        raise Unrecordable("a layer computes with parameters that Keras does not know")
    if remat and any(_draws(node) for node in module.graph.nodes):
        raise Unrecordable("dropout inside of a block with remat would draw other numbers again")
    moving = None if differentiates else 1 + len(factors)
    digest = _digest(module, constants, (remat, once), [inputs, *values])
    graph = _graphs.get(digest)
    if graph is None:
        arguments = [inputs, *factors, *values]
        graph = _graphs[digest] = Graph(module, arguments, remat, once, moving)
    return graph, draws.rates


def _pure(function, inputs, variables, values) -> tuple[Any, ...]:
    """The function's flat outputs for these values of variables, which stay as they are."""
    mapping = list(zip(variables, values, strict=True))
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        before = [scope.get_current_value(variable) for variable in variables]
        outputs = function(inputs)
        after = [scope.get_current_value(variable) for variable in variables]
    if any(new is not old for new, old in zip(after, before, strict=True)):
        raise Unrecordable("a layer changes its variables when it is called")
    if scope.losses:
        raise Unrecordable("a layer adds losses when it is called")
    return tuple(keras.tree.flatten(outputs))


def _constants(module) -> dict[str, Any]:
    return {
        node.target: operator.attrgetter(node.target)(module)
        for node in module.graph.nodes
        if node.op == "get_attr"
    }


def _draws(node) -> bool:
    """Whether an operation of a graph takes random numbers."""
    import torch

    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        return False  # layers call it without dropout
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _digest(module, constants, about, arguments) -> bytes:
    """Of a graph: what it computes, its constants included, and for which arguments."""
    import torch

    kinds = [(x.shape, x.dtype, x.device, x.requires_grad, x.stride()) for x in arguments]
    digest = hashlib.sha256(f"{about} {torch.is_grad_enabled()} {kinds} {module.code}".encode())
    for name, constant in constants.items():
        digest.update(f"{name} {constant.dtype} {tuple(constant.shape)}".encode())
        digest.update(constant.detach().double().cpu().numpy().tobytes())
    return digest.digest()
