"""Batches repeat to the bit, from any step, on any shard, with and without unreadable files."""

import itertools
import shutil
from unittest import mock

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import decoding, framework

AUGMENTED = {
    "image_size": (13, 17),
    "training": True,
    "randaugment": (2, 10),
    "erasing": 0.5,
    "seed": 5,
    "batch_size": 5,
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


@pytest.fixture
def damaged(folder, tmp_path):
    """The folder with three files that cannot be read; their indices are 1, 6, 12."""
    root = shutil.copytree(folder, tmp_path / "damaged")
    (root / "ape" / "1.jpg").write_bytes(b"")
    whole = (root / "bee" / "1.jpg").read_bytes()
    (root / "bee" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "cow" / "3.jpg").write_bytes(b"<html>404</html>")
    return data.open_source(root)


# Order and repeatability -------------------------------------------------------------------


@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.3, "cutmix": 1.0}])
@pytest.mark.parametrize("remainder", ["repeat", "keep", "drop"])
def test_a_later_start_gives_the_same_batches(pictures, mixing, remainder):
    kwargs = {**AUGMENTED, **mixing, "remainder": remainder}
    whole = batches(data.Pipeline(pictures, **kwargs), 12)  # several epochs
    assert_equal_batches(whole, batches(data.Pipeline(pictures, **kwargs), 12))
    for step in (1, 4, 9):
        later = batches(data.Pipeline(pictures, start_step=step, **kwargs), 12 - step)
        assert_equal_batches(whole[step:], later)
    other = batches(data.Pipeline(pictures, **{**kwargs, "seed": 6}), 1)
    assert (other[0][0] != whole[0][0]).any()


def test_batches_are_what_the_parts_say(pictures):
    """Each example is made from its file, its epoch and the seed, in the order's turn."""
    pipe = data.Pipeline(pictures, **AUGMENTED)
    prepare = data.Preparation(
        (13, 17), crop="inception", flip=True, randaugment=(2, 10), erasing=0.5
    )
    turns = ((epoch, index) for epoch in range(3) for index in pipe._order.epoch(epoch))
    for images, labels in batches(pipe, 7):
        for image, label in zip(images, labels, strict=True):
            epoch, index = next(turns)
            content, right = pictures.read(index)
            rng = np.random.default_rng([5, epoch, index, 2])
            np.testing.assert_array_equal(image, prepare(decoding.open_picture(content), rng))
            assert label == right


def test_each_epoch_augments_anew(pictures):
    one = data.Subset(pictures, [0], "one")
    found = batches(data.Pipeline(one, **{**AUGMENTED, "batch_size": 1}), 6)
    assert len({images.tobytes() for images, _ in found}) == 6


def test_epochs_run_on_and_hold_every_example_once(numbered):
    pipe = data.Pipeline(numbered, 4, batch_size=5, training=True, crop="none", seed=1)
    assert pipe.steps == 23 // 5
    seen = np.concatenate([images[:, 0, 0, 0] for images, _ in batches(pipe, 23)]).tolist()
    for epoch in range(5):
        assert sorted(seen[23 * epoch : 23 * (epoch + 1)]) == list(range(23))
    large = data.Pipeline(numbered, 4, batch_size=60, training=True, crop="none")
    assert large.steps == 1
    assert np.bincount(batches(large, 1)[0][0][:, 0, 0, 0]).min() == 2


@pytest.mark.parametrize("kwargs", [{}, {"randaugment": (1, 5)}])
def test_arrays_start_later_too(numbered, kwargs):
    kwargs = {"image_size": 4, "batch_size": 6, "training": True, "crop": "none", **kwargs}
    whole = batches(data.Pipeline(numbered, **kwargs), 9)
    assert_equal_batches(whole[7:], batches(data.Pipeline(numbered, start_step=7, **kwargs), 2))


