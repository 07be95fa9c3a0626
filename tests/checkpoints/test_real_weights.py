"""Trained weights: DINOv2 ViT-S/14 in transformers' files, with features of eight photographs."""

from pathlib import Path

import harness
import keras
import numpy as np
import pytest
from parity_cases import FIXTURES

import keras_vit

FOLDER = Path(FIXTURES or "").parent / "real" / "dinov2_vits14_hf"
# transformers' own float32 differs from float64 by 3.4e-5 here.
TOLERANCE = 2e-4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FIXTURES or not FOLDER.is_dir(),
        reason="no folder real/dinov2_vits14_hf beside the one that KERAS_VIT_FIXTURES names",
    ),
]


@pytest.fixture(scope="module")
def stored():
    with np.load(FOLDER / "features.npz") as file:
        return dict(file)


def outputs(images):
    """The class token and all tokens; images `(n, height, width, 3)`, uint8."""
    size = images.shape[1:3]
    if size == (518, 518):  # the size of the table in the file
        model = keras_vit.from_checkpoint(FOLDER)
    else:
        with pytest.warns(UserWarning, match=r"from a grid of \(37, 37\)"):
            model = keras_vit.from_checkpoint(FOLDER, image_shape=(*size, 3))
    probe = keras.Model(model.input, [model.output, model.get_layer("encoder_norm").output])
    return [harness.numpy(value) for value in probe.predict_on_batch(images)]


def close(found, expected):
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_photographs(stored):
    token, tokens = outputs(stored["images_uint8"])
    close(token, stored["cls"])
    close(tokens[:, 1:].mean(1), stored["pooled_patch_mean"])
    close(tokens[0, 1:], stored["patch_tokens_image0"])


@pytest.mark.parametrize("size", ["518x518", "98x140", "252x224"])
def test_other_sizes(size, stored):
    token, tokens = outputs(
        stored[f"image_uint8_{size}"].reshape(-1, *map(int, size.split("x")), 3)
    )
    close(token, stored[f"cls_{size}"].reshape(-1, 384))
    close(tokens[:, 1:].mean(1), stored[f"patch_mean_{size}"].reshape(-1, 384))
    close(tokens[0, 1:65], stored[f"patch_tokens_first64_{size}"].reshape(64, 384))
