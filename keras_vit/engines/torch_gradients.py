"""DistributedDataParallel around the parameters of a Keras model, which `fit` calls by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import torch
from torch.nn.parallel import DistributedDataParallel

from keras_vit.engines.torch_processes import STEP, Processes


class Joined:
    """A model whose backward pass sums gradients over the processes, bucket by bucket.

    DistributedDataParallel waits for each parameter's gradient. So the first forward pass shows
    which parameters the outputs depend on, and the others, which no process has gradients for,
    are left out; to look for them in each step would cost time. Should one of them ever get a
    gradient, that is an error, since it would be this process' alone.

    Args:
        model: a built model.
        processes: all processes.

    Attributes:
        steps: forward passes since the last `fit` began.
    """

    def __init__(self, model: keras.Model, processes: Processes):
        self.steps = 0
        self._processes = processes
        self._parameters = _trained(model)
        self._flags = [(v.value, v.value.requires_grad) for v in model.variables]
        self._module: DistributedDataParallel | None = None
        self._guards: list[Any] = []

    def fits(self, model: keras.Model) -> bool:
        """Whether the model still trains the same parameters."""
        now = _trained(model)
        return not self.has_changed() and [*map(id, now.values())] == [
            *map(id, self._parameters.values())
        ]

    def has_changed(self) -> bool:
        """Whether parameters were frozen or unfrozen; cheap."""
        return any(value.requires_grad != flag for value, flag in self._flags)

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        for guard in self._guards:
            guard.remove()
        self._module = None

    def __call__(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        """`forward(*args, **kwargs)`, so that its backward pass joins the gradients."""
        if not self._parameters:
            return forward(*args, **kwargs)
        if self._module is not None:
            return self._module(forward, args, kwargs)
        outputs = forward(*args, **kwargs)
        self._module = self._wrap(outputs)
        return self._module(lambda: outputs, (), {})

    def _wrap(self, outputs) -> DistributedDataParallel:
        reached = set(_reached(outputs))
        used = {path: p for path, p in self._parameters.items() if id(p) in reached}
        self._processes.meet(STEP, len(used), "with gradients of {} parameters")
        if not used:
            raise ValueError("No trainable weight has an influence on the model's outputs.")
        for path, parameter in self._parameters.items():
            if path not in used:
                self._guards.append(parameter.register_post_accumulate_grad_hook(_refusal(path)))
        # Weights are the same already, and to write them now would break the backward pass.
        return DistributedDataParallel(
            _Forward(used.values()),
            process_group=self._processes.gradients,
            init_sync=False,
            gradient_as_bucket_view=True,
        )


class _Forward(torch.nn.Module):
    """Calls whatever it is given; holds the parameters that this depends on."""

    def __init__(self, parameters):
        super().__init__()
        self.parameters_used = torch.nn.ParameterList(parameters)

    def forward(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        return function(*args, **kwargs)


def _trained(model: keras.Model) -> dict[str, torch.nn.Parameter]:
    """Path -> parameter, of all that train; a number keeps equal paths apart."""
    return {
        f"{variable.path} ({number})": variable.value
        for number, variable in enumerate(model.trainable_variables)
    }


def _reached(outputs) -> Iterator[int]:
    """Identities of the parameters that the outputs' gradients flow to."""
    tensors = [part for part in keras.tree.flatten(outputs) if torch.is_tensor(part)]
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield id(leaf)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _refusal(path: str) -> Callable:
    def refuse(parameter) -> None:
        raise RuntimeError(
            f"{path} had no influence on the model's outputs in the first step, and has now: its "
            "gradient would not be joined with the other processes'. Models must use the same "
            "weights in every step."
        )

    return refuse