def test_mirrored_arrays_are_those_of_single_examples():
    """The short way for arrays draws as the long one does."""
    images = harness.random_for("mirrored").integers(0, 256, (9, 4, 5, 3)).astype("uint8")
    kwargs = {"image_size": (4, 5), "batch_size": 9, "training": True, "seed": 3}
    pipe = data.Pipeline((images, np.arange(9)), crop="squash", **kwargs)
    found, labels = batches(pipe, 1)[0]
    prepare = data.Preparation((4, 5), crop="squash", flip=True)
    for image, index in zip(found, labels, strict=True):
        expected = prepare(images[index], np.random.default_rng([3, 0, index, 2]))
        np.testing.assert_array_equal(image, expected)
    mirrored = [(image != images[index]).any() for image, index in zip(found, labels, strict=True)]
    assert 0 < sum(mirrored) < 9


def test_processes_share_the_examples_out(numbered):
    kwargs = {"image_size": 4, "batch_size": 2, "training": True, "crop": "none", "seed": 9}
    alone = batches(data.Pipeline(numbered, **{**kwargs, "batch_size": 6}), 20)
    parts = [batches(data.Pipeline(numbered, shard=(i, 3), **kwargs), 20) for i in range(3)]
    for whole, *shares in zip(alone, *parts, strict=True):
        together = np.stack([images for images, _ in shares], axis=1).reshape(whole[0].shape)
        np.testing.assert_array_equal(together, whole[0])
    assert data.Pipeline(numbered, shard=(0, 3), **kwargs).steps == 23 // 6


def test_evaluation_is_one_pass_that_keeps_the_last_batch(numbered):
    pipe = data.Pipeline(numbered, 4, batch_size=5)
    found = batches(pipe)
    assert [len(images) for images, _ in found] == [5, 5, 5, 5, 3]
    assert pipe.steps == 5
    assert np.concatenate([x[:, 0, 0, 0] for x, _ in found]).tolist() == list(range(23))
    assert len(batches(pipe)) == 5  # and again
    assert pipe.dataset.cardinality() == 5  # without which Keras warns at the end
    assert [len(x) for x, _ in batches(data.Pipeline(numbered, 4, batch_size=5, start_step=3))] == [
        *(5, 3)
    ]
    assert batches(data.Pipeline(numbered, 4, start_step=9)) == []
    dropped = data.Pipeline(numbered, 4, batch_size=5, remainder="drop")
    assert [len(images) for images, _ in batches(dropped)] == [5] * 4 and dropped.steps == 4
    parts = [data.Pipeline(numbered, 4, batch_size=5, shard=(i, 3)) for i in range(3)]
    seen = [np.concatenate([x[:, 0, 0, 0] for x, _ in batches(part)]).tolist() for part in parts]
    assert seen == [list(range(i, 23, 3)) for i in range(3)]
    assert [part.steps for part in parts] == [2, 2, 2]


def test_a_cache_changes_nothing(pictures, monkeypatch):
    expected = batches(data.Pipeline(pictures, **AUGMENTED), 8)
    reads = []
    read = type(pictures).read
    monkeypatch.setattr(
        type(pictures), "read", lambda self, index: reads.append(index) or read(self, index)
    )
    pipe = data.Pipeline(pictures, cache=True, **AUGMENTED)
    assert_equal_batches(expected, batches(pipe, 8))
    batches(pipe, 20)
    assert sorted(reads) == list(range(13))
    # Room for one picture only.
    small = data.Pipeline(pictures, cache=23 * 19 * 3 + 5, **AUGMENTED)
    assert_equal_batches(expected, batches(small, 8))
    assert len(small._examples._cache) == 1


# Unreadable files --------------------------------------------------------------------------


def test_unreadable_files_are_left_out_and_listed(damaged):
    pipe = data.Pipeline(damaged, 8, batch_size=4)
    assert [len(images) for images, _ in batches(pipe)] == [4, 4, 2]
    assert pipe.steps == 4
    assert sorted(index for index, *_ in pipe.bad.items) == [1, 6, 12]
    report = pipe.bad.report()
    assert report.startswith("3 pictures of 13 could not be read and were left out:")
    for name, reason in (("ape/1.jpg", "empty"), ("bee/1.jpg", "runcated"), ("3.jpg", "not a")):
        line = next(line for line in report.splitlines() if name in line)
        assert reason in line
    assert "and 2 more" in pipe.bad.report(most=1)
    batches(pipe)
    assert len(pipe.bad.items) == 3  # once each
    assert data.Pipeline(damaged, 8).bad.report() == ""


