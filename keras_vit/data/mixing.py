"""MixUp and CutMix of a batch; what is drawn depends on the seed and the batch's number alone.

References: MixUp, arXiv 1710.09412; CutMix, arXiv 1905.04899.
"""

from __future__ import annotations

import numpy as np

from keras_vit.data.framework import tf


def draw(
    seed: int, step: int, size: tuple[int, int], mixup: float, cutmix: float
) -> tuple[np.float32, np.ndarray]:
    """What one batch is mixed by.

    Args:
        seed: of the run.
        step: the batch's number.
        size: (height, width) of the images.
        mixup: parameter of the Beta distribution that gives the share; 0 for no MixUp.
        cutmix: the same for the area of CutMix. With both, one of the two is drawn, evenly.

    Returns:
        `(share, box)`: MixUp's share of the example itself, at least a half, as in big_vision,
        and an empty box; or share 1 and CutMix's box (top, left, bottom, right) int32 that is
        taken from the partner.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, step, 1]))
    if mixup and (not cutmix or rng.random() < 0.5):
        share = rng.beta(mixup, mixup)
        return np.float32(max(share, 1 - share)), np.zeros(4, "int32")
    side = np.sqrt(1 - rng.beta(cutmix, cutmix))
    centre = rng.random(2)
    height, width = size
    edges = [
        round(min(max(position + sign * side / 2, 0.0), 1.0) * length)
        for sign in (-1, 1)
        for position, length in zip(centre, (height, width), strict=True)
    ]
    return np.float32(1), np.asarray(edges, "int32")


def mix(images, labels, share, box):
    """Mixes each example with the next one of the batch, the last with the first.

    Args:
        images: `(batch, height, width, channels)`, any dtype.
        labels: `(batch, classes)` float32.
        share: see `draw`.
        box: see `draw`.

    Returns:
        Images, float32, and labels with the shares of the pixels; each row's sum is as before.
    """
    images = tf.cast(images, tf.float32)
    height, width = images.shape[1], images.shape[2]
    rows = tf.range(height, dtype=tf.int32)[:, None, None]
    columns = tf.range(width, dtype=tf.int32)[None, :, None]
    inside = (rows >= box[0]) & (rows < box[2]) & (columns >= box[1]) & (columns < box[3])
    taken = tf.cast((box[2] - box[0]) * (box[3] - box[1]), tf.float32) / (height * width)
    own = tf.where(inside, 0.0, share)
    of_pixels = own * images + (1.0 - own) * tf.roll(images, -1, axis=0)
    kept = share * (1.0 - taken)
    return of_pixels, kept * labels + (1.0 - kept) * tf.roll(labels, -1, axis=0)
