"""Parts of a model that PyTorch compiles, each one by itself, and equal ones once.

To compile a whole model takes a minute and more, since every block is compiled anew; and what
guards such a graph against change finds change in each layer's name. So a region, a block say, is
recorded as a graph of PyTorch's operators in which the weights are arguments. Graphs that read
alike are the same function: it is compiled for the first block, and the others call it.

JAX and TensorFlow compile whole steps by themselves; there, a region is nothing but a call.
"""

from __future__ import annotations

import hashlib
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import keras

from keras_vit import _compiling
from keras_vit.layers.remat import recompute

# A batch of another size than the first one's (the last of an epoch), and calls outside of `fit`
# and its like, run layer by layer until there have been so many: to compile takes as long as a
# few hundred of them save.
PATIENCE = 50

_Key = tuple[Any, ...]


class _Graph:
    """A compiled graph; with `remat` its backward pass starts from its inputs alone."""

    def __init__(self, module, remat: bool):
        import torch
        from torch._functorch import config

        compiled = torch.compile(module, fullgraph=True, dynamic=False)
        # The share of what a backward pass would like to be kept; read where a graph is compiled.
        sparing = config.patch(activation_memory_budget=0.0)
        self.run: Callable = sparing(compiled) if remat else compiled


class _Region:
    """What is known of one layer's region: calls of each kind, and the graphs of some."""

    def __init__(self):
        self.calls: dict[_Key, int] = {}
        self.graphs: dict[_Key, _Graph | None] = {}

    def graph(self, key: _Key, mode: _Key, at_once: bool, make: Callable) -> _Graph | None:
        """The graph for a call, if it has been called, or will be, often enough."""
        if key in self.graphs:
            return self.graphs[key]
        self.calls[key] = self.calls.get(key, 0) + 1
        first = not any(other[: len(mode)] == mode for other in self.graphs)
        if (at_once and first) or self.calls[key] > PATIENCE:
            self.graphs[key] = make()
        return self.graphs.get(key)


_regions: weakref.WeakKeyDictionary[keras.layers.Layer, _Region] = weakref.WeakKeyDictionary()
_graphs: weakref.WeakValueDictionary[bytes, _Graph] = weakref.WeakValueDictionary()


def region(
    layer: keras.layers.Layer,
    function: Callable,
    *inputs,
    training: bool | None = False,
    remat: bool = False,
):
    """Runs `function(*inputs)`, compiled where PyTorch runs it and the model is to be compiled.

    Args:
        layer: the layer whose variables the function uses, and no others.
        function: takes tensors, returns a tensor. Draws no numbers from a seeded generator.
        inputs: tensors.
        training: what the function does differently.
        remat: whether the backward pass computes its inside again, see `remat.recompute`.

    Returns:
        What `function(*inputs)` returns.
    """
    state = _compiling.current()
    if (
        not state.allowed
        or keras.backend.backend() != "torch"
        or any(isinstance(part, keras.KerasTensor) for part in inputs)
    ):
        return recompute(layer, function, *inputs) if remat else function(*inputs)
    with _compiling.changed(allowed=False):  # regions inside belong to this one
        variables = layer.variables
        values = [variable.value for variable in variables]
        mode, key = _key(inputs, variables, values, training)
        known = _regions.setdefault(layer, _Region())
        graph = known.graph(
            key, mode, state.in_step, lambda: _compiled(function, inputs, variables, values, remat)
        )
        if graph is not None:
            return graph.run(*inputs, *values)
        return recompute(layer, function, *inputs) if remat else function(*inputs)


def forget(layers: Iterable[keras.layers.Layer]) -> None:
    """Forgets the graphs of layers, which may work differently from now on."""
    for layer in layers:
        _regions.pop(layer, None)


def _key(inputs, variables, values, training) -> tuple[_Key, _Key]:
    """(what kind of call this is, the same with all that a graph is made for)."""
    import torch

    mode = (bool(training), torch.is_grad_enabled())
    shapes = tuple((x.shape, x.dtype, x.device, x.requires_grad) for x in inputs)
    state = tuple(map(id, variables)), tuple(value.requires_grad for value in values)
    return mode, (*mode, shapes, state)


def _compiled(function, inputs, variables, values, remat) -> _Graph | None:
    """The graph of a function; `None`, after a warning, where it cannot be recorded."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    def pure(*arguments):
        given, weights = arguments[: len(inputs)], arguments[len(inputs) :]
        mapping = list(zip(variables, weights, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = function(*given)
        if any(scope.get_current_value(v) is not w for v, w in mapping):
            raise ValueError("it changes variables")
        return outputs

    try:
        with torch.no_grad():
            module = make_fx(pure, pre_dispatch=True)(*inputs, *values)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # whatever PyTorch cannot record runs as ever
        warnings.warn(
            f"A part of the model cannot be compiled ({error}) and runs layer by layer, more "
            "slowly; jit_compile=False in `compile` silences this.",
            stacklevel=2,
        )
        return None
    if remat and any(_draws(node.target) for node in module.graph.nodes):
        return None  # a graph that starts again from its inputs would draw other numbers
    return _graphs.setdefault(_digest(module, remat), _Graph(module, remat))


def _draws(operator) -> bool:
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def _digest(module, remat) -> bytes:
    """Of a graph: what it computes, its constants included."""
    digest = hashlib.sha256(f"{remat} {module.code}".encode())
    for node in module.graph.nodes:
        if node.op == "get_attr":
            constant = getattr(module, node.target).detach()
            digest.update(f"{node.target} {constant.dtype} {tuple(constant.shape)}".encode())
            digest.update(constant.double().cpu().numpy().tobytes())
    return digest.digest()
