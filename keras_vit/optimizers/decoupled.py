"""AdamW and SGD with what fine-tuning needs and Keras' optimizers lack.

Weight decay by a rule over paths, learning rates by variable, clipping of the global gradient,
gradient accumulation and a weights' average, in one `update_step` that has no branches. So all of
it works in `fit` on every backend and under `tf.distribute`, where Keras clips each replica's
gradient by itself and cannot accumulate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.engines.engine import current
from keras_vit.engines.replicas import replicas_in_step
from keras_vit.optimizers import torch_updates

# Kernels of dense layers and convolutions, and their low-rank updates. Biases, norms, LayerScale,
# class token, registers, probe and position embeddings do not decay.
DECAYED = r"(^|/)(kernel|lora_kernel_[ab])$"


class DecoupledOptimizer(keras.optimizers.Optimizer):
    """What both optimizers share; `_direction` is where they differ.

    An update, with gradient g (accumulated, clipped), rate r (schedule times multiplier):
    `w -= r * (direction(g) + weight_decay * w)`.

    Args:
        learning_rate: float or schedule, such as `WarmupSchedule`.
        weight_decay: decoupled, times the learning rate (and the variable's multiplier).
        decayed: regular expression of the paths that decay; kernels by default.
        multipliers: path of a variable -> factor of its learning rate, see
            `groups.layer_decay_multipliers`; 1 for others.
        clip_norm: bound of the global norm of an update's gradient; `None` for none.
        accumulation_steps: calls an update; gradients are averaged.
        ema_decay: decay of the weights' average (`averages`); it starts at the weights after the
            first update and is (1 + t) / (10 + t) while that is less. `None` for no average.
        name: name of the optimizer.

    Raises:
        ValueError: on arguments out of range.
    """

    slots: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate,
        *,
        weight_decay=0.0,
        decayed=DECAYED,
        multipliers=None,
        clip_norm=None,
        accumulation_steps=1,
        ema_decay=None,
        name=None,
    ):
        super().__init__(learning_rate=learning_rate, name=name)
        self.decoupled_weight_decay = _checks.number("weight_decay", weight_decay)
        self.decayed = _pattern(decayed)
        self.multipliers = dict(_rates(multipliers or {}))
        self.clip_norm = (
            None if clip_norm is None else _checks.positive_float("clip_norm", clip_norm)
        )
        self.accumulation_steps = _checks.positive_int("accumulation_steps", accumulation_steps)
        self.ema_decay = None if ema_decay is None else _checks.rate("ema_decay", ema_decay)

    def build(self, variables):
        """Makes the state of each variable: slots, accumulator, average."""
        if self.built:
            return
        super().build(variables)
        names = list(self.slots)
        names += ["accumulator"] if self.accumulation_steps > 1 else []
        names += ["average"] if self.ema_decay is not None else []
        self._state = {name: self.add_optimizer_variables(variables, name) for name in names}
        self._decays = [bool(re.search(self.decayed, variable.path)) for variable in variables]
        self._rates = [self.multipliers.get(variable.path, 1.0) for variable in variables]
        # Scales of float8, whose "gradients" are their next values.
        self._overwrites = [
            getattr(variable, "overwrite_with_gradient", False) for variable in variables
        ]

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        """Adds the state of a variable, cut over the devices as the engine says."""
        layout = current().state_layout(reference_variable)
        if layout is None:
            return super().add_variable_from_reference(reference_variable, name, initializer)
        return self.add_variable(
            shape=reference_variable.shape,
            initializer=initializer,
            dtype=reference_variable.dtype,
            layout=layout,
            name=f"{reference_variable.path.replace('/', '_')}_{name}",
        )

    @property
    def averages(self):
        """The averages of the trainable variables, in their order; empty without `ema_decay`.

        `None` for scales of float8, which have none.
        """
        return self._state.get("average", []) if self.built else []

    @property
    def iterations(self):
        """Updates so far: calls of `apply`, divided by `accumulation_steps`."""
        return ops.floor_divide(self._iterations, self.accumulation_steps)

    def apply(self, grads, trainable_variables=None):
        """Takes the gradients of one batch; updates the weights where an update is due."""
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built:
                self.build(trainable_variables)
            indices = [self._index_of(variable) for variable in trainable_variables]
        else:
            indices = list(range(len(grads)))
        grads = list(grads)
        overwritten = [i for i, index in enumerate(indices) if self._overwrites[index]]
        values = [grads[i] for i in overwritten]
        for i in overwritten:
            grads[i] = None
        grads = self._prepared(grads, indices)
        for i, value in zip(overwritten, values, strict=True):
            grads[i] = value
        super().apply(grads, trainable_variables)

    def _index_of(self, variable):
        try:
            return self._get_variable_index(variable)
        except KeyError:
            raise ValueError(
                f"The optimizer was built without variable {variable.path!r}. After layers were "
                "frozen, unfrozen, added or quantized, call `compile` again, with a new optimizer."
            ) from None

    def _prepared(self, grads, indices):
        """The gradients that `update_step` gets: summed so far, or averaged and clipped if due."""
        grads, replicas = _summed_over_replicas(grads)
        if self.accumulation_steps > 1:
            sums = self._state["accumulator"]
            grads = [
                gradient if gradient is None else gradient + sums[index]
                for gradient, index in zip(grads, indices, strict=True)
            ]
        present = [gradient for gradient in grads if gradient is not None]
        scale = 1.0 / self.accumulation_steps
        if self.clip_norm is not None:
            norm = _global_norm(present) * scale
            # NaN stays NaN: a broken gradient must not pass for a zero one.
            scale = scale * self.clip_norm / ops.maximum(norm, self.clip_norm)
        if self.accumulation_steps > 1:
            scale = ops.where(self._is_due(), scale, 1.0)
        # Keras sums over the replicas once more.
        scale = scale / replicas
        if isinstance(scale, float) and scale == 1.0:
            return grads
        changed = iter(_scaled(present, scale))
        return [gradient if gradient is None else next(changed) for gradient in grads]

    def _is_due(self):
        """Whether this call completes an update."""
        return ops.equal(
            ops.mod(self._iterations + 1, self.accumulation_steps), 0
        )  # `_iterations` grows after the update

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if keras.backend.backend() == "torch":
            due = self._is_due() if self.accumulation_steps > 1 else None
            torch_updates.update(self, grads, trainable_variables, learning_rate, due)
        else:
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _update_list(self, weights, gradients, slots, *, rate, decay, step, due):
        """The update of lists of PyTorch's tensors that have one rate and one decay."""
        raise NotImplementedError

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable and its state; nothing but the sum where no update is due."""
        index = self._get_variable_index(variable)
        state = {name: values[index] for name, values in self._state.items()}
        value = ops.convert_to_tensor(variable)
        gradient = ops.cast(gradient, value.dtype)
        due = self._is_due() if self.accumulation_steps > 1 else None

        def store(target, new, old):
            self.assign(target, new if due is None else ops.where(due, new, old))

        slots = {name: ops.convert_to_tensor(state[name]) for name in self.slots}
        update = ops.cast(self.iterations, "float32") + 1.0
        direction, changed = self._direction(gradient, slots, update)
        if self._decays[index] and self.decoupled_weight_decay:
            direction = direction + self.decoupled_weight_decay * value
        rate = ops.cast(learning_rate, value.dtype) * self._rates[index]
        updated = value - rate * direction
        for name, new in changed.items():
            store(state[name], new, slots[name])
        store(variable, updated, value)
        if "average" in state:
            average = ops.convert_to_tensor(state["average"])
            decay = ops.cast(self._decay_of_average(update), value.dtype)
            store(state["average"], decay * average + (1.0 - decay) * updated, average)
        if "accumulator" in state:
            self.assign(state["accumulator"], ops.where(due, ops.zeros_like(gradient), gradient))

    def _decay_of_average(self, update):
        """0 at the first update, then (1 + t) / (10 + t) until that exceeds `ema_decay`."""
        done = update - 1.0
        warm = ops.minimum((1.0 + done) / (10.0 + done), self.ema_decay)
        return ops.where(done < 0.5, ops.zeros_like(warm), warm)

    def _direction(self, gradient, slots, update):
        """(direction, new values of the slots), from the values before update number `update`."""
        raise NotImplementedError

    def get_config(self):
        """Returns all arguments."""
        config = super().get_config()
        return {
            "name": config["name"],
            "learning_rate": config["learning_rate"],
            "weight_decay": self.decoupled_weight_decay,
            "decayed": self.decayed,
            "multipliers": dict(self.multipliers),
            "clip_norm": self.clip_norm,
            "accumulation_steps": self.accumulation_steps,
            "ema_decay": self.ema_decay,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(DecoupledOptimizer):
    """Adam with decoupled weight decay.

    Args:
        learning_rate: float or schedule.
        beta_1: decay of the gradients' average.
        beta_2: decay of their squares' average.
        epsilon: added to the root of the latter, after the correction of its bias.
        **kwargs: `weight_decay`, `decayed`, `multipliers`, `clip_norm`, `accumulation_steps`,
            `ema_decay` and `name`, see `keras_vit.optimizers.decoupled.DecoupledOptimizer`.

    Raises:
        ValueError: on arguments out of range.

    Reference:
        arXiv 1711.05101.
    """

    slots = ("momentum", "velocity")

    def __init__(self, learning_rate=1e-3, *, beta_1=0.9, beta_2=0.999, epsilon=1e-8, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = _checks.rate("beta_1", beta_1)
        self.beta_2 = _checks.rate("beta_2", beta_2)
        self.epsilon = _checks.positive_float("epsilon", epsilon)

    def _direction(self, gradient, slots, update):
        momentum = self.beta_1 * slots["momentum"] + (1.0 - self.beta_1) * gradient
        velocity = self.beta_2 * slots["velocity"] + (1.0 - self.beta_2) * ops.square(gradient)
        first = 1.0 - ops.power(self.beta_1, update)
        second = 1.0 - ops.power(self.beta_2, update)
        direction = (momentum / ops.cast(first, momentum.dtype)) / (
            ops.sqrt(velocity / ops.cast(second, velocity.dtype)) + self.epsilon
        )
        return direction, {"momentum": momentum, "velocity": velocity}

    def _update_list(self, weights, gradients, slots, *, rate, decay, step, due):
        torch_updates.adamw(
            *(weights, gradients, slots),
            **{"rate": rate, "decay": decay, "step": step, "due": due},
            **{"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon},
        )

    def get_config(self):
        """Returns all arguments."""
        own = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(DecoupledOptimizer):
    """Gradient descent with momentum: `m = momentum * m + g`, `w -= rate * m`.

    Unlike Keras' SGD, the rate is not folded into `m`: a schedule acts at once, as in the
    official fine-tuning.

    Args:
        learning_rate: float or schedule.
        momentum: decay of the gradients' sum; 0 for plain gradient descent.
        **kwargs: as for `AdamW`.

    Raises:
        ValueError: on arguments out of range.
    """

    slots = ("momentum",)

    def __init__(self, learning_rate=0.03, *, momentum=0.9, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.momentum = _checks.rate("momentum", momentum)

    def _direction(self, gradient, slots, update):
        momentum = self.momentum * slots["momentum"] + gradient
        return momentum, {"momentum": momentum}

    def _update_list(self, weights, gradients, slots, *, rate, decay, step, due):
        options = {"rate": rate, "decay": decay, "due": due, "momentum": self.momentum}
        torch_updates.sgd(weights, gradients, slots, **options)

    def get_config(self):
        """Returns all arguments."""
        return {**super().get_config(), "momentum": self.momentum}


def inner_optimizer(model):
    """The optimizer itself, where float16 wraps it into loss scaling."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def _pattern(decayed: str) -> str:
    try:
        re.compile(decayed)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"`decayed` must be a regular expression ({error}). Received: decayed={decayed!r}"
        ) from error
    return decayed


