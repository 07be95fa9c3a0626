"""Models on PyTorch as chains of compiled parts, each block one of them.

To compile a whole model takes a minute and more, since every block is compiled anew. So the model
is cut behind each block, and what lies between two cuts is recorded as a graph in which the
weights are arguments: graphs that read alike are one function, compiled for the first block and
called for the others. And since PyTorch starts kernels one by one, a step of a small model is as
fast as Python gets through it: compiled, it calls the graphs, and no layer.

JAX and TensorFlow compile whole steps by themselves.
"""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_vit import _compiling
from keras_vit.layers import BottleneckUnit, RootBlock, TransformerBlock
from keras_vit.models.recorded import Graph, record

# A batch of another size than the first one's (the last of an epoch), and calls outside of `fit`
# and its like, run layer by layer until there have been so many: to compile takes as long as a
# few hundred of them save.
PATIENCE = 50
_CUT_BEHIND = (TransformerBlock, BottleneckUnit, RootBlock)

_Key = tuple[Any, ...]


@dataclass
class _Part:
    model: keras.Model
    values: list[Any]


@dataclass
class _Step:
    graph: Graph
    values: list[Any]
    rates: list[float]


@dataclass
class _Known:
    """What is known of a model: its parts, calls of each kind, chains of some."""

    parts: list[_Part]
    identities: list[int]
    parameters: list[Any]
    calls: dict[_Key, int] = field(default_factory=dict)
    chains: dict[_Key, list[_Step] | None] = field(default_factory=dict)


_models: weakref.WeakKeyDictionary[keras.Model, _Known] = weakref.WeakKeyDictionary()


def call(model: keras.Model, inputs: Any, training: bool | None) -> list[Any] | None:
    """The flat outputs of a functional model of one input, where it is compiled now.

    Args:
        model: functional, built; a chain between its blocks.
        inputs: a tensor or an array of the shape that the model takes.
        training: as in `call`.

    Returns:
        `None` if the model is to be called layer by layer.
    """
    state = _compiling.current()
    known = _models.get(model)
    if known is None or not state.allowed or state.recording is not None:
        return None
    if isinstance(inputs, keras.KerasTensor):
        return None
    inputs = keras.ops.convert_to_tensor(inputs)
    if inputs.is_meta:
        return None
    mode, key = _key(known, inputs, training)
    if key not in known.chains:
        known.calls[key] = known.calls.get(key, 0) + 1
        first = not any(other[: len(mode)] == mode for other in known.chains)
        if not (state.in_step and first) and known.calls[key] <= PATIENCE:
            return None
        known.chains[key] = _chain(known, inputs.contiguous(), training)
    chain = known.chains[key]
    return None if chain is None else _run(chain, inputs.contiguous())


def ready(model: keras.Model) -> None:
    """Looks at a model before it is called; what was compiled for other variables is forgotten.

    Not inside of a call: there, a variable's value may be a copy in another dtype.
    """
    if keras.backend.backend() != "torch" or not model.built:
        return
    known = _models.get(model)
    if known is None or known.identities != _identities(model):
        found = _known(model)
        if not any(value.is_meta for value in found.parameters):  # no symbolic call
            _models[model] = found


def forget(model: keras.Model) -> None:
    """Forgets a model's chains, as it may work differently from now on."""
    _models.pop(model, None)


def _identities(model) -> list[int]:
    return [id(variable) for variable in model.variables]


def _known(model) -> _Known:
    cuts = [layer.output for layer in model.layers if isinstance(layer, _CUT_BEHIND)]
    starts = [model.inputs[0], *cuts]
    models = [keras.Model(start, end) for start, end in zip(starts, cuts, strict=False)]
    models.append(keras.Model(starts[-1], model.outputs))
    parts = [_Part(part, [variable.value for variable in part.variables]) for part in models]
    return _Known(parts, _identities(model), [value for part in parts for value in part.values])


def _key(known, inputs, training) -> tuple[_Key, _Key]:
    """(what kind of call this is, the same with all that a chain is made for)."""
    import torch

    mode = (bool(training), torch.is_grad_enabled())
    trained = tuple(parameter.requires_grad for parameter in known.parameters)
    return mode, (*mode, inputs.shape, inputs.dtype, inputs.device, inputs.requires_grad, trained)


def _chain(known, inputs, training) -> list[_Step] | None:
    """The compiled parts; `None`, after a warning, where one cannot be compiled."""
    import torch

    steps, x = [], inputs
    try:
        for part in known.parts:
            variables, layers = part.model.variables, part.model.layers
            remat = bool(training) and any(getattr(layer, "remat", False) for layer in layers)

            def function(x, part=part):
                return part.model(x, training=training)

            graph, rates = record(function, x, variables, part.values, remat=remat)
            steps.append(_Step(graph, part.values, rates))
            x = _run(steps[-1:], x)[0].detach().requires_grad_(torch.is_grad_enabled())
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # what cannot be compiled runs as ever
        warnings.warn(
            f"The model cannot be compiled and runs layer by layer, more slowly: {error} "
            "(`jit_compile=False` in `compile` leaves it uncompiled, without this warning.)",
            stacklevel=2,
        )
        return None
    return steps


def _run(chain: list[_Step], inputs):
    """The outputs of the last part."""
    rates = [rate for step in chain for rate in step.rates]
    factors = iter(_factors(rates, inputs) if rates else ())
    outputs = [inputs]
    for step in chain:
        drawn = [next(factors) for _ in step.rates]
        outputs = step.graph.run(outputs[0], *drawn, *step.values)
    return outputs


def _factors(rates, inputs):
    """DropPath's factors of all layers, drawn together: 0, or 1 / (1 - rate)."""
    import torch

    kept = 1.0 - torch.tensor(rates).to(inputs.device, non_blocking=True)[:, None]
    return (torch.rand(len(rates), len(inputs), device=inputs.device) < kept) / kept
