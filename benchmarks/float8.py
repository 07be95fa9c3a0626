"""What float8 products cost in accuracy: a checkpoint fine-tuned with and without them.

    python benchmarks/float8.py dinov2_small/ --size 98 --epochs 3 --json results.json

The same pictures of Fashion-MNIST in the same order, all weights trained, through `fit`. "float8"
is Keras' `model.quantize("float8")` of the blocks' products (e4m3 forwards, e5m2 backwards, scales
from a history). On GPUs that have such products XLA uses them; elsewhere they are imitated, with
the same roundings. Prints the accuracy on test pictures for each seed.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras
from fine_tune import resized

from keras_vit.training import AdamW

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _fashion_mnist_data import load  # noqa: E402

PRODUCTS = r"(qkv|out|fc1|fc2)$"
WAYS = ("float8", "")


def run(options, seed, way, pictures, test_pictures):
    """(accuracy on the test pictures, seconds)."""
    keras.utils.set_random_seed(seed)
    shape = (options.size, options.size, 3)
    model = keras_vit.from_checkpoint(
        options.checkpoint, num_classes=10, image_shape=shape, dtype=options.precision
    )
    if way:
        model.quantize(way, filters=PRODUCTS)
    steps = options.epochs * (options.train // options.batch)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=options.learning_rate, warmup_steps=steps // 10
    )
    model.compile(
        AdamW(rate, weight_decay=0.05, clip_norm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    start = time.perf_counter()
    model.fit(*pictures, options.batch, options.epochs, verbose=0)
    seconds = time.perf_counter() - start
    logits = model.predict(test_pictures[0], options.batch, verbose=0)
    return float((logits.argmax(-1) == test_pictures[1]).mean()), round(seconds, 1)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--data", help="folder of the four IDX files")
    parser.add_argument("--size", type=int, default=98)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    (images, labels), (test_images, test_labels) = load(options.data)
    pictures = resized(images[: options.train], options.size), labels[: options.train]
    test_pictures = resized(test_images[: options.test], options.size), test_labels[: options.test]
    report = {"backend": keras.backend.backend(), "precision": options.precision, "runs": []}
    for seed in range(options.seeds):
        for way in WAYS:
            accuracy, seconds = run(options, seed, way, pictures, test_pictures)
            found = {"products": way or options.precision, "seed": seed}
            report["runs"].append({**found, "accuracy": accuracy, "seconds": seconds})
            print(report["runs"][-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
