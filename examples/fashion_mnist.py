"""Trains a Vision Transformer of under 2 million parameters on Fashion-MNIST.

    python examples/fashion_mnist.py --dtype mixed_bfloat16 --output runs/fashion

Reads the four IDX files of `--data`, of Debian's package dataset-fashion-mnist, or lets Keras
download them. Leaves fashion_mnist.keras and fashion_mnist.json in the output folder.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import keras_vit  # before Keras: it chooses a backend that is installed

# isort: split
import keras
import numpy as np
from _fashion_mnist_data import load


def make_model(dtype=None):
    return keras_vit.VisionTransformer(
        image_shape=(28, 28, 1),
        patch_size=4,
        hidden_dim=160,
        num_layers=6,
        num_heads=5,
        mlp_dim=640,
        num_classes=10,
        pooling="gap",
        dropout_rate=0.1,
        drop_path_rate=0.1,
        dtype=dtype,
    )


class Augmented(keras.utils.PyDataset):
    """Batches with random flips, shifts of up to `shift` pixels and boxes of noise."""

    def __init__(self, images, targets, batch_size, seed, shift=2, box=8):
        super().__init__()
        self.images, self.targets, self.batch_size = images, targets, batch_size
        self.shift, self.box = shift, box
        self.rng = np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self):
        return -(-len(self.images) // self.batch_size)

    def on_epoch_end(self):
        self.order = self.rng.permutation(len(self.images))

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        images, (count, height, width) = self.images[rows], (len(rows), *self.images.shape[1:3])
        flip, noisy = self.rng.random((2, count)) < 0.5
        images = np.where(flip[:, None, None, None], images[:, :, ::-1], images)
        padded = np.pad(images, ((0, 0), (self.shift,) * 2, (self.shift,) * 2, (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
        top, left = self.rng.integers(0, 2 * self.shift + 1, (2, count))
        images = windows[np.arange(count), top, left].transpose(0, 2, 3, 1).astype("float32")
        y, x = np.ogrid[:height, :width]
        top, left, tall, wide = self.rng.integers(0, [[height], [width], [self.box], [self.box]],
                                                  (4, count))[:, :, None, None]  # fmt: skip
        inside = (y >= top) & (y < top + tall) & (x >= left) & (x < left + wide)
        inside = (inside & noisy[:, None, None])[..., None]
        noise = self.rng.uniform(0, 255, images.shape)
        return np.where(inside, noise, images).astype("float32"), self.targets[rows]


def train(model, images, labels, epochs, batch_size, seed):
    steps = epochs * -(-len(images) // batch_size)
    warmup = steps // 20
    learning_rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - warmup, warmup_target=2e-3, warmup_steps=warmup
    )
    model.compile(
        # The weights end as the average of the last steps.
        keras.optimizers.AdamW(learning_rate, weight_decay=0.05, use_ema=True, ema_momentum=0.999),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        metrics=["accuracy"],
    )
    batches = Augmented(images, keras.utils.to_categorical(labels, 10), batch_size, seed)
    model.fit(batches, epochs=epochs, verbose=2)


def device_name():
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else cpu
    if keras.backend.backend() == "jax":
        import jax

        device = jax.devices()[0]
        return cpu if device.platform == "cpu" else device.device_kind
    import tensorflow

    gpus = tensorflow.config.list_physical_devices("GPU")
    return (
        tensorflow.config.experimental.get_device_details(gpus[0])["device_name"] if gpus else cpu
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the four IDX files")
    parser.add_argument("--output", type=Path, default=Path("."))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", help="such as mixed_bfloat16")
    parser.add_argument("--smoke", action="store_true", help="a few pictures, one epoch")
    options = parser.parse_args()

    keras.utils.set_random_seed(options.seed)
    (images, labels), (test_images, test_labels) = load(options.data)
    if options.smoke:
        images, labels = images[:64], labels[:64]
        test_images, test_labels = test_images[:64], test_labels[:64]
        options.epochs, options.batch_size = 1, 32
    model = make_model(options.dtype)
    print(f"{model.count_params():,} parameters, {len(images):,} training pictures")

    start = time.perf_counter()
    train(model, images, labels, options.epochs, options.batch_size, options.seed)
    seconds = time.perf_counter() - start
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    _, accuracy = model.evaluate(test_images, test_labels, batch_size=500, verbose=0)

    report = {
        "test_accuracy": round(float(accuracy), 4),
        "parameters": model.count_params(),
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "seed": options.seed,
        "dtype": options.dtype or keras.config.floatx(),
        "seconds": round(seconds, 1),
        "backend": keras.backend.backend(),
        "device": device_name(),
        "keras": keras.version(),
    }
    options.output.mkdir(parents=True, exist_ok=True)
    model.save(options.output / "fashion_mnist.keras")
    (options.output / "fashion_mnist.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"test accuracy {accuracy:.2%} after {options.epochs} epochs, {seconds:.0f} s")


if __name__ == "__main__":
    main()
