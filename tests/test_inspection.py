"""Looking inside a model: attention maps and rollout."""

import gc
import weakref

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

VIT = {"image_shape": (14, 21, 3), "patch_size": 7, "hidden_dim": 10, "num_layers": 3}
VIT |= {"num_heads": 2, "mlp_dim": 13, "num_classes": 5, "num_registers": 2}


@pytest.fixture(scope="module")
def model():
    model = keras_vit.VisionTransformer(**VIT, dropout_rate=0.5)
    harness.randomize(model)
    return model


@pytest.fixture(scope="module")
def images():
    return harness.pixels((3, 14, 21, 3))


def test_maps_are_what_the_blocks_compute(model, images):
    before = harness.snapshot(model)
    logits = harness.numpy(model(images, training=False))
    maps = inspection.attention_maps(model, images)
    assert [m.shape for m in maps] == [(3, 2, 9, 9)] * 3
    for scores in maps:
        assert scores.dtype == "float32"
        np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    # Block by block, by hand.
    x = keras.Model(model.input, model.get_layer("patch_encoder").output)(images, training=False)
    for block, scores in zip(model.encoder_blocks, maps, strict=True):
        np.testing.assert_allclose(harness.numpy(block.attention_scores(x)), scores, atol=1e-6)
        x = block(x, training=False)
    assert np.abs(maps[0] - maps[1]).max() > 1e-3
    harness.assert_same(harness.snapshot(model), before, "looking changed the model")
    np.testing.assert_array_equal(harness.numpy(model(images, training=False)), logits)


@pytest.mark.parametrize("layers", [[0], [2, 0], [-1], range(1, 3), []])
def test_some_layers(model, images, layers):
    every = inspection.attention_maps(model, images)
    some = inspection.attention_maps(model, images, layers=layers)
    assert len(some) == len(layers)
    for index, scores in zip(layers, some, strict=True):
        np.testing.assert_allclose(scores, every[index], atol=1e-6)


def test_pictures_of_whole_numbers(model, images):
    whole = images.astype("uint8")
    by_dtype = [
        inspection.attention_maps(model, x, layers=[-1])[0] for x in (whole, whole.astype(float))
    ]
    np.testing.assert_array_equal(*by_dtype)


