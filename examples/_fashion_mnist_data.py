"""Fashion-MNIST from IDX files, or through Keras where there are none."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
CLASSES = ("T-shirt", "trousers", "pullover", "dress", "coat")
CLASSES += ("sandal", "shirt", "sneaker", "bag", "boot")
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_MAGIC = {3: 0x803, 1: 0x801}  # unsigned bytes in three dimensions, in one


def load(folder: str | Path | None = None):
    """Returns `(train_images, train_labels), (test_images, test_labels)`.

    Args:
        folder: where the four IDX files are, gzipped or not; `None`: Debian's folder, or else
            `keras.datasets.fashion_mnist`, which downloads.

    Returns:
        Images `(n, 28, 28, 1)`, uint8, 0..255; labels `(n,)`, int32, 0..9.

    Raises:
        ValueError: if a file is missing or damaged; the message names it.
    """
    if folder is None and not DEBIAN.is_dir():
        import keras

        splits = keras.datasets.fashion_mnist.load_data()
        return tuple((images[..., None], labels.astype("int32")) for images, labels in splits)
    folder = Path(folder or DEBIAN)
    return tuple(_split(folder, *names) for names in _FILES.values())


def _split(folder, image_name, label_name):
    images, labels = read_idx(folder, image_name, 3), read_idx(folder, label_name, 1)
    if len(images) != len(labels):
        raise ValueError(f"{folder}: {len(images)} images in {image_name}, {len(labels)} labels")
    return images[..., None], labels.astype("int32")


def read_idx(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """Reads `folder/name` or `folder/name.gz`, an IDX file of unsigned bytes."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise ValueError(f"No file {name} or {name}.gz in {folder}")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is no whole gzip file: {error}") from error
    start = 4 * (1 + dimensions)
    magic, *shape = np.frombuffer(raw[:start].ljust(start, b"\0"), ">u4").tolist()
    if len(raw) < start or magic != _MAGIC[dimensions]:
        raise ValueError(f"{path} is no IDX file of unsigned bytes in {dimensions} dimensions")
    data = raw[start:]
    if len(data) != np.prod(shape):
        raise ValueError(f"{path} should hold {np.prod(shape)} values of {shape}, not {len(data)}")
    return np.frombuffer(data, "uint8").reshape(shape)
