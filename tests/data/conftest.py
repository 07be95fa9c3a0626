"""Small folders of pictures."""

import harness  # noqa: F401  # chooses the backend
import numpy as np
import pytest
from PIL import Image

from keras_vit import data

CLASSES = ("ape", "bee", "cow")
COUNTS = (5, 4, 4)


def _write_picture(path, name, size=(23, 19)):
    """A JPEG or PNG of noise that its name alone decides."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = harness.random_for(name).integers(0, 256, (5, 4, 3)).astype("uint8")
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)


@pytest.fixture(scope="session")
def write_picture():
    """Writes a picture of a path and a name."""
    return _write_picture


@pytest.fixture(scope="session")
def folder(tmp_path_factory, write_picture):
    """Thirteen pictures of three classes."""
    root = tmp_path_factory.mktemp("pictures")
    for name, count in zip(CLASSES, COUNTS, strict=True):
        for i in range(count):
            write_picture(root / name / f"{i}.{'jpg' if i % 2 else 'png'}", f"{name} {i}")
    return root


@pytest.fixture(scope="session")
def pictures(folder):
    return data.open_source(folder)


@pytest.fixture(scope="session")
def numbered():
    """Arrays of 4 x 4 pixels that show the number of the example."""
    images = np.broadcast_to(np.arange(23, dtype="uint8")[:, None, None, None], (23, 4, 4, 3))
    return data.open_source((images, np.arange(23) % 4))
