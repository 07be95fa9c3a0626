"""Models on PyTorch as chains of compiled parts, each block one of them.

To compile a whole model takes a minute and more, since every block is compiled anew. So the model
is cut behind each block, and what lies between two cuts is recorded as a graph in which the
weights are arguments: graphs that read alike are one function, compiled for the first block and
called for the others. And since PyTorch starts kernels one by one, a step of a small model is as
fast as Python gets through it: compiled, it calls the graphs, and no layer.

JAX and TensorFlow compile whole steps by themselves.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_vit import _compiling
from keras_vit.layers import BottleneckUnit, PatchDropout, RootBlock, TransformerBlock
from keras_vit.models.recorded import Graph, Unrecordable, record
from keras_vit.models.watched import Watched, must_see_layers

# A batch of another size than the first one's (the last of an epoch), and calls outside of `fit`
# and its like, run layer by layer until there have been so many: to compile takes as long as a
# few hundred of them save.
PATIENCE = 50
_CUT_BEHIND = (TransformerBlock, BottleneckUnit, RootBlock, PatchDropout)

_Key = tuple[Any, ...]


@dataclass
class _Part:
    """What lies between two cuts: `model.call`, which minds no count of tokens, with its values."""

    model: keras.Model
    values: list[Any]


@dataclass
class _Step:
    """A part of a chain; without a graph it runs layer by layer."""

    part: _Part
    graph: Graph | None = None
    rates: list[float] = field(default_factory=list)


@dataclass
class _Known:
    """What is known of a model: its parts, calls of each kind, chains of some.

    Attributes:
        lasting: whether chains pay, as the model is not changed every few steps.
        uses: calls of any kind.
    """

    parts: list[_Part]
    watched: Watched
    lasting: bool
    uses: int = 0
    calls: dict[_Key, int] = field(default_factory=dict)
    chains: dict[_Key, list[_Step] | None] = field(default_factory=dict)


_models: weakref.WeakKeyDictionary[keras.Model, _Known] = weakref.WeakKeyDictionary()
_cut: weakref.WeakKeyDictionary[keras.Model, list[keras.Model]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


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
    if must_see_layers(inputs):
        return None
    stepping = state.stepping is not None
    mode, key = _key(known, inputs, training, stepping)
    known.uses += 1
    if key not in known.chains:
        known.calls[key] = known.calls.get(key, 0) + 1
        first = not any(other[: len(mode)] == mode for other in known.chains)
        if not (stepping and first and known.lasting) and known.calls[key] <= PATIENCE:
            return None
        with _lock:
            if key not in known.chains:
                known.chains[key] = _chain(known, inputs.contiguous(), training, stepping)
    chain = known.chains[key]
    return None if chain is None else _run(chain, inputs.contiguous(), training)


def ready(model: keras.Model) -> bool:
    """Looks at a model before it is called; what was compiled for another state is forgotten.

    Returns:
        Whether `call` may be asked.
    """
    if keras.backend.backend() != "torch" or not model.built or must_see_layers():
        return False
    known = _models.get(model)
    if known is None or known.watched.has_changed(model):
        lasting = known is None or known.uses >= PATIENCE
        with _lock:
            known = _models[model] = _Known(_parts(model), Watched(model), lasting)
    return not known.watched.has_hooks


def forget(model: keras.Model) -> None:
    """Forgets a model's chains, as it may work differently from now on."""
    _models.pop(model, None)


def _parts(model) -> list[_Part]:
    if model not in _cut:  # layers keep the nodes of all models that they are in
        cuts = [layer.output for layer in model.layers if isinstance(layer, _CUT_BEHIND)]
        starts = [model.inputs[0], *cuts]
        parts = [keras.Model(start, end) for start, end in zip(starts, cuts, strict=False)]
        _cut[model] = [*parts, keras.Model(starts[-1], model.outputs)]
    # Not `value`, which inside of a call may be a copy in another dtype.
    return [_Part(part, [variable._value for variable in part.variables]) for part in _cut[model]]


def _key(known, inputs, training, stepping) -> tuple[_Key, _Key]:
    """(what kind of call this is, the same with all that a chain is made for)."""
    import torch

    differentiates = torch.is_grad_enabled()
    mode = (bool(training), differentiates, differentiates and stepping)
    trained = tuple(value.requires_grad for part in known.parts for value in part.values)
    return mode, (*mode, inputs.shape, inputs.dtype, inputs.device, inputs.requires_grad, trained)


def _chain(known, inputs, training, stepping) -> list[_Step] | None:
    """The compiled parts; `None` where PyTorch cannot compile one. A warning tells of both."""
    import torch

    steps: list[_Step] = []
    reasons: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch's own code
            _compile(known.parts, inputs, training, stepping, steps, reasons)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # what cannot be compiled runs as ever
        reasons, steps = [str(error)], []
    reasons = [reason for reason in reasons if reason]
    if reasons:
        warnings.warn(
            f"{'Parts of the' if steps else 'The'} model cannot be compiled and "
            f"{'run' if steps else 'runs'} layer by layer, more slowly: {reasons[0]} "
            "(`jit_compile=False` in `compile` leaves it uncompiled, without this warning.)",
            stacklevel=2,
        )
    return steps if any(step.graph for step in steps) else None


def _compile(parts, x, training, stepping, steps, reasons) -> None:
    """Fills in steps, and the reasons why some of them have no graph."""
    for part in parts:
        step = _Step(part)
        try:
            step.graph, step.rates = _recorded(part, x, training, stepping)
        except Unrecordable as error:
            reasons.append(str(error))
        steps.append(step)
        with keras.StatelessScope():  # it is no call: no state moves, no loss is added
            outputs = _run([step], x, training)[0]
        x = outputs.detach().requires_grad_(outputs.requires_grad)


def _recorded(part, x, training, stepping) -> tuple[Graph, list[float]]:
    model = part.model
    remat = bool(training) and any(getattr(layer, "remat", False) for layer in model.layers)
    if training and any(isinstance(layer, PatchDropout) and layer.rate for layer in model.layers):
        raise Unrecordable("")  # it moves a random state; little is lost

    def function(x):
        return model.call(x, training=training)

    return record(function, x, model, part.values, remat=remat, once=stepping)


def _run(chain: list[_Step], inputs, training):
    """The outputs of the last part."""
    rates = [rate for step in chain for rate in step.rates]
    factors = iter(_factors(rates, inputs) if rates else ())
    outputs = [inputs]
    for step in chain:
        if step.graph is None:
            outputs = keras.tree.flatten(step.part.model.call(outputs[0], training=training))
            continue
        drawn = [next(factors) for _ in step.rates]
        outputs = step.graph.run(outputs[0], *drawn, *step.part.values)
    return outputs


def _factors(rates, inputs):
    """DropPath's factors of all layers, drawn together: 0, or 1 / (1 - rate)."""
    import torch

    kept = 1.0 - torch.tensor(rates).to(inputs.device, non_blocking=True)[:, None]
    return (torch.rand(len(rates), len(inputs), device=inputs.device) < kept) / kept