def _rates(multipliers: Mapping[str, float]):
    for path, factor in multipliers.items():
        if _checks.number(f"multipliers[{path!r}]", factor) < 0:
            raise ValueError(f"`multipliers` must not be negative. Received: {path}: {factor}")
        yield path, float(factor)


def _global_norm(grads):
    """Norm of all gradients' values together, float32."""
    if keras.backend.backend() == "torch":
        return torch_updates.global_norm(grads)
    squares = [ops.sum(ops.square(ops.cast(gradient, "float32"))) for gradient in grads]
    return ops.sqrt(ops.sum(ops.stack(squares)))


def _scaled(grads, scale):
    """The gradients times a float, or a float32 scalar."""
    if keras.backend.backend() == "torch":
        return torch_updates.scaled(grads, scale)
    return [gradient * ops.cast(scale, gradient.dtype) for gradient in grads]


def _summed_over_replicas(grads):
    """(gradients summed over the replicas of a tf.distribute strategy, their number)."""
    if keras.backend.backend() != "tensorflow":
        return grads, 1
    import tensorflow as tf

    replicas = replicas_in_step()
    context = tf.distribute.get_replica_context()
    present = [gradient for gradient in grads if gradient is not None]
    if replicas == 1 or context is None or not present:
        return grads, 1
    reduced = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [gradient if gradient is None else next(reduced) for gradient in grads], replicas
