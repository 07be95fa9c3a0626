"""What test_tensorflow.py runs on several devices, in processes of their own: TensorFlow's devices
are fixed once it has started. Prints one JSON line; arrays go into the folder that is named.

Usage: tensorflow_worker.py mirrored FOLDER, or with TF_CONFIG: tensorflow_worker.py workers FOLDER
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import harness
import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.engines import tensorflow_engine
from keras_vit.training import SGD, AdamW, Crossentropy, distribution

STEPS, BATCH, CLASSES = 10, 4, 5
IMAGES = harness.pixels((21, 8, 8, 3), "images")  # 21: neither the batch nor the replicas divide it
LABELS = np.arange(21) % CLASSES
EVERYTHING = {"clip_norm": 0.5, "accumulation_steps": 2, "ema_decay": 0.9, "weight_decay": 0.1}

# Name -> optimizer, its options, dtype policy.
CASES = {
    "adamw": (AdamW, {}, "float32"),
    "sgd_everything": (SGD, EVERYTHING, "float32"),
    "bfloat16": (AdamW, EVERYTHING, "mixed_bfloat16"),
    "adamw_everything": (AdamW, EVERYTHING, "float32"),
}
PLAIN = ("data", None, None, False)  # arguments of `make`
WORKERS = ("sgd_everything", "adamw_everything")


def model(dtype="float32", **arguments):
    """With weights that follow from their paths. Keys have no bias: Adam makes noise of it."""
    arguments = {"num_layers": 1, "num_classes": CLASSES, "qkv_bias": False, **arguments}
    made = keras_vit.VisionTransformer(
        image_shape=(8, 8, 3),
        patch_size=4,
        hidden_dim=16,
        num_heads=2,
        mlp_dim=24,
        dtype=dtype,
        **arguments,
    )
    harness.randomize(made)
    return made


def compiled(optimizer=None, dtype="float32", **arguments):
    made = model(dtype, **arguments)
    made.compile(optimizer or SGD(0.05), Crossentropy(), metrics=["accuracy"])
    return made


def batches(count, shard=(0, 1)):
    """`count` global batches of the data repeated, of each the examples of a shard."""
    indices = (np.arange(count * BATCH) % len(IMAGES)).reshape(count, BATCH)[
        :, shard[0] :: shard[1]
    ]
    data = tf.data.Dataset.from_tensor_slices((IMAGES[indices.ravel()], LABELS[indices.ravel()]))
    return data.batch(BATCH // shard[1], drop_remainder=True)


def every_example(shard=(0, 1)):
    """One pass over the data, its last batch smaller."""
    data = tf.data.Dataset.from_tensor_slices(
        (IMAGES[shard[0] :: shard[1]], LABELS[shard[0] :: shard[1]])
    )
    return data.batch(BATCH // shard[1])


def trained(name, engine=None):
    """(model, name -> array): ten updates, and then an evaluation of all examples."""
    engine = engine or distribution.current()
    optimizer, options, dtype = CASES[name]
    made = compiled(optimizer(0.02, **options), dtype)
    each = options.get("accumulation_steps", 1)
    data = batches(STEPS * each, engine.shard)
    if engine.processes > 1 and optimizer is SGD:
        data = iter(data)  # as of a feed that is not tf.data's
    data = engine.feed(data, BATCH)
    history = made.fit(data, epochs=STEPS, steps_per_epoch=each, shuffle=False, verbose=0).history
    found = {"losses": np.array(history["loss"])}
    found |= evaluated(made, engine.feed(every_example(engine.shard), BATCH))
    for kind, variables in {
        "weight": made.trainable_variables,
        "average": made.optimizer.averages,
    }.items():
        for index, array in enumerate(engine.arrays(variables)):
            found[f"{kind} {index}"] = array.astype("float32")
    return made, found


def evaluated(made, *data, **options):
    found = made.evaluate(*data, verbose=0, return_dict=True, **options)
    return {f"evaluation {name}": np.array(value) for name, value in found.items()}


def refusal(function, *args, **kwargs):
    """ "<error's name>: <its words>", or None where there is none."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def fits(made, **options):
    return made.fit(batches(1), shuffle=False, verbose=0, **options)


def common(engine, folder, names):
    """What mirrored and worker processes do alike; returns the JSON values."""
    for name in names:
        made, found = trained(name, engine)
        found["predicted"] = engine.predict(made, IMAGES[:20])
        found |= {f"plain {k}": v for k, v in evaluated(made, IMAGES, LABELS, batch_size=4).items()}
        np.savez(folder / f"{name}-{engine.process}.npz", **found)
    return {
        "alone": alone(engine, engine.local_model(made), found["predicted"], folder),
        "total": engine.total(engine.process + 1.5),
        "metrics": metrics_restored(engine, made),
        "seeds": seeds(engine),
        "place": [engine.devices, engine.replicas, engine.process, engine.processes, *engine.shard],
        "description": engine.description,
    }


def alone(engine, local, expected, folder):
    """Largest differences of what the chief does while others go on: to predict, save and load."""
    if not engine.is_chief:
        return []
    path = folder / "model.keras"
    with engine.alone():
        local.save(path)
        found = (
            outputs(local),
            outputs(keras_vit.load_model(path)),
            local.predict(IMAGES, verbose=0),
        )
    return [np.abs(each[:20] - expected).max().item() for each in found]


def outputs(made):
    return keras.ops.convert_to_numpy(made(IMAGES[:20], training=False))


