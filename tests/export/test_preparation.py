"""What is exported: the same network in float32, without the classifier's activation."""

import warnings

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export.preparation import Serving, exportable, serving_of

BASE = {"image_shape": (16, 24, 3), "patch_size": 8, "hidden_dim": 12, "num_layers": 2}
BASE |= {"num_heads": 3, "mlp_dim": 20, "num_classes": 5}
IMAGES = harness.pixels((3, 16, 24, 3))


def make(**changes):
    model = keras_vit.VisionTransformer(**{**BASE, **changes})
    harness.randomize(model)
    return model


def run(network, images=IMAGES):
    return {name: harness.numpy(value) for name, value in network(images, training=False).items()}


def test_a_plain_model_is_not_built_again():
    model = make()
    network = exportable(model)
    assert {id(v) for v in network.variables} <= {id(v) for v in model.variables}
    found = run(network)
    np.testing.assert_array_equal(found["logits"], harness.numpy(model(IMAGES)))
    # The head's own arithmetic on the features gives the logits.
    kernel, bias = (harness.numpy(v) for v in model.get_layer("head").weights)
    np.testing.assert_allclose(found["features"] @ kernel + bias, found["logits"], atol=1e-5)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_the_activation_is_left_out_and_half_precision_undone(activation):
    plain = make()
    model = make(
        classifier_activation=activation, dtype="mixed_bfloat16", remat=True, dropout_rate=0.1
    )
    found = run(exportable(model))
    np.testing.assert_allclose(found["logits"], harness.numpy(plain(IMAGES)), atol=1e-5)
    assert model.flat_config["classifier_activation"] == activation
    assert serving_of(model).probabilities == activation


def test_pure_half_precision_keeps_the_rounded_weights():
    model = make(dtype="bfloat16")
    found = run(exportable(model))
    rounded = make()
    for variable in rounded.weights:
        variable.assign(harness.numpy(harness.parameters(model)[variable.path].value))
    np.testing.assert_allclose(found["logits"], harness.numpy(rounded(IMAGES)), atol=1e-5)


def test_two_heads_give_the_mean_of_what_they_read():
    model = make(distillation="head")
    found = run(exportable(model))
    layers = [model.get_layer(name) for name in ("head", "head_dist")]
    read = keras.Model(model.input, [layer.input for layer in layers])(IMAGES)
    expected = np.mean([harness.numpy(part) for part in read], axis=0)
    np.testing.assert_allclose(found["features"], expected, atol=1e-6)


def test_without_a_head_there_are_features_alone():
    model = make(num_classes=None)
    assert set(run(exportable(model))) == {"features"}
    assert serving_of(model).num_classes is None


def test_a_model_of_other_layers():
    images = keras.Input((16, 24, 3))
    logits = keras.layers.Dense(5)(keras.layers.Flatten()(images))
    model = keras.Model(images, logits)
    found = run(exportable(model))
    np.testing.assert_array_equal(found["logits"], harness.numpy(model(IMAGES)))
    assert serving_of(model).num_classes == 5


OTHERS = {
    "images out": ("give logits", lambda x: keras.layers.ReLU()(x)),
    "an activation": (
        "activation='softmax'",
        lambda x: keras.layers.Dense(5, activation="softmax")(keras.layers.Flatten()(x)),
    ),
    "half precision": (
        "half precision",
        lambda x: keras.layers.Dense(5, dtype="mixed_bfloat16")(keras.layers.Flatten()(x)),
    ),
    "two outputs": ("one output", lambda x: [keras.layers.Flatten()(x)] * 2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_exported(name):
    words, layers = OTHERS[name]
    images = keras.Input((16, 24, 3))
    with pytest.raises(ValueError, match=words):
        exportable(keras.Model(images, layers(images)))


def test_what_is_no_functional_model():
    with pytest.raises(ValueError, match="functional"):
        exportable(keras.Sequential([keras.layers.Dense(3)]))
    with pytest.raises(ValueError, match="load_model"):
        exportable("vit.keras")
    distiller = keras_vit.training.Distiller(make(), make())
    with pytest.raises(ValueError, match="student"):
        exportable(distiller)


def test_low_rank_updates_have_to_be_merged_first():
    model = make()
    keras_vit.training.enable_lora(model, rank=2)
    with pytest.raises(ValueError, match="merge_lora"):
        exportable(model)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"class_names": ["a", "b"]}, "5 classes. Received: 2"),
        ({"class_names": ["a", "b", "c", "d\n", "e"]}, "line"),
        ({"class_names": ["a", "b", "", "d", "e"]}, "empty"),
        ({"class_names": "abcde"}, "sequence"),
        ({"probabilities": "relu"}, "probabilities"),
        ({"crop": "inception"}, "crop"),
        ({"interpolation": "lanczos"}, "interpolation"),
        ({"crop_fraction": 1.5}, "crop_fraction"),
        ({"top": 0}, "top"),
    ],
)
def test_bad_settings(changes, words):
    with pytest.raises(ValueError, match=words):
        serving_of(make(), **changes)


def test_settings_survive_json():
    serving = Serving((8, 8, 1), 2, False, ("ä", "b"), "sigmoid", "none", 0.9, "bicubic", 1)
    assert Serving.from_dict(serving.to_dict()) == serving
    assert Serving((8, 8, 1), 2).labels == ("0", "1")


def test_what_keras_quantised_is_refused():
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # layers that have nothing to quantise
        model.quantize("int8")
    with pytest.raises(ValueError, match="quantised by Keras.*int8"):
        exportable(model)


@pytest.mark.parametrize(
    "ending",
    [
        keras.layers.Softmax(),
        keras.ops.softmax,
        lambda logits: keras.Model(i := keras.Input((5,)), keras.layers.Softmax()(i))(logits),
    ],
    ids=["layer", "operation", "nested"],
)
def test_probabilities_are_not_taken_for_logits(ending):
    images = keras.Input((16, 24, 3))
    logits = keras.layers.Dense(5)(keras.layers.Flatten()(images))
    with pytest.raises(ValueError, match="must give logits.*softmax"):
        exportable(keras.Model(images, ending(logits)))
