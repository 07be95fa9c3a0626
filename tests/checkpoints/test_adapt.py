"""Resampled positions and patch kernels: against PyTorch, reference tables and properties."""

import numpy as np
import pytest
from parity_cases import FIXTURES, needs_fixtures

from keras_vit.checkpoints.adapt import (
    METHODS,
    resample_axis,
    resample_patch_kernel,
    resample_positions,
    resize_matrix,
)

# Up, down, one axis each way, other proportions, single cells.
GRIDS = (
    ((4, 4), (7, 7)),
    ((14, 14), (24, 24)),
    ((14, 14), (5, 5)),
    ((7, 5), (3, 11)),
    ((3, 5), (6, 4)),
    ((5, 7), (1, 1)),
    ((5, 7), (1, 9)),
    ((1, 1), (4, 3)),
    ((2, 1), (3, 5)),
)
by_method = pytest.mark.parametrize("method", METHODS)
by_grids = pytest.mark.parametrize(("old", "new"), GRIDS)


def random(*shape, dtype="float32"):
    return np.random.default_rng(3).normal(size=shape).astype(dtype)


@by_method
@by_grids
def test_equals_torch(method, old, new):
    torch = pytest.importorskip("torch")
    table = random(old[0] * old[1], 6)
    grid = torch.from_numpy(table.reshape(1, *old, 6)).permute(0, 3, 1, 2).double()
    options = {
        "mode": method.split("_")[0],
        "antialias": method.endswith("antialias"),
        "align_corners": method.endswith("align_corners"),
    }
    expected = torch.nn.functional.interpolate(grid, size=new, **options)
    expected = expected.permute(0, 2, 3, 1).reshape(-1, 6).numpy()
    found = resample_positions(table, old, new, method)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


# folder -> (position table in the weights, its grid, patch, name of the tables in io.npz, method)
TABLES = {
    "timm/vit_token": ("pos_embed", 4, 8, "pos_embed", "bicubic_antialias"),
    "timm/deit_distilled": ("pos_embed", 4, 8, "pos_embed", "bicubic_antialias"),
    "timm/dinov2_reg4": ("pos_embed", 5, 7, "pos_embed", "bicubic_antialias"),
    "hf/vit_classification": (
        "vit.embeddings.position_embeddings",
        *(4, 8, "position_embeddings", "bicubic"),
    ),
    "hf/dinov2_model": (
        "embeddings.position_embeddings",
        *(4, 8, "position_embeddings", "bicubic"),
    ),
    "hf/dinov2_registers_model": (
        "embeddings.position_embeddings",
        *(4, 8, "position_embeddings", "bicubic_antialias"),
    ),
    "hf/clip_vision": (
        "vision_model.embeddings.position_embedding.weight",
        *(4, 8, "position_embeddings", "bicubic"),
    ),
    "hf/siglip_vision": (
        "embeddings.position_embedding.weight",
        *(4, 8, "position_embeddings", "bicubic"),
    ),
    "hf/deit_teacher": (
        "deit.embeddings.position_embeddings",
        *(4, 8, "position_embeddings", "bicubic"),
    ),
    "torchvision/vit": (
        "encoder.pos_embedding",
        *(4, 8, "pos_embedding", "bicubic_align_corners"),
    ),
}