def metrics_restored(engine, made):
    """Whether metrics that are read and set again come to the same, over all devices."""
    made.evaluate(engine.feed(every_example(engine.shard), BATCH), verbose=0)
    before = engine.arrays(made.metrics_variables, summed=True)
    made.reset_metrics()
    cleared = engine.arrays(made.metrics_variables, summed=True)
    for variable, array in zip(made.metrics_variables, before, strict=True):
        engine.assign(variable, array, summed=True)
    after = engine.arrays(made.metrics_variables, summed=True)
    equal = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    return [bool(equal), float(sum(np.abs(array).sum() for array in cleared))]


def seeds(engine):
    """Seeds of this process' replicas, after two calls."""
    made = compiled(dropout_rate=0.1)
    for _ in range(2):
        engine.attach(made)
    variable = next(v for v in made.variables if v.name == "seed_generator_state")
    parts = engine.strategy.experimental_local_results(variable.value)
    return [int(part.numpy()[0]) for part in parts]


# One process, two virtual devices ------------------------------------------------------------


def mirrored(folder):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    outside = compiled()
    with distribution.scope("data", devices=2) as engine:
        values = common(engine, folder, CASES)
        values["refused"] = refused(engine, outside)
        uneven = compiled()
        before = engine.arrays(uneven.variables)
        data = tf.data.Dataset.from_tensor_slices((IMAGES[:7], LABELS[:7])).batch(7)
        values["refused"]["uneven"] = refusal(uneven.fit, data, shuffle=False, verbose=0)
        after = engine.arrays(uneven.variables)
        values["untouched"] = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        single = every_example().skip(5)  # one image alone: a replica has none
        values["one"] = {k: v.item() for k, v in evaluated(uneven, single).items()}
        values["one"]["expected"] = crossentropy(uneven, engine)
    values["stand_in"] = stand_in()
    values["tpu"] = tpu(folder)
    return values


def crossentropy(made, engine):
    """Of the last image, by NumPy."""
    logits = engine.predict(made, np.repeat(IMAGES[20:], 2, axis=0))[0].astype("float64")
    return float(np.log(np.exp(logits).sum()) - logits[LABELS[20]])


def refused(engine, outside):
    """Name -> what is said; None where it is not refused."""
    made = model()
    keras_adamw = keras.optimizers.AdamW
    keras_options = {
        "clipnorm": 1.0,
        "global_clipnorm": 1.0,
        "clipvalue": 1.0,
        "gradient_accumulation_steps": 2,
    }
    compilations = {
        **{
            name: {"optimizer": keras_adamw(0.01, **{name: value})}
            for name, value in keras_options.items()
        },
        "jit_compile": {"jit_compile": True},
        "steps_per_execution": {"steps_per_execution": 2},
        "reduction": {"loss": Crossentropy(reduction="mean_with_sample_weight")},
        "optimizer": {"optimizer": outside.optimizer},
    }
    found = {}
    for name, options in compilations.items():
        made.compile(**{"optimizer": SGD(0.1), "loss": Crossentropy(), **options})
        found[name] = refusal(fits, made)
    made.compile(SGD(0.1), Crossentropy())
    return {
        **found,
        "float16": refusal(fits, compiled(dtype="mixed_float16")),
        "outside": refusal(fits, outside),
        "arrays": refusal(made.fit, IMAGES, LABELS, batch_size=5, verbose=0),
        "last batch": refusal(made.fit, IMAGES, LABELS, batch_size=4, verbose=0),
        "check_batch": refusal(engine.check_batch, 5),
        "devices": refusal(distribution.scope("data", devices=3).__enter__),
    }


class OwnStrategy(tf.distribute.MirroredStrategy):
    """A strategy that the package does not know, without collectives."""

    def __init__(self, *_):
        super().__init__(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())


def stand_in():
    """The user's own strategy, given to the door, and entered without it."""
    strategy = OwnStrategy()
    with distribution.scope("data", strategy=strategy) as engine:
        described = engine.description
    with strategy.scope():
        adopted = compiled(keras.optimizers.AdamW(0.01, clipnorm=1.0))
    return {"description": described, "adopted": refusal(fits, adopted)}


def tpu(folder):
    """What is said without a TPU; and with a stand-in for all that only a TPU has."""
    said = {name: refusal(tensorflow_engine.make, *PLAIN, tpu=name) for name in ("", "local")}
    calls = []
    tf.distribute.cluster_resolver.TPUClusterResolver = lambda tpu: calls.append(tpu) or "resolver"
    tf.config.experimental_connect_to_cluster = calls.append
    tf.tpu.experimental.initialize_tpu_system = calls.append
    tf.distribute.TPUStrategy = OwnStrategy
    with distribution.scope("data", tpu="pod") as engine:
        np.savez(folder / "tpu.npz", **trained("sgd_everything", engine)[1])
    return {**said, "calls": calls, "replicas": engine.replicas}


# Two processes -------------------------------------------------------------------------------


def workers(folder):
    with distribution.scope() as engine:
        values = common(engine, folder, WORKERS)
        values["refused"] = {
            "devices": refusal(distribution.scope("data", devices=3).__enter__),
            "clipnorm": refusal(fits, compiled(keras.optimizers.SGD(0.1, clipnorm=1.0))),
        }
        print(json.dumps(values), flush=True)
        made = compiled()

        def die(batch, logs):
            if batch == 3 and not engine.is_chief:
                os.kill(os.getpid(), signal.SIGKILL)

        data = engine.feed(batches(10_000, engine.shard), BATCH)
        start = time.monotonic()
        deadly = keras.callbacks.LambdaCallback(on_train_batch_end=die)
        said = refusal(made.fit, data, callbacks=[deadly], shuffle=False, verbose=0)
        return {"lost": said, "seconds": time.monotonic() - start}


if __name__ == "__main__":
    kind, target = sys.argv[1:]
    print(json.dumps({"mirrored": mirrored, "workers": workers}[kind](Path(target))), flush=True)
