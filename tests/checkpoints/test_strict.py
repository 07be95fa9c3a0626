"""Files that do not fit: what the message names, and that nothing is half loaded."""

import json
import math

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.safetensors import write_safetensors
from keras_vit.checkpoints.store import Entry

VIT = {
    "image_shape": (16, 24, 3),
    "patch_size": 8,
    "hidden_dim": 12,
    "num_layers": 2,
    "num_heads": 3,
    "mlp_dim": 20,
    "num_classes": 5,
}


@pytest.fixture(scope="module")
def model():
    model = keras_vit.VisionTransformer(**VIT)
    harness.randomize(model)
    return model


@pytest.fixture
def directory(model, tmp_path):
    """The model as timm's files."""
    keras_vit.to_checkpoint(model, tmp_path / "timm", format="timm")
    return tmp_path / "timm"


def change(directory, *, drop=(), **changes):
    """Rewrites the arrays: `drop` goes, `changes` (dots as two underscores) come."""
    path = directory / "model.safetensors"
    with open_checkpoint(path) as store:
        arrays = {name: store.read(name) for name in store.entries if name not in drop}
        metadata = dict(store.metadata)
    for name, value in changes.items():
        name = name.replace("__", ".")
        arrays[name] = value(arrays[name]) if callable(value) else value
    entries = {name: Entry(array.shape, array.dtype.name) for name, array in arrays.items()}
    write_safetensors(path, entries, arrays.__getitem__, metadata)


def weights(model):
    return {path: harness.numpy(v) for path, v in harness.parameters(model).items()}


def same_weights(model, before):
    for path, value in weights(model).items():
        np.testing.assert_array_equal(value, before[path], err_msg=path)


FAULTS = {
    "missing": (
        {"drop": ["blocks.1.mlp.fc1.bias"]},
        r"missing: blocks\.1\.mlp\.fc1\.bias \(20,\), for encoder_block_1/mlp/fc1/bias",
    ),
    "left over": ({"blocks__0__extra": np.ones(3, "float32")}, r"unused: blocks\.0\.extra \(3,\)"),
    "another block": (
        {"blocks__2__norm1__bias": np.ones(12, "float32")},
        r"3, not|missing: blocks\.2|encoder_block_2|unused: blocks\.2\.norm1\.bias",
    ),
    "transposed": (
        {"blocks__0__mlp__fc1__weight": np.transpose},
        r"misshapen: blocks\.0\.mlp\.fc1\.weight has shape \(12, 20\).* expected .*\(20, 12\)",
    ),
    "renamed": (
        {"drop": ["norm.bias"], "norm__beta": np.ones(12, "float32")},
        r"missing: norm\.bias(.|\n)*unused: norm\.beta",
    ),
    "integers": (
        {"norm__bias": np.ones(12, "int32")},
        r"misshapen: norm\.bias has .* int32; expected floats",
    ),
    "cut head": (
        {"head__weight": lambda w: w[:, :-1].copy()},
        r"misshapen: head\.weight has shape \(5, 11\)",
    ),
}


@pytest.mark.parametrize(("changes", "match"), FAULTS.values(), ids=FAULTS)
def test_faults_are_named(changes, match, directory, model):
    change(directory, **changes)
    before = weights(other := keras_vit.VisionTransformer(**VIT))
    for load in (keras_vit.from_checkpoint, other.load_checkpoint):
        with pytest.raises(CheckpointError, match=match) as error:
            load(directory)
        assert str(directory) in str(error.value)
        assert "skip" in str(error.value) or "from_checkpoint" in str(error.value)
    same_weights(other, before)


def test_all_faults_at_once(directory):
    change(directory, drop=["norm.bias", "head.bias"], more=np.ones(2, "float32"))
    with pytest.raises(CheckpointError, match="2 arrays missing, 1 unused, 0 misshapen"):
        keras_vit.from_checkpoint(directory)


def test_excused(directory, model):
    """A pattern of their names or ours; what is excused and missing stays fresh."""
    change(directory, drop=["blocks.1.mlp.fc1.bias"], more=np.ones(2, "float32"))
    loaded = keras_vit.from_checkpoint(directory, skip=[r"^more$", r"encoder_block_1/mlp/fc1"])
    expected = weights(model)
    for path, value in weights(loaded).items():
        if path == "encoder_block_1/mlp/fc1/bias":
            assert not np.array_equal(value, expected[path])
        else:
            # What matches, and is there and fits, is loaded all the same.
            np.testing.assert_array_equal(value, expected[path], err_msg=path)
    # Each pattern for itself: flags and groups of one do not meet the other's.
    patterns = ["(?i)MORE", r"(?P<n>blocks)", r"(?P<n>encoder_block_1)"]
    assert keras_vit.from_checkpoint(directory, skip=patterns).source is not None
    for skip in ("(", 3, [b"more"], [None]):
        with pytest.raises(CheckpointError, match="`skip` must be one regular expression"):
            keras_vit.from_checkpoint(directory, skip=skip)


