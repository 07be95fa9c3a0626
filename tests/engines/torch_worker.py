"""What test_torch.py runs in each of two processes, and the numbers in its own to compare.

torch_worker.py numbers|killed|stuck FOLDER
"""

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras
import numpy as np

from keras_vit.optimizers import inner_optimizer
from keras_vit.training import SGD, AdamW, Distiller, distribution, enable_lora
from keras_vit.training.losses import Crossentropy, accuracy
from keras_vit.training.parts import train_last_blocks

STEPS, BATCH = 10, 8
VIT = {"image_shape": (8, 12, 3), "patch_size": 4, "hidden_dim": 16, "num_layers": 2}
VIT |= {"num_heads": 2, "mlp_dim": 24, "num_classes": 5}
_RANDOM = np.random.default_rng(7)
IMAGES = _RANDOM.uniform(0, 255, (STEPS * BATCH, *VIT["image_shape"])).astype("float32")
LABELS = _RANDOM.integers(0, 5, STEPS * BATCH)
UNEVEN = 13  # images of an evaluation
WEIGHTS = _RANDOM.uniform(0.1, 2, UNEVEN).astype("float32")


# Models and what is done to them --------------------------------------------------------------


def vit(**options):
    return keras_vit.VisionTransformer(**{**VIT, **options})


def resnet():
    return keras_vit.BiTResNet(
        image_shape=VIT["image_shape"],
        block_counts=(1, 1),
        width_factor=0.125,
        groups=4,
        num_classes=5,
    )


class Spare(keras.Model):
    """Has weights that its outputs do not depend on, unless `spends`."""

    spends = False

    def __init__(self):
        super().__init__(name="spare")
        self.used, self.spare = keras.layers.Dense(5), keras.layers.Dense(5)
        self.normalization = keras.layers.BatchNormalization()

    def build(self, input_shape):
        for layer in (self.used, self.spare, self.normalization):
            layer.build((None, int(np.prod(VIT["image_shape"]))))
        self.normalization.trainable = False
        self.built = True

    def call(self, inputs, training=None):
        x = keras.ops.reshape(inputs, (-1, int(np.prod(VIT["image_shape"])))) / 255
        x = self.normalization(x, training=training)
        return self.used(x) + (self.spare(x) if self.spends else 0.0)


def spare():
    model = Spare()
    model.build((None, *VIT["image_shape"]))
    return model


def distiller(student, kind="hard"):
    teacher = vit(hidden_dim=8, name="teacher")
    return Distiller(student, teacher, kind)


def sgd(**options):
    return SGD(0.05, momentum=0.9, **options)


def adamw(**options):
    # The gradient of the keys' bias is rounding alone: epsilon keeps AdamW from steps along that.
    return AdamW(3e-4, weight_decay=0.1, epsilon=1e-6, **options)


class FreezeAtStep(keras.callbacks.Callback):
    """Freezes the blocks before the fourth step."""

    def on_train_batch_begin(self, batch, logs=None):
        for layer in self.model.encoder_blocks if batch == 3 else ():
            layer.trainable = False


# Name -> (builds the model, changes it, makes the optimizer).
CASES = {
    "sgd": (vit, None, sgd),
    "adamw": (vit, None, adamw),
    "keras": (vit, None, lambda: keras.optimizers.AdamW(3e-4)),
    "clip": (vit, None, lambda: sgd(clip_norm=0.3)),
    "accumulation": (vit, None, lambda: adamw(accumulation_steps=2)),
    "average": (vit, None, lambda: adamw(ema_decay=0.9)),
    "together": (vit, None, lambda: sgd(clip_norm=0.3, accumulation_steps=2, ema_decay=0.9)),
    "remat": (lambda: vit(remat=True), None, sgd),
    "jit": (vit, None, sgd),
    "resnet": (resnet, None, sgd),
    "lora": (vit, lambda model: enable_lora(model, 2), adamw),
    "last block": (vit, lambda model: train_last_blocks(model, 1), sgd),
    "frozen midway": (vit, None, sgd),
    "hard": (lambda: distiller(vit(distillation="head")), None, sgd),
    "soft": (lambda: distiller(vit(), "soft"), None, adamw),
    "unused weights": (lambda: distiller(spare()), None, sgd),
    "mixed_bfloat16": (lambda: vit(dtype="mixed_bfloat16"), None, sgd),
    "mixed_float16": (lambda: vit(dtype="mixed_float16"), None, sgd),
}


class Losses(keras.callbacks.Callback):
    """The running mean of the loss after each step, in this process."""

    def on_train_begin(self, logs=None):
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(float(logs["loss"]))


def compiled(model, optimizer, **options):
    loss = None if isinstance(model, Distiller) else Crossentropy()
    model.compile(optimizer, loss, metrics=[accuracy], **options)
    return model


def part(engine, count=None):
    return slice(engine.process, count, engine.processes)


