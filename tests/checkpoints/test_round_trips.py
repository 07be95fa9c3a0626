"""Files written back as they came, and through every other project's format."""

import functools
import warnings

import harness
import keras
import numpy as np
import pytest
from parity_cases import CASES, Case, case, needs_fixtures, without_random_values

import keras_vit
from keras_vit.checkpoints import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.formats import FORMATS

NPZ = ("google", "big_vision")
# Arrays of the other tower of a two-tower model: they do not come back.
OTHER_TOWER = {
    "google/bv_map_siglip": {"params/b", "params/t", "params/txt/pos_embedding"}
    | {f"params/txt/{name}" for name in ("Embed_0/embedding",)}
    | {"params/txt/Encoder_0/encoderblock_0/LayerNorm_0/scale"},
    "timm/clip_quickgelu/openai_clip": {"logit_scale", "text_projection"},
}
BY_CASE = pytest.mark.parametrize("reference", CASES, ids=str)

pytestmark = needs_fixtures


# A case goes through all formats one after the other; compiled models are large under JAX.
@functools.lru_cache(maxsize=4)
def loaded(reference: Case):
    """The model of a case, and its outputs."""
    model = reference.build()
    shape = (2, *model.get_config()["image_shape"])
    images = np.random.default_rng(3).uniform(-1, 1, shape).astype("float32")
    return model, images, harness.numpy(model.predict_on_batch(images))


def arrays(path):
    with open_checkpoint(path) as store:
        return {name: store.read(name) for name in store.entries}


def target(folder, format_):
    return folder / ("written.npz" if format_ in NPZ else "written")


