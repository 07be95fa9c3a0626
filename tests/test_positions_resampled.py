"""Positions at another image size: the official rule, and models that are resized."""

import harness
import keras
import numpy as np
import pytest
from parity_cases import LEAST_TOLERANCE, RESIZED, case, needs_fixtures, without_random_values

import keras_vit
from keras_vit.checkpoints.adapt import resample_positions

# ViT-B/16's geometry, thin: 14 x 14 patches and a class token.
B16 = {
    "image_shape": (224, 224, 3),
    "patch_size": 16,
    "hidden_dim": 8,
    "num_layers": 1,
    "num_heads": 2,
    "mlp_dim": 16,
    "num_classes": 3,
}
# Small enough to run: 3 x 5 patches.
SMALL = {**B16, "image_shape": (12, 20, 3), "patch_size": 4, "num_layers": 2}

# Google's own tables: the first four.
by_case = pytest.mark.parametrize("reference", RESIZED[:4], ids=str)


@pytest.fixture(autouse=True)
def _without_random_values():
    with without_random_values():
        yield


def arrays(model) -> dict[str, np.ndarray]:
    variables = harness.parameters(model).items()
    return {path: keras.ops.convert_to_numpy(variable) for path, variable in variables}


def randomize(model):
    generator = np.random.default_rng(7)
    for variable in harness.parameters(model).values():
        variable.assign(generator.normal(size=tuple(variable.shape), scale=0.3))
    return model


def outputs(model, images) -> np.ndarray:
    return keras.ops.convert_to_numpy(model.predict_on_batch(images))


def images(model) -> np.ndarray:
    shape = (2, *model.get_config()["image_shape"])
    return np.random.default_rng(5).integers(0, 256, shape).astype("float32")


def resized(model, image_shape):
    with pytest.warns(UserWarning, match="Positions were resampled"):
        return keras_vit.resize(model, image_shape)


