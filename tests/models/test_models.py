"""What users rely on: names, numbers, compilation, surgery, saving."""

import json
from pathlib import Path

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import base

GOLDEN = Path(__file__).parents[1] / "golden"
VIT = {"image_shape": (14, 21, 3), "patch_size": 7, "hidden_dim": 8, "num_layers": 2}
VIT |= {"num_heads": 2, "mlp_dim": 13, "num_classes": 5}
STEM = {"block_counts": (1, 1), "width": 8, "groups": 4}
# Between them every kind of layer.
GOLDEN_MODELS = {
    "vit": VIT,
    "hybrid": {**VIT, "image_shape": (24, 40, 3), "patch_size": 2, "stem": STEM},
    "many": {
        **VIT,
        "pooling": "map",
        "num_registers": 2,
        "class_token": True,
        "position_embedding": "learned_2d",
        "representation_size": 6,
        "layer_scale_init": 0.1,
        "qk_norm": True,
        "activation": "swiglu",
        "pre_norm": True,
    },
    "distilled": {**VIT, "distillation": "head", "num_registers": 2},
    "token_gap": {**VIT, "pooling": "token_gap", "distillation": "token", "head_bias": False},
}


def _golden(name):
    model = keras_vit.VisionTransformer(**GOLDEN_MODELS[name])
    harness.randomize(model)
    images = harness.pixels((2, *model.input_shape[1:]), name)
    return model, images


def write_golden_files():
    """Run by hand, when a change of names or numbers is meant."""
    GOLDEN.mkdir(exist_ok=True)
    models = {name: _golden(name) for name in GOLDEN_MODELS}
    names = {name: [v.path for v in model.weights] for name, (model, _) in models.items()}
    (GOLDEN / "weight_names.json").write_text(json.dumps(names, indent=1) + "\n")
    logits = {n: model.predict(images, verbose=0) for n, (model, images) in models.items()}
    np.savez(GOLDEN / "logits.npz", **logits)


@pytest.mark.parametrize("name", GOLDEN_MODELS)
def test_weight_names_are_a_contract(name):
    expected = json.loads((GOLDEN / "weight_names.json").read_text())[name]
    assert [v.path for v in _golden(name)[0].weights] == expected


@pytest.mark.parametrize("name", GOLDEN_MODELS)
def test_backends_give_the_same_logits(name):
    model, images = _golden(name)
    with np.load(GOLDEN / "logits.npz") as golden:
        expected = golden[name]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, atol=1e-5)


def test_fit_works_as_written():
    model = keras_vit.ViTTi16(num_classes=10, image_shape=(32, 32, 3), num_layers=1)
    images = harness.pixels((6, 32, 32, 3)).astype("uint8")
    history = model.fit(images, np.arange(6), verbose=0).history
    assert set(history) == {"loss", "accuracy"}
    assert isinstance(model.optimizer, keras_vit.training.AdamW)
    # A zero head knows nothing: the loss of the first batch is that of ten equal chances.
    assert history["loss"][0] == pytest.approx(np.log(10), abs=1e-5)


def test_own_compile_replaces_the_default():
    model = keras_vit.VisionTransformer(**VIT)
    optimizer = keras.optimizers.SGD(0.125)
    model.compile(optimizer, "mse", metrics=["mae"])
    history = model.fit(harness.pixels((2, 14, 21, 3)), np.ones((2, 5)), verbose=0).history
    assert model.optimizer is optimizer
    assert set(history) == {"loss", "mae"}
    # Mean of squares of zero logits from ones.
    assert history["loss"][0] == pytest.approx(1.0)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_classifier_activation(activation):
    logits = keras_vit.VisionTransformer(**VIT)
    model = keras_vit.VisionTransformer(**VIT, classifier_activation=activation)
    harness.randomize(logits)
    harness.copy_state(logits, model)
    images = harness.pixels((3, 14, 21, 3))
    x = logits.predict(images, verbose=0)
    exp = np.exp(x)
    expected = exp / exp.sum(1, keepdims=True) if activation == "softmax" else exp / (1 + exp)
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, atol=1e-6)
    labels = {"softmax": np.array([0, 1, 2]), "sigmoid": np.eye(5)[:3]}[activation]
    (loss, *_) = model.evaluate(images, labels, verbose=0)
    chosen = expected[np.arange(3), [0, 1, 2]]
    wanted = {
        "softmax": -np.log(chosen).mean(),
        "sigmoid": -np.where(np.eye(5)[:3] > 0, np.log(expected), np.log(1 - expected)).mean(),
    }[activation]
    assert loss == pytest.approx(wanted, rel=1e-4)