def write(model, path, format_):
    """Writes the file; what the project's own code would do otherwise does not matter here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*own code runs this file.*")
        keras_vit.to_checkpoint(model, path, format=format_)


@BY_CASE
def test_back_to_where_it_came_from(reference, tmp_path):
    """Equal arrays to the bit, under equal names, in equal shapes."""
    model, _, _ = loaded(reference)
    dialect = model.source.dialect
    if dialect not in FORMATS:
        pytest.skip(f"{dialect} files are only read")
    path = target(tmp_path, dialect)
    write(model, path, dialect)
    before, after = reference.source, arrays(path)
    assert before.keys() - after.keys() == OTHER_TOWER.get(str(reference), set())
    assert after.keys() <= before.keys()
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
        assert value.shape == before[name].shape


@pytest.mark.parametrize("format_", FORMATS)
@BY_CASE
def test_through_another_format(reference, format_, tmp_path):
    """Equal outputs, or a refusal with its reason."""
    model, images, expected = loaded(reference)
    path = target(tmp_path, format_)
    if not EXPRESSIBLE[format_](model.get_config()):
        with pytest.raises(CheckpointError, match="cannot hold this model: it has no "):
            write(model, path, format_)
        assert list(tmp_path.iterdir()) == []
        return
    write(model, path, format_)
    with without_random_values():
        again = keras_vit.from_checkpoint(path, include_rescaling=False)
    found = harness.numpy(again.predict_on_batch(images))
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 * scale)


def _bit(config):
    return "block_counts" in config


def _plain(config):
    """A ViT without what only newer projects have."""
    return not (
        _bit(config)
        or config["pre_norm"]
        or config["qk_norm"]
        or config["activation"] == "swiglu"
        or config["num_registers"]
        or config["distillation"]
    )


def _square(config):
    patch, shape = config["patch_size"], config["image_shape"]
    return patch[0] == patch[1] and shape[0] == shape[1]


def _google(config):
    pooled = config["pooling"]
    return _bit(config) or (
        _plain(config)
        and pooled in ("token", "gap", "map")
        and (pooled == "token" or not config["class_token"])
        and not (config["norm_after_pooling"] and pooled != "token")
    )


def _clip_bias(config):
    """The only case with a bias on CLIP's projection is timm's."""
    return config["num_classes"] is None or not config["head_bias"]


def _huggingface(config):
    if _bit(config) or config["qk_norm"]:
        return False
    if config["pre_norm"]:
        return _clip_bias(config)
    if config["pooling"] == "map":
        return config["num_classes"] is None and _square(config)
    pooler = config["representation_size"] is not None
    stem = config["stem"] is None or config["stem"]["block_counts"]
    return (
        config["pooling"] in ("token", "token_gap")
        and stem
        and not (pooler and (config["num_classes"] is not None or config["stem"]))
    )


EXPRESSIBLE = {
    "google": _google,
    "big_vision": _google,
    "timm": lambda c: (
        not _bit(c)
        and c["representation_size"] is None
        and c["pooling"] in ("token", "gap", "map")
        and c["distillation"] != "token"
    ),
    "dinov2": lambda c: (
        not _bit(c)
        and c["num_classes"] is None
        and c["pooling"] == "token"
        and not (c["pre_norm"] or c["qk_norm"] or c["stem"] or c["representation_size"])
        and c["distillation"] is None
    ),
    "huggingface": _huggingface,
    "torchvision": lambda c: (
        _plain(c) and c["pooling"] == "token" and c["stem"] is None and _square(c)
    ),
    "openai_clip": lambda c: not _bit(c) and c["pre_norm"] and _clip_bias(c),
}


def test_every_format_is_tried():
    assert EXPRESSIBLE.keys() == set(FORMATS)


def test_registers_in_googles_format(tmp_path):
    model, _, _ = loaded(case("timm/dinov2_reg4"))
    with pytest.raises(CheckpointError, match="'google' cannot hold .* it has no register tokens"):
        keras_vit.to_checkpoint(model, tmp_path / "a.npz", format="google")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype, tmp_path):
    model, images, expected = loaded(case("timm/vit_token"))
    keras_vit.to_checkpoint(model, tmp_path / "a.safetensors", format="timm", dtype=dtype)
    with open_checkpoint(tmp_path / "a.safetensors") as store:
        assert {entry.dtype for entry in store.entries.values()} == {dtype}
    again = keras_vit.from_checkpoint(tmp_path / "a.safetensors", include_rescaling=False)
    difference = np.abs(harness.numpy(again.predict_on_batch(images)) - expected).max()
    assert difference <= {"float64": 0, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
    assert difference > 0 or dtype == "float64"


def test_fine_tuned_and_back(tmp_path):
    """A new head, trained, goes back to timm with the rest of the model."""
    reference = case("timm/vit_token")
    with pytest.warns(UserWarning, match="the head is not the file's: 3 classes, in the file 10"):
        model = reference.build(num_classes=3)
    assert not np.any(harness.numpy(model.get_layer("head").kernel))
    images = np.random.default_rng(0).uniform(-1, 1, (6, 32, 32, 3)).astype("float32")
    model.fit(images, np.array([0, 1, 2, 0, 1, 2]), epochs=2, verbose=0)
    keras_vit.to_checkpoint(model, tmp_path / "timm", format="timm", class_names=["a", "b", "c"])
    again = keras_vit.from_checkpoint(tmp_path / "timm", include_rescaling=False)
    expected = harness.numpy(model.predict_on_batch(images))
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(
        harness.numpy(again.predict_on_batch(images)), expected, rtol=0, atol=1e-6
    )


def test_what_other_code_runs_otherwise(tmp_path):
    model = keras_vit.VisionTransformer(
        image_shape=(16, 16, 3), patch_size=8, hidden_dim=16, num_layers=1, num_heads=2,
        mlp_dim=24, num_classes=3, activation="gelu", norm_epsilon=1e-5,
    )  # fmt: skip
    harness.randomize(model)
    with pytest.warns(
        UserWarning, match="vit_jax's own code runs this file with activation='gelu_t"
    ):
        keras_vit.to_checkpoint(model, tmp_path / "a.npz", format="google")
    again = keras_vit.from_checkpoint(tmp_path / "a.npz")
    config = again.get_config()
    assert (config["activation"], config["norm_epsilon"]) == ("gelu", 1e-5)
    images = harness.pixels((2, 16, 16, 3))
    harness.assert_same(model.predict_on_batch(images), again.predict_on_batch(images))


def test_class_names_come_and_go(tmp_path):
    names = [f"bird {index}" for index in range(10)]
    model, _, _ = loaded(case("hf/vit_classification"))
    keras_vit.to_checkpoint(model, tmp_path / "a", format="huggingface", class_names=names)
    again = keras_vit.from_checkpoint(tmp_path / "a")
    assert again.source.class_names == tuple(names)
    with pytest.raises(CheckpointError, match="must name 10 classes. Received: 2"):
        keras_vit.to_checkpoint(model, tmp_path / "b", format="huggingface", class_names=["a", "b"])
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("format_", "name", "match"),
    [
        ("google", "a.safetensors", "a file ending in '.npz'"),
        ("huggingface", "a.safetensors", "must be a directory"),
        ("timm", "a.npz", "'.safetensors' or a directory"),
        ("flax", "a.npz", "`format` must be one of"),
        ("google", "missing/a.npz", "No such directory"),
    ],
)
def test_wrong_paths(format_, name, match, tmp_path):
    model, _, _ = loaded(case("google/vit_token"))
    with pytest.raises(CheckpointError, match=match):
        keras_vit.to_checkpoint(model, tmp_path / name, format=format_)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    model, _, _ = loaded(case("timm/vit_token"))
    convert = keras.ops.convert_to_numpy
    count = 0

    def failing(value):
        nonlocal count
        count += 1
        if count > 9:
            raise KeyboardInterrupt
        return convert(value)

    monkeypatch.setattr(keras.ops, "convert_to_numpy", failing)
    for name in ("a", "a.safetensors"):
        count = 0
        with pytest.raises(KeyboardInterrupt):
            keras_vit.to_checkpoint(model, tmp_path / name, format="timm")
        assert list(tmp_path.iterdir()) == []