@needs_fixtures
@by_case
def test_table(reference):
    """Google's own tables, class token's row included."""
    source = reference.source
    table = next(value[0] for name, value in source.items() if name.endswith("pos_embedding"))
    prefix = len(table) - 16
    assert prefix == ("cls" in source)
    patch = reference.description["config"]["patch_size"]
    assert reference.sizes
    for height, width in reference.sizes:
        expected = reference.io[f"pos_embedding_{height}x{width}"][0]
        found = resample_positions(table, (4, 4), (height // patch[0], width // patch[1]))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(found[:prefix], table[:prefix])


@needs_fixtures
def test_outputs_of_a_resized_model():
    """The logits of Google's own code, at sizes of all shapes."""
    reference = case("google/vit_token_resize")
    model = reference.build()
    for height, width in reference.sizes:
        new = resized(model, (height, width, 3))
        found = outputs(new, reference.io[f"inputs_{height}x{width}"])
        np.testing.assert_allclose(
            found, reference.io[f"logits_{height}x{width}"], rtol=0, atol=LEAST_TOLERANCE
        )


def test_table_on_the_same_grid():
    table = np.random.default_rng(0).normal(size=(1 + 15, 4)).astype("float32")
    assert resample_positions(table, (3, 5), (3, 5)) is table


def test_table_with_fewer_rows_than_patches():
    with pytest.raises(ValueError, match="14 rows for a grid of 3 x 5"):
        resample_positions(np.zeros((14, 4), "float32"), (3, 5), (4, 4))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("new_grid", [(1, 1), (1, 7), (2, 9), (5, 3), (6, 10)])
def test_table_is_linear(new_grid, dtype):
    """A table linear in row and column stays so; corners and prefix are untouched."""
    row, column = np.mgrid[:3, :5].reshape(2, -1, 1)
    prefix = np.array([[0.1], [0.7]])
    table = np.concatenate([prefix, row / 8 + column / 4]).astype(dtype)
    found = resample_positions(table, (3, 5), new_grid)
    assert found.dtype == dtype
    rows = np.linspace(0, 2, new_grid[0])[:, None] / 8
    columns = np.linspace(0, 4, new_grid[1])[None] / 4
    np.testing.assert_array_equal(found[:2], table[:2])
    np.testing.assert_allclose(
        found[2:].reshape(new_grid),
        rows + columns,
        rtol=0,
        atol=2e-3 if dtype == "float16" else 1e-6,
    )


def test_b16_geometry():
    """224 x 224 into 384 x 256: class token's row and corner vectors are kept to the bit."""
    model = randomize(keras_vit.VisionTransformer(**B16))
    new = resized(model, (384, 256, 3))
    assert new.grid_shape == (24, 16)
    path = "patch_encoder/position_embedding/embedding"
    old_values, new_values = arrays(model), arrays(new)
    table, wide = old_values.pop(path), new_values.pop(path)
    assert wide.shape == (1 + 24 * 16, 8)
    np.testing.assert_array_equal(wide[0], table[0])
    corners = np.ix_([0, -1], [0, -1])
    np.testing.assert_array_equal(
        wide[1:].reshape(24, 16, 8)[corners], table[1:].reshape(14, 14, 8)[corners]
    )
    assert old_values.keys() == new_values.keys()
    for name, value in old_values.items():
        np.testing.assert_array_equal(new_values[name], value, err_msg=name)
    assert np.isfinite(outputs(new, images(new))).all()


def test_same_size_keeps_everything():
    model = randomize(keras_vit.VisionTransformer(**SMALL))
    same = keras_vit.resize(model, (12, 20, 3))
    batch = images(model)
    np.testing.assert_array_equal(outputs(same, batch), outputs(model, batch))


def test_grid_of_as_many_patches():
    """5 x 3 patches need another table than 3 x 5, although its shape is the same."""
    model = randomize(keras_vit.VisionTransformer(**SMALL))
    new = resized(model, (20, 12, 3))
    path = "patch_encoder/position_embedding/embedding"
    expected = resample_positions(arrays(model)[path], (3, 5), (5, 3))
    np.testing.assert_array_equal(arrays(new)[path], expected)


@pytest.mark.parametrize("class_token_position", [True, False])
def test_rows_of_class_and_distillation_token(class_token_position):
    """Both stand before the patches' rows, and stay as they are."""
    config = {**SMALL, "distillation": "head", "num_registers": 2}
    model = randomize(
        keras_vit.VisionTransformer(**config, class_token_position=class_token_position)
    )
    new = resized(model, (24, 16, 3))
    path, rows = "patch_encoder/position_embedding/embedding", 2 * class_token_position
    table, wide = arrays(model)[path], arrays(new)[path]
    assert (len(table), len(wide)) == (rows + 15, rows + 24)
    np.testing.assert_array_equal(wide[:rows], table[:rows])
    np.testing.assert_array_equal(wide[rows:], resample_positions(table[rows:], (3, 5), (6, 4)))
    for name in ("head/kernel", "head_dist/kernel", "patch_encoder/distillation_token"):
        np.testing.assert_array_equal(arrays(new)[name], arrays(model)[name])
    assert np.isfinite(outputs(new, images(new))).all()


@pytest.mark.parametrize("placement", ["every_layer", "shared"])
def test_tables_at_every_layer(placement):
    model = randomize(keras_vit.VisionTransformer(**SMALL, position_placement=placement))
    new = resized(model, (24, 16, 3))
    changed = [path for path in arrays(model) if "position_embedding" in path]
    assert len(changed) == (2 if placement == "every_layer" else 1)
    for path in changed:
        expected = resample_positions(arrays(model)[path], (3, 5), (6, 4))
        np.testing.assert_array_equal(arrays(new)[path], expected)
    assert np.isfinite(outputs(new, images(new))).all()


def test_learned_2d():
    model = randomize(keras_vit.VisionTransformer(**SMALL, position_embedding="learned_2d"))
    new = resized(model, (24, 16, 3))
    prefix = "patch_encoder/position_embedding/"
    old_values, new_values = arrays(model), arrays(new)
    for name, count in (("x_embedding", 4), ("y_embedding", 6)):
        old_table, new_table = old_values[prefix + name], new_values[prefix + name]
        assert new_table.shape == (count, 4)
        np.testing.assert_array_equal(new_table[[0, -1]], old_table[[0, -1]])
    np.testing.assert_array_equal(
        new_values[prefix + "class_embedding"], old_values[prefix + "class_embedding"]
    )
    assert np.isfinite(outputs(new, images(new))).all()


def test_sincos2d():
    """Nothing to resample, no notice: the model that the new size makes, with the old weights."""
    config = {**SMALL, "position_embedding": "sincos2d"}
    model = randomize(keras_vit.VisionTransformer(**config))
    new = keras_vit.resize(model, (24, 16, 3))
    fresh = keras_vit.VisionTransformer(**{**config, "image_shape": (24, 16, 3)})
    for path, value in arrays(model).items():
        harness.parameters(fresh)[path].assign(value)
    np.testing.assert_array_equal(outputs(new, images(new)), outputs(fresh, images(new)))


def test_relative():
    """The offset 0 keeps its vector, in the middle of the table, and so do both ends."""
    model = randomize(keras_vit.VisionTransformer(**SMALL, position_embedding="relative"))
    new = resized(model, (24, 16, 3))
    for index in range(2):
        path = f"encoder_block_{index}/attention/relative_position/embedding"
        old_table, new_table = arrays(model)[path], arrays(new)[path]
        assert (len(old_table), len(new_table)) == (2 * 15 - 1, 2 * 24 - 1)
        np.testing.assert_array_equal(new_table[[0, 23, -1]], old_table[[0, 14, -1]])
    assert np.isfinite(outputs(new, images(new))).all()


def test_none():
    model = randomize(keras_vit.VisionTransformer(**SMALL, position_embedding="none"))
    new = keras_vit.resize(model, (24, 16, 3))
    assert np.isfinite(outputs(new, images(new))).all()