def fit(model, engine, callbacks=(), **options):
    """Ten steps on this process' part of all images."""
    return model.fit(
        IMAGES[part(engine)],
        LABELS[part(engine)],
        batch_size=BATCH // engine.processes,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    ).history


def trained(model):
    """Trainable weights, and their averages where there are any, by number."""
    arrays = {
        f"weight {number}": keras.ops.convert_to_numpy(variable.value)
        for number, variable in enumerate(model.trainable_variables)
    }
    for number, variable in enumerate(getattr(inner_optimizer(model), "averages", ())):
        arrays[f"average {number}"] = keras.ops.convert_to_numpy(variable.value)
    return arrays


def same_everywhere(engine, arrays):
    """Whether the processes' numbers are equal, to the bit."""
    flat = np.concatenate([np.ravel(array).astype("float64") for array in arrays])
    count = engine.processes
    return all(engine.total(each) == count * each for each in (flat.sum(), np.abs(flat).sum()))


# Numbers that one process must find, too ------------------------------------------------------


def run_case(name, engine):
    build, change, optimizer = CASES[name]
    # Another seed in each process: the first one's weights must reach all.
    keras.utils.set_random_seed(engine.process)
    model = build()
    if change:
        change(model)
    compiled(model, optimizer(), jit_compile=name == "jit")
    losses = Losses()
    history = fit(model, engine, [losses, *([FreezeAtStep()] if name == "frozen midway" else [])])
    found = {f"epoch {key}": value for key, value in history.items()}
    found["losses"] = [engine.total(value) / engine.processes for value in losses.values]
    if name == "frozen midway":
        model.trainable = True
        for layer in model.layers:
            layer.trainable = True
        compiled(model, sgd())
        found["losses again"] = fit(model, engine)["loss"]
    found |= trained(model)
    found["same"] = same_everywhere(engine, trained(model).values())
    return found


@keras.saving.register_keras_serializable(package="keras_vit_tests")
class Rows(keras.metrics.Metric):
    """Counts rows; the result is the variable itself, which sums over processes must not change."""

    def __init__(self, name="rows", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.count = self.add_variable((), "zeros", dtype="int32", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.shape(y_true)[0])

    def result(self):
        return self.count.value


def run_evaluation(engine):
    """Over images that the processes do not divide, with weights; metrics stay local."""
    keras.utils.set_random_seed(0)
    model = vit()
    metrics = [accuracy, Rows()]
    model.compile(
        sgd(), Crossentropy(), metrics=metrics, weighted_metrics=["sparse_categorical_accuracy"]
    )
    chosen = part(engine, UNEVEN)
    found = model.evaluate(
        IMAGES[chosen],
        LABELS[chosen],
        4,
        verbose=0,
        sample_weight=WEIGHTS[chosen],
        return_dict=True,
    )
    # Sums over the processes are not left in the metrics: added up once more, they are as many.
    rows = [v for v in model.metrics_variables if v.path.endswith("rows/count")]
    found["rows again"] = engine.total(float(rows[0].value))
    found["outputs"] = engine.predict(model, IMAGES[:UNEVEN])
    return found


def run_all(engine):
    found = {}
    for name in CASES:
        found |= {f"{name}/{key}": value for key, value in run_case(name, engine).items()}
    return found | {f"evaluation/{key}": value for key, value in run_evaluation(engine).items()}


# What only two processes can show -------------------------------------------------------------


def seed_states(model):
    return [keras.ops.convert_to_numpy(v) for v in model.variables if "seed" in v.path]


def run_random(engine):
    """Dropout draws other masks in each process, from the same weights, which stay the same."""
    import torch

    keras.utils.set_random_seed(0)
    model = compiled(vit(dropout_rate=0.3, drop_path_rate=0.3, patch_dropout_rate=0.5), sgd())
    first = seed_states(model)
    engine.vary_random(model)
    varied = seed_states(model)
    engine.vary_random(model)  # again: nothing changes
    again = seed_states(model)
    outputs = keras.ops.convert_to_numpy(torch.rand(4))
    found = {"draws": engine._all.gather(outputs), "first": first, "varied": varied}
    found["again"] = again
    found["all"] = engine._all.gather(np.stack(varied))
    fit(model, engine)
    found["same"] = same_everywhere(engine, trained(model).values())
    # A run that goes on from the first process' states draws what it would have drawn.
    before = seed_states(model)
    for variable, state in zip(
        [v for v in model.variables if "seed" in v.path],
        engine._all.gather(np.stack(before))[0],
        strict=True,
    ):
        variable.assign(state)
    engine.vary_random(model)
    found["before"], found["resumed"] = before, seed_states(model)
    return found


def run_optimizer_state(engine):
    """A built optimizer's state comes from the first process, too, and metrics from none."""
    model = compiled(vit(), sgd())
    model.optimizer.build(model.trainable_variables)
    for variable in model.optimizer.variables:
        if "momentum" in variable.path:
            variable.assign(np.full(variable.shape, 0.01 * (engine.process + 1), "float32"))
    engine.attach(model)
    momentum = [v for v in model.optimizer.variables if "momentum" in v.path]
    return {"largest": max(float(keras.ops.max(v.value)) for v in momentum)}


def run_sums(engine):
    """Sums of each dtype: this process' own variables stay as they are."""
    values = {"float32": 0.5, "float64": 1e9 + 1e-6, "int32": 3}
    variables = [
        keras.Variable(
            np.full(2, value * (engine.process + 1), dtype), dtype=dtype, trainable=False
        )
        for dtype, value in values.items()
    ]
    summed = engine.arrays(variables, summed=True)
    own = engine.arrays(variables)
    engine.assign(variables[0], np.array([7.0, 7.0], "float32"), summed=True)
    kept = engine.arrays(variables[:1])[0]
    return {
        **{f"sum {array.dtype}": array for array in summed},
        **{f"own {array.dtype}": array / (engine.process + 1) for array in own},
        "assigned": engine._all.gather(kept),
        "total": engine.total(engine.process + 1.5),
    }


class Outer(keras.Model):
    """A model of the user's own around one of ours."""

    def __init__(self):
        super().__init__()
        self.inner = vit(name="inner")

    def call(self, inputs, training=None):
        return self.inner(inputs, training=training)


def batches(count, rows, process):
    for start in range(count):
        chosen = slice(process + start, process + start + rows)
        yield IMAGES[chosen], LABELS[chosen]


def run_refusals(engine):
    """Name -> what the error says."""
    process, own = engine.process, part(engine)
    model = compiled(vit(), sgd())
    spending = compiled(distiller(spare()), sgd())
    fit(spending, engine)
    normalized = spare()
    normalized.normalization.trainable = True
    outer = Outer()
    outer.compile(sgd(), Crossentropy())

    def spend():
        spending.student.spends = True
        fit(spending, engine)

    def elsewhere():
        keras.utils.set_random_seed(0)
        other = vit(hidden_dim=16 + 2 * process)
        fit(compiled(other, sgd()), engine)

    tries = {
        "images": lambda: model.fit(IMAGES[:9][own], LABELS[:9][own], 4, verbose=0),
        "rows": lambda: model.fit(batches(3, 4 - process, process), verbose=0, shuffle=False),
        "steps": lambda: model.fit(batches(3 + process, 4, process), verbose=0, shuffle=False),
        "outer": lambda: outer.fit(IMAGES[own], LABELS[own], 4, verbose=0),
        "train_on_batch": lambda: compiled(vit(), sgd()).train_on_batch(IMAGES[:4], LABELS[:4]),
        "unused": spend,
        "normalization": lambda: fit(compiled(distiller(normalized), sgd()), engine),
        "other model": elsewhere,
        "devices": lambda: distribution.scope("data", 3).__enter__(),
    }
    found = {}
    for name, call in tries.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Your input ran out of data")
            try:
                call()
                found[name] = "passed"
            except (ValueError, RuntimeError) as error:
                found[name] = f"{type(error).__name__}: {error}"
        engine.total(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "All 2 processes")
        model.fit(IMAGES, LABELS, 8, verbose=0, shuffle=False)
    found["alike"] = " ".join(str(one.message) for one in caught)
    return found


# Scenarios ------------------------------------------------------------------------------------


def numbers(folder):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
    warnings.filterwarnings("ignore", "Gradients do not exist")  # of "unused weights"
    with distribution.scope("data", 2) as engine:
        found = run_all(engine)
        found |= {f"random/{key}": value for key, value in run_random(engine).items()}
        found |= {f"state/{key}": value for key, value in run_optimizer_state(engine).items()}
        found |= {f"sums/{key}": value for key, value in run_sums(engine).items()}
        np.savez(Path(folder, f"found-{engine.process}.npz"), **found)
        refused = run_refusals(engine)
    with distribution.scope() as engine:  # once more in the same process
        refused["again"] = f"{engine.description}, {engine.total(1)}"
    Path(folder, f"refused-{engine.process}.json").write_text(json.dumps(refused))


class Killed(keras.callbacks.Callback):
    """Ends the process in the midst of its fourth step, as a lost machine does."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(folder):
    with distribution.scope() as engine:
        fit(compiled(vit(), sgd()), engine, [Killed()] if engine.process == 1 else [])


def stuck(folder):
    """As with NCCL: the process that is left waits in what no exception reaches."""
    from keras_vit.engines import torch_lifeline, torch_processes

    torch_processes.WATCHED, torch_lifeline.GRACE = ("cpu",), 1.0
    with distribution.scope() as engine:
        engine.total(1)
    with distribution.scope() as engine:
        engine.total(1)
        if engine.process == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(300)


if __name__ == "__main__":
    {"numbers": numbers, "killed": killed, "stuck": stuck}[sys.argv[1]](sys.argv[2])
