"""A small run of `train`, on whatever devices: what every engine has to do alike.

python train_run.py '{"runs": [{"output": "run", "numbers": "a.npz", "scope": {"devices": 2}}]}'
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras_vit  # isort: skip
import keras
import numpy as np

SIZE, CLASSES = (8, 8, 3), 5
# 45 examples, 19 of them held out: no number of devices divides either, nor the batch of 8.
TRAINED, HELD_OUT = 45, 19
RECIPE = {
    "batch_size": 8,
    "epochs": 2,
    "accumulation_steps": 2,
    "clip_norm": 0.7,
    "ema_decay": 0.9,
    "optimizer": "adamw",
    "learning_rate": 3e-4,
    "weight_decay": 0.01,
    "crop": "none",
    "flip": False,
    "evaluation": "none",
}


def pictures(count, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count).astype("int32")
    images = random.uniform(0, 180, (count, *SIZE)) + 15.0 * labels[:, None, None, None]
    return images.astype("uint8"), labels


def build(**arguments):
    keras.utils.set_random_seed(3)
    model = keras_vit.VisionTransformer(
        image_shape=SIZE,
        patch_size=4,
        hidden_dim=64,
        num_layers=2,
        num_heads=2,
        mlp_dim=128,
        num_classes=CLASSES,
        **arguments,
    )
    kernel = np.random.default_rng(1).normal(0, 0.1, (64, CLASSES))
    model.get_layer("head").kernel.assign(kernel.astype("float32"))
    return model


class Killer(keras.callbacks.Callback):
    """Ends the process as a lost machine does, after so many batches."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def run(output=None, recipe=None, model=None, kill_after=None, minutes=10.0):
    """Trains inside of the current scope; the run's numbers, whole, by name."""
    result = keras_vit.training.train(
        build(**(model or {})),
        pictures(TRAINED, 0),
        keras_vit.training.Recipe(**{**RECIPE, **(recipe or {})}),
        output,
        validation=pictures(HELD_OUT, 1),
        callbacks=[Killer(kill_after)] if kill_after else [],
        checkpoint_minutes=minutes,
        verbose=False,
        report=False,
    )
    names = ("loss", "accuracy", "val_loss", "val_accuracy")
    found = {name: np.array([row[name] for row in result.history]) for name in names}
    engine = keras_vit.training.distribution.current()
    arrays = (
        engine.arrays(result.model.variables)
        if engine.processes == 1
        else [keras.ops.convert_to_numpy(v.value) for v in result.model.variables]
    )
    weights = {
        f"weight {i:03d} {v.path}": a
        for i, (v, a) in enumerate(zip(result.model.variables, arrays, strict=True))
    }
    return {**found, **weights}


def main(runs, virtual=None):
    if virtual and keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * virtual,
        )
    for arguments in runs:
        one(**arguments)


def one(scope, numbers=None, **arguments):
    with keras_vit.training.distribution.scope(**scope) as engine:
        try:
            found = run(**arguments)
        except keras_vit.training.distribution.PeerLostError as error:
            print(f"PeerLostError: {error}", flush=True)
            os._exit(7)
        if engine.is_chief and numbers:
            np.savez(numbers, **found)
        print(f"done: {engine.description}", flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