def test_names_of_input_and_output():
    for _ in range(2):
        model = keras_vit.VisionTransformer(**VIT)
        assert (model.input.name, model.output_names) == ("images", ["logits"])
    assert keras_vit.VisionTransformer(**{**VIT, "num_classes": None}).output_names == ["features"]


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"num_classes": None}, (None, 8)),
        ({"num_classes": None, "pooling": None}, (None, 6, 8)),
        ({"num_classes": None, "pooling": "map", "num_registers": 3}, (None, 8)),
        ({"num_classes": None, "representation_size": 6}, (None, 6)),
        ({"pooling": "gap"}, (None, 5)),
        ({"num_classes": None, "pooling": "mean"}, (None, 8)),
        ({"num_classes": None, "pooling": "token_gap"}, (None, 16)),
        ({"num_classes": None, "pooling": "token_gap", "representation_size": 6}, (None, 6)),
        ({"num_classes": None, "distillation": "head"}, (None, 8)),
    ],
)
def test_output_shapes(changes, shape):
    assert keras_vit.VisionTransformer(**{**VIT, **changes}).output_shape == shape


def test_layers_can_be_reached():
    model, images = _golden("vit")
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)
    features = tokens.predict(images, verbose=0)
    head = model.get_layer("head")
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in (head.kernel, head.bias))
    expected = features[:, 0] @ kernel + bias
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, atol=1e-5)


def test_pictures_are_left_alone():
    model, images = _golden("vit")
    original = images.copy()
    first = model.predict(images, verbose=0)
    np.testing.assert_array_equal(images, original)
    np.testing.assert_array_equal(model.predict(images, verbose=0), first)
    scaling = model.get_layer("rescaling")
    once, twice = (harness.numpy(scaling(images)) for _ in range(2))
    np.testing.assert_array_equal(images, original)
    np.testing.assert_array_equal(once, twice)


def test_pictures_of_any_dtype():
    model, images = _golden("vit")
    whole = images.astype("uint8")
    expected = model.predict(whole, verbose=0)
    for dtype in ("float16", "float32", "float64", "int32"):
        np.testing.assert_array_equal(model.predict(whole.astype(dtype), verbose=0), expected)


@pytest.mark.parametrize("pixel_range", ["inception", "imagenet", "clip", "unit"])
def test_rescaling_is_what_is_left_out_without_it(pixel_range):
    mean, deviation = {
        "inception": (0.5, 0.5),
        "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        "clip": (
            [0.48145466, 0.4578275, 0.40821073],
            [0.26862954, 0.26130258, 0.27577711],
        ),
        "unit": (0.0, 1.0),
    }[pixel_range]
    inside = keras_vit.VisionTransformer(**VIT, pixel_range=pixel_range)
    outside = keras_vit.VisionTransformer(**VIT, include_rescaling=False)
    harness.randomize(inside)
    harness.copy_state(inside, outside)
    images = harness.pixels((2, 14, 21, 3))
    scaled = ((images / 255 - np.array(mean)) / np.array(deviation)).astype("float32")
    np.testing.assert_allclose(
        inside.predict(images, verbose=0), outside.predict(scaled, verbose=0), atol=2e-5
    )


def test_channels_first_settings_change_nothing():
    model, images = _golden("hybrid")
    expected = model.predict(images, verbose=0)
    keras.config.set_image_data_format("channels_first")
    again, _ = _golden("hybrid")
    np.testing.assert_array_equal(again.predict(images, verbose=0), expected)


def test_initial_values():
    model = keras_vit.VisionTransformer(**{**VIT, "hidden_dim": 64, "num_registers": 4})
    values = {v.path: harness.numpy(v) for v in model.weights}
    for path in ("patch_encoder/class_token", "head/kernel", "head/bias"):
        assert not values[path].any(), path
    table = values["patch_encoder/position_embedding/embedding"]
    assert table.std() == pytest.approx(0.02, rel=0.2)
    limit = np.sqrt(6 / (64 + 64))  # Glorot's, of a square kernel
    qkv = np.abs(values["encoder_block_0/attention/qkv/kernel"])
    assert 0.98 * limit < qkv.max() <= limit
    bias = values["encoder_block_0/mlp/fc1/bias"]
    assert 0 < np.abs(bias).max() < 1e-5


# Surgery -----------------------------------------------------------------------------------


def test_replace_head_keeps_everything_else():
    model, images = _golden("many")
    before = harness.snapshot(model)
    new = keras_vit.replace_head(model, 3, drop_path_rate=0.2)
    after = harness.snapshot(model)
    assert all(np.array_equal(after[path], value) for path, value in before.items())
    assert new.output_shape == (None, 3)
    assert new.get_config()["drop_path_rate"] == 0.2
    assert new.get_config()["representation_size"] is None
    assert not new.predict(images, verbose=0).any()  # a zero head
    kept = {v.path: harness.numpy(v) for v in new.weights if not v.path.startswith("head")}
    for path, value in kept.items():
        np.testing.assert_array_equal(value, before[path], err_msg=path)
    features = keras_vit.replace_head(model, None)
    assert features.output_names == ["features"]


