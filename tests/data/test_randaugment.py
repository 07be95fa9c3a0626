"""Each operation against its definition in NumPy, at several levels."""

import harness
import numpy as np
import pytest
from PIL import Image

from keras_vit.data import randaugment as ra

NAMED = {operation.__name__: operation for operation in ra.OPERATIONS}
SIZE = (31, 27)  # width, height
LEVELS = (0, 3, 10, 15, 20)


def pixels(mode="RGB"):
    shape = (SIZE[1], SIZE[0], 3) if mode == "RGB" else SIZE[::-1]
    return harness.random_for("augmented").integers(20, 240, shape).astype("uint8")


class Fixed:
    """Stands in for a generator: always the positive sign, centres of cut-outs as given."""

    def __init__(self, *values):
        self.values = list(values)

    def random(self):
        return 0.9

    def integers(self, high):
        return self.values.pop(0)


def run(name, level, values=(), mode="RGB"):
    before = Image.fromarray(pixels(mode))
    after = NAMED[name](before, level, Fixed(*values))
    assert after.mode == mode and after.size == SIZE
    np.testing.assert_array_equal(np.asarray(before), pixels(mode))  # the original is as it was
    return np.asarray(after).astype(int), pixels(mode).astype(int)


def test_the_list_is_autoaugments():
    assert len(NAMED) == len(ra.OPERATIONS) == 16
    assert set(NAMED) == {
        *("autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "color"),
        *("contrast", "brightness", "sharpness", "shear_x", "shear_y"),
        *("translate_x", "translate_y", "cutout", "solarize_add"),
    }


@pytest.mark.parametrize("level", LEVELS)
def test_operations_on_values(level):
    after, before = run("invert", level)
    np.testing.assert_array_equal(after, 255 - before)
    after, before = run("solarize", level)
    np.testing.assert_array_equal(after, np.where(before < int(25.6 * level), before, 255 - before))
    after, before = run("solarize_add", level)
    np.testing.assert_array_equal(
        after, np.where(before < 128, np.minimum(before + 11 * level, 255), before)
    )
    bits = {0: 1, 3: 1, 10: 4, 15: 6, 20: 8}[level]
    after, before = run("posterize", level)
    np.testing.assert_array_equal(after, before // 2 ** (8 - bits) * 2 ** (8 - bits))


@pytest.mark.parametrize("level", LEVELS)
def test_blends(level):
    factor = 0.1 + 0.18 * level
    after, before = run("brightness", level)
    np.testing.assert_allclose(after, np.clip(factor * before, 0, 255), atol=1)
    grey = before @ (0.299, 0.587, 0.114)
    after, before = run("color", level)
    expected = grey[..., None] + factor * (before - grey[..., None])
    np.testing.assert_allclose(after, np.clip(expected, 0, 255), atol=3)
    after, before = run("contrast", level)
    expected = grey.mean() + factor * (before - grey.mean())
    np.testing.assert_allclose(after, np.clip(expected, 0, 255), atol=2)
    after, before = run("sharpness", level)
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    smooth = before.astype(float)
    smooth[1:-1, 1:-1] = sum(
        kernel[i, j] * before[i : i + SIZE[1] - 2, j : j + SIZE[0] - 2]
        for i in range(3)
        for j in range(3)
    )
    expected = smooth + factor * (before - smooth)
    np.testing.assert_allclose(after, np.clip(expected, 0, 255), atol=3)


def test_histograms():
    after, before = run("autocontrast", 10)
    low, high = before.min(axis=(0, 1)), before.max(axis=(0, 1))
    np.testing.assert_allclose(after, (before - low) * 255 / (high - low), atol=1)
    after, before = run("equalize", 10)
    for c in range(3):
        order = np.argsort(before[..., c].ravel(), kind="stable")
        assert (np.diff(after[..., c].ravel()[order]) >= 0).all()
        # Values spread evenly: the share below v is v / 255.
        shares = [(after[..., c] <= v).mean() for v in (64, 128, 192)]
        np.testing.assert_allclose(shares, (0.25, 0.5, 0.75), atol=0.07)


@pytest.mark.parametrize("level", LEVELS)
def test_shifts(level):
    width, height = SIZE
    for name, axis, side in (("translate_x", 1, width), ("translate_y", 0, height)):
        shift = min(round(100 * side / 224 * level / 10), side)
        after, before = run(name, level)
        moved = np.full_like(before, 128)
        if axis == 1:
            moved[:, : width - shift] = before[:, shift:]
        else:
            moved[: height - shift] = before[shift:]
        np.testing.assert_array_equal(after, moved)


@pytest.mark.parametrize("level", LEVELS)
def test_shears_move_rows_by_their_distance(level):
    after, before = run("shear_x", level)
    shear = 0.03 * level
    for y in range(SIZE[1]):
        source = np.floor(np.arange(SIZE[0]) + 0.5 + shear * (y + 0.5)).astype(int)
        inside = source < SIZE[0]
        np.testing.assert_array_equal(after[y, inside], before[y, source[inside]])
        np.testing.assert_array_equal(after[y, ~inside], np.full(((~inside).sum(), 3), 128))
    after, before = run("shear_y", level)
    for x in range(SIZE[0]):
        source = np.floor(np.arange(SIZE[1]) + 0.5 + shear * (x + 0.5)).astype(int)
        inside = source < SIZE[1]
        np.testing.assert_array_equal(after[inside, x], before[source[inside], x])


@pytest.mark.parametrize("level", LEVELS)
def test_rotations_keep_the_centre(level):
    after, before = run("rotate", level)
    centre = SIZE[1] // 2, SIZE[0] // 2
    np.testing.assert_array_equal(after[centre], before[centre])
    if not level:
        np.testing.assert_array_equal(after, before)
    else:
        np.testing.assert_array_equal(after[0, 0], (128, 128, 128))


@pytest.mark.parametrize(("x", "y"), [(15, 13), (0, 0), (30, 26)])
def test_cutout(x, y):
    after, before = run("cutout", 10, (x, y))
    half_x, half_y = round(40 * 31 / 224), round(40 * 27 / 224)
    rows, columns = np.arange(SIZE[1])[:, None], np.arange(SIZE[0])
    inside = (abs(rows - y + 0.5) < half_y) & (abs(columns - x + 0.5) < half_x)
    np.testing.assert_array_equal(after, np.where(inside[..., None], 128, before))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_layers_draw_all_operations_alike(mode, monkeypatch):
    calls = []

    def recorded(operation):
        def call(image, level, rng):
            calls.append(operation.__name__)
            assert level == 15
            return operation(image, level, rng)

        return call

    monkeypatch.setattr(ra, "OPERATIONS", tuple(map(recorded, ra.OPERATIONS)))
    image = Image.fromarray(pixels(mode))
    for i in range(400):
        found = ra.randaugment(image, 2, 15, harness.random_for(f"layers {i}"))
        assert found.size == SIZE and found.mode == mode
    counts = [calls.count(name) for name in NAMED]
    assert sum(counts) == 800
    assert 25 < min(counts) and max(counts) < 80  # 50 of each are expected


def test_both_signs_are_drawn():
    image = Image.fromarray(pixels())
    for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"):
        generator = harness.random_for(name)
        found = {np.asarray(NAMED[name](image, 5, generator)).tobytes() for _ in range(20)}
        assert len(found) == 2, name