@needs_fixtures
@pytest.mark.parametrize("folder", TABLES)
def test_equals_the_source(folder):
    """The sources resample in float32, which rounds by up to 1e-6 at the tables' size, below 4."""
    safetensors = pytest.importorskip("safetensors.numpy")
    name, side, patch, label, method = TABLES[folder]
    table = safetensors.load_file(f"{FIXTURES}/{folder}/model.safetensors")[name]
    table = table.reshape(-1, table.shape[-1])
    assert np.abs(table).max() < 4
    with np.load(f"{FIXTURES}/{folder}/io.npz") as stored:
        sizes = [key.split("_")[-1] for key in stored if key.startswith(f"{label}_")]
        expected = {size: stored[f"{label}_{size}"][0] for size in sizes}
    assert expected
    for size, rows in expected.items():
        height, width = (int(length) // patch for length in size.split("x"))
        found = resample_positions(table, (side, side), (height, width), method)
        np.testing.assert_allclose(found, rows, rtol=0, atol=1e-6)


def test_the_official_rule_is_the_default():
    table = random(1 + 4 * 6, 3)
    np.testing.assert_array_equal(
        resample_positions(table, (4, 6), (7, 5)),
        resample_positions(table, (4, 6), (7, 5), "bilinear_align_corners"),
    )


@by_method
def test_same_grid_is_the_identity(method):
    table = random(2 + 15, 4)
    assert resample_positions(table, (3, 5), (3, 5), method) is table
    np.testing.assert_allclose(resize_matrix(5, 5, method), np.eye(5), rtol=0, atol=1e-15)


@by_method
@by_grids
def test_constant_tables_stay_constant(method, old, new):
    table = np.full((old[0] * old[1], 2), 2.5)
    found = resample_positions(table, old, new, method)
    np.testing.assert_allclose(found, np.full((new[0] * new[1], 2), 2.5), rtol=0, atol=1e-14)


# A cubic with the slope -0.75 bends a line; an antialiased kernel does where the grid shrinks.
STRAIGHT = (
    *((method, size) for method in ("bilinear", "bilinear_align_corners") for size in (4, 17, 31)),
    *(("bilinear_antialias", size) for size in (17, 31)),
    *(("bicubic_antialias", size) for size in (17, 31)),
)


@pytest.mark.parametrize(("method", "size"), STRAIGHT)
def test_linear_tables_stay_linear_inside(method, size):
    """Where no tap leaves the grid."""
    old, radius = 13, METHODS[method].radius
    found = resample_axis(np.arange(old, dtype="float64"), 0, size, method)
    if METHODS[method].align_corners:
        expected = np.linspace(0, old - 1, size)
        inside = np.full(size, True)
    else:
        expected = (np.arange(size) + 0.5) * old / size - 0.5
        inside = (expected >= radius - 1) & (expected <= old - radius)
    assert inside.any()
    np.testing.assert_allclose(found[inside], expected[inside], rtol=0, atol=1e-12)


@by_method
def test_prefix_rows_are_copied(method):
    table = random(5 + 16, 3)
    found = resample_positions(table, (4, 4), (6, 2), method)
    assert found.shape == (5 + 12, 3)
    np.testing.assert_array_equal(found[:5], table[:5])


@pytest.mark.parametrize("method", [m for m in METHODS if METHODS[m].align_corners])
def test_aligned_corners_are_kept_exactly(method):
    table = random(12, 3)
    found = resample_positions(table, (3, 4), (5, 9), method).reshape(5, 9, 3)
    corners = np.ix_([0, -1], [0, -1])
    np.testing.assert_array_equal(found[corners], table.reshape(3, 4, 3)[corners])


@pytest.mark.parametrize("dtype", ("float16", "float32", "float64"))
def test_keeps_the_dtype(dtype):
    assert resample_positions(random(9, 2, dtype=dtype), (3, 3), (4, 4)).dtype == dtype


def test_errors():
    with pytest.raises(ValueError, match="Received: 8 rows for a grid of 3 x 3"):
        resample_positions(random(8, 2), (3, 3), (4, 4))
    with pytest.raises(ValueError, match="Expected one of .*'bicubic'.*Received: 'nearest'"):
        resample_positions(random(9, 2), (3, 3), (4, 4), "nearest")
    with pytest.raises(ValueError, match="Received: 8 rows for a patch of 2 x 2 pixels with 3"):
        resample_patch_kernel(random(8, 5), (2, 2), (4, 4), 3)


@pytest.mark.parametrize(
    ("old", "new"), (((4, 4), (8, 8)), ((3, 5), (7, 6)), ((16, 16), (32, 32)), ((4, 4), (4, 7)))
)
def test_a_larger_patch_keeps_the_tokens(old, new):
    """Tokens of a patch, and of the patch resized to the new size, are equal."""
    patches, kernel = random(7, *old, 3, dtype="float64"), random(old[0] * old[1] * 3, 5)
    resized = resample_axis(resample_axis(patches, 1, new[0], "bilinear"), 2, new[1], "bilinear")
    found = resample_patch_kernel(kernel.astype("float64"), old, new, 3)
    assert found.shape == (new[0] * new[1] * 3, 5)
    np.testing.assert_allclose(
        resized.reshape(7, -1) @ found, patches.reshape(7, -1) @ kernel, rtol=0, atol=1e-9
    )
    assert resample_patch_kernel(kernel, old, new, 3).dtype == np.float32


@pytest.mark.parametrize(("old", "new"), (((6, 4), (3, 5)), ((5, 5), (2, 3)), ((2, 3), (4, 5))))
def test_patch_kernel_without_separability(old, new):
    """The definition: the pseudo-inverse of the transposed matrix that resizes whole patches."""
    torch = pytest.importorskip("torch")
    basis = torch.eye(old[0] * old[1], dtype=torch.float64).reshape(-1, 1, *old)
    resize = torch.nn.functional.interpolate(basis, size=new, mode="bilinear").numpy()
    resize = resize.reshape(old[0] * old[1], -1).T  # (new, old)
    kernel = random(old[0] * old[1] * 3, 5, dtype="float64")
    expected = np.einsum(
        "no,och->nch", np.linalg.pinv(resize.T), kernel.reshape(old[0] * old[1], 3, 5)
    )
    found = resample_patch_kernel(kernel, old, new, 3)
    np.testing.assert_allclose(found, expected.reshape(-1, 5), rtol=0, atol=1e-9)


def test_same_patch_is_the_identity():
    kernel = random(4 * 4 * 3, 5)
    assert resample_patch_kernel(kernel, (4, 4), (4, 4), 3) is kernel