def test_replace_head_refuses_what_would_lose_weights():
    model, _ = _golden("vit")
    with pytest.raises(ValueError, match="num_layers.*encoder_block_2"):
        keras_vit.replace_head(model, 3, num_layers=3)
    with pytest.raises(ValueError, match="depth.*Expected"):
        keras_vit.replace_head(model, 3, depth=3)
    with pytest.raises(ValueError, match="VisionTransformer or BiTResNet.*Sequential"):
        keras_vit.replace_head(keras.Sequential(), 3)


def test_resnet_surgery_needs_no_resampling():
    model = keras_vit.BiTResNet(
        image_shape=(24, 24, 3), block_counts=(1,), width_factor=0.125, groups=4, num_classes=3
    )
    harness.randomize(model)
    larger = keras_vit.resize(model, (31, 45, 3))
    assert larger.input_shape == (None, 31, 45, 3)
    for old, new in zip(model.weights, larger.weights, strict=True):
        np.testing.assert_array_equal(harness.numpy(old), harness.numpy(new))
    for bad, message in {
        (24, 24, 1): "3 channels.*image_shape",
        (24, 24): r"3 of positive.*image_shape=\(24, 24\)",
        24: "3 of positive.*image_shape=24",
    }.items():
        with pytest.raises(ValueError, match=message):
            keras_vit.resize(model, bad)
    with pytest.raises(ValueError, match="VisionTransformer or BiTResNet.*Sequential"):
        keras_vit.resize(keras.Sequential(), (24, 24, 3))


# Saving ------------------------------------------------------------------------------------


def test_frozen_layers_stay_frozen(tmp_path):
    model, images = _golden("vit")
    for layer in model.layers[:-2]:
        layer.trainable = False
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(images, np.array([0, 1]), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.trainable_variables] == ["head/kernel", "head/bias"]
    assert int(loaded.optimizer.iterations) == 1
    loaded.fit(images, np.array([0, 1]), verbose=0)


def test_a_save_that_dies_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.keras"
    model, images = _golden("vit")
    model.save(path)
    old = path.read_bytes()

    def die(self, filepath, *args, **kwargs):
        Path(filepath).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(keras.Model, "save", die)
    with pytest.raises(OSError, match="disk full"):
        model.save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_save_respects_overwrite(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"precious")
    model, _ = _golden("vit")
    with pytest.raises((OSError, ValueError, EOFError)):
        model.save(path, overwrite=False)
    assert path.read_bytes() == b"precious"


def test_a_fresh_process_needs_the_package_alone(tmp_path):
    model, images = _golden("many")
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "images.npy", images)
    code = (
        "import sys, numpy, keras_vit\n"
        "model = keras_vit.load_model('model.keras')\n"
        "numpy.save('logits.npy', model.predict(numpy.load('images.npy'), verbose=0))\n"
    )
    harness.run_python(code, folder=tmp_path)
    expected = model.predict(images, verbose=0)
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), expected)


def test_load_model_names_what_is_wrong(tmp_path):
    path = tmp_path / "model.keras"
    _golden("vit")[0].save(path)
    whole = path.read_bytes()
    with pytest.raises(ValueError, match=r"No such file.*missing\.keras"):
        keras_vit.load_model(tmp_path / "missing.keras")
    (tmp_path / "model.h5").write_bytes(whole)
    with pytest.raises(ValueError, match=r"'\.keras' files.*model\.h5"):
        keras_vit.load_model(tmp_path / "model.h5")
    cuts = np.linspace(0, len(whole) - 1, 9).astype(int)
    for damaged in [b"not a zip file", *(whole[:cut] for cut in cuts)]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.keras is not a whole"):
            keras_vit.load_model(path)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match=r"model\.keras is not a whole"):
        keras_vit.load_model(path)


def test_weights_file(tmp_path):
    path = tmp_path / "tiny.weights.h5"
    small = {"image_shape": (32, 32, 3), "num_layers": 1, "num_classes": 3}
    model = keras_vit.ViTTi16(**small)
    harness.randomize(model)
    model.save_weights(path)
    loaded = keras_vit.ViTTi16(weights=path, **small)
    for old, new in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(harness.numpy(old), harness.numpy(new))


def test_the_policy_travels(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras_vit.VisionTransformer(**VIT).save(tmp_path / "model.keras")
    keras.config.set_dtype_policy("float32")
    loaded = keras_vit.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("encoder_block_0").compute_dtype == "bfloat16"


def test_default_learning_rate_is_documented():
    assert base.default_compilation(None)["optimizer"].get_config()[
        "learning_rate"
    ] == pytest.approx(3e-4)


if __name__ == "__main__":
    write_golden_files()
