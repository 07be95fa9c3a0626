"""The optimizers' arithmetic on lists of PyTorch's tensors: a few kernels for all variables.

Variable by variable, as `update_step` does it, it takes some ten kernels for each of hundreds of
variables, and starting those takes longer than running them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keras import ops

from keras_vit.engines.torch_copies import as_ever

if TYPE_CHECKING:
    import torch

    from keras_vit.optimizers.decoupled import DecoupledOptimizer


def _torch() -> Any:
    # Its operations on lists are in no public module, and none of its types knows them.
    return importlib.import_module("torch")


def global_norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Norm of all tensors' values together, a float32 scalar."""
    torch = _torch()
    norms = torch._foreach_norm(tensors, 2, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack(norms))


def scaled(tensors: list[torch.Tensor], factor: Any) -> list[torch.Tensor]:
    """The tensors times a factor, a float or a scalar tensor."""
    return list(_torch()._foreach_mul(tensors, factor))


def update(
    optimizer: DecoupledOptimizer,
    gradients: list[torch.Tensor],
    variables: list[Any],
    learning_rate: Any,
    due: torch.Tensor | None,
) -> None:
    """Updates all variables and their state, as `optimizer.update_step` does one by one.

    Args:
        optimizer: built.
        gradients: as `update_step` takes them.
        variables: theirs.
        learning_rate: float or scalar tensor.
        due: whether an update is due; `None`: always.
    """
    torch = _torch()
    indices = [optimizer._get_variable_index(variable) for variable in variables]
    weights = _values(variables)
    state = {
        name: _values([slots[index] for index in indices])
        for name, slots in optimizer._state.items()
    }
    with torch.no_grad(), as_ever():  # hundreds of calls
        gradients = [_like(w, g.to(w.dtype)) for g, w in zip(gradients, weights, strict=True)]
        for values in state.values():
            for weight, value in zip(weights, values, strict=True):
                if value.stride() != weight.stride():
                    value.data = _like(weight, value)
    step = ops.cast(optimizer.iterations, "float32") + 1.0
    with torch.no_grad():
        for (factor, decays, _), members in _groups(optimizer, indices, weights).items():
            optimizer._update_list(
                [weights[i] for i in members],
                [gradients[i] for i in members],
                {name: [state[name][i] for i in members] for name in optimizer.slots},
                rate=ops.cast(learning_rate, "float32") * factor,
                decay=optimizer.decoupled_weight_decay if decays else 0.0,
                step=step,
                due=due,
            )
        if "average" in state:
            keep = optimizer._decay_of_average(step)
            keep = keep if due is None else torch.where(due, keep, torch.ones_like(keep))
            torch._foreach_mul_(state["average"], keep)
            torch._foreach_add_(state["average"], scaled(weights, 1.0 - keep))
        if due is not None:
            for total, gradient in zip(state["accumulator"], gradients, strict=True):
                total.copy_(torch.where(due, 0.0, gradient))


def _values(variables) -> list[torch.Tensor]:
    """The variables' values; to ask each of them takes as long as to start the whole update."""
    if variables and variables[0].value is not variables[0]._value:
        return [variable.value for variable in variables]  # inside of a StatelessScope
    return [variable._value for variable in variables]


def _like(weight, value) -> torch.Tensor:
    """The value laid out as the weight is: kernels of lists go by places in memory."""
    if value.stride() == weight.stride():
        return value
    return _torch().empty_like(weight, dtype=value.dtype).copy_(value)


def _groups(optimizer, indices, weights) -> dict[tuple[float, bool, Any], list[int]]:
    """Places of the variables, by what their update depends on."""
    found: dict[tuple[float, bool, Any], list[int]] = {}
    for place, index in enumerate(indices):
        key = optimizer._rates[index], optimizer._decays[index], weights[place].dtype
        found.setdefault(key, []).append(place)
    return found


def adamw(weights, gradients, slots, *, rate, decay, step, due, beta_1, beta_2, epsilon) -> None:
    """Updates weights by PyTorch's fused kernel."""
    torch = _torch()
    torch._fused_adamw_(
        weights,
        gradients,
        slots["momentum"],
        slots["velocity"],
        [],
        [step] * len(weights),
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        weight_decay=decay,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
        # Made to leave everything as it is where a gradient is not finite.
        found_inf=None if due is None else 1.0 - due.to(torch.float32),
    )


def sgd(weights, gradients, slots, *, rate, decay, due, momentum) -> None:
    """Updates weights by gradient descent with momentum."""
    torch = _torch()
    sums = slots["momentum"]
    if due is not None:
        momentum = torch.where(due, momentum, 1.0)
        gradients = [torch.where(due, gradient, 0.0) for gradient in gradients]
        rate = torch.where(due, rate, 0.0)
    torch._foreach_mul_(sums, momentum)
    torch._foreach_add_(sums, gradients)
    if decay:
        torch._foreach_mul_(weights, 1.0 - rate * decay)
    torch._foreach_sub_(weights, scaled(sums, rate))