def test_not_finite(directory):
    def spoilt(array):
        array = array.copy()
        array.flat[3] = math.nan
        return array

    change(directory, blocks__1__attn__qkv__weight=spoilt)
    with pytest.warns(UserWarning, match="NaN or infinite in encoder_block_1/attention/qkv/kernel"):
        keras_vit.from_checkpoint(directory)


def test_damage_found_while_reading(model, tmp_path):
    """The header is right and the data are not: the model keeps all of its weights."""
    path = tmp_path / "a.npz"
    keras_vit.to_checkpoint(model, path, format="google")
    data = bytearray(path.read_bytes())
    place = data.rindex(b"head/bias.npy", 0, data.index(b"PK\x01\x02"))
    data[place + 250] ^= 0xFF
    path.write_bytes(data)
    other = keras_vit.VisionTransformer(**VIT)
    before = weights(other)
    with pytest.raises(CheckpointError, match="a.npz"):
        other.load_checkpoint(path)
    same_weights(other, before)


def test_the_model_of_another_size(directory):
    other = keras_vit.VisionTransformer(**{**VIT, "mlp_dim": 24, "num_layers": 3})
    before = weights(other)
    with pytest.raises(CheckpointError) as error:
        other.load_checkpoint(directory)
    for words in ("encoder_block_0/mlp/fc1/kernel: (12, 20) in the file, (12, 24) here", "more"):
        assert words in str(error.value)
    same_weights(other, before)


def test_into_a_model_that_exists(directory, model):
    other = keras_vit.VisionTransformer(**VIT)
    other.load_checkpoint(directory)
    same_weights(other, weights(model))
    assert other.source.dialect == "timm"


def test_into_a_model_with_another_head_and_size(directory, model):
    other = keras_vit.VisionTransformer(**{**VIT, "image_shape": (32, 32, 3), "num_classes": 3})
    with pytest.warns(UserWarning, match=r"head is not the file's: 3 .* of \(2, 3\) to \(4, 4\)"):
        other.load_checkpoint(directory)
    expected = weights(model)
    for path, value in weights(other).items():
        if "head" not in path and "position" not in path:
            np.testing.assert_array_equal(value, expected[path], err_msg=path)
    with pytest.warns(UserWarning, match="head is not the file's"):
        built = keras_vit.from_checkpoint(directory, image_shape=(32, 32, 3), num_classes=3)
    same_weights(built, weights(other))


def test_class_token_without_its_entry(directory, model):
    """The same model with the class token's position folded into the token."""
    other = keras_vit.VisionTransformer(**VIT, class_token_position=False)
    other.load_checkpoint(directory)
    images = harness.pixels((2, 16, 24, 3))
    np.testing.assert_allclose(
        harness.numpy(other.predict_on_batch(images)),
        harness.numpy(model.predict_on_batch(images)),
        rtol=0,
        atol=1e-5,
    )


def test_settings_that_differ(directory):
    other = keras_vit.VisionTransformer(**VIT, activation="gelu", norm_epsilon=1e-5)
    with pytest.warns(UserWarning, match="activation='gelu', where this model has 'gelu_tanh'"):
        other.load_checkpoint(directory)


def test_without_a_head(directory, model):
    features = keras_vit.from_checkpoint(directory, num_classes=None)
    assert features.output.shape == (None, 12)
    expected = weights(model)
    assert expected.keys() - weights(features).keys() == {"head/kernel", "head/bias"}
    same_weights(features, expected)


def test_another_patch_size(directory, model):
    """Pictures twice as large, bilinearly: the same tokens, so the same logits."""
    with pytest.warns(UserWarning, match=r"projection was resampled to patches of \(16, 16\)"):
        larger = keras_vit.from_checkpoint(directory, patch_size=16, image_shape=(32, 48, 3))
    small = harness.pixels((2, 16, 24, 3))
    from keras_vit.checkpoints.adapt import resize_matrix

    # Each patch is resized for itself, as the pseudo-inverse has it.
    matrix = resize_matrix(8, 16, "bilinear")
    patches = small.reshape(2, 2, 8, 3, 8, 3)
    large = np.einsum("bhpwqc,Pp,Qq->bhPwQc", patches, matrix, matrix).reshape(2, 32, 48, 3)
    np.testing.assert_allclose(
        harness.numpy(larger.predict_on_batch(large.astype("float32"))),
        harness.numpy(model.predict_on_batch(small)),
        rtol=0,
        atol=2e-4,
    )


