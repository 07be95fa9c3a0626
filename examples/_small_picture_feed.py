"""Feeds training with small pictures from memory, augmented in NumPy, a whole batch at a time.

`keras_vit.data` decodes files through tf.data; this needs neither, and its processes keep up with
a GPU. Every batch is a pure function of seed and number, so that runs resume. NumPy only: where
processes are forked, make the feed before the model, while there are no other threads.
"""

import collections
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np

# RandAugment's operations on one channel; for each, the strength of magnitude 10.
GEOMETRY = {"rotate": 30.0, "shear_x": 0.3, "shear_y": 0.3, "move_x": 0.25, "move_y": 0.25}
TONES = ("identity", "invert", "posterize", "solarize", "contrast", "brightness", "autocontrast")


class SmallPictureFeed:
    """A `keras_vit.training.Feed`.

    Args:
        images: `(n, height, width, 1)`, uint8.
        labels: `(n,)`, integers.
        recipe: its crop, flip, randaugment, erasing, mixup and cutmix are applied.
        classes: number of classes.
        description: names the data.
        shift: pixels that an inception crop's stand-in moves the picture by.
        workers: processes; 0 for none.
    """

    def __init__(self, images, labels, recipe, classes, description, shift=2, workers=0):
        self.images, self.labels, self.recipe = images, labels, recipe
        self.classes, self.description, self.shift = classes, description, shift
        self.size, self.workers, self._pool = len(images), workers, None
        if workers and "fork" in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(workers, context, _remember, (self,))
            self._pool.submit(abs, 0).result()  # forks now

    def __getstate__(self):
        return {**vars(self), "_pool": None}

    def batches(self, start, batch_size):
        if self._pool is None:
            for number in itertools.count(start):
                yield self.batch(number, batch_size)
        waiting = collections.deque()
        for number in itertools.count(start):
            waiting.append(self._pool.submit(_batch, number, batch_size))
            if len(waiting) > 3 * self.workers:
                yield waiting.popleft().result()

    def close(self):
        """Ends the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def rows(self, number, batch_size):
        """Indices of the examples of a batch; batches run on across epochs."""
        positions = np.arange(number * batch_size, (number + 1) * batch_size)
        epochs = positions // self.size
        rows = np.empty(batch_size, int)
        for epoch in np.unique(epochs):
            order = np.random.default_rng((self.recipe.seed, 1, epoch)).permutation(self.size)
            inside = epochs == epoch
            rows[inside] = order[positions[inside] % self.size]
        return rows

    def names_of_batch(self, number, batch_size):
        return [f"#{row}" for row in self.rows(number, batch_size)]

    def note(self):
        return {}

    def restore(self, note):
        pass

    def batch(self, number, batch_size):
        rows = self.rows(number, batch_size)
        rng = np.random.default_rng((self.recipe.seed, 2, number))
        images = self.images[rows].astype("float32")
        targets = np.eye(self.classes, dtype="float32")[self.labels[rows]]
        images = augment(images, self.recipe, self.shift, rng)
        images, targets = mix(images, targets, self.recipe, rng)
        return np.rint(images).astype("uint8"), targets


_worker: dict = {}


def _remember(feed):
    _worker["feed"] = feed


def _batch(number, batch_size):
    return _worker["feed"].batch(number, batch_size)


def augment(images, recipe, shift, rng):
    """Crop, flip, RandAugment and erasing of a batch `(n, height, width, 1)`, pixels 0..255."""
    count, height, width, _ = images.shape
    if recipe.crop != "none":
        offset = rng.integers(-shift, shift + 1, (count, 2)).astype("float32")
        images = warp(images, np.tile(np.eye(2, dtype="float32"), (count, 1, 1)), offset, 0.0)
    if recipe.flip:
        flipped = rng.random(count) < 0.5
        images[flipped] = images[flipped, :, ::-1]
    if recipe.randaugment is not None:
        operations, magnitude = recipe.randaugment
        for _ in range(operations):
            images = random_operation(images, magnitude / 10, rng)
    if recipe.erasing:
        images = erase(images, recipe.erasing, rng)
    return images


def random_operation(images, strength, rng):
    """One operation of RandAugment for each picture, chosen anew for each."""
    count, height, width, _ = images.shape
    choice = rng.integers(0, len(GEOMETRY) + len(TONES), count)
    sign = rng.choice(np.float32([-1, 1]), count) * np.float32(strength)
    matrix = np.tile(np.eye(2, dtype="float32"), (count, 1, 1))
    offset = np.zeros((count, 2), "float32")
    rotate, shear_x, shear_y, move_x, move_y = (choice == i for i in range(len(GEOMETRY)))
    angle = np.deg2rad(GEOMETRY["rotate"] * sign[rotate])
    matrix[rotate] = np.stack(
        [np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1
    ).reshape(-1, 2, 2)
    matrix[shear_x, 1, 0] = GEOMETRY["shear_x"] * sign[shear_x]
    matrix[shear_y, 0, 1] = GEOMETRY["shear_y"] * sign[shear_y]
    offset[move_x, 1] = GEOMETRY["move_x"] * width * sign[move_x]
    offset[move_y, 0] = GEOMETRY["move_y"] * height * sign[move_y]
    moved = choice < len(GEOMETRY)
    images[moved] = warp(images[moved], matrix[moved], offset[moved], 0.0)
    for index, name in enumerate(TONES, len(GEOMETRY)):
        chosen = choice == index
        if name != "identity" and chosen.any():
            images[chosen] = tone(images[chosen], name, sign[chosen][:, None, None, None])
    return images


def tone(x, name, strength):
    """Tone operations at a signed strength `(n, 1, 1, 1)`; 1 stands for magnitude 10."""
    if name == "invert":
        return 255 - x
    if name == "posterize":
        step = 2.0 ** np.round(4 * np.abs(strength))
        return np.floor(x / step) * step
    if name == "solarize":
        return np.where(x < 256 - 255 * np.minimum(np.abs(strength), 1), x, 255 - x)
    if name == "autocontrast":
        low, high = x.min((1, 2, 3), keepdims=True), x.max((1, 2, 3), keepdims=True)
        return (x - low) * (255 / np.maximum(high - low, 1))
    mean = x.mean((1, 2, 3), keepdims=True) if name == "contrast" else 0.0
    return np.clip(mean + (x - mean) * np.maximum(1 + 0.9 * strength, 0.1), 0, 255)


def warp(images, matrix, offset, fill):
    """Pictures seen through `position -> matrix @ (position - centre) + centre + offset`."""
    count, height, width, _ = images.shape
    centre = np.float32([(height - 1) / 2, (width - 1) / 2])
    grid = np.stack(np.mgrid[:height, :width], -1).reshape(-1, 2).astype("float32") - centre
    position = grid @ matrix.transpose(0, 2, 1) + centre + offset[:, None]  # (n, pixels, 2)
    base = np.floor(position)
    part = position - base
    padded = np.pad(images[..., 0], ((0, 0), (1, 1), (1, 1)), constant_values=fill)
    flat = padded.reshape(count, -1)
    found = 0.0
    for dy in (0, 1):
        for dx in (0, 1):
            y = np.clip(base[..., 0] + dy + 1, 0, height + 1).astype("int32")
            x = np.clip(base[..., 1] + dx + 1, 0, width + 1).astype("int32")
            weight = np.abs(1 - dy - part[..., 0]) * np.abs(1 - dx - part[..., 1])
            found = found + weight * np.take_along_axis(flat, y * (width + 2) + x, axis=1)
    return found.reshape(images.shape).astype("float32")


def erase(images, probability, rng):
    """Fills a random box of some pictures with noise."""
    count, height, width, _ = images.shape
    tall, wide = rng.integers(3, height // 2 + 1, count), rng.integers(3, width // 2 + 1, count)
    top, left = rng.integers(0, height - tall + 1), rng.integers(0, width - wide + 1)
    y, x = np.arange(height)[None, :, None], np.arange(width)[None, None]
    box = lambda v: v[:, None, None]  # noqa: E731
    inside = (y >= box(top)) & (y < box(top + tall)) & (x >= box(left)) & (x < box(left + wide))
    inside &= box(rng.random(count) < probability)
    noise = rng.uniform(0, 255, images.shape).astype("float32")
    return np.where(inside[..., None], noise, images)


def mix(images, targets, recipe, rng):
    """MixUp or CutMix of the batch with itself, turned by one; labels keep their mass."""
    kinds = [name for name in ("mixup", "cutmix") if getattr(recipe, name) > 0]
    if not kinds:
        return images, targets
    kind = kinds[rng.integers(len(kinds))]
    share = np.float32(rng.beta(getattr(recipe, kind), getattr(recipe, kind)))
    other, other_targets = np.roll(images, 1, 0), np.roll(targets, 1, 0)
    if kind == "mixup":
        images = share * images + (1 - share) * other
    else:
        height, width = images.shape[1:3]
        tall, wide = (int(side * np.sqrt(1 - share)) for side in (height, width))
        top, left = rng.integers(0, height - tall + 1), rng.integers(0, width - wide + 1)
        images[:, top : top + tall, left : left + wide] = other[
            :, top : top + tall, left : left + wide
        ]
        share = np.float32(1 - tall * wide / (height * width))
    return images, share * targets + (1 - share) * other_targets
