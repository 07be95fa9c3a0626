"""What JAX on 4 virtual devices does and refuses; prints a JSON object, name -> what came of it."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras_vit  # isort: skip
import keras
import numpy as np
from engines import train_run

from keras_vit.engines import jax_engine
from keras_vit.evaluation import predict_all
from keras_vit.training import SGD, AdamW, distribution
from keras_vit.training.losses import Crossentropy, accuracy

IMAGES, LABELS = train_run.pictures(16, 0)


def compiled(optimizer=None, **arguments):
    model = train_run.build(**arguments)
    model.compile(optimizer or SGD(0.01), loss=Crossentropy(), weighted_metrics=[accuracy])
    return model


def stem_model(**arguments):
    """A hybrid: a small BiT stem before the blocks."""
    keras.utils.set_random_seed(3)
    model = keras_vit.VisionTransformer(
        image_shape=(32, 32, 3),
        patch_size=1,
        hidden_dim=64,
        num_layers=1,
        num_heads=2,
        mlp_dim=128,
        num_classes=5,
        stem={"block_counts": (1, 1), "width": 32},
        **arguments,
    )
    model.compile(SGD(0.01, clip_norm=1.0), loss=Crossentropy())
    return model


def fitted(model, images=IMAGES, **more):
    return model.fit(images, LABELS, batch_size=8, shuffle=False, verbose=0, **more)


def refused(function):
    """(the error's words, whether the model's weights are as before and it still trains)."""
    model = compiled()
    before = [np.asarray(variable.value) for variable in model.variables]
    try:
        function(model)
    except ValueError as error:
        same = all(
            np.array_equal(np.asarray(variable.value), value)
            for variable, value in zip(model.variables, before, strict=True)
        )
        loss = fitted(model).history["loss"][-1]
        return {"words": str(error), "same": same, "trains": bool(np.isfinite(loss))}
    return None


def batches(*sizes):
    for size in sizes:
        yield IMAGES[:size], LABELS[:size]


def bytes_of(model):
    """Bytes of trainable weights and optimizer state on each device."""
    found = {}
    for variable in (*model.trainable_variables, *model.optimizer.variables):
        for shard in variable.value.addressable_shards:
            found[shard.device.id] = found.get(shard.device.id, 0) + shard.data.nbytes
    return found


def shardings(model):
    return {v.path: [*map(str, v.value.sharding.spec)] for v in model.trainable_variables}


def half_precision():
    """Loss of two steps in mixed_bfloat16."""
    optimizer = AdamW(1e-3, clip_norm=1.0, accumulation_steps=2, ema_decay=0.9)
    return fitted(compiled(optimizer, dtype="mixed_bfloat16")).history["loss"][0]


def constrained(engine):
    """Of each call of a layer while a step is traced, whether its output was kept in place."""
    seen, usual = [], engine.distribution.get_tensor_layout

    def watched(path):
        layout = usual(path)
        if path.endswith(("qkv/output", "fc1/output", "encoder_block_1/output")):
            seen.append(layout is not None)
        return layout

    model = compiled()
    engine.distribution.get_tensor_layout = watched
    fitted(model)
    del engine.distribution.get_tensor_layout
    return seen


def main():
    found, outside = {}, compiled()
    found["one device"] = fitted(compiled()).history["loss"][0]
    loss = compiled().evaluate(IMAGES, LABELS, batch_size=8, verbose=0)[0]
    found["evaluate, one device"] = loss
    found["bfloat16, one device"] = half_precision()
    found["hybrid, one device"] = fitted(stem_model(), np.tile(IMAGES, (1, 4, 4, 1))).history[
        "loss"
    ][0]
    expected = predict_all(compiled(), IMAGES[:10], progress=False)[0]

    with distribution.scope("data", devices=4) as engine:
        found["description"] = engine.description
        for name, function in {
            "arrays": lambda model: model.fit(IMAGES[:10], LABELS[:10], batch_size=5, verbose=0),
            "last of arrays": lambda model: model.fit(IMAGES[:10], LABELS[:10], batch_size=8),
            "first of a generator": lambda model: model.fit(batches(6, 8), verbose=0),
            "evaluate": lambda model: model.evaluate(batches(8, 8, 3), verbose=0),
            "predict": lambda model: model.predict(IMAGES[:10], batch_size=4, verbose=0),
        }.items():
            found[f"refused: {name}"] = refused(function)
        model = compiled()
        logits = predict_all(model, IMAGES[:10], batch_size=4, progress=False)[0]
        found["predict_all"] = float(np.abs(logits - expected).max())
        found["evaluate"] = model.evaluate(IMAGES, LABELS, batch_size=8, verbose=0)[0]
        for name, function in {
            "outside": lambda: outside.fit(IMAGES, LABELS, verbose=0),
            "batch of a recipe": lambda: train_run.run(recipe={"batch_size": 12}),
            "too many": lambda: jax_engine.make("data", 9, None, False),
            "mesh and devices": lambda: jax_engine.make("data", 4, (2, 1), False),
        }.items():
            try:
                function()
            except ValueError as error:
                found[f"refused: {name}"] = str(error)
        found["bfloat16"] = half_precision()

    for name, scope in {
        "model": {"distribution": "model", "mesh": (2, 2)},
        "fsdp": {"distribution": "fsdp"},
        "optimizer": {"shard_optimizer": True},
    }.items():
        with distribution.scope(**scope):
            model = compiled(AdamW(1e-3))
            fitted(model)
            found[f"{name}: bytes"], found[f"{name}: axes"] = bytes_of(model), shardings(model)
    with distribution.scope("fsdp", mesh=(2, 2)) as engine:
        found["constrained"] = constrained(engine)
        found["hybrid"] = fitted(stem_model(), np.tile(IMAGES, (1, 4, 4, 1))).history["loss"][0]

    # The user's own, without a scope of this package.
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = compiled()
    found["by hand"] = fitted(model).history["loss"][0]
    found["refused: by hand"] = refused(lambda m: m.fit(IMAGES, LABELS, batch_size=6, verbose=0))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