def test_rectangular_table_that_does_not_say_how_it_lies(model, tmp_path):
    """6 positions: 2 x 3 or 3 x 2. Google's files do not tell, so our note is taken away."""
    keras_vit.to_checkpoint(model, tmp_path / "a.npz", format="google")
    with open_checkpoint(tmp_path / "a.npz") as store:
        np.savez(tmp_path / "b.npz", **{name: store.read(name) for name in store.entries})
    with pytest.raises(CheckpointError, match="positions for 6 patches .* pass the image_shape"):
        keras_vit.from_checkpoint(tmp_path / "b.npz")
    told = keras_vit.from_checkpoint(tmp_path / "b.npz", image_shape=(16, 24, 3))
    same_weights(told, weights(model))


def test_heads_that_nobody_says(model, tmp_path):
    square = keras_vit.VisionTransformer(
        **{**VIT, "image_shape": (16, 16, 3), "pixel_range": "imagenet", "activation": "gelu"}
    )
    keras_vit.to_checkpoint(square, tmp_path / "a.safetensors", format="torchvision")
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        arrays = {name: store.read(name) for name in store.entries}
    entries = {name: Entry(array.shape) for name, array in arrays.items()}
    write_safetensors(tmp_path / "b.safetensors", entries, arrays.__getitem__)
    with pytest.raises(CheckpointError, match="does not say how many attention heads.*num_heads"):
        keras_vit.from_checkpoint(tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="must divide .* num_heads=5, width=12"):
        keras_vit.from_checkpoint(tmp_path / "b.safetensors", num_heads=5)
    told = keras_vit.from_checkpoint(tmp_path / "b.safetensors", num_heads=3)
    same_weights(told, weights(square))


def test_no_vision_transformer(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.ones(3), b=np.ones(2))
    with pytest.raises(CheckpointError, match=r"no Vision Transformer .* 2 arrays, such as \['b'"):
        keras_vit.from_checkpoint(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("num_heads", 5, "num_heads must divide"),
        ("num_heads", "three", "num_heads must divide"),
        ("act_layer", "mish", "act_layer in config.json must be one of"),
        ("global_pool", "lse", "global_pool in config.json must be one of"),
        ("img_size", -3, "image size in its documents must be a positive integer"),
    ],
)
def test_documents_that_cannot_be(key, value, match, directory):
    """config.json is read where our own note does not stand in the arrays' file."""
    with open_checkpoint(directory) as store:
        arrays = {name: store.read(name) for name in store.entries}
    entries = {name: Entry(array.shape) for name, array in arrays.items()}
    write_safetensors(directory / "model.safetensors", entries, arrays.__getitem__)
    path = directory / "config.json"
    document = json.loads(path.read_text())
    document["model_args"][key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=match):
        keras_vit.from_checkpoint(directory)


def test_pixels_that_are_none_of_ours(directory, model):
    """The advice of the message works."""
    with open_checkpoint(directory) as store:
        arrays = {name: store.read(name) for name in store.entries}
    entries = {name: Entry(array.shape) for name, array in arrays.items()}
    write_safetensors(directory / "model.safetensors", entries, arrays.__getitem__)
    path = directory / "config.json"
    document = json.loads(path.read_text())
    document["pretrained_cfg"]["mean"] = [0.1, 0.2, 0.3]
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="Pass pixel_range=..., or include_rescaling=False"):
        keras_vit.from_checkpoint(directory)
    for arguments in ({"pixel_range": "unit"}, {"include_rescaling": False}):
        same_weights(keras_vit.from_checkpoint(directory, **arguments), weights(model))


@pytest.mark.parametrize(
    "value", ["[]", "{", '{"norm_epsilon": -1}', '{"num_heads": 7}', '{"hidden_dim": 9}']
)
def test_notes_that_cannot_be(value, directory):
    path = directory / "model.safetensors"
    with open_checkpoint(path) as store:
        arrays = {name: store.read(name) for name in store.entries}
    entries = {name: Entry(array.shape) for name, array in arrays.items()}
    write_safetensors(path, entries, arrays.__getitem__, {"keras_vit": value})
    # No note of ours, or of what arrays say for certain.
    if value in ("[]", "{", '{"hidden_dim": 9}'):
        assert keras_vit.from_checkpoint(directory).get_config()["num_heads"] == 3
    else:
        with pytest.raises(CheckpointError):
            keras_vit.from_checkpoint(directory)


