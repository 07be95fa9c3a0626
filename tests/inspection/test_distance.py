"""Mean attention distance: loops, closed forms, grids of all shapes."""

import math

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

MODELS = {
    "registers": {"image_shape": (16, 24, 3), "num_registers": 2},
    "gap": {"image_shape": (16, 24, 3), "pooling": "gap"},
    "hybrid": {
        "image_shape": (64, 96, 3),
        "patch_size": 1,
        "stem": {"block_counts": (1,), "width": 32},
    },
}
GRIDS = [(1, 5), (6, 1), (7, 13), (2, 3)]


def rows_of(shape, name="scores"):
    scores = np.exp(harness.noise(shape, name).astype("float64"))
    return scores / scores.sum(-1, keepdims=True)


def by_loops(scores, grid, prefix, cell):
    """Distances of each sample and head, one pair of patches after the other."""
    places = [(y * cell[0], x * cell[1]) for y in range(grid[0]) for x in range(grid[1])]
    found = np.zeros(scores.shape[:2])
    for sample, head in np.ndindex(found.shape):
        for i, place in enumerate(places):
            row = scores[sample, head, prefix + i, prefix:]
            looked = sum(p * math.dist(place, other) for p, other in zip(row, places, strict=True))
            found[sample, head] += looked / row.sum() / len(places)
    return found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("prefix", [0, 3])
def test_equals_loops(grid, prefix):
    tokens = prefix + grid[0] * grid[1]
    scores, cell = rows_of((2, 3, tokens, tokens)), (16.0, 14.0)
    found = inspection.attention_distance(scores, grid, num_prefix_tokens=prefix, cell_size=cell)
    np.testing.assert_allclose(found, by_loops(scores, grid, prefix, cell), rtol=1e-9)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_uniform_attention_on_a_line(count):
    """The mean of |i - j| over all pairs of 0..n-1 is (n^2 - 1) / (3 n)."""
    scores = np.full((1, 1, count, count), 1.0 / count)
    for grid in ((1, count), (count, 1)):
        found = inspection.attention_distance(scores, grid, cell_size=(8.0, 8.0))
        np.testing.assert_allclose(found, 8.0 * (count**2 - 1) / (3 * count), atol=1e-12)


def test_attention_to_oneself_and_to_a_neighbour():
    oneself = np.eye(6)[None, None]
    assert inspection.attention_distance(oneself, (2, 3)) == 0
    neighbour = np.eye(6)[[1, 0, 3, 2, 5, 4]][None, None]
    assert inspection.attention_distance(neighbour, (1, 6), cell_size=(5.0, 16.0)) == 16.0


def test_patches_that_attend_to_the_prefix_alone():
    scores = np.zeros((1, 2, 4, 4))
    scores[..., 0] = 1.0
    scores[0, 0, 2] = [0.0, 1.0, 0.0, 0.0]  # one of the first head's patches looks at another
    found = inspection.attention_distance(scores, (1, 3), num_prefix_tokens=1)
    assert found[0, 0] == 1.0 and np.isnan(found[0, 1])


def test_tokens_of_another_grid():
    with pytest.raises(ValueError, match=r"1 prefix tokens and 2 x 3 patches.*\(1, 1, 6, 6\)"):
        inspection.attention_distance(rows_of((1, 1, 6, 6)), (2, 3), num_prefix_tokens=1)


@pytest.mark.parametrize("options", harness.cases(MODELS, {"registers"}))
def test_of_a_model(options):
    options = {**harness.TINY_VIT, **options}
    model = keras_vit.VisionTransformer(**options)
    harness.randomize(model)
    images = harness.pixels((2, *options["image_shape"]))
    found = inspection.mean_attention_distance(model, images)
    assert found.shape == (2, 2)
    height, width, _ = options["image_shape"]
    cell = (height / model.grid_shape[0], width / model.grid_shape[1])
    for row, scores in zip(found, inspection.attention_maps(model, images), strict=True):
        expected = by_loops(scores, model.grid_shape, model.num_prefix_tokens, cell).mean(0)
        np.testing.assert_allclose(row, expected, rtol=1e-5)
    last = inspection.mean_attention_distance(model, images, layers=[-1])
    np.testing.assert_allclose(last, found[-1:], rtol=1e-6)
    assert inspection.mean_attention_distance(model, images, layers=[]).shape == (0, 2)
