"""Trains one model from a folder, a tfds data set and arrays, on each backend, and compares.

    python benchmarks/backends.py --output runs/backends

Fashion-MNIST as PNG files, as a data set of tensorflow-datasets that is built here without the
network, and from memory. Same recipe and seed; initial weights differ, as each backend draws its
own. Prints final validation accuracies, and how far backends are apart.
"""

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path

from _children import ROOT, python_path

sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]
BACKENDS = ("tensorflow", "jax", "torch")
SOURCES = ("folder", "tfds", "arrays")
SETTINGS = {
    **{"image_size": 28, "patch_size": 7, "hidden_dim": 64, "num_layers": 4, "num_heads": 4},
    **{"mlp_dim": 128, "batch_size": 64, "learning_rate": 2e-3, "warmup_steps": 100, "seed": 1},
    **{"crop": "none", "flip": False, "randaugment": None, "mixup": 0.0, "ema_decay": 0.99},
    **{"label_smoothing": 0.1, "evaluation": "none"},
}


def prepare(folder, train, test, data):
    """PNG files and a prepared tfds data set; not repeated."""
    from _fashion_mnist_data import load
    from make_picture_folder import write

    (images, labels), (test_images, test_labels) = load(data)
    splits = {"train": (images[:train], labels[:train]), "val": (test_images[:test], test_labels)}
    splits["val"] = (splits["val"][0], test_labels[:test])
    if not (folder / "pictures").exists():
        for name, arrays in splits.items():
            write(folder / "pictures" / name, *arrays)
    if not (folder / "tfds").exists():
        build_tfds(folder / "tfds", splits)
    return splits


def build_tfds(folder, splits):
    import tensorflow_datasets as tfds

    class FashionHere(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = ROOT

        def _info(self):
            features = tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(28, 28, 1)),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            )
            return self.dataset_info_from_configs(features=features)

        def _split_generators(self, manager):
            return {name: self._generate_examples(name) for name in splits}

        def _generate_examples(self, name):
            for row, (image, label) in enumerate(zip(*splits[name], strict=True)):
                yield row, {"image": image, "label": int(label)}

    FashionHere(data_dir=folder).download_and_prepare()


def run(source, backend, options):
    """Accuracy after the last epoch, from metrics.csv."""
    output = options.output / f"{source}-{backend}"
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TFDS_DATA_DIR": str(options.output / "tfds"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": python_path(),
    }
    if source == "arrays":
        command = [__file__, "--child", "--output", output, "--data", options.data or ""]
        command += ["--epochs", options.epochs, "--train", options.train, "--test", options.test]
    else:
        command = ["-m", "keras_vit", "train", "--model", "vit_ti16", "--recipe", "scratch"]
        command += ["--set", *(f"{name}={value}" for name, value in SETTINGS.items())]
        command += [f"epochs={options.epochs}", "--output", output, "--no-report"]
        where = {"folder": [options.output / "pictures"], "tfds": ["tfds:fashion_here:train"]}
        command += ["--data", *where[source]]
        command += ["--validation", "tfds:fashion_here:val"] if source == "tfds" else []
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{source} on {backend} failed:\n{done.stdout}\n{done.stderr}")
    with open(output / "metrics.csv", encoding="utf-8") as file:
        return float(list(csv.DictReader(file))[-1]["val_accuracy"])


def train_on_arrays(options):
    import keras_vit
    from keras_vit.training import get_recipe, set_seed, train

    # The folder's pictures are colour: grey is repeated there, and here.
    splits = prepare(options.output.parent, options.train, options.test, options.data or None)
    splits = {name: (images.repeat(3, -1), labels) for name, (images, labels) in splits.items()}
    sizes = ("patch_size", "hidden_dim", "num_layers", "num_heads", "mlp_dim")
    fields = {name: value for name, value in SETTINGS.items() if name not in sizes}
    recipe = get_recipe("scratch").replace(**fields, epochs=options.epochs)
    set_seed(recipe.seed)
    sizes = {name: SETTINGS[name] for name in sizes}
    model = keras_vit.VisionTransformer(image_shape=(28, 28, 3), num_classes=10, **sizes)
    train(model, splits["train"], recipe, options.output, validation=splits["val"], report=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the four IDX files")
    parser.add_argument("--output", type=Path, default=Path("runs/backends"))
    parser.add_argument("--train", type=int, default=12_000)
    parser.add_argument("--test", type=int, default=5_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train_on_arrays(options)
        return
    options.output = options.output.resolve()
    options.output.mkdir(parents=True, exist_ok=True)
    prepare(options.output, options.train, options.test, options.data)
    print("| source | " + " | ".join(BACKENDS) + " | apart |\n|---|---|---|---|---|", flush=True)
    for source in options.sources:
        found = [100 * run(source, backend, options) for backend in BACKENDS]
        cells = " | ".join(f"{value:.2f}" for value in found)
        print(f"| {source} | {cells} | {max(found) - min(found):.2f} |", flush=True)


if __name__ == "__main__":
    main()
