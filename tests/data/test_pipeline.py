"""Batches repeat to the bit, from any step, on any shard, with and without unreadable files."""

import itertools

import harness  # noqa: F401  # chooses the backend
import numpy as np
import pytest

from keras_vit import data

AUGMENTED = {
    "image_size": (13, 17),
    "training": True,
    "randaugment": (2, 10),
    "erasing": 0.5,
    "seed": 5,
}


def batches(pipe, count=None):
    """Images and labels of the first batches, as arrays."""
    taken = itertools.islice(pipe.dataset, count)
    return [(images.numpy(), labels.numpy()) for images, labels in taken]


def assert_equal_batches(one, other):
    assert len(one) == len(other)
    for (images, labels), (images2, labels2) in zip(one, other, strict=True):
        np.testing.assert_array_equal(images, images2)
        np.testing.assert_array_equal(labels, labels2)


@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.3, "cutmix": 1.0}])
def test_a_later_start_gives_the_same_batches(pictures, mixing):
    kwargs = {**AUGMENTED, **mixing, "batch_size": 5}
    whole = batches(data.Pipeline(pictures, **kwargs), 12)  # several epochs
    assert_equal_batches(whole, batches(data.Pipeline(pictures, **kwargs), 12))
    for step in (1, 4, 9):
        later = batches(data.Pipeline(pictures, start_step=step, **kwargs), 12 - step)
        assert_equal_batches(whole[step:], later)
    other = batches(data.Pipeline(pictures, **{**kwargs, "seed": 6}), 1)
    assert (other[0][0] != whole[0][0]).any()
