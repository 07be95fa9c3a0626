"""Trains a small Vision Transformer on real handwritten digits, and shows where it looks.

    python examples/quickstart.py

Needs scikit-learn, which brings 1,797 scanned digits of 8 x 8 pixels, and matplotlib; nothing is
downloaded. It leaves quickstart_digits.keras, the trained model, and quickstart_digits.png: test
digits, what the model takes them for, and where it attends.
"""

import argparse
import time
from pathlib import Path

import keras_vit  # before Keras: it chooses a backend that is installed

# isort: split
import keras
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_data(seed):
    """Returns train and test images `(n, 8, 8, 1)`, pixels 0..255, and their labels."""
    digits = load_digits()
    images, labels = (digits.images * (255 / 16)).astype("float32")[..., None], digits.target
    return train_test_split(images, labels, test_size=360, stratify=labels, random_state=seed)


def augment(images, labels, copies, seed):
    """Returns many distorted digits, each blended with another one (mixup), and soft labels."""
    turn = keras.layers.RandomRotation(0.02, fill_mode="constant", seed=seed)
    move = keras.layers.RandomTranslation(0.04, 0.04, fill_mode="constant", seed=seed)
    zoom = keras.layers.RandomZoom(0.05, fill_mode="constant", seed=seed)
    distort = keras.Sequential([turn, move, zoom])
    distorted = [distort(images, training=True) for _ in range(copies)]
    images = np.concatenate([images, *map(keras.ops.convert_to_numpy, distorted)])
    targets = np.tile(np.eye(10, dtype="float32")[labels], (copies + 1, 1))
    rng = np.random.default_rng(seed)
    share, partner = rng.beta(0.5, 0.5, (len(images), 1)), rng.permutation(len(images))
    share = np.maximum(share, 1 - share).astype("float32")
    targets = share * targets + (1 - share) * targets[partner]
    share = share[..., None, None]
    return share * images + (1 - share) * images[partner], targets


def make_model():
    return keras_vit.VisionTransformer(
        image_shape=(8, 8, 1),
        patch_size=2,
        hidden_dim=64,
        num_layers=3,
        num_heads=4,
        mlp_dim=128,
        num_classes=10,
        position_embedding="sincos2d",
    )


def draw(model, images, labels, path):
    """Draws test digits, and over each how much every patch counts for the class token."""
    predicted = model.predict(images, verbose=0).argmax(-1)
    maps = keras_vit.inspection.attention_rollout(model, images)
    figure = Figure(figsize=(1.4 * len(images), 3.2), layout="constrained")
    frame = (-0.5, 7.5, 7.5, -0.5)
    for column, (top, bottom) in enumerate(figure.subplots(2, len(images)).T):
        for axes in (top, bottom):
            axes.imshow(images[column, ..., 0], cmap="gray", extent=frame)
            axes.set_axis_off()
        smooth = {"cmap": "inferno", "alpha": 0.6, "interpolation": "bicubic"}
        bottom.imshow(maps[column], extent=frame, **smooth)
        color = "green" if predicted[column] == labels[column] else "red"
        top.set_title(f"predicted {predicted[column]}\ntrue {labels[column]}", color=color)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(), help="folder for the two files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see it run")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    epochs, copies, batch_size = (1, 0, 256) if options.smoke else (3, 30, 64)
    start = time.perf_counter()

    keras.utils.set_random_seed(options.seed)
    train_images, test_images, train_labels, test_labels = load_data(options.seed)
    images, targets = augment(train_images, train_labels, copies, options.seed)

    model = make_model()
    steps = epochs * -(-len(images) // batch_size)
    warmup = max(1, steps // 10)
    learning_rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - warmup, warmup_target=3e-3, warmup_steps=warmup
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=0.05),
        loss=keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(images, targets, batch_size=batch_size, epochs=epochs)

    logits = model.predict(test_images, verbose=0)
    accuracy = np.mean(logits.argmax(-1) == test_labels)
    path = options.output / "quickstart_digits.keras"
    model.save(path)
    reloaded = keras_vit.load_model(path)
    difference = np.abs(reloaded.predict(test_images, verbose=0) - logits).max()
    if difference > 1e-5:
        raise SystemExit(f"The reloaded model's logits differ by {difference}.")
    draw(reloaded, test_images[:8], test_labels[:8], path.with_suffix(".png"))
    print(f"test accuracy {accuracy:.2%} on {len(test_labels)} digits the model never saw")
    print(f"wrote {path}; reloaded, its logits differ by {difference:.6f}")
    print(f"wrote {path.with_suffix('.png')}; {time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
