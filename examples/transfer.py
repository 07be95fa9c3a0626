"""Pre-training against training from scratch, by the number of pictures: figure 4 in small.

    python examples/transfer.py --output runs/transfer

A ViT is pre-trained on five classes of Fashion-MNIST and fine-tuned on 100 to 30,000 pictures of
the other five; the same ViT is trained on those from scratch, for as many steps. Each run leaves a
JSON file and is not repeated, so that processes can share the work (`--seeds 0`, ...). The table
of all runs so far is printed and stored as transfer.md, the plot (matplotlib) as transfer.png.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import keras_vit  # before Keras: it chooses a backend that is installed

# isort: split
import numpy as np
from _fashion_mnist_data import load
from _small_picture_feed import SmallPictureFeed
from fashion_mnist import device_name

from keras_vit.training import Recipe, get_recipe, set_seed, train

COUNTS = (100, 1_000, 10_000, 30_000)
WAYS = ("scratch", "pre-trained")
PRETRAINING = get_recipe("augreg_light2").replace(
    name="pre-training", epochs=60, batch_size=512, warmup_steps=400, image_size=None,
    initial_head_bias=None, evaluation="none",
)  # fmt: skip
FINE_TUNING = Recipe(
    name="fine-tuning", steps=1500, batch_size=256, learning_rate=3e-4, warmup_steps=100,
    weight_decay=0.05, clip_norm=1.0, label_smoothing=0.1, crop="inception", evaluation="none",
)  # fmt: skip
# From scratch the higher rate does better; each way has its own.
SCRATCH_RATE = 1e-3


def make_model(classes, dtype):
    return keras_vit.VisionTransformer(
        image_shape=(28, 28, 1),
        patch_size=4,
        hidden_dim=128,
        num_layers=6,
        num_heads=4,
        mlp_dim=512,
        num_classes=classes,
        dtype=dtype,
    )


def classes_of(data, wanted):
    images, labels = data
    rows = np.isin(labels, wanted)
    return images[rows].astype("uint8"), np.searchsorted(wanted, labels[rows])


def accuracy(model, data):
    logits = model.predict(data[0], batch_size=500, verbose=0)
    return float((logits.argmax(-1) == data[1]).mean())


def subset(data, count, seed):
    """`count` examples, as many of each class as possible."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data[1]))
    place = np.empty(len(order), int)
    for label in np.unique(data[1]):
        rows = order[data[1][order] == label]
        place[rows] = np.arange(len(rows))
    rows = np.argsort(place * 10 + data[1], kind="stable")[:count]
    return data[0][rows], data[1][rows]


def run(seed, counts, data, test, output, options):
    """All runs of a seed; yields their reports."""
    old, new = (list(range(5)), list(range(5, 10)))
    pretraining = PRETRAINING.replace(seed=seed, epochs=options.epochs, dtype=options.dtype)
    fine_tuning = FINE_TUNING.replace(seed=seed, steps=options.steps, dtype=options.dtype)
    if options.smoke:
        small = {"batch_size": 16, "warmup_steps": 0}
        pretraining, fine_tuning = pretraining.replace(**small), fine_tuning.replace(**small)
    pretrained = None
    for count in counts:
        for way in WAYS:
            path = output / f"{way}-{count}-seed{seed}.json"
            if path.exists():
                continue
            recipe = fine_tuning
            if way == "scratch":
                recipe = recipe.replace(learning_rate=SCRATCH_RATE)
            else:
                old_data = classes_of(data, old)
                pretrained = pretrained or pretrain(seed, old_data, pretraining, options.workers)
            pictures = subset(classes_of(data, new), count, seed)
            start = time.perf_counter()
            feed = SmallPictureFeed(
                *pictures, recipe, 5, f"{count} of five classes", workers=options.workers
            )
            set_seed(seed)
            fresh = way == "scratch"
            model = make_model(5, recipe.dtype) if fresh else keras_vit.replace_head(pretrained, 5)
            train(model, feed, recipe, verbose=False)
            feed.close()
            report = {"way": way, "pictures": count, "seed": seed, "steps": recipe.steps}
            report["test_accuracy"] = accuracy(model, classes_of(test, new))
            report["seconds"] = round(time.perf_counter() - start, 1)
            report["device"] = device_name()
            partial = path.with_suffix(f".{os.getpid()}.part")
            partial.write_text(json.dumps(report, indent=2) + "\n")
            partial.replace(path)  # whole or not at all
            print(
                f"{way}, {count} pictures, seed {seed}: {report['test_accuracy']:.2%}", flush=True
            )


def pretrain(seed, data, recipe, workers):
    feed = SmallPictureFeed(*data, recipe, 5, "five classes", workers=workers)
    set_seed(seed)
    model = make_model(5, recipe.dtype)
    model = train(model, feed, recipe, verbose=False).model
    feed.close()
    return model


def table(reports):
    """Markdown: test accuracy in per cent, mean and standard deviation over the seeds."""
    lines = ["| pictures | from scratch | pre-trained |", "|---:|---|---|"]
    for count in sorted({report["pictures"] for report in reports}):
        cells = []
        for way in WAYS:
            mean, spread = summary(reports, way, count)
            cells.append("" if mean is None else f"{mean:.2f} ± {spread:.2f}")
        lines.append(f"| {count:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(reports, way, count):
    found = [100 * r["test_accuracy"] for r in reports if (r["way"], r["pictures"]) == (way, count)]
    if not found:
        return None, 0.0
    return statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0


def plot(reports, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for way, color in zip(WAYS, ("#d95f02", "#1b5e9b"), strict=True):
        counts = sorted({r["pictures"] for r in reports if r["way"] == way})
        points = [summary(reports, way, count) for count in counts]
        means, spreads = [p[0] for p in points], [p[1] for p in points]
        axes.errorbar(counts, means, spreads, marker="o", capsize=3, color=color, label=way)
    axes.set_xscale("log")
    axes.set_xlabel("pictures of the five new classes")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the four IDX files")
    parser.add_argument("--output", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS)
    parser.add_argument("--epochs", type=float, default=PRETRAINING.epochs, help="of pre-training")
    parser.add_argument("--steps", type=int, default=FINE_TUNING.steps, help="of each other run")
    parser.add_argument("--workers", type=int, default=0, help="processes that augment")
    parser.add_argument("--dtype", default="float32", help="such as mixed_bfloat16")
    parser.add_argument("--smoke", action="store_true", help="a few pictures and steps, one seed")
    options = parser.parse_args()
    data, test = load(options.data)
    if options.smoke:
        data, test = (part[:200] for part in data), (part[:100] for part in test)
        data, test = tuple(data), tuple(test)
        options.seeds, options.counts, options.epochs, options.steps = (0,), (20,), 0.2, 2
    options.output.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        run(seed, options.counts, data, test, options.output, options)
    reports = [json.loads(path.read_text()) for path in sorted(options.output.glob("*.json"))]
    (options.output / "transfer.md").write_text(table(reports) + "\n")
    print(table(reports))
    try:
        plot(reports, options.output / "transfer.png")
    except ImportError as error:
        print(f"no plot: {error}")


if __name__ == "__main__":
    main()