@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_known_unreadable_files_change_no_batch(damaged, shard):
    kwargs = {**AUGMENTED, "batch_size": 3, "shard": shard, "mixup": 0.2}
    pipe = data.Pipeline(damaged, **kwargs)
    whole = batches(pipe, 14)
    found = {index for index, *_ in pipe.bad.items}
    assert found == {1, 6, 12}
    for step in (0, 1, 5, 11):
        later = data.Pipeline(damaged, known_bad=found, start_step=step, **kwargs)
        assert_equal_batches(whole[step:], batches(later, 14 - step))
        assert later.bad.items == []
    # What was met by step 1 is enough to go on from there.
    first = data.Pipeline(damaged, **kwargs)
    batches(first, 1)
    met = [index for index, *_ in first.bad.items]
    later = data.Pipeline(damaged, known_bad=met, start_step=1, **kwargs)
    assert_equal_batches(whole[1:], batches(later, 13))


def test_names_of_a_batch(damaged, numbered):
    pipe = data.Pipeline(numbered, 4, batch_size=6, training=True, crop="none", seed=2)
    for step, (images, _) in enumerate(batches(pipe, 9)):
        assert pipe.names_of_batch(step) == numbered.names(images[:, 0, 0, 0])
    pipe = data.Pipeline(damaged, batch_size=3, seed=2, image_size=8, training=True)
    labels = [found.tolist() for _, found in batches(pipe, 9)]
    label = dict(zip(damaged.names(range(13)), damaged.labels.tolist(), strict=True))
    for step in range(9):
        assert [label[name] for name in pipe.names_of_batch(step)] == labels[step]
    evaluated = data.Pipeline(damaged, batch_size=6, image_size=8)
    batches(evaluated)
    good = [i for i in range(13) if i not in (1, 6, 12)]
    assert evaluated.names_of_batch(1) == damaged.names(good[6:])


def test_unreadable_files_are_an_error_where_wanted(damaged):
    pipe = data.Pipeline(damaged, 8, batch_size=4, on_bad="raise")
    with pytest.raises(tf.errors.OpError, match=r"ape/1.jpg cannot be read: the file is empty"):
        batches(pipe)


@pytest.mark.parametrize("training", [True, False])
def test_nothing_readable_is_an_error(tmp_path, training):
    (tmp_path / "a").mkdir()
    for i in range(3):
        (tmp_path / "a" / f"{i}.png").write_bytes(b"no picture")
    pipe = data.Pipeline(tmp_path, 8, batch_size=2, training=training)
    with pytest.raises(tf.errors.OpError, match="No pictures of folder .* can be read"):
        batches(pipe, 1)
    with pytest.raises(ValueError, match="leaves no example"):
        data.Pipeline(tmp_path, 8, known_bad=range(3))


def test_epochs_of_no_batch_are_an_error(damaged):
    pipe = data.Pipeline(damaged, 8, batch_size=11, training=True, remainder="drop")
    with pytest.raises(tf.errors.OpError, match="10 pictures .* can be read; at least 11 must be"):
        batches(pipe, 1)


def test_bombs_are_skipped_with_their_size(folder):
    pipe = data.Pipeline(folder, 8, max_pixels=100)
    with pytest.raises(tf.errors.OpError, match="declares 23 x 19 pixels, more than 100 in all"):
        batches(pipe)


# Labels ------------------------------------------------------------------------------------


def test_labels_beyond_the_model_name_the_file(pictures, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"cow/0\.png is 2, out of range for 2 classes"):
        data.Pipeline(pictures, 8, num_classes=2)
    # Where no label is known beforehand, reading finds it.
    folder = data.write_tfrecords(pictures, tmp_path / "records")
    (folder / "dataset.json").unlink()
    monkeypatch.setattr("keras_vit.data.records.MEMORY_BYTES", 0)
    source = data.open_source(f"tfrecord:{folder}/*.tfrecord", class_names="abcd")
    assert source.labels is None
    assert len(batches(data.Pipeline(source, 8))) == 1
    with pytest.raises(tf.errors.OpError, match=r"tfrecord #9 is 2, out of range for 2 classes"):
        batches(data.Pipeline(source, 8, num_classes=2))


