"""Figures: they show what was found, and say what does not go together."""

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.inspection import pictures, plots

pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib")
pytestmark = harness.once("figures are the same from any backend")
VIT = {**harness.TINY_VIT, "image_shape": (16, 24, 3)}
IMAGES = harness.pixels((2, 16, 24, 3)).astype("uint8")


def vit(**options):
    model = keras_vit.VisionTransformer(**{**VIT, **options})
    harness.randomize(model)
    return model


def shown(figure):
    """The arrays of all pictures of a figure."""
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


def titles(figure):
    return [block.get_suptitle() for block in figure.subfigs]


def test_filters(tmp_path):
    found = inspection.patch_filters(vit(), 8)
    figure = plots.filters(found)
    for image, kernel in zip(shown(figure), found, strict=True):
        assert image.dtype == np.uint8 and (image.min(), image.max()) == (0, 255)
        at = np.unravel_index(kernel.argmax(), kernel.shape)
        assert image[at] == 255
    figure.savefig(tmp_path / "filters.png")


def test_similarity(tmp_path):
    found = inspection.position_similarity(vit())
    figure = plots.similarity(found)
    maps = shown(figure)[: 2 * 3]
    for image, (y, x) in zip(maps, np.ndindex(2, 3), strict=True):
        np.testing.assert_array_equal(image, found[y, x])
    figure.savefig(tmp_path / "similarity.png")


def test_many_places_are_thinned_out():
    figure = plots.similarity(np.zeros((20, 3, 20, 3), "float32"))
    assert len(shown(figure)) >= 8 * 3 and len(figure.axes) == 8 * 3 + 1


def test_distance(tmp_path):
    found = np.array([[1.0, 2.0], [3.0, 5.0], [8.0, np.nan]])
    figure = plots.attention_distance(found)
    (dots,) = figure.axes[0].collections
    expected = [(1, 1), (1, 2), (2, 3), (2, 5), (3, 8)]
    np.testing.assert_array_equal(dots.get_offsets().data[:5], expected)
    assert figure.axes[0].get_ylim()[0] == 0
    figure.savefig(tmp_path / "distance.png")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, ["Filters of the patch embedding", "Similarity of positions", "Attention distance"]),
        ({"position_embedding": "none"}, ["Filters of the patch embedding", "Attention distance"]),
        (
            {
                "image_shape": (64, 96, 3),
                "patch_size": 1,
                "stem": {"block_counts": (1,), "width": 32},
            },
            ["Similarity of positions", "Attention distance"],
        ),
        (
            {
                "image_shape": (64, 96, 3),
                "patch_size": 1,
                "stem": {"block_counts": (1,), "width": 32},
                "position_embedding": "relative",
            },
            ["Attention distance"],
        ),
    ],
    ids=["plain", "no positions", "hybrid", "distance alone"],
)
def test_figure_7(options, parts, tmp_path):
    model = vit(**options)
    figure = plots.figure_7(model, harness.pixels((1, *model.flat_config["image_shape"])))
    assert titles(figure) == parts
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_maps(tmp_path):
    heat, colors = harness.random_for("heat").random((2, 2, 3)), np.zeros((2, 2, 3, 3))
    colors[:, 0, 2] = (1, 0, 0)
    figure = plots.maps(IMAGES, [heat, colors], ["image", "a $map$", "colours"])
    found = shown(figure)
    assert len(found) == 6
    np.testing.assert_array_equal(found[0], IMAGES[0])
    np.testing.assert_array_equal(found[4], pictures.overlay(IMAGES[1], heat[1]))
    assert tuple(found[5][0, -1]) == (255, 0, 0) and tuple(found[5][-1, 0]) == (0, 0, 0)
    heads = [axes.get_title(loc="left") for axes in figure.axes[:3]]
    assert heads == ["image", "a $map$", "colours"]
    figure.savefig(tmp_path / "maps.png")


@pytest.mark.parametrize(
    ("images", "found", "names", "message"),
    [
        (IMAGES[0], [np.zeros((2, 2, 3))], None, r"images of shape \(16, 24, 3\)"),
        (IMAGES, [np.zeros((1, 2, 3))], None, r"maps of shapes \[\(1, 2, 3\)\]"),
        (IMAGES, [np.zeros((2, 2, 3, 4))], None, r"\(2, 2, 3, 4\)"),
        (IMAGES, [np.zeros((2, 6))], None, r"\(2, 6\)"),
        (IMAGES, [np.zeros((2, 2, 3))], ["image"], r"titles.*2.*Received: \['image'\]"),
    ],
)
def test_what_does_not_go_together(images, found, names, message):
    with pytest.raises(ValueError, match=message):
        plots.maps(images, found, names)


def test_without_matplotlib():
    code = """
import sys
sys.modules["matplotlib"] = None
from keras_vit.inspection import plots
try:
    plots.attention_distance([[1.0]])
except ImportError as error:
    print(error)
"""
    said = harness.run_python(code).strip()
    assert said.startswith("Drawing figures needs matplotlib")
    assert said.endswith('pip install "keras-vision-transformers[plots]".')
