"""Fine-tunes the last blocks of a checkpoint on few pictures of Fashion-MNIST, against a probe.

    python benchmarks/fine_tune.py dinov2_small/ --size 98 --blocks 2

The same 2,000 training and 1,000 test pictures as benchmarks/linear_probe.py. Prints the accuracy
of the paper's closed-form probe on the frozen features, then that of fine-tuning.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras

from keras_vit.evaluation import extract_features, few_shot_probe
from keras_vit.training import Recipe, set_seed, train

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _fashion_mnist_data import load  # noqa: E402


def resized(images, size):
    """Grey pictures `(n, 28, 28, 1)` as colour pictures `(n, size, size, 3)`, uint8."""
    found = keras.ops.image.resize(images.astype("float32"), (size, size), "bilinear")
    found = np.rint(keras.ops.convert_to_numpy(found)).clip(0, 255).astype("uint8")
    return np.repeat(found, 3, axis=-1)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--data", help="folder of the four IDX files")
    parser.add_argument("--size", type=int, default=98)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--test", type=int, default=1000)
    options = parser.parse_args(argv)

    (images, labels), (test_images, test_labels) = load(options.data)
    images, labels = resized(images[: options.train], options.size), labels[: options.train]
    test_images, test_labels = (
        resized(test_images[: options.test], options.size),
        test_labels[: options.test],
    )
    shape = (options.size, options.size, 3)
    set_seed(0)
    frozen = keras_vit.from_checkpoint(options.checkpoint, num_classes=None, image_shape=shape)
    probe = few_shot_probe(
        extract_features(frozen, images)[0],
        labels,
        extract_features(frozen, test_images)[0],
        test_labels,
        shots=(None,),
    )[0]
    print(f"closed-form probe: {probe.text()}", flush=True)

    recipe = Recipe(
        name="last blocks",
        epochs=options.epochs,
        batch_size=50,
        learning_rate=options.learning_rate,
        warmup_steps=20,
        weight_decay=0.05,
        clip_norm=1.0,
        label_smoothing=0.1,
        layer_decay=0.75,
        train_blocks=options.blocks,
        crop_area=(0.6, 1.0),
        evaluation="none",
    )
    model = keras_vit.from_checkpoint(options.checkpoint, num_classes=10, image_shape=shape)
    start = time.perf_counter()
    result = train(model, (images, labels), recipe)
    seconds = time.perf_counter() - start
    logits = result.model.predict(test_images, batch_size=50, verbose=0)
    report = {
        "backend": keras.backend.backend(),
        "size": options.size,
        "blocks": options.blocks,
        "epochs": options.epochs,
        "probe": probe.to_dict(),
        "fine_tuned": round(float((logits.argmax(-1) == test_labels).mean()), 4),
        "seconds": round(seconds, 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
