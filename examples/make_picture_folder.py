"""Writes Fashion-MNIST as a folder of PNG files, a sub-folder for each class.

    python examples/make_picture_folder.py --output pictures --train 6000 --test 1000
    keras-vit train --data pictures --model vit_ti16 --recipe scratch --output runs/fashion \
        --set image_size=32 patch_size=8 epochs=3

Shows the layout that `keras-vit train` takes: train/CLASS/*.png and val/CLASS/*.png.
"""

import argparse
from pathlib import Path

from _fashion_mnist_data import load
from PIL import Image

NAMES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def write(folder, images, labels):
    for label, name in enumerate(NAMES):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for row in (labels == label).nonzero()[0]:
            Image.fromarray(images[row, ..., 0]).save(folder / name / f"{row:05d}.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the four IDX files")
    parser.add_argument("--output", type=Path, default=Path("pictures"))
    parser.add_argument("--train", type=int, default=60_000, help="training pictures")
    parser.add_argument("--test", type=int, default=10_000, help="validation pictures")
    parser.add_argument("--smoke", action="store_true", help="a few pictures")
    options = parser.parse_args()
    if options.smoke:
        options.train, options.test = 60, 40
    (images, labels), (test_images, test_labels) = load(options.data)
    write(options.output / "train", images[: options.train], labels[: options.train])
    write(options.output / "val", test_images[: options.test], test_labels[: options.test])
    print(f"wrote {options.train:,} + {options.test:,} pictures to {options.output}")


if __name__ == "__main__":
    main()
