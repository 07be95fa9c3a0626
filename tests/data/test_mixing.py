"""MixUp and CutMix: labels keep their mass and say what the pixels say."""

import harness
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import mixing

SIZE = (11, 13)


def mixed(step, mixup, cutmix, batch=7, classes=5):
    images = harness.random_for("images").integers(0, 256, (batch, *SIZE, 3)).astype("uint8")
    labels = np.eye(classes, dtype="float32")[np.arange(batch) % classes]
    share, box = mixing.draw(3, step, SIZE, mixup, cutmix)
    found = mixing.mix(images, tf.constant(labels), tf.constant(share), tf.constant(box))
    return images, labels, share, box, found[0].numpy(), found[1].numpy()


@pytest.mark.parametrize("step", range(8))
def test_mixup(step):
    images, labels, share, box, x, y = mixed(step, 0.8, 0)
    assert 0.5 <= share <= 1 and not box.any()
    partner = np.roll(np.arange(7), -1)
    np.testing.assert_allclose(
        x, share * images + (1 - share) * images[partner].astype(float), atol=1e-3
    )
    np.testing.assert_allclose(y, share * labels + (1 - share) * labels[partner], atol=1e-6)
    np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("step", range(8))
def test_cutmix(step):
    images, labels, share, box, x, y = mixed(step, 0, 1.0)
    assert share == 1
    top, left, bottom, right = box
    assert 0 <= top <= bottom <= SIZE[0] and 0 <= left <= right <= SIZE[1]
    expected = images.copy()
    partner = np.roll(np.arange(7), -1)
    expected[:, top:bottom, left:right] = images[partner][:, top:bottom, left:right]
    np.testing.assert_array_equal(x, expected)
    taken = (bottom - top) * (right - left) / (SIZE[0] * SIZE[1])
    np.testing.assert_allclose(y, (1 - taken) * labels + taken * labels[partner], atol=1e-6)
    np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-6)


def test_draws_follow_the_beta_distribution():
    shares = np.array([mixing.draw(0, step, SIZE, 0.5, 0)[0] for step in range(2000)])
    generator = np.random.default_rng(1)
    beta = generator.beta(0.5, 0.5, 2000)
    beta = np.maximum(beta, 1 - beta)
    assert abs(shares.mean() - beta.mean()) < 4 * beta.std() * (2 / 2000) ** 0.5
    boxes = np.array([mixing.draw(0, step, (100, 200), 0, 1.0)[1] for step in range(2000)])
    sides = (boxes[:, 2] - boxes[:, 0]) / 100, (boxes[:, 3] - boxes[:, 1]) / 200
    # Away from the edges the box has the aspect of the picture and an even area.
    inside = (boxes[:, 0] > 0) & (boxes[:, 2] < 100) & (boxes[:, 1] > 0) & (boxes[:, 3] < 200)
    assert np.abs(sides[0] - sides[1])[inside].max() < 0.02
    assert inside.sum() > 200


def test_with_both_each_batch_gets_one():
    kinds = [mixing.draw(0, step, SIZE, 0.3, 1.0)[0] < 1 for step in range(400)]
    assert 150 < sum(kinds) < 250
    assert kinds == [mixing.draw(0, step, SIZE, 0.3, 1.0)[0] < 1 for step in range(400)]


def test_one_example_alone_stays(numbered):
    x, y = next(iter(data.Pipeline(numbered, 4, batch_size=1, training=True, mixup=1.0).dataset))
    np.testing.assert_allclose(y.numpy().sum(), 1, atol=1e-6)
    np.testing.assert_allclose(np.ptp(x.numpy()), 0, atol=1e-4)
