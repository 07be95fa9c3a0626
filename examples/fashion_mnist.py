"""Trains a Vision Transformer from scratch on Fashion-MNIST by the AugReg recipe.

    python examples/fashion_mnist.py --dtype mixed_bfloat16 --output runs/fashion

Reads the four IDX files of `--data`, of Debian's package dataset-fashion-mnist, or lets Keras
download them. The output folder is a run's: killed, the same command goes on. It holds metrics.csv,
model.keras and, at the end, fashion_mnist.json.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import keras_vit  # before Keras: it chooses a backend that is installed

# isort: split
import keras
from _fashion_mnist_data import load
from _small_picture_feed import SmallPictureFeed

from keras_vit.training import get_recipe, set_seed, train

# A light level of AugReg, for an eighth of its batch.
RECIPE = get_recipe("augreg_light2").replace(
    name="fashion_mnist",
    epochs=150,
    batch_size=512,
    warmup_steps=1500,
    image_size=None,
    initial_head_bias=-2.2,
    erasing=0.25,
    ema_decay=0.9995,
    evaluation="none",
)


def make_model(dtype=None):
    return keras_vit.VisionTransformer(
        image_shape=(28, 28, 1),
        patch_size=2,
        hidden_dim=192,
        num_layers=9,
        num_heads=3,
        mlp_dim=768,
        num_classes=10,
        pooling="gap",
        drop_path_rate=0.1,
        dtype=dtype,
    )


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
    parser.add_argument("--output", type=Path, default=Path("runs/fashion_mnist"))
    parser.add_argument("--epochs", type=float, default=RECIPE.epochs)
    parser.add_argument("--batch-size", type=int, default=RECIPE.batch_size)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", help="such as mixed_bfloat16")
    parser.add_argument("--workers", type=int, default=0, help="processes that augment")
    parser.add_argument("--smoke", action="store_true", help="a few pictures, one epoch")
    options = parser.parse_args()

    (images, labels), (test_images, test_labels) = load(options.data)
    if options.smoke:
        images, labels = images[:64], labels[:64]
        test_images, test_labels = test_images[:64], test_labels[:64]
        options.epochs, options.batch_size = 1, 32
    recipe = RECIPE.replace(
        epochs=options.epochs,
        batch_size=options.batch_size,
        warmup_steps=0 if options.smoke else RECIPE.warmup_steps,
        seed=options.seed,
        dtype=options.dtype,
    )
    print(recipe)
    feed = SmallPictureFeed(images, labels, recipe, 10, "Fashion-MNIST", workers=options.workers)
    set_seed(options.seed)
    model = make_model(options.dtype)
    print(f"{model.count_params():,} parameters, {len(images):,} training pictures")

    start = time.perf_counter()
    result = train(model, feed, recipe, options.output)
    seconds = time.perf_counter() - start
    feed.close()
    logits = result.model.predict(test_images, batch_size=500, verbose=0)
    accuracy = (logits.argmax(-1) == test_labels).mean()

    report = {
        "test_accuracy": round(float(accuracy), 4),
        "parameters": model.count_params(),
        "recipe": recipe.to_dict(),
        "seconds": round(seconds, 1),
        "seconds_of_epochs": round(sum(row["seconds"] for row in result.history), 1),
        "backend": keras.backend.backend(),
        "device": device_name(),
        "keras": keras.version(),
    }
    (options.output / "fashion_mnist.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"test accuracy {accuracy:.2%} after {options.epochs:g} epochs, {seconds:.0f} s")


if __name__ == "__main__":
    main()
