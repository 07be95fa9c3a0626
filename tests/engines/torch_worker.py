"""What test_torch.py runs in each of two processes, and in its own for comparison."""

import os
import sys
import warnings
from pathlib import Path

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras
import numpy as np

from keras_vit.training import SGD, AdamW, Distiller, enable_lora
from keras_vit.training import distribution
from keras_vit.training.losses import Crossentropy, accuracy
from keras_vit.training.optimizers import inner_optimizer
from keras_vit.training.parts import train_last_blocks

STEPS, BATCH = 10, 8
VIT = {"image_shape": (8, 12, 3), "patch_size": 4, "hidden_dim": 16, "num_layers": 2}
VIT |= {"num_heads": 2, "mlp_dim": 24, "num_classes": 5}
RANDOM = np.random.default_rng(7)
IMAGES = RANDOM.uniform(0, 255, (STEPS * BATCH, *VIT["image_shape"])).astype("float32")
LABELS = RANDOM.integers(0, 5, STEPS * BATCH)
UNEVEN = 13  # images of an evaluation
WEIGHTS = RANDOM.uniform(0.1, 2, UNEVEN).astype("float32")


def vit(**options):
    return keras_vit.VisionTransformer(**{**VIT, **options})


def sgd(**options):
    return SGD(0.05, momentum=0.9, **options)


def adamw(**options):
    return AdamW(1e-3, weight_decay=0.1, **options)


def lora(model):
    enable_lora(model, 2)


def last_block(model):
    train_last_blocks(model, 1)


def distiller(kind, **options):
    def build():
        student, teacher = vit(**options), vit(hidden_dim=8, name="teacher")
        teacher.trainable_variables[0].assign(teacher.trainable_variables[0] * 2)
        return Distiller(student, teacher, kind)

    return build


def resnet():
    return keras_vit.BiTResNet(
        image_shape=(16, 16, 3), block_counts=(1, 1), width_factor=0.125, num_classes=5, groups=4
    )


# Name -> (builds the model, changes it, makes the optimizer).
CASES = {
    "sgd": (vit, None, sgd),
    "adamw": (vit, None, adamw),
    "keras": (vit, None, lambda: keras.optimizers.AdamW(1e-3)),
    "clip": (vit, None, lambda: sgd(clip_norm=0.3)),
    "accumulation": (vit, None, lambda: adamw(accumulation_steps=2)),
    "average": (vit, None, lambda: adamw(ema_decay=0.9)),
    "all": (vit, None, lambda: adamw(clip_norm=0.3, accumulation_steps=2, ema_decay=0.9)),
    "remat": (lambda: vit(remat=True), None, sgd),
    "lora": (vit, lora, adamw),
    "last_block": (vit, last_block, sgd),
    "hard": (distiller("hard", distillation="head"), None, adamw),
    "soft": (distiller("soft"), None, sgd),
    "mixed_bfloat16": (lambda: vit(dtype="mixed_bfloat16"), None, sgd),
    "mixed_float16": (lambda: vit(dtype="mixed_float16"), None, sgd),
}


class Losses(keras.callbacks.Callback):
    """The running mean of the loss after each step."""

    def on_train_begin(self, logs=None):
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(float(logs["loss"]))


def compiled(model, optimizer):
    loss = None if isinstance(model, Distiller) else Crossentropy()
    model.compile(optimizer, loss, metrics=[accuracy], weighted_metrics=[])
    return model


def fit(model, engine, images=IMAGES, labels=LABELS):
    """Ten steps on this process' part; the mean over processes of the running losses."""
    part = slice(engine.process, None, engine.processes)
    losses = Losses()
    history = model.fit(
        images[part],
        labels[part],
        batch_size=BATCH // engine.processes,
        shuffle=False,
        verbose=0,
        callbacks=[losses],
    ).history
    found = [engine.total(value) / engine.processes for value in losses.values]
    return {"losses": found, **{f"epoch {name}": value for name, value in history.items()}}


def trained(model):
    """Trained weights, and their averages where there are any, by number."""
    arrays = {
        f"weight {number}": keras.ops.convert_to_numpy(variable.value)
        for number, variable in enumerate(model.trainable_variables)
    }
    for number, variable in enumerate(getattr(inner_optimizer(model), "averages", ())):
        arrays[f"average {number}"] = keras.ops.convert_to_numpy(variable.value)
    return arrays


def equal_everywhere(engine, arrays):
    """Whether all processes have the same numbers, to the bit."""
    flat = np.concatenate([np.ravel(array).astype("float64") for array in arrays])
    highest = engine.total(flat.sum()) == engine.processes * flat.sum()
    return highest and engine.total(np.abs(flat).sum()) == engine.processes * np.abs(flat).sum()


def run_case(name, engine):
    build, change, optimizer = CASES[name]
    # Another seed in each process: the first one's weights must reach all.
    keras.utils.set_random_seed(engine.process)
    model = build()
    if change:
        change(model)
    compiled(model, optimizer())
    found = fit(model, engine)
    found |= trained(model)
    found["equal"] = equal_everywhere(engine, trained(model).values())
    return found


def evaluation(engine):
    """Sums over sets that the processes do not divide, with weights; the metrics stay local."""
    keras.utils.set_random_seed(0)
    model = vit()
    model.compile(sgd(), Crossentropy(), metrics=[accuracy], weighted_metrics=["sparse_categorical_accuracy", keras.metrics.Sum() ][:1])
    part = slice(engine.process, UNEVEN, engine.processes)
    found = model.evaluate(
        IMAGES[part], LABELS[part], 4, verbose=0, sample_weight=WEIGHTS[part], return_dict=True
    )
    local = [float(keras.ops.sum(v)) for v in model.metrics_variables if "count" in v.path]
    return {**found, "local counts": local}


def run_all(engine):
    found = {}
    for name in CASES:
        found |= {f"{name}/{key}": value for key, value in run_case(name, engine).items()}
    found |= {f"evaluation/{key}": value for key, value in evaluation(engine).items()}
    return found


def main(folder):
    warnings.simplefilter("error")
    # Keras 3.15 and NumPy 2, as in pyproject.toml.
    warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
    with distribution.scope("data", 2) as engine:
        found = run_all(engine)
        if engine.is_chief:
            np.savez(Path(folder, "found.npz"), **found)


if __name__ == "__main__":
    main(sys.argv[1])
