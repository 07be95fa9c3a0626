"""Compiles a training step ahead of time over virtual devices: the child process of `--check`.

Model, optimizer and batch are shapes without values, so that a model which no machine holds can be
compiled on a laptop. Run as a program: a JSON object on standard input, another on standard output.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    """Reads what to compile, compiles it, and writes what XLA says."""
    found = compiled(json.load(sys.stdin))
    json.dump(found, sys.stdout)


def compiled(asked: dict[str, Any]) -> dict[str, Any]:
    """XLA's account of the step on one device.

    Args:
        asked: "kind" ("vit" or "bit"), "config" of the model, "dtype", "distribution", "mesh",
            "shard_optimizer", "optimizer", "accumulate", "ema" and "images", of all devices in one
            forward pass.

    Returns:
        Bytes of "arguments", "outputs", "temporaries" and "aliased", and "seconds" to trace and to
        compile.
    """
    import jax

    from keras_vit.training.distribution import scope

    start = time.perf_counter()
    rows, columns = asked["mesh"]
    with scope(
        asked["distribution"],
        rows * columns,
        mesh=(rows, columns),
        shard_optimizer=asked["shard_optimizer"],
    ) as engine:
        model, optimizer = _abstract(asked)
        arguments, layouts = _arguments(model, optimizer, engine, asked)
        everywhere = None if layouts is None else _whole(engine)
        step = jax.jit(
            _step(model, optimizer),
            donate_argnums=(0, 1, 2),
            **(
                {}
                if layouts is None
                else {"in_shardings": layouts, "out_shardings": (*layouts[:3], everywhere)}
            ),
        )
        lowered = step.lower(*arguments)
    traced = time.perf_counter()
    analysis: Any = lowered.compile().memory_analysis()
    return {
        "arguments": analysis.argument_size_in_bytes,
        "outputs": analysis.output_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "aliased": analysis.alias_size_in_bytes,
        "seconds": [traced - start, time.perf_counter() - traced],
    }


def _abstract(asked: dict[str, Any]):
    """Model and optimizer whose variables hold no values.

    Made while JAX traces, each variable holds a tracer, which has a shape and a dtype. Whatever
    uses the model afterwards must map all variables to values of its own: JAX raises an error
    where one is left out.
    """
    import jax

    from keras_vit.models import BiTResNet, VisionTransformer
    from keras_vit.optimizers import SGD, AdamW

    made = []

    def make():
        kind = BiTResNet if asked["kind"] == "bit" else VisionTransformer
        model = kind(**asked["config"], dtype=asked["dtype"])
        optimizer = (SGD if asked["optimizer"] == "sgd" else AdamW)(
            1e-3,
            accumulation_steps=asked["accumulate"],
            ema_decay=0.999 if asked["ema"] else None,
        )
        optimizer.build(model.trainable_variables)
        made.append((model, optimizer))

    jax.eval_shape(make)
    return made[0]


def _arguments(model, optimizer, engine, asked: dict[str, Any]):
    """Shapes of the step's arguments, and their layouts; `None` on one device."""
    import jax

    groups = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    shapes: list[Any] = [[_shape(variable) for variable in group] for group in groups]
    images, classes = asked["images"], model.flat_config["num_classes"]
    shapes.append(jax.ShapeDtypeStruct((images, *model.flat_config["image_shape"]), "float32"))
    shapes.append(jax.ShapeDtypeStruct((images,), "int32"))
    if classes is None:
        raise ValueError("A step needs a head: num_classes=N.")
    if engine.devices == 1:
        return shapes, None
    distribution = engine.distribution
    layouts: list[Any] = [
        [_sharding(distribution.get_variable_layout(variable)) for variable in group]
        for group in groups
    ]
    for data in shapes[3:]:
        layouts.append(_sharding(distribution.get_data_layout(data.shape)))
    return shapes, tuple(layouts)


def _shape(variable):
    import jax

    return jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype)


def _sharding(layout):
    return layout.backend_layout


def _whole(engine):
    import jax

    mesh = engine.distribution.device_mesh.backend_mesh
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def _step(model, optimizer):
    """A training step as `fit` has it: loss, gradients, update."""
    import jax

    from keras_vit.training.losses import Crossentropy

    loss_of = Crossentropy("softmax")

    def step(trainable, fixed, state, images, labels):
        def loss(trainable):
            logits, changed = model.stateless_call(trainable, fixed, images, training=True)
            return loss_of(labels, logits), changed

        (value, fixed_after), gradients = jax.value_and_grad(loss, has_aux=True)(trainable)
        after, state_after = optimizer.stateless_apply(state, gradients, trainable)
        return after, fixed_after, state_after, value

    return step


if __name__ == "__main__":
    main()
