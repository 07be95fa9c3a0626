"""Batches for training and evaluation, as a tf.data.Dataset for every backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from keras_vit import _checks
from keras_vit.data import mixing, user_transforms
from keras_vit.data.checks import check_pixels
from keras_vit.data.decoding import MAX_PIXELS
from keras_vit.data.examples import BadExamples, Examples, check_label, for_tf_data
from keras_vit.data.framework import tf
from keras_vit.data.order import Order
from keras_vit.data.source import Source
from keras_vit.data.sources import open_source
from keras_vit.data.transforms import Preparation

REMAINDERS = ("repeat", "keep", "drop")
ON_BAD = ("skip", "raise")
CACHE_BYTES = 2**32
_BUFFERED = 2  # batches


class Pipeline:
    """Batches of a source's pictures.

    For training the stream never ends: each epoch is a new permutation of the examples. The order
    is a function of `(seed, epoch)`; what is drawn for an example of `(seed, epoch, index)`; for
    a batch of `(seed, number of the batch)`. So two equal pipelines give equal batches, whatever
    the threads, and one that starts at step k gives those of one from the start, less k. Pictures
    that cannot be read are left out and the stream moves up; the same batches come if they are
    named in `known_bad`.

    For evaluation it is one pass in the source's order, the last batch included, and nothing is
    random.

    Args:
        source: a `Source`, or what `open_source` takes.
        image_size: (height, width), or one number.
        channels: of the images.
        batch_size: examples of a batch, for this process.
        training: whether to shuffle, repeat and augment. Without it `flip`, `randaugment`,
            `erasing`, `mixup`, `cutmix` and `transforms` must be left alone.
        crop: see `Preparation`; by default "inception" for training, else "squash".
        crop_area: see `Preparation`, as `crop_fraction`, `interpolation`, `randaugment` and
            `erasing`.
        flip: whether half of the examples are mirrored; by default so for training.
        randaugment: `(layers, magnitude)` or `None`.
        erasing: share of the examples that get a rectangle of noise.
        mixup: parameter of MixUp's Beta distribution; 0 for none.
        cutmix: the same for CutMix. With both, each batch gets one of them.
        transforms: layers of Keras or keras-cv, or functions, from images `(b, h, w, c)` float32
            to the same shape, applied to batches before mixing, inside tf.data. A function with
            an argument `seed` gets a (2,) int32 tensor that depends on the seed and the batch's
            number. Other random ones keep states of their own, which no `start_step` restores:
            whether they repeat is their own affair.
        one_hot: whether labels are shares `(b, classes)` float32 rather than numbers `(b,)`
            int32; by default so where labels are mixed.
        num_classes: of the model; the source's by default. Labels beyond are an error.
        seed: of everything random.
        start_step: number of the first batch.
        known_bad: indices of examples that cannot be read.
        cache: whether decoded pictures are kept in memory, before augmentation, as far as 4 GiB
            go; or how many bytes.
        shard: `(index, count)`: this process takes every `count`-th example of the one order.
        remainder: "repeat" (training's default): batches run on across epochs; "keep"
            (evaluation's): an epoch's last batch is smaller; "drop".
        on_bad: "skip", or "raise" at the first picture that cannot be read.
        max_pixels: pictures that declare more are bad, and not decoded.
        crop_fraction: see `Preparation`.
        interpolation: see `Preparation`.

    Attributes:
        dataset: `tf.data.Dataset` of (images, labels); images `(b, h, w, c)`, pixels 0..255,
            uint8 unless the source has floats or batches are transformed or mixed.
        steps: batches of an epoch.
        bad: what could not be read so far: `bad.items`, `bad.report()`.
    """

    def __init__(
        self,
        source: Any,
        image_size: int | tuple[int, int],
        channels: int = 3,
        batch_size: int = 32,
        training: bool = False,
        crop: str | None = None,
        crop_area: tuple[float, float] = (0.05, 1.0),
        flip: bool | None = None,
        randaugment: tuple[int, float] | None = None,
        erasing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        transforms: Callable | Iterable[Callable] = (),
        one_hot: bool | None = None,
        num_classes: int | None = None,
        seed: int = 0,
        start_step: int = 0,
        known_bad: Collection[int] = (),
        cache: bool | int = False,
        shard: tuple[int, int] = (0, 1),
        remainder: str | None = None,
        on_bad: str = "skip",
        max_pixels: int = MAX_PIXELS,
        crop_fraction: float = 0.875,
        interpolation: str = "bilinear",
    ):
        self.source = source = open_source(source)
        self.training = _checks.boolean("training", training)
        self.batch_size = _checks.positive_int("batch_size", batch_size)
        self.seed = _checks.non_negative_int("seed", seed)
        self.start_step = _checks.non_negative_int("start_step", start_step)
        self.mixup, self.cutmix = _strength("mixup", mixup), _strength("cutmix", cutmix)
        self.transforms = user_transforms.flatten(transforms)
        if not training:
            _check_evaluation(flip, randaugment, erasing, mixup, cutmix, self.transforms)
        self.shard = _shard(shard)
        self.num_classes = _classes(source, num_classes)
        mixes = bool(self.mixup or self.cutmix)
        if mixes and one_hot is False:
            raise ValueError("`mixup` and `cutmix` give shares of labels: leave `one_hot` None.")
        self.one_hot = mixes if one_hot is None else _checks.boolean("one_hot", one_hot)
        preparation = Preparation(
            image_size=_checks.int_pair("image_size", image_size),
            channels=channels,
            crop=("inception" if training else "squash") if crop is None else crop,
            crop_area=crop_area,
            crop_fraction=crop_fraction,
            interpolation=interpolation,
            flip=training if flip is None else flip,
            randaugment=randaugment,
            erasing=erasing,
        )
        if source.encoded and channels not in (1, 3):
            raise ValueError(f"`channels` of files must be 1 or 3. Received: channels={channels}")
        known = {_checks.non_negative_int("known_bad", index) for index in known_bad}
        if known and max(known) >= source.size:
            raise ValueError(
                f"`known_bad` must be indices below {source.size}. Received: {max(known)}"
            )
        if remainder is None:
            remainder = "repeat" if training else "keep"
        self.remainder = _checks.choice("remainder", remainder, REMAINDERS[0 if training else 1 :])
        whole = training and self.remainder == "drop"
        self.bad = BadExamples(source, known, least=self.batch_size if whole else 1)
        self._order = self._ordered(known)
        self._check_enough(known)
        self._examples = Examples(
            source,
            preparation,
            self.bad,
            seed=self.seed,
            num_classes=self.num_classes,
            on_bad=_checks.choice("on_bad", on_bad, ON_BAD),
            max_pixels=_checks.positive_int("max_pixels", max_pixels),
            cache_bytes=CACHE_BYTES if cache is True else int(cache),
        )
        self._dataset: Any = None

    @property
    def steps(self) -> int:
        """Batches of an epoch: of a training stream that runs on, whole ones, at least 1."""
        if self.remainder != "repeat":
            return self._order.batches(0)
        return max(1, self.source.size // (self.batch_size * self.shard[1]))

    @property
    def dataset(self):
        """The `tf.data.Dataset`; made when first asked for."""
        if self._dataset is None:
            self._dataset = self._make()
        return self._dataset

    def names_of_batch(self, step: int) -> list[str]:
        """Names of the examples of a batch, found without reading any picture.

        Args:
            step: the batch's number, counted from the beginning of the run.
        """
        return self.source.names(self._ordered(self.bad.indices).batch(step))

    def _ordered(self, bad: Collection[int]) -> Order:
        return Order(
            self.source.size,
            self.seed,
            self.training,
            self.shard,
            self.batch_size,
            self.remainder,
            bad,
        )

    def _check_enough(self, known: set[int]) -> None:
        left = self.source.size - len(known)
        if not left:
            raise ValueError(f"`known_bad` leaves no example of {self.source.description}.")
        if self.training and self.remainder == "drop" and not self._order.batches(0):
            raise ValueError(
                f'`remainder="drop"` leaves no batch: {left} examples, for {self.shard[1]} '
                f"processes. Received: batch_size={self.batch_size}"
            )
        if self.training and self.shard[1] > left:
            raise ValueError(f"`shard` has more processes than examples. Received: {self.shard}")

    # Datasets ------------------------------------------------------------------------------

    def _make(self):
        first, before = self._order.locate(self.start_step)
        last = np.iinfo("int64").max if self.training else 1
        epochs = tf.data.Dataset.range(first, last)

        def indices(epoch):
            """Pairs (epoch, index)."""
            read = for_tf_data(self._order.epoch, self._order.epoch)
            found = tf.numpy_function(read, [epoch], tf.int64)
            found = tf.reshape(found, [-1])[tf.where(epoch == first, np.int64(before), 0) :]
            return tf.data.Dataset.from_tensor_slices((tf.fill(tf.shape(found), epoch), found))

        if self.remainder == "repeat":
            data = self._batches(epochs.flat_map(indices))
        else:
            data = epochs.flat_map(lambda epoch: self._batches(indices(epoch)))
        data = self._finished(data)
        if self.training:
            data = data.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        else:
            data = _at_most(data, max(self.steps - self.start_step, 0))
        options = tf.data.Options()
        options.deterministic = True
        if self.shard[1] > 1:
            options.experimental_distribute.auto_shard_policy = (
                tf.data.experimental.AutoShardPolicy.OFF
            )
        return data.with_options(options).prefetch(_BUFFERED)

    def _batches(self, pairs):
        """Batches of (images, labels) from pairs (epoch, index)."""
        whole = self.remainder != "keep"
        examples, parallel = self._examples, tf.data.AUTOTUNE
        shape = (*examples.prepare.image_size, examples.prepare.channels)
        dtype = tf.as_dtype(examples.dtype)

        def many(epochs, indices):
            images, labels = tf.numpy_function(
                for_tf_data(examples.many, self._nothing), [epochs, indices], (dtype, tf.int32)
            )
            n = indices.shape[0]
            return tf.ensure_shape(images, (n, *shape)), tf.ensure_shape(labels, (n,))

        def one(epoch, index):
            image, label, read = tf.numpy_function(
                for_tf_data(examples.one, self._nothing_read),
                [epoch, index],
                (dtype, tf.int32, tf.bool),
            )
            return (
                tf.ensure_shape(image, shape),
                tf.ensure_shape(label, ()),
                (tf.ensure_shape(read, ())),
            )

        if not self.source.encoded:  # nothing of it can be bad
            return pairs.batch(self.batch_size, whole).map(many, num_parallel_calls=parallel)
        data = pairs.map(one, num_parallel_calls=parallel)
        data = data.filter(lambda image, label, read: read)
        data = data.map(lambda image, label, read: (image, label))
        return data.batch(self.batch_size, whole)

    def _nothing(self, epochs, indices):
        prepare = self._examples.prepare
        shape = (len(indices), *prepare.image_size, prepare.channels)
        return np.zeros(shape, self._examples.dtype), np.zeros(len(indices), "int32")

    def _nothing_read(self, epoch, index):
        images, labels = self._nothing([epoch], [index])
        return images[0], labels[0], True

    def _finished(self, data):
        """Labels as wanted, transforms and mixing."""
        depth, parallel = self.num_classes, tf.data.AUTOTUNE
        if self.one_hot:
            data = data.map(lambda x, y: (x, tf.one_hot(y, depth)), num_parallel_calls=parallel)
        if not (self.transforms or self.mixup or self.cutmix):
            return data
        data = data.enumerate(self.start_step)
        if self.transforms:
            # One batch at a time: layers with a state of their own draw in the batches' order.
            data = data.map(self._transformed)
        if self.mixup or self.cutmix:
            data = data.map(self._mixed, num_parallel_calls=parallel)
        return data.map(lambda step, batch: batch, num_parallel_calls=parallel)

    def _transformed(self, step, batch):
        images, labels = batch
        seed = tf.stack([tf.constant(self.seed % 2**31, tf.int32), tf.cast(step, tf.int32)])
        return step, (user_transforms.apply(self.transforms, images, seed), labels)

    def _mixed(self, step, batch):
        images, labels = batch
        size, mixup, cutmix = tuple(images.shape[1:3]), self.mixup, self.cutmix

        def draw(number):
            return mixing.draw(self.seed, int(number), size, mixup, cutmix)

        drawn = tf.numpy_function(for_tf_data(draw, draw), [step], (tf.float32, tf.int32))
        share, box = tf.ensure_shape(drawn[0], ()), tf.ensure_shape(drawn[1], (4,))
        return step, mixing.mix(images, labels, share, box)


def pipeline(source: Any, image_size: int | tuple[int, int], **options: Any):
    """The dataset of a `Pipeline` of the same arguments.

    Args:
        source: a `Source`, or what `open_source` takes.
        image_size: (height, width), or one number.
        **options: see `Pipeline`.

    Returns:
        `tf.data.Dataset` of (images, labels).
    """
    return Pipeline(source, image_size, **options).dataset


def _at_most(data, batches: int):
    """The dataset, its cardinality said to be `batches`, though it may turn out to be smaller.

    Keras warns at the end of data of unknown length, and TensorFlow's `assert_cardinality` fails
    if unreadable pictures leave a batch fewer. `take` only counts as known behind something
    endless: here, endlessly nothing.
    """
    nothing = data.take(0).filter(lambda *batch: False).repeat()
    return data.concatenate(nothing).take(batches)


def _strength(name: str, value: Any) -> float:
    return 0.0 if value == 0 and value is not False else _checks.positive_float(name, value)


def _check_evaluation(flip, randaugment, erasing, mixup, cutmix, transforms) -> None:
    given = {
        "flip": flip,
        "randaugment": randaugment,
        "erasing": erasing,
        "mixup": mixup,
        "cutmix": cutmix,
        "transforms": transforms,
    }
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise ValueError(f"Only training (`training=True`) augments. Received: {', '.join(wrong)}")


def _shard(shard: Any) -> tuple[int, int]:
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise ValueError(f"`shard` must be (index, count). Received: shard={shard!r}")
    index = _checks.non_negative_int("shard[0]", shard[0])
    count = _checks.positive_int("shard[1]", shard[1])
    if index >= count:
        raise ValueError(f"`shard` must be (index, count), index below. Received: shard={shard!r}")
    return index, count


def _classes(source: Source, num_classes: int | None) -> int:
    """The number of classes, known labels checked against it."""
    if not source.encoded:
        check_pixels(source.read_many(np.linspace(0, source.size - 1, 64).astype("int64")))
    if num_classes is None:
        return source.num_classes
    num_classes = _checks.positive_int("num_classes", num_classes)
    if source.labels is not None:
        wrong = np.flatnonzero(source.labels >= num_classes)
        if wrong.size:
            check_label(source, int(wrong[0]), int(source.labels[wrong[0]]), num_classes)
    return num_classes
