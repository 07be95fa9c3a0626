"""Compares position embeddings on Fashion-MNIST, as the paper's table 8 does on ImageNet.

    python examples/position_ablation.py --output runs/positions

Every kind and placement gets the same data, seeds and budget. Each run leaves a JSON file; runs
that are there already are not repeated, so a stopped comparison goes on where it was, and several
processes can share the work (`--seeds 0`, `--seeds 1`, ...). The table of all runs so far is
printed, and stored as positions.md.
"""

import argparse
import json
import os
import statistics
from pathlib import Path

import keras_vit  # before Keras: it chooses a backend that is installed

# isort: split
import keras
from _fashion_mnist_data import load
from fashion_mnist import device_name

# name -> (position_embedding, position_placement)
KINDS = {
    "none": ("none", "stem"),
    "1-D, stem": ("learned", "stem"),
    "1-D, every layer": ("learned", "every_layer"),
    "1-D, shared": ("learned", "shared"),
    "2-D, stem": ("learned_2d", "stem"),
    "2-D, every layer": ("learned_2d", "every_layer"),
    "2-D, shared": ("learned_2d", "shared"),
    "relative": ("relative", "stem"),
}


def run(kind, seed, data, epochs, batch_size, dtype):
    """Trains one model; returns its accuracy on the test pictures."""
    keras.utils.set_random_seed(seed)
    position_embedding, position_placement = KINDS[kind]
    model = keras_vit.VisionTransformer(
        image_shape=(28, 28, 1),
        patch_size=4,
        hidden_dim=64,
        num_layers=4,
        num_heads=4,
        mlp_dim=128,
        num_classes=10,
        position_embedding=position_embedding,
        position_placement=position_placement,
        dtype=dtype,
    )
    (images, labels), (test_images, test_labels) = data
    steps = epochs * -(-len(images) // batch_size)
    learning_rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 10, warmup_target=2e-3, warmup_steps=steps // 10
    )
    model.compile(
        keras.optimizers.AdamW(learning_rate, weight_decay=0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(images, labels, epochs=epochs, batch_size=batch_size, verbose=0)
    return float(model.evaluate(test_images, test_labels, batch_size=500, verbose=0)[1])


def table(reports):
    """Markdown: mean and standard deviation over the seeds of each kind, in per cent."""
    lines = ["| positions | test accuracy, % | seeds |", "|---|---|---|"]
    for kind in KINDS:
        found = [100 * r["test_accuracy"] for r in reports if r["kind"] == kind]
        if found:
            spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
            lines.append(f"| {kind} | {statistics.mean(found):.2f}{spread} | {len(found)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the four IDX files")
    parser.add_argument("--output", type=Path, default=Path("runs/positions"))
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--train-examples", type=int, default=60_000)
    parser.add_argument("--dtype", help="such as mixed_bfloat16")
    parser.add_argument("--smoke", action="store_true", help="a few pictures, one epoch, one seed")
    options = parser.parse_args()
    if options.smoke:
        options.epochs, options.batch_size, options.train_examples = 1, 32, 64
        options.seeds = options.seeds[:1]

    (images, labels), test = load(options.data)
    data = (images[: options.train_examples], labels[: options.train_examples]), test
    if options.smoke:
        data = data[0], (test[0][:64], test[1][:64])
    budget = {
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "train_examples": len(data[0][0]),
        "dtype": options.dtype or keras.config.floatx(),
    }
    options.output.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for kind in options.kinds:
            name = kind.replace(", ", "-").replace(" ", "-")
            path = options.output / f"{name}-seed{seed}.json"
            if path.exists() and json.loads(path.read_text())["budget"] == budget:
                continue
            arguments = (data, options.epochs, options.batch_size, options.dtype)
            report = {"kind": kind, "seed": seed, "budget": budget}
            report["test_accuracy"] = run(kind, seed, *arguments)
            report |= {"backend": keras.backend.backend(), "device": device_name()}
            print(f"{kind}, seed {seed}: {report['test_accuracy']:.2%}", flush=True)
            partial = path.with_suffix(f".{os.getpid()}.part")
            partial.write_text(json.dumps(report, indent=2) + "\n")
            partial.replace(path)  # whole or not at all

    reports = [json.loads(path.read_text()) for path in sorted(options.output.glob("*.json"))]
    text = table([report for report in reports if report["budget"] == budget])
    (options.output / "positions.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
