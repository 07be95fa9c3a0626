"""Predictions and features of whole data sets, whatever the batches come from."""

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation import extract_features, predict_all
from keras_vit.evaluation.batches import Progress, batches, count_batches

VIT = {"image_shape": (8, 12, 3), "patch_size": 4, "hidden_dim": 10, "num_layers": 1}
VIT |= {"num_heads": 2, "mlp_dim": 13, "num_classes": 5}
IMAGES = harness.pixels((11, 8, 12, 3)).astype("uint8")
LABELS = np.arange(11) % 5


def cut(size):
    return [(IMAGES[s : s + size], LABELS[s : s + size]) for s in range(0, 11, size)]


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return cut(4)[index]


def tf_dataset():
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(4)


def loader():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(IMAGES), torch.tensor(LABELS))
    return torch.utils.data.DataLoader(data, batch_size=4)


@pytest.fixture(scope="module")
def model():
    model = keras_vit.VisionTransformer(**VIT, dropout_rate=0.5)
    harness.randomize(model)
    return model


@pytest.fixture(scope="module")
def expected(model):
    return harness.numpy(model(IMAGES, training=False))


@pytest.mark.parametrize(
    "data",
    [
        lambda: (IMAGES, LABELS),
        lambda: cut(4),
        lambda: (pair for pair in cut(4)),
        lambda: [[*pair, np.ones(len(pair[0]))] for pair in cut(4)],
        lambda: tuple(cut(6)),
        lambda: Sequence(),
        tf_dataset,
        loader,
    ],
    ids=["arrays", "list", "generator", "weights", "two-batches", "PyDataset", "tf.data", "torch"],
)
def test_every_image_in_order(model, expected, data):
    logits, labels = predict_all(model, data(), progress=False, batch_size=4)
    assert logits.shape == (11, 5) and logits.dtype == "float32"
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_array_equal(labels, LABELS)


def test_steps_end_an_endless_stream(model, expected):
    def forever():
        while True:
            yield from cut(4)

    logits, labels = predict_all(model, forever(), steps=2, progress=False)
    np.testing.assert_allclose(logits, expected[:8], atol=1e-5)
    np.testing.assert_array_equal(labels, LABELS[:8])


def test_images_alone(model, expected):
    logits, labels = predict_all(model, IMAGES, progress=False)
    assert labels is None
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_probabilities_become_logits(model, expected, activation):
    other = keras_vit.VisionTransformer(**VIT, classifier_activation=activation)
    harness.randomize(other)
    logits, _ = predict_all(other, IMAGES, progress=False)
    if activation == "softmax":  # known up to a constant
        logits = logits - logits[:, :1] + expected[:, :1]
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_a_certain_probability_stays_finite():
    images = keras.Input((1,))
    model = keras.Model(images, keras.layers.Activation("linear")(images))
    values = np.array([[0.0], [1.0]], "float32")
    for outputs in ("softmax", "sigmoid"):
        logits, _ = predict_all(model, [values], progress=False, outputs=outputs)
        assert np.isfinite(logits).all() and logits[0] < logits[1]


@pytest.mark.parametrize(
    "changes",
    [{}, {"representation_size": 7}, {"distillation": "head"}, {"pooling": "map"}],
    ids=str,
)
def test_features_are_what_the_head_reads(changes):
    model = keras_vit.VisionTransformer(**{**VIT, **changes})
    harness.randomize(model)
    bare = keras_vit.VisionTransformer(**{**VIT, **changes, "num_classes": None})
    values = harness.parameters(model)
    for path, variable in harness.parameters(bare).items():
        variable.assign(harness.numpy(values[path]))
    before = harness.snapshot(model)
    features, labels = extract_features(model, (IMAGES, LABELS), batch_size=4, progress=False)
    without_head, nothing = extract_features(bare, IMAGES, progress=False)
    np.testing.assert_allclose(features, without_head, atol=1e-5)
    np.testing.assert_allclose(without_head, harness.numpy(bare(IMAGES, training=False)), atol=1e-5)
    np.testing.assert_array_equal(labels, LABELS)
    assert nothing is None
    harness.assert_same(harness.snapshot(model), before)