def test_arguments_of_another_type(directory, model, tmp_path):
    for source in (None, 3, b"x", ""):
        with pytest.raises(CheckpointError, match="Received: "):
            keras_vit.from_checkpoint(source)
    for path in (None, 3, b"x.npz", ""):
        with pytest.raises(CheckpointError, match="`path` must name"):
            keras_vit.to_checkpoint(model, path, format="google")
    for names in ("abcde", b"abcde", 5, [1, 2, 3, 4, 5], [b"a"] * 5):
        with pytest.raises(CheckpointError, match="must name 5 classes"):
            keras_vit.to_checkpoint(model, tmp_path / "x", format="timm", class_names=names)
    assert not (tmp_path / "x").exists()
    with pytest.raises(ValueError, match="`model` must be a keras_vit"):
        keras_vit.models.checkpoints.load_checkpoint("model", directory)


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels(channels, directory):
    """Found before anything is assigned."""
    other = keras_vit.VisionTransformer(**{**VIT, "image_shape": (16, 24, channels)})
    before = weights(other)
    with pytest.raises(CheckpointError, match="patch_encoder/projection/kernel: .* in the file"):
        other.load_checkpoint(directory)
    same_weights(other, before)
    with pytest.raises(CheckpointError, match="patch_encoder/projection/kernel: .* in the file"):
        keras_vit.from_checkpoint(directory, image_shape=(16, 24, channels))


def test_beside_another_model_s_shards(model, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="in several files.*another directory"):
        keras_vit.to_checkpoint(model, tmp_path, format="timm")


def test_arguments_out_of_range(directory):
    for arguments in ({"num_classes": 0}, {"image_shape": (8, 8)}, {"resampling": "nearest"}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            keras_vit.from_checkpoint(directory, **arguments)
    with pytest.raises(ValueError, match="Unknown arguments .*num_head'"):
        keras_vit.from_checkpoint(directory, num_head=3)


def test_norm_scales_with_four_axes(tmp_path):
    """R50+B/16's published file has (1, 1, 1, C); it comes back in that shape."""
    hybrid = keras_vit.VisionTransformer(
        **{**VIT, "image_shape": (32, 32, 3), "patch_size": 1, "num_layers": 1},
        stem={"block_counts": (1, 1), "width": 8, "groups": 4},
    )
    harness.randomize(hybrid)
    with pytest.warns(UserWarning, match="own code runs this file with stem"):
        keras_vit.to_checkpoint(hybrid, tmp_path / "a.npz", format="google")
    with open_checkpoint(tmp_path / "a.npz") as store:
        metadata = store.metadata
        arrays = {name: store.read(name) for name in store.entries}
    for name, array in arrays.items():
        if "/gn" in name or "gn_root" in name:
            arrays[name] = array.reshape(1, 1, 1, -1)
    from keras_vit.checkpoints.npz import write_npz

    entries = {name: Entry(array.shape) for name, array in arrays.items()}
    write_npz(tmp_path / "b.npz", entries, arrays.__getitem__, metadata)
    loaded = keras_vit.from_checkpoint(tmp_path / "b.npz")
    same_weights(loaded, weights(hybrid))
    with pytest.warns(UserWarning, match="own code"):
        keras_vit.to_checkpoint(loaded, tmp_path / "c.npz", format="google")
    with open_checkpoint(tmp_path / "c.npz") as store:
        assert store.entries["gn_root/scale"].shape == (1, 1, 1, 8)


def test_weights_argument(directory):
    """A variant's function takes a path too, and refuses what is another variant."""
    with pytest.raises(ValueError, match="does not hold a ViT-Ti/16: it has .*hidden_dim=12"):
        keras_vit.ViTTi16(weights=str(directory), num_heads=3)
    with pytest.raises(ValueError, match="Unknown weights for ViT-Ti/16. Expected one of"):
        keras_vit.ViTTi16(weights="imagenet")


def test_weights_argument_of_the_right_variant(tmp_path):
    model = keras_vit.ViTTi16(num_classes=2, image_shape=(32, 32, 3), num_layers=1)
    harness.randomize(model)
    keras_vit.to_checkpoint(model, tmp_path / "a", format="timm")
    loaded = keras_vit.ViTTi16(weights=str(tmp_path / "a"), num_layers=1, drop_path_rate=0.1)
    same_weights(loaded, weights(model))
    config = loaded.get_config()
    assert (config["drop_path_rate"], config["num_classes"]) == (0.1, 2)
    assert loaded.name == "vitti16"
    assert isinstance(loaded.optimizer, keras_vit.training.AdamW)
