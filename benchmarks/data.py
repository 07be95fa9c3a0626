"""Pictures a second: JPEG decode, inception crop, flip and RandAugment(2, 10) at 224 px.

    python benchmarks/data.py --timm-python /path/to/python --step

The same files on the same cores, in turn: `keras_vit.data`, timm's loader over PIL with a worker
process a core (in the interpreter that `--timm-python` names), and a plain tf.data pipeline with
keras-cv's layers. Prints each and the ratios; `--step` adds the time of a training step of
ViT-S/16 fed by the pipeline, against one on a batch that is there already.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIZE, BATCH = 224, 32
AUGMENTATION = {"crop": "inception", "flip": True, "randaugment": (2, 10)}

TIMM = """
import sys, time, torch
from timm.data import create_dataset, create_loader
folder, size, batch, batches, workers = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
loader = create_loader(
    create_dataset("", root=folder), (3, size, size), batch, is_training=True,
    auto_augment="rand-m10-n2", re_prob=0.0, color_jitter=None, interpolation="bilinear",
    scale=(0.05, 1.0), num_workers=workers, use_prefetcher=False, persistent_workers=True,
)
def endless():
    while True:
        yield from loader
stream = endless()
for _ in range(4): next(stream)
start = time.perf_counter()
for _ in range(batches): next(stream)
print(batches * batch / (time.perf_counter() - start))
"""


def write_pictures(folder, count=240):
    """JPEG files of 500 x 375 pixels, cut from scikit-learn's two photographs."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs, rng = load_sample_images().images, np.random.default_rng(0)
    for index in range(count):
        photograph = Image.fromarray(photographs[index % 2])
        width = int(rng.integers(400, photograph.width))
        height = min(width * 3 // 4, photograph.height)
        left = int(rng.integers(0, photograph.width - width + 1))
        top = int(rng.integers(0, photograph.height - height + 1))
        box = (left, top, left + width, top + height)
        (folder / "ab"[index % 2]).mkdir(exist_ok=True)
        picture = photograph.resize((500, 375), Image.Resampling.BICUBIC, box)
        picture.save(folder / "ab"[index % 2] / f"{index:03}.jpg", quality=90)


def ours(folder, batches):
    from keras_vit.data import Pipeline, throughput

    pipe = Pipeline(folder, SIZE, batch_size=BATCH, training=True, **AUGMENTATION)
    return throughput(pipe, batches, warm_up=4, progress=False)


def keras_cv(folder, batches):
    import keras_cv
    import tensorflow as tf

    from keras_vit.data import throughput

    layers = [
        keras_cv.layers.RandomCropAndResize((SIZE, SIZE), (0.05, 1.0), (3 / 4, 4 / 3)),
        keras_cv.layers.RandomFlip(),
        keras_cv.layers.RandAugment((0, 255), augmentations_per_image=2, magnitude=0.5),
    ]

    def augment(images):
        for layer in layers:
            images = layer(images, training=True)
        return images

    def read(path):
        # Batches need one size, which the files have.
        return tf.ensure_shape(tf.io.decode_jpeg(tf.io.read_file(path), 3), (375, 500, 3))

    data = tf.data.Dataset.list_files(str(folder / "*" / "*.jpg"), seed=0).repeat()
    data = data.map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)
    data = data.map(
        lambda images: (augment(tf.cast(images, tf.float32)), 0),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return throughput(data.prefetch(2), batches, warm_up=4, progress=False)


def timm(folder, batches, python):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    arguments = [folder, SIZE, BATCH, batches, os.cpu_count()]
    done = subprocess.run(
        [python, "-c", TIMM, *map(str, arguments)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"timm failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def step_times(folder, steps, batch=16):
    """Seconds of a training step of ViT-S/16: (fed by the pipeline, on one batch)."""
    import keras_vit
    from keras_vit.data import Pipeline

    model = keras_vit.ViTS16(num_classes=2)
    pipe = Pipeline(folder, SIZE, batch_size=batch, training=True, **AUGMENTATION)
    stream = iter(pipe.dataset)
    images, labels = (part.numpy() for part in next(stream))
    model.train_on_batch(images, labels)
    times = {"pipeline": [], "synthetic": []}
    for _ in range(steps):  # in turn, so that both see the same machine
        start = time.perf_counter()
        model.train_on_batch(images, labels)
        times["synthetic"].append(time.perf_counter() - start)
        start = time.perf_counter()
        model.train_on_batch(*(part.numpy() for part in next(stream)))
        times["pipeline"].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, help="folder of JPEG files of 500 x 375 pixels")
    parser.add_argument("--timm-python", help="interpreter that has timm and torchvision")
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3, help="each is measured so often")
    parser.add_argument("--step", action="store_true", help="measure training steps too")
    options = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.pictures or Path(temporary)
        if options.pictures is None:
            write_pictures(folder)
        loaders = {"keras_vit.data": lambda: ours(folder, options.batches)}
        if options.timm_python:
            loaders["timm"] = lambda: timm(folder, options.batches, options.timm_python)
        loaders["keras-cv"] = lambda: keras_cv(folder, options.batches)
        found = {name: [] for name in loaders}
        for _ in range(options.rounds):
            for name, measure in loaders.items():
                found[name].append(measure())
                print(f"{name:15} {found[name][-1]:7.0f} images/s", flush=True)
        report = {name: round(statistics.median(values), 1) for name, values in found.items()}
        report["cores"], report["machine"] = os.cpu_count(), platform.processor()
        for name in list(loaders)[1:]:
            report[f"ratio to {name}"] = round(report["keras_vit.data"] / report[name], 2)
        if options.step:
            seconds = step_times(folder, 6)
            report["step"] = {name: round(value, 3) for name, value in seconds.items()}
            report["step ratio"] = round(seconds["pipeline"] / seconds["synthetic"], 3)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