def test_features_of_any_keras_model():
    images = keras.Input((8, 12, 3))
    outputs = keras.layers.GlobalAveragePooling2D(data_format="channels_last")(images)
    features, _ = extract_features(keras.Model(images, outputs), cut(4), progress=False)
    np.testing.assert_allclose(features, IMAGES.mean((1, 2)), rtol=1e-5)


def test_what_cannot_be(model):
    tokens = keras_vit.VisionTransformer(**{**VIT, "num_classes": None, "pooling": None})
    cases = [
        (lambda: predict_all(model, [], progress=False), "`dataset` holds no image"),
        (lambda: extract_features(model, [], progress=False), "`data` holds no image"),
        (lambda: predict_all(tokens, IMAGES, progress=False), r"\(batch, classes\).*\(11, 6, 10\)"),
        (lambda: extract_features(tokens, IMAGES, progress=False), "a `pooling`.*6, 10"),
        (lambda: predict_all(model, (IMAGES, LABELS[:3]), progress=False), "11 images, 3 labels"),
        (lambda: predict_all(model, [(IMAGES, LABELS[:3])], progress=False), "same length"),
        (lambda: predict_all(model, 7), "Received: int"),
        (lambda: predict_all(model, [(IMAGES,) * 4], progress=False), "a tuple of 4"),
        (lambda: predict_all(model, IMAGES, steps=0), "`steps`"),
        (lambda: predict_all(model, IMAGES, outputs="odds"), "`outputs`.*odds"),
        (lambda: predict_all(model, [IMAGES, (IMAGES, LABELS)], progress=False), "labels with all"),
        (lambda: extract_features(model, [IMAGES, (IMAGES, LABELS)], progress=False), "labels wit"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_short_last_batch_is_not_compiled_anew():
    calls = []

    class Spy:
        def predict_on_batch(self, images):
            calls.append(images.shape)
            return images.sum((1, 2, 3))[:, None]

    logits, _ = predict_all(Spy(), cut(4), progress=False)
    assert calls == [(4, 8, 12, 3)] * 3
    np.testing.assert_allclose(logits[:, 0], IMAGES.sum((1, 2, 3)))


def test_progress(model, capsys):
    predict_all(model, cut(4))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "evaluating: 11 images" in shown.err and "images/s" in shown.err
    bar = Progress("evaluating", 4)
    bar.update(6), bar.update(6)
    assert bar.line(3.0) == "evaluating: 12 images, 4 images/s, 50%, 3 s left"


def test_batches_are_counted_where_they_can_be():
    assert count_batches((IMAGES, LABELS), 4) == 3
    assert count_batches(cut(4), steps=2) == 2
    assert count_batches(iter(cut(4))) is None
    assert count_batches(iter(cut(4)), steps=2) == 2
    assert [len(images) for images, _ in batches(IMAGES, 4)] == [4, 4, 3]


@pytest.mark.skipif(harness.BACKEND != "jax", reason="keras.distribution is JAX's")
@pytest.mark.multi_device
def test_batches_that_the_devices_do_not_divide():
    code = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import keras_vit, keras, numpy as np
from keras_vit.evaluation import predict_all
images = np.random.default_rng(0).uniform(0, 255, (11, 8, 8, 3)).astype("float32")

def logits():
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(image_shape=(8, 8, 3), patch_size=4, hidden_dim=8,
        num_layers=1, num_heads=2, mlp_dim=12, num_classes=3)
    model.get_layer("head").kernel.assign(np.arange(24).reshape(8, 3) / 24)
    return predict_all(model, images, progress=False, batch_size=6)[0]

one = logits()
keras.distribution.set_distribution(keras.distribution.DataParallel())
many = logits()
np.testing.assert_allclose(many, one, atol=1e-5)
print(many.shape)
"""
    assert harness.run_python(code).strip().endswith("(11, 3)")
