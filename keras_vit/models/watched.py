"""What compiled parts of a model depend on, and cannot see changing."""

from __future__ import annotations

import importlib
import itertools
import operator
from typing import Any

import keras

# Attributes of layers that no graph depends on; some change with each call.
_IMMATERIAL = {"name", "build", "built", "quantize", "training", "supports_jit"}
_IMMATERIAL |= {"call_signature_parameters"}
_IMMATERIAL_ENDINGS = ("_initializer", "_constraint", "l_regularizer", "s_regularizer")
_WRAPPERS = ("Lambda", "TorchModuleWrapper")  # Keras' layers of functions and modules
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Watched:
    """A model's layers, what is set at each of them, and the variables' values.

    Args:
        model: a built model, which is not kept.

    Attributes:
        layers: all, at any depth.
        weights: `model.weights`.
        metrics: those that layers have.
        values: of all variables, as tensors.
        foreign: the name of a layer that is neither Keras' nor this package's, whose work may
            differ.
    """

    def __init__(self, model: keras.Model):
        self.layers = layers_of(model)
        self.weights = model.weights
        inner = [layer for layer in self.layers if not isinstance(layer, keras.Model)]
        self.metrics = [metric for layer in inner for metric in layer.metrics]
        self.foreign = foreign(self.layers)
        self._places = [
            (place, operator.itemgetter(*names, names[0]))
            for layer in self.layers
            for place in (vars(layer), layer._modules)
            if (names := [name for name, value in place.items() if _matters(name, value)])
        ]
        self._found = self._now()
        self._sizes = [len(vars(layer)) for layer in self.layers]
        self._variables = model.variables
        self.values = [variable._value for variable in self._variables]
        self._kinds = [_kind(value) for value in self.values]
        self._hooks = [getattr(layer, name) for layer in self.layers for name in _HOOKS]

    @property
    def has_hooks(self) -> bool:
        """Whether PyTorch is to call functions where a layer is called."""
        return any(self._hooks)

    def has_changed(self, model: keras.Model) -> bool:
        """Whether anything is another object than it was."""
        layers = layers_of(model)
        return not (
            _same(layers, self.layers)
            and [len(vars(layer)) for layer in layers] == self._sizes
            and _same(self._now(), self._found)
            and _same([variable._value for variable in self._variables], self.values)
            and [_kind(value) for value in self.values] == self._kinds
        )

    def _now(self) -> list[Any]:
        try:
            found = [getter(place) for place, getter in self._places]
        except KeyError:
            return []
        return list(itertools.chain.from_iterable(found))


def must_see_layers(inputs: Any = None) -> bool:
    """Whether layers are to be called now, whatever was compiled.

    So it is where variables have other values, and where PyTorch traces, transforms or watches
    what is computed.

    Args:
        inputs: of the model, a tensor.
    """
    torch: Any = importlib.import_module("torch")  # its public types leave out half of this
    module = importlib.import_module("torch.nn.modules.module")
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    with keras.StatelessScope() as scope:
        if scope.original_scope is not None:
            return True
    if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    if any(getattr(module, f"_global{name}") for name in _HOOKS):
        return True
    if inputs is None:
        return False
    if type(inputs) not in (torch.Tensor, torch.nn.Parameter) or inputs.is_meta:
        return True
    return torch.is_autocast_enabled(inputs.device.type)


def foreign(layers: list[keras.layers.Layer]) -> str | None:
    """The name of a layer that is neither Keras' nor this package's, whose work may differ."""
    for layer in layers:
        own = type(layer).__module__.partition(".")[0] in ("keras", "keras_vit")
        wraps = type(layer).__name__ in _WRAPPERS
        if wraps or not own or "call" in vars(layer):
            return layer.name
    return None


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """A model's layers, at any depth."""
    return model._flatten_layers(include_self=False)


def _matters(name: str, value: Any) -> bool:
    if isinstance(value, keras.Variable) or name == "_dtype_policy":
        return True
    return not (name[0] == "_" or name in _IMMATERIAL or name.endswith(_IMMATERIAL_ENDINGS))


def _same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(map(operator.is_, found, expected))


def _kind(value) -> tuple[Any, ...]:
    return value.dtype, value.device, value.stride()