@pytest.mark.parametrize(
    "changes",
    [
        {"position_placement": "every_layer"},
        {"distillation": "head", "num_registers": 2},
        {"position_embedding": "relative", "pooling": "gap"},
        {"pooling": "map", "class_token": False, "pre_norm": True, "patch_dropout_rate": 0.5},
        {"dtype": "mixed_bfloat16", "qk_norm": True, "remat": True},
    ],
)
def test_other_architectures(changes, images):
    model = keras_vit.VisionTransformer(**{**VIT, "num_layers": 1, **changes})
    (scores,) = inspection.attention_maps(model, images)
    tokens = model.num_prefix_tokens + 6
    assert scores.shape == (3, 2, tokens, tokens)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    shares = inspection.attention_rollout(model, images)
    np.testing.assert_allclose(shares.sum((1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_rollout_equals_a_loop(images, pooling):
    model = keras_vit.VisionTransformer(**{**VIT, "pooling": pooling})
    harness.randomize(model)
    maps = inspection.attention_maps(model, images)
    shares = inspection.attention_rollout(model, images)
    assert shares.shape == (3, 2, 3)
    prefix = model.num_prefix_tokens
    for sample in range(3):
        product = np.eye(prefix + 6)
        for scores in maps:
            mixed = 0.5 * scores[sample].astype("float64").mean(0) + 0.5 * np.eye(prefix + 6)
            product = mixed @ product
        row = product[0] if pooling == "token" else product[prefix:].mean(0)
        expected = row[prefix:] / row[prefix:].sum()
        np.testing.assert_allclose(shares[sample].ravel(), expected, atol=1e-5)


@pytest.mark.parametrize("head_fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard_ratio", [0.0, 0.3, 0.9])
def test_rollout_of_some_probabilities(model, images, head_fusion, discard_ratio):
    shares = inspection.attention_rollout(model, images, head_fusion, discard_ratio)
    tokens = model.num_prefix_tokens + 6
    for sample in range(3):
        product = np.eye(tokens)
        for scores in inspection.attention_maps(model, images):
            fused = getattr(scores[sample].astype("float64"), head_fusion)(axis=0)
            smallest = np.sort(fused.ravel())[: int(discard_ratio * tokens * tokens)]
            if len(smallest):
                fused[fused <= smallest[-1]] = 0
            total = fused.sum(-1, keepdims=True)
            fused = fused / np.where(total > 0, total, 1)
            product = (0.5 * fused + 0.5 * np.eye(tokens)) @ product
        expected = product[0, model.num_prefix_tokens :]
        np.testing.assert_allclose(shares[sample].ravel(), expected / expected.sum(), atol=1e-5)


def test_registers_that_nobody_attends_to_give_nothing(model, images, monkeypatch):
    """What patches and class token share among themselves is what a model without them shares."""
    prefix, tokens = model.num_prefix_tokens, model.num_prefix_tokens + 6
    scores = np.exp(harness.noise((3, 3, 2, tokens, tokens)))
    scores[..., 1:prefix] = 0  # behind the class token
    scores /= scores.sum(-1, keepdims=True)
    module = inspection.attention
    monkeypatch.setattr(module, "iter_attention_maps", lambda model, images: iter(scores))
    found = inspection.attention_rollout(model, images)
    kept = [0, *range(prefix, tokens)]
    for sample in range(3):
        product = np.eye(7)
        for layer in scores:
            product = (0.5 * layer[sample].mean(0)[np.ix_(kept, kept)] + 0.5 * np.eye(7)) @ product
        expected = product[0, 1:] / product[0, 1:].sum()
        np.testing.assert_allclose(found[sample].ravel(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_fusion": "sum"}, "head_fusion.*'mean', 'max', 'min'.*sum"),
        ({"discard_ratio": 1.0}, r"discard_ratio.*\[0, 1\).*1.0"),
    ],
)
def test_rollouts_that_there_are_not(model, images, options, message):
    with pytest.raises(ValueError, match=message):
        inspection.attention_rollout(model, images, **options)


def test_maps_come_one_after_the_other(model, images):
    maps = inspection.iter_attention_maps(model, images, layers=(2, 0))
    np.testing.assert_array_equal(next(maps), inspection.attention_maps(model, images)[2])


def test_rollout_of_next_to_nothing(model, images):
    """Where all that reaches the output is left out, nothing is shared, and nothing is NaN."""
    shares = inspection.attention_rollout(model, images, "max", 0.9999)
    total = shares.sum((1, 2))
    assert np.isfinite(shares).all()
    assert (np.isclose(total, 1, atol=1e-5) | (total == 0)).all() and (total == 0).any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_images_that_are_not_finite(model, images, value):
    bad = images.copy()
    bad[1, 2, 3, 0] = value
    for look in (
        inspection.attention_maps,
        inspection.attention_rollout,
        inspection.patch_features,
        inspection.class_relevance,
        inspection.probabilities,
    ):
        with pytest.raises(ValueError, match="images.*finite"):
            look(model, bad)


def test_all_of_it_is_reached_from_the_package():
    for name in inspection.__all__:
        assert getattr(keras_vit.inspection, name) is not None
    assert callable(keras_vit.inspection.plots.maps)
    assert callable(keras_vit.inspection.page.write_page)


def test_layers_that_are_no_list(model, images):
    for look in (inspection.attention_maps, inspection.weighted_attention_maps):
        with pytest.raises(ValueError, match="`layers` must be a list of indices.*Received: 1"):
            look(model, images, layers=1)


def test_probabilities(model, images):
    logits = harness.numpy(model(images, training=False)).astype("float64")
    found = inspection.probabilities(model, images)
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    softmax = keras_vit.VisionTransformer(**VIT, classifier_activation="softmax")
    harness.randomize(softmax)
    np.testing.assert_allclose(inspection.probabilities(softmax, images), expected, atol=1e-6)
    with pytest.raises(ValueError, match="head"):
        inspection.probabilities(
            keras_vit.VisionTransformer(**{**VIT, "num_classes": None}), images
        )


def test_looking_leaves_training_as_it_is(images):
    """The numbers that dropout draws are the same with and without."""
    labels = np.array([0, 1, 2])

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            inspection.probabilities(self.model, images)
            inspection.class_relevance(self.model, images)

    losses = []
    for callbacks in ([], [Looks()]):
        keras.utils.set_random_seed(3)
        twin = keras_vit.VisionTransformer(**VIT, dropout_rate=0.3)
        harness.randomize(twin)
        fitted = twin.fit(images, labels, epochs=3, callbacks=callbacks, verbose=0)
        losses.append(fitted.history["loss"])
    assert losses[0] == losses[1]


@pytest.mark.skipif(harness.BACKEND != "torch", reason="it is PyTorch's")
def test_in_inference_mode(model, images):
    import torch

    expected = inspection.class_relevance(model, images)
    with torch.inference_mode():
        found = inspection.class_relevance(model, images)
        inspection.attention_maps(model, images)
    np.testing.assert_array_equal(found, expected)
    given = torch.from_numpy(images).requires_grad_()
    np.testing.assert_array_equal(inspection.class_relevance(model, given), expected)


def test_one_map_is_in_memory_at_a_time(model, images):
    known = []
    for scores in inspection.iter_attention_maps(model, images):
        # Backends may share memory with the array, whose owner then counts.
        owner = scores if scores.base is None else scores.base
        known.append(weakref.ref(owner if isinstance(owner, np.ndarray) else scores))
        del scores, owner
        gc.collect()
        assert [ref() is not None for ref in known[:-1]] == [False] * (len(known) - 1)
    assert len(known) == 3


def test_nothing_is_kept_for_a_backward_pass(model, images):
    tensors = [block.input for block in model.encoder_blocks]
    found = inspection.subject.values_at(model, tensors, images)
    assert not any(getattr(x, "requires_grad", False) for x in found)


def test_a_model_of_another_kind(images):
    resnet = keras_vit.BiTResNet(
        image_shape=(14, 21, 3), block_counts=(1,), width_factor=0.125, groups=4
    )
    for look in (inspection.attention_maps, inspection.attention_rollout):
        with pytest.raises(ValueError, match="VisionTransformer.*Received: .*BiTResNet"):
            look(resnet, images)


@pytest.mark.parametrize("layers", [[3], [-4], [0, 7]])
def test_a_layer_that_is_not_there(model, images, layers):
    with pytest.raises(ValueError, match=rf"3 blocks.*Received: {layers[-1]}"):
        inspection.attention_maps(model, images, layers=layers)
