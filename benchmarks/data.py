"""How fast pictures are read and augmented: `python benchmarks/data.py --timm PYTHON`.

JPEG files to batches of 224 px: random crop, mirroring, RandAugment(2, 10). Compared are, in one
run, on the same files and processor cores,

- `keras_vit`: `keras_vit.data.Pipeline`;
- `keras-cv`: a plain tf.data pipeline with the layers of keras-cv, if it is installed;
- `timm`: timm's transforms in a PyTorch loader, a worker process a core, if `--timm` names a
  Python that has timm. Its RandAugment leaves each operation out half of the time by default;
  `timm` here applies both, as the others do, and `timm, half` is the default.

Each is run in a process of its own, in turns; the median of the rounds counts. Without `--data`,
200 JPEGs of 500 x 375 pixels are cut out of the two photographs of scikit-learn. Exits with 1 if
`keras_vit` is slower than `keras-cv` or `timm`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from _children import python_path

BATCH, SIZE = 32, 224
WARM_UP = 4  # batches
LOADERS = ("keras_vit", "keras-cv", "timm", "timm, half")
REQUIRED = ("keras-cv", "timm")


def write_pictures(folder: Path, count: int = 200) -> None:
    """Cuts JPEGs of 500 x 375 pixels out of two photographs."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    generator = np.random.default_rng(0)
    for i in range(count):
        image = photographs[i % 2]
        width = int(generator.integers(400, image.width + 1))
        height = min(round(width * 0.75), image.height)
        left = int(generator.integers(image.width - width + 1))
        top = int(generator.integers(image.height - height + 1))
        image = image.crop((left, top, left + width, top + height)).resize((500, 375))
        path = folder / "ab"[i % 2] / f"{i:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        image.save(path, quality=90)


def keras_vit_batches(folder: str, cores: int) -> Iterable:
    from keras_vit.data import Pipeline

    pipe = Pipeline(folder, SIZE, batch_size=BATCH, training=True, randaugment=(2, 10))
    return pipe.dataset


def keras_cv_batches(folder: str, cores: int) -> Iterable:
    import keras_cv
    import tensorflow as tf

    crop = keras_cv.layers.RandomCropAndResize(
        (SIZE, SIZE), crop_area_factor=(0.05, 1.0), aspect_ratio_factor=(3 / 4, 4 / 3)
    )
    flip = keras_cv.layers.RandomFlip("horizontal")
    augment = keras_cv.layers.RandAugment((0, 255), augmentations_per_image=2, magnitude=1.0)
    files = sorted(map(str, Path(folder).glob("*/*.jpg")))

    def read(path):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return crop(tf.cast(image, tf.float32), training=True)

    def augmented(images):
        return augment(flip(images, training=True), training=True)

    data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    data = data.map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH, drop_remainder=True)
    return data.map(augmented, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


def timm_batches(folder: str, cores: int, augment: str = "rand-m10-n2-p1.0") -> Iterable:
    import torch
    from timm.data import create_dataset
    from timm.data.loader import fast_collate
    from timm.data.transforms_factory import transforms_imagenet_train

    dataset = create_dataset("", folder)
    dataset.transform = transforms_imagenet_train(
        SIZE,
        scale=(0.05, 1.0),
        color_jitter=None,
        auto_augment=augment,
        interpolation="bilinear",
        use_prefetcher=True,  # uint8, as ours
    )
    loader = torch.utils.data.DataLoader(
        torch.utils.data.ConcatDataset([dataset] * 100),
        batch_size=BATCH,
        shuffle=True,
        num_workers=cores,
        collate_fn=fast_collate,
        drop_last=True,
    )
    return loader


def timm_half_batches(folder: str, cores: int) -> Iterable:
    return timm_batches(folder, cores, "rand-m10-n2")


MAKERS = dict(
    zip(
        LOADERS,
        (keras_vit_batches, keras_cv_batches, timm_batches, timm_half_batches),
        strict=True,
    )
)


def _child(name: str, folder: str, cores: int, batches: int) -> None:
    """Measures one loader; prints images a second."""
    iterator = iter(MAKERS[name](folder, cores))
    for _ in range(WARM_UP):
        next(iterator)
    start = time.perf_counter()
    for _ in range(batches):
        next(iterator)
    seconds = time.perf_counter() - start
    print(json.dumps({"speed": batches * BATCH / seconds}), flush=True)
    os._exit(0)  # whatever still runs


def measure(name: str, python: str, folder: Path, cores: list[int], batches: int) -> float:
    """Images a second of a loader, in a process of its own on the given cores."""
    environment = {**os.environ, "PYTHONPATH": python_path(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.setdefault("KERAS_BACKEND", "tensorflow")
    child = [python, __file__, "--child", name, str(folder), str(len(cores)), str(batches)]
    done = subprocess.run(
        child,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    return json.loads(done.stdout.splitlines()[-1])["speed"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures how fast pictures are read.")
    parser.add_argument("--data", help="folder of JPEGs, a sub-folder a class")
    parser.add_argument("--timm", metavar="PYTHON", help="an interpreter with timm and torch")
    parser.add_argument("--cores", type=int, default=2, help="processor cores to use (2)")
    parser.add_argument("--batches", type=int, default=40, help="batches of 32 a round (40)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, folder, cores, batches = options.child
        _child(name, folder, int(cores), int(batches))
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    pythons = {"keras_vit": sys.executable, "keras-cv": sys.executable}
    if options.timm:
        pythons.update(dict.fromkeys(("timm", "timm, half"), options.timm))
    speeds: dict[str, list[float]] = {name: [] for name in pythons}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.data or temporary)
        if not options.data:
            write_pictures(folder)
        for _ in range(options.rounds):
            for name, python in pythons.items():
                speeds[name].append(measure(name, python, folder, cores, options.batches))
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    ratios = {name: medians["keras_vit"] / speed for name, speed in medians.items()}
    print(f"{options.rounds} rounds of {options.batches} batches of {BATCH}, {len(cores)} cores\n")
    print("| loader | images/s | keras_vit is faster by |\n|---|---:|---:|")
    for name, speed in medians.items():
        print(f"| {name} | {speed:,.0f} | {ratios[name]:.2f}x |")
    if options.json:
        figures = {"cores": len(cores), "images_per_second": speeds, "ratios": ratios}
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    return int(any(ratios.get(name, 1.0) < 1.0 for name in REQUIRED))


if __name__ == "__main__":
    sys.exit(main())