def test_one_hot_labels(pictures):
    kwargs = {"image_size": 8, "batch_size": 13}
    plain = batches(data.Pipeline(pictures, **kwargs))[0][1]
    hot = batches(data.Pipeline(pictures, one_hot=True, num_classes=5, **kwargs))[0][1]
    assert plain.dtype == np.int32 and hot.dtype == np.float32
    np.testing.assert_array_equal(hot, np.eye(5)[plain])
    mixed = data.Pipeline(pictures, training=True, cutmix=1.0, **kwargs)
    for images, labels in batches(mixed, 3):
        assert images.dtype == np.float32 and labels.shape == (13, 3)
        np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)


# Arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"image_size": 0}, "image_size"),
        ({"channels": 2}, "channels"),
        ({"crop": "middle"}, "crop"),
        ({"seed": -1}, "seed"),
        ({"start_step": 1.5}, "start_step"),
        ({"known_bad": [13]}, "known_bad"),
        ({"shard": (2, 2)}, "shard"),
        ({"shard": 2}, "shard"),
        ({"shard": (0, 14), "training": True}, "more processes than examples"),
        ({"remainder": "repeat"}, "remainder"),
        ({"remainder": "pad", "training": True}, "remainder"),
        ({"remainder": "drop", "training": True, "batch_size": 14}, "leaves no batch"),
        ({"on_bad": "ignore"}, "on_bad"),
        ({"mixup": -1, "training": True}, "mixup"),
        ({"mixup": 1.0, "training": True, "one_hot": False}, "one_hot"),
        ({"mixup": 1.0}, "Only training .* mixup"),
        ({"flip": True}, "Only training .* flip"),
        ({"randaugment": (2, 10)}, "Only training .* randaugment"),
        ({"num_classes": 0}, "num_classes"),
        ({"transforms": 3}, "transforms"),
        ({"transforms": [keras.layers.MixUp()], "training": True}, "argument `mixup`"),
    ],
)
def test_arguments_out_of_range(pictures, kwargs, message):
    with pytest.raises(ValueError, match=message):
        data.Pipeline(pictures, **{"image_size": 8, **kwargs})


def test_pictures_of_another_size_are_named(pictures):
    with pytest.raises(tf.errors.OpError, match=r"ape/0\.png: `crop=.none.` .* width 23"):
        batches(data.Pipeline(pictures, 8, crop="none"))


# With Keras --------------------------------------------------------------------------------


def test_a_model_fits(pictures):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    kwargs = {"image_size": 8, "batch_size": 4, "one_hot": True}
    train = data.Pipeline(pictures, training=True, mixup=0.2, **kwargs)
    history = model.fit(
        train.dataset,
        steps_per_epoch=train.steps,
        epochs=2,
        validation_data=data.pipeline(pictures, **kwargs),
        shuffle=False,
        verbose=0,
    ).history
    assert np.isfinite(history["loss"] + history["val_loss"]).all()
    evaluated = model.evaluate(data.pipeline(pictures, **kwargs), verbose=0)
    whole = batches(data.Pipeline(pictures, **{**kwargs, "batch_size": 13}))[0]
    np.testing.assert_allclose(evaluated[0], model.evaluate(*whole, verbose=0)[0], rtol=1e-5)


def brighten(images):
    return images + 10.0


def noisy(images, seed):
    return images + tf.random.stateless_uniform(tf.shape(images), seed)


def user_transforms():
    layers = keras.layers
    return {
        "layer": layers.RandomFlip("horizontal", seed=1),
        "layers": [layers.RandomRotation(0.1, seed=1), layers.RandomContrast(0.3, seed=2)],
        "sequential": keras.Sequential(
            [layers.RandomFlip(seed=1), layers.RandomTranslation(0.1, 0.1, seed=2)]
        ),
        "randaugment": layers.RandAugment(value_range=(0, 255), num_ops=1, seed=3),
        "erasing": layers.RandomErasing(value_range=(0, 255), seed=3),
        "function": brighten,
        "seeded": noisy,
    }


