"""Models on PyTorch as chains of compiled parts, each block one of them.

To compile a whole model takes a minute and more, since every block is compiled anew. So the model
is cut behind each block, and what lies between two cuts is recorded as a graph in which the
weights are arguments: graphs that read alike are one function, compiled for the first block and
called for the others. And since PyTorch starts kernels one by one, a step of a small model is as
fast as Python gets through it: compiled, it calls the graphs, and no layer.

JAX and TensorFlow compile whole steps by themselves.
"""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_vit import _compiling
from keras_vit.engines.torch_copies import as_ever
from keras_vit.layers import BottleneckUnit, PatchDropout, RootBlock, TransformerBlock
from keras_vit.models import replayed
from keras_vit.models.recorded import Graph, Unrecordable, record
from keras_vit.models.watched import Watched, must_see_layers

# A batch of another size than the first one's (the last of an epoch), and calls outside of `fit`
# and its like, run layer by layer until there have been so many: to compile takes as long as a
# few hundred of them save.
PATIENCE = 50
# Steps of a `fit` before its next ones are replayed as CUDA graphs, which take some memory.
STEPS_BEFORE_REPLAY = 10
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
    training: bool | None
    graph: Graph | None = None
    rates: list[float] = field(default_factory=list)


@dataclass
class _Chain:
    """All parts of a model, and how often they trained it since `fit` began.

    Attributes:
        replay: a step as CUDA graphs, where there is one.
        prepared: (versions of the weights, what the graphs need of them by part), while `predict`
            or `evaluate` runs.
    """

    steps: list[_Step]
    trained: int = 0
    replay: replayed.Replay | None = None
    prepared: tuple[list[int], list[Sequence[Any] | None]] | None = None

    @property
    def rates(self) -> list[float]:
        """Of DropPath in all parts."""
        return [rate for step in self.steps for rate in step.rates]

    @property
    def values(self) -> list[Any]:
        """Of the weights of all parts."""
        return [value for step in self.steps for value in step.part.values]


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
    chains: dict[_Key, _Chain | None] = field(default_factory=dict)


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
    with as_ever():
        return _called(
            known, inputs, training, state.stepping is not None, state.unchanging is model
        )


def _called(known, inputs, training, stepping, unchanging) -> list[Any] | None:
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
    if chain is None:
        return None
    arguments = [inputs.contiguous(), *_factors(chain.rates, inputs)]
    *_, trains = mode
    if trains and training:
        return _train(chain, arguments)
    return _run(chain.steps, arguments, _prepared(chain) if unchanging else None)


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


def seen(model: keras.Model) -> Watched | None:
    """What `ready` looked at, if this is a step of the model and layers may be compiled."""
    state = _compiling.current()
    known = _models.get(model) if state.stepping is model and state.allowed else None
    return None if known is None else known.watched


def rest(model: keras.Model, *, trained: bool) -> None:
    """Gives back what only steps one after another need.

    Args:
        model: whose `fit`, `evaluate` or `predict` has come to its end.
        trained: whether it was `fit`.
    """
    known = _models.get(model)
    # A copy, since other threads may add some.
    for chain in list(known.chains.values()) if known is not None else ():
        if chain is not None:
            chain.prepared = None
            if trained:
                chain.trained, chain.replay = 0, None


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


def _chain(known, inputs, training, stepping) -> _Chain | None:
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
    return _Chain(steps) if any(step.graph for step in steps) else None


def _compile(parts, x, training, stepping, steps, reasons) -> None:
    """Fills in steps, and the reasons why some of them have no graph."""
    for part in parts:
        step = _Step(part, training)
        try:
            step.graph, step.rates = _recorded(part, x, training, stepping)
        except Unrecordable as error:
            reasons.append(str(error))
        steps.append(step)
        with keras.StatelessScope():  # it is no call: no state moves, no loss is added
            outputs = _run([step], [x, *_factors(step.rates, x)])[0]
        x = outputs.detach().requires_grad_(outputs.requires_grad)


def _recorded(part, x, training, stepping) -> tuple[Graph, list[float]]:
    model = part.model
    remat = bool(training) and any(getattr(layer, "remat", False) for layer in model.layers)
    if training and any(isinstance(layer, PatchDropout) and layer.rate for layer in model.layers):
        raise Unrecordable("")  # it moves a random state; little is lost

    def function(x):
        return model.call(x, training=training)

    return record(function, x, model, part.values, remat=remat, once=stepping)


def _train(chain: _Chain, arguments: list[Any]) -> list[Any]:
    """As `_run`; from some step on as CUDA graphs, where that is possible."""
    values = chain.values
    chain.trained += 1
    if chain.trained == STEPS_BEFORE_REPLAY:
        chain.replay = _replay(chain, arguments, values)
    if chain.replay is not None and chain.replay.fits(arguments, values):
        return chain.replay(*arguments, *values)
    return _run(chain.steps, arguments)


def _replay(chain, arguments, values) -> replayed.Replay | None:
    if not all(step.graph for step in chain.steps) or not replayed.affordable(arguments[0].device):
        return None

    def function(*given):
        return _run(chain.steps, given[: len(arguments)], values=iter(given[len(arguments) :]))

    try:
        return replayed.Replay(function, arguments, values)
    except RuntimeError as error:  # also where memory runs out
        warnings.warn(f"Steps are not replayed as CUDA graphs: {error}", stacklevel=2)
        return None


def _prepared(chain: _Chain) -> list[Sequence[Any] | None] | None:
    """What the graphs need of weights, made anew where a callback has changed some.

    What is written past PyTorch's count of versions, by way of `.data`, is seen from the next
    `predict` or `evaluate` on.

    Returns:
        `None` where weights have no versions, being made in inference mode.
    """
    values = chain.values
    if any(value.is_inference() for value in values):
        return None
    versions = [value._version for value in values]
    known = chain.prepared
    if known is None or known[0] != versions:
        steps = chain.steps
        made = [step.graph and step.graph.prepared(step.part.values) for step in steps]
        known = chain.prepared = versions, made
    return known[1]


def _run(steps: Sequence[_Step], arguments: Sequence[Any], prepared=None, values=None) -> list[Any]:
    """The outputs of the last part.

    Args:
        steps: parts.
        arguments: the first one's input, and the draws of all.
        prepared: what the graphs need of weights, if that is there already.
        values: iterates over values that take the place of all weights.
    """
    x, *rest = arguments
    outputs, drawn = [x], iter(rest)
    for number, step in enumerate(steps):
        count = len(step.part.values)
        used = step.part.values if values is None else itertools.islice(values, count)
        if step.graph is None:
            outputs = keras.tree.flatten(step.part.model.call(outputs[0], training=step.training))
        else:
            factors = itertools.islice(drawn, len(step.rates))
            needed = step.graph.prepared(used) if prepared is None else prepared[number]
            outputs = step.graph.run(outputs[0], *factors, *needed)
    return outputs


def _factors(rates, inputs) -> Sequence[Any]:
    """DropPath's factors of all layers, drawn together: 0, or 1 / (1 - rate)."""
    import torch

    if not rates:
        return ()
    kept = 1.0 - torch.tensor(rates).to(inputs.device, non_blocking=True)[:, None]
    drawn = torch.rand(len(rates), len(inputs), device=inputs.device) < kept
    return (drawn / kept).unbind()