@pytest.mark.parametrize("name", sorted(user_transforms()))
def test_transforms_of_the_user(numbered, name):
    kwargs = {"image_size": 4, "batch_size": 5, "training": True, "crop": "none", "flip": False}
    plain = batches(data.Pipeline(numbered, **kwargs), 4)

    def run(**more):
        pipe = data.Pipeline(numbered, transforms=user_transforms()[name], **kwargs, **more)
        return batches(pipe, 4)

    found = run()
    for (images, labels), (before, same) in zip(found, plain, strict=True):
        assert images.shape == before.shape and images.dtype == np.float32
        np.testing.assert_array_equal(labels, same)
        assert np.isfinite(images).all()
    if name in ("layer", "function"):  # flat pictures stay when mirrored
        added = 10.0 if name == "function" else 0.0
        np.testing.assert_allclose(found[0][0], plain[0][0] + added, atol=1e-4)
    if name == "randaugment":  # a graph of a minute on JAX where the machine is busy
        return
    assert_equal_batches(found, run())
    if name == "seeded":
        assert_equal_batches(found[2:], run(start_step=2)[:2])
        assert (found[0][0] - plain[0][0] != found[1][0] - plain[1][0]).any()


def test_layers_of_keras_cv(pictures):
    keras_cv = pytest.importorskip("keras_cv", reason="keras-cv is not installed")
    layers = [
        keras_cv.layers.RandomFlip(),
        keras_cv.layers.RandAugment((0, 255), augmentations_per_image=1),
    ]
    pipe = data.Pipeline(pictures, 8, batch_size=4, training=True, transforms=layers)
    images = batches(pipe, 1)[0][0]
    assert images.shape == (4, 8, 8, 3) and 0 <= images.min() and images.max() <= 255


def test_a_transform_must_keep_the_shape(numbered):
    with pytest.raises(ValueError, match=r"transforms\[1\]` must keep the shape"):
        data.Pipeline(numbered, 4, training=True, transforms=[brighten, lambda x: x[:, :2]]).dataset  # noqa: B018


# Processes ---------------------------------------------------------------------------------


def test_a_process_ends_while_batches_are_being_made(folder):
    code = """
import sys
from keras_vit import data
kept = iter(data.Pipeline(sys.argv[1], 64, batch_size=8, training=True, mixup=0.2).dataset)
for _ in range(3):
    images, labels = next(kept)
print(images.shape)
"""
    assert harness.run_python(code, folder).strip() == "(8, 64, 64, 3)"


@pytest.mark.skipif(harness.BACKEND == "tensorflow", reason="this backend is TensorFlow")
def test_without_tensorflow_one_sentence_says_so():
    code = """
import sys
sys.modules["tensorflow"] = None
from keras_vit import data
print(data.read_images([], 8)[0].shape)
try:
    data.Pipeline
except ImportError as error:
    print(error)
"""
    shape, said = harness.run_python(code).strip().splitlines()
    assert shape == "(0, 8, 8, 3)"
    assert said.startswith("A pipeline of pictures needs tensorflow, which cannot be imported")
    assert said.endswith('pip install "keras-vision-transformers[data]".')


@pytest.mark.parametrize("fails", [None, RuntimeError("already set up")])
def test_tensorflow_leaves_the_gpu_to_other_backends(fails):
    with mock.patch.object(tf.config, "set_visible_devices", side_effect=fails) as call:
        framework.leave_accelerators()
    expected = [] if harness.BACKEND == "tensorflow" else [mock.call([], "GPU")]
    assert call.call_args_list == expected


def test_throughput_counts_images(numbered):
    pipe = data.Pipeline(numbered, 4, batch_size=5, training=True, crop="none")
    with mock.patch("keras_vit.data.reading.time.perf_counter", side_effect=[0.0, 2.0]):
        assert data.throughput(pipe, batches=8, progress=False) == 8 * 5 / 2.0
    with pytest.raises(ValueError, match="no more than the 5 batches"):
        data.throughput(data.Pipeline(numbered, 4, batch_size=5), warm_up=5, progress=False)


def test_names_are_found_when_they_are_asked_for():
    assert set(data.__all__) <= set(dir(data))
    assert all(getattr(data, name).__name__ == name for name in data.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        data.nothing  # noqa: B018
