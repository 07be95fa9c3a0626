"""Folders, CSV files, arrays and records, in good order and in bad."""

import io
import json
import os
import warnings

import harness
import numpy as np
import pytest
from PIL import Image

from keras_vit import data


def names(source):
    return [os.path.relpath(name, source.folder) for name in source.names(range(source.size))]


# Folders -----------------------------------------------------------------------------------


def test_a_folder_a_class(folder):
    source = data.open_source(folder)
    assert source.class_names == ("ape", "bee", "cow")
    assert (source.size, source.num_classes, len(source)) == (13, 3, 13)
    assert source.labels.tolist() == [0] * 5 + [1] * 4 + [2] * 4
    assert names(source)[:6] == [f"ape/{i}.{'jpg' if i % 2 else 'png'}" for i in range(5)] + [
        "bee/0.png"
    ]
    content, label = source.read(5)
    assert content == (folder / "bee" / "0.png").read_bytes() and label == 1
    assert data.open_source(str(folder)).description == source.description == f"folder {folder}"


def test_names_of_any_kind(tmp_path, write_picture):
    for name in ("Äpfel", "猫", "b c", "Zoë's"):
        write_picture(tmp_path / name / "tiefer" / "ünter" / f"{name} 1.PNG", name)
    write_picture(tmp_path / "Äpfel" / "plain.jpeg", "x")
    (tmp_path / "Äpfel" / ".hidden.png").write_bytes(b"no picture")
    (tmp_path / "Äpfel" / "._resource.png").write_bytes(b"no picture")
    (tmp_path / "Äpfel" / "notes.txt").write_text("no picture")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "readme.md").write_text("no class")
    source = data.open_source(tmp_path)
    assert source.class_names == tuple(sorted(["Äpfel", "猫", "b c", "Zoë's"]))
    assert source.size == 5
    batches = list(data.Pipeline(source, 8, batch_size=3, on_bad="raise").dataset)
    assert [len(images) for images, _ in batches] == [3, 2]


def test_a_name_that_is_no_text(tmp_path, write_picture):
    write_picture(tmp_path / "a" / "1.png", "a")
    folder = os.fsencode(tmp_path / "a")
    try:
        os.rename(os.path.join(folder, b"1.png"), os.path.join(folder, b"\xff\xfe.png"))
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    source = data.open_source(tmp_path)
    assert source.read(0)[0].startswith(b"\x89PNG")
    source.names([0])[0].encode()  # can be printed


def test_links_are_followed_once_and_loops_end(tmp_path, write_picture):
    root = tmp_path / "root"
    write_picture(root / "a" / "1.png", "1")
    write_picture(root / "a" / "deep" / "2.png", "2")
    write_picture(root / "b" / "3.png", "3")
    write_picture(tmp_path / "elsewhere" / "4.png", "4")
    (root / "a" / "up").symlink_to("..")
    (root / "a" / "self").symlink_to(".")
    (root / "a" / "deep" / "back").symlink_to("../../a/deep")
    (root / "a" / "other").symlink_to("../b")
    (root / "a" / "endless").symlink_to("endless")
    write_picture(tmp_path / "aside" / "5.png", "5")
    (root / "b" / "outside").symlink_to(tmp_path / "aside")
    (root / "b" / "again").symlink_to(tmp_path / "aside")
    (root / "b" / "of c").symlink_to(tmp_path / "elsewhere")
    (root / "b" / "same.png").symlink_to("3.png")
    (root / "c").symlink_to(tmp_path / "elsewhere")
    source = data.open_source(root)
    assert names(source) == [
        *("a/1.png", "a/deep/2.png"),
        *("b/3.png", "b/again/5.png", "b/same.png"),
        "c/4.png",
    ]
    (root / "d").symlink_to("c")
    with pytest.raises(ValueError, match="'c' and 'd' are links to one folder"):
        data.open_source(root)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_links_to_nothing_are_bad_and_pipes_are_no_files(tmp_path, write_picture):
    write_picture(tmp_path / "a" / "1.png", "1")
    (tmp_path / "a" / "0.png").symlink_to("gone.png")
    os.mkfifo(tmp_path / "a" / "2.png")  # opening it would wait for ever
    (tmp_path / "a" / "3.png").symlink_to("2.png")
    source = data.open_source(tmp_path)
    assert names(source) == ["a/0.png", "a/1.png"]
    pipe = data.Pipeline(source, 8)
    assert [len(images) for images, _ in pipe.dataset] == [1]
    assert [(index, "No such file" in reason) for index, _, reason in pipe.bad.items] == [(0, True)]


def test_empty_classes_are_named_and_stay(tmp_path, write_picture):
    write_picture(tmp_path / "b" / "1.png", "1")
    for name in ("a", "c"):
        (tmp_path / name).mkdir()
    with pytest.warns(UserWarning, match=r"2 of the 3 classes in .* have no pictures: a, c\."):
        source = data.open_source(tmp_path)
    assert source.class_names == ("a", "b", "c") and source.labels.tolist() == [1]


def test_one_class(tmp_path, write_picture):
    write_picture(tmp_path / "only" / "1.png", "1")
    source = data.open_source(tmp_path)
    assert source.num_classes == 1
    images, labels = next(iter(data.Pipeline(source, 8, batch_size=3, training=True).dataset))
    assert images.shape == (3, 8, 8, 3) and labels.numpy().tolist() == [0, 0, 0]


def test_classes_of_another_folder(tmp_path, folder, write_picture):
    write_picture(tmp_path / "cow" / "1.png", "1")
    source = data.open_source(tmp_path, class_names=("ape", "bee", "cow"))
    assert source.labels.tolist() == [2] and source.num_classes == 3
    with pytest.raises(ValueError, match=r"none of the classes: \['cow'\]"):
        data.open_source(tmp_path, class_names=("ape", "bee"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root, write: None, "no sub-folders"),
        (lambda root, write: write(root / "1.png", "1"), "no sub-folders"),
        (lambda root, write: (root / "a").mkdir(), "no pictures"),
        (lambda root, write: root.rmdir(), "There is no folder"),
    ],
)
def test_folders_without_pictures(tmp_path, make, message, write_picture):
    root = tmp_path / "root"
    root.mkdir()
    make(root, write_picture)
    with pytest.raises(ValueError, match=message):
        data.open_source(root)


@pytest.mark.parametrize("spec", [3, None, ("a", "b"), ["folder"], "x.zip"])
def test_what_is_no_source(spec, tmp_path):
    if spec == "x.zip":
        spec = tmp_path / spec
        spec.write_bytes(b"")
    with pytest.raises(ValueError, match="Expected a folder"):
        data.open_source(spec)


# CSV ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "labels", "classes"),
    [
        ("ape/0.png,x\nbee/1.jpg,w\nape/1.jpg,x\n", [1, 0, 1], ("w", "x")),
        ("\ufefffile,label\nape/0.png,1\nbee/1.jpg,0\nape/1.jpg,2\n", [1, 0, 2], ("0", "1", "2")),
        ("id;class;path\n7;x;ape/0.png\n8;w;bee/1.jpg\n9;x;ape/1.jpg", [1, 0, 1], ("w", "x")),
        ('ape/0.png\t"x, y"\r\nbee/1.jpg\tw\r\n\r\nape/1.jpg\tw\r\n', [1, 0, 0], ("w", "x, y")),
    ],
)
def test_csv(folder, text, labels, classes):
    path = folder / "labels.csv"
    path.write_text(text, "utf-8", newline="")
    source = data.open_source(path)
    path.unlink()
    assert source.labels.tolist() == labels and source.class_names == classes
    assert names(source) == ["ape/0.png", "bee/1.jpg", "ape/1.jpg"]
    assert len(list(data.Pipeline(source, 8, on_bad="raise").dataset)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no pictures"),
        ("file,label\n", "names no pictures"),
        ("ape/0.png\n", "row 1 .* must have a file name and a label"),
        ("nothing.png,1\n", "none of its files is there"),
        ("ape/0.png,-1\n", r"must lie in \[0, 0\)"),
    ],
)
def test_csv_in_disorder(folder, text, message):
    path = folder / "labels.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        data.open_source(path)
    path.unlink()


def test_csv_classes_in_a_given_order(folder):
    path = folder / "labels.csv"
    path.write_text("ape/0.png,x\nbee/1.jpg,w\n")
    assert data.open_source(path, class_names=("x", "v", "w")).labels.tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"classes that `class_names` does not: \['w'\]"):
        data.open_source(path, class_names=("x", "v"))
    path.unlink()


# Arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((3, 4)), [0, 1, 2], "images"),
        (np.zeros((0, 4, 4, 3)), [], "images"),
        (np.zeros((3, 4, 4), "U1"), [0, 1, 2], "images"),
        (np.zeros((3, 4, 4)), [0, 1], "labels"),
        (np.zeros((3, 4, 4)), [0.0, 1.0, 2.0], "labels"),
        (np.zeros((3, 4, 4)), [0, -1, 2], r"\[0, 3\). Received: -1 at 1"),
    ],
)
def test_arrays_in_disorder(images, labels, message):
    with pytest.raises(ValueError, match=message):
        data.open_source((images, np.asarray(labels)))


def test_arrays_keep_their_values(tmp_path):
    images = harness.random_for("arrays").integers(0, 256, (5, 4, 6)).astype("uint8")
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    labels = np.array([[0], [2], [1], [0], [2]])
    for given, dtype in ((images, "uint8"), (mapped, "uint8"), (images * 1.0, "float32")):
        source = data.open_source((given, labels))
        pipe = data.Pipeline(source, (4, 6), channels=1, crop="none", batch_size=4)
        found = [x.numpy() for x, _ in pipe.dataset]
        np.testing.assert_array_equal(np.concatenate(found)[..., 0], images)
        assert found[0].dtype == dtype
        assert np.concatenate([y.numpy() for _, y in pipe.dataset]).tolist() == [0, 2, 1, 0, 2]


# Splits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5])
def test_each_class_gives_its_share(fraction):
    labels = np.repeat([0, 1, 2, 3], [100, 10, 2, 1])
    source = data.open_source((np.zeros((113, 2, 2), "uint8"), labels))
    rest, held = data.split_source(source, fraction, seed=4)
    assert sorted([*rest.indices, *held.indices]) == list(range(113))
    counts = np.bincount(held.labels, minlength=4).tolist()
    assert counts == [100 * fraction, 10 * fraction, 1, 0]
    assert rest.num_classes == held.num_classes == 4
    again = data.split_source(source, fraction, seed=4)[1]
    assert again.indices.tolist() == held.indices.tolist()
    other = data.split_source(source, fraction, seed=5)[1]
    assert other.indices.tolist() != held.indices.tolist()


def test_parts_of_floats_and_files(pictures):
    rest, held = data.split_source(pictures, 0.25, 1)
    assert held.names([0]) == pictures.names([held.indices[0]])
    assert held.read(1) == pictures.read(held.indices[1])
    floats = data.open_source((np.arange(12.0).reshape(3, 2, 2) * 20, [0, 1, 1]))
    part = data.Subset(floats, [2, 0], "two")
    images, labels = next(iter(data.Pipeline(part, 2, channels=1, crop="none").dataset))
    np.testing.assert_array_equal(images[..., 0], np.arange(12).reshape(3, 2, 2)[[2, 0]] * 20)
    assert images.dtype == "float32" and labels.numpy().tolist() == [1, 0]
    for wrong in (0.0, 1.0, -0.5, "x"):
        with pytest.raises(ValueError, match="fraction"):
            data.split_source(pictures, wrong)
    with pytest.raises(ValueError, match="empty"):
        data.split_source(data.Subset(pictures, [0], "one"), 0.5)


def test_folders_of_parts(tmp_path, write_picture):
    for part, classes in (("train", "ab"), ("val", "b"), ("test", "ab")):
        for name in classes:
            write_picture(tmp_path / part / name / "1.png", name)
    with pytest.raises(ValueError, match="test/, train/, val/: say which"):
        data.open_source(tmp_path)
    assert data.open_source(tmp_path, "val").labels.tolist() == [0]
    training, validation = data.open_splits(tmp_path)
    assert training.size == 2 and names(validation) == ["b/1.png"]
    assert validation.labels.tolist() == [1]  # the classes are the training's
    training, validation = data.open_splits(tmp_path / "train", tmp_path / "test")
    assert validation.size == 2 and validation.description == f"folder {tmp_path / 'test'}"


def test_a_part_is_held_out(folder):
    training, validation = data.open_splits(folder, held_out=0.25, seed=3)
    assert training.size + validation.size == 13
    assert set(validation.labels.tolist()) == {0, 1, 2}
    training, validation = data.open_splits(folder, held_out=0)
    assert training.size == 13 and validation is None


# Records -----------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [2**30, 0], ids=["in memory", "from the files"])
def test_records_round_trip(pictures, tmp_path, monkeypatch, budget):
    monkeypatch.setattr("keras_vit.data.records.MEMORY_BYTES", budget)
    folder = data.write_tfrecords(pictures, tmp_path / "deep" / "records", shards=3)
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"data-0000{i}-of-00003.tfrecord" for i in range(3)),
        "dataset.json",
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["records"]
    source = data.open_source(f"tfrecord:{folder}/*.tfrecord")
    assert source.class_names == pictures.class_names
    assert source.labels.tolist() == pictures.labels.tolist()
    assert [source.read(i) for i in range(13)] == [pictures.read(i) for i in range(13)]
    assert source.names([7])[0].endswith("data-00001-of-00003.tfrecord #7")
    kwargs = {"image_size": 9, "batch_size": 4, "training": True, "seed": 2}
    theirs = iter(data.Pipeline(pictures, **kwargs).dataset)
    for images, labels in data.Pipeline(source, **kwargs).dataset.take(7):
        expected = next(theirs)
        np.testing.assert_array_equal(images, expected[0])
        np.testing.assert_array_equal(labels, expected[1])
    # One file alone, without what is known of all.
    part = data.open_source(f"tfrecord:{folder}/data-00001*")
    assert part.size == 4 and part.read(0) == pictures.read(5)
    (folder / "dataset.json").unlink()
    bare = data.open_source(f"tfrecord:{folder}/*.tfrecord")
    assert bare.class_names == ("0", "1", "2")
    assert bare.labels.tolist() == pictures.labels.tolist()
    named = data.open_source(f"tfrecord:{folder}/*.tfrecord", class_names=("x", "y", "z"))
    assert named.class_names == ("x", "y", "z")


def test_tensorflow_reads_the_records(pictures, tmp_path):
    import tensorflow as tf

    folder = data.write_tfrecords(pictures, tmp_path / "records", shards=2)
    files = sorted(map(str, folder.glob("*.tfrecord")))
    found = [
        tf.io.parse_single_example(
            record,
            {
                "image/encoded": tf.io.FixedLenFeature([], tf.string),
                "image/class/label": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        for record in tf.data.TFRecordDataset(files)
    ]
    assert [(x["image/encoded"].numpy(), int(x["image/class/label"])) for x in found] == [
        pictures.read(i) for i in range(13)
    ]


def test_arrays_are_written_as_png(tmp_path):
    images = harness.random_for("written").integers(0, 256, (3, 5, 4, 1)).astype("uint8")
    folder = data.write_tfrecords(data.open_source((images, [1, 0, 1])), tmp_path / "records")
    source = data.open_source(f"tfrecord:{folder}/*.tfrecord")
    for i in range(3):
        np.testing.assert_array_equal(data.decode(source.read(i)[0], channels=1), images[i])


def test_writing_leaves_nothing_half_done(pictures, tmp_path, monkeypatch):
    read = type(pictures).read

    def failing(self, index):
        if index == 9:
            raise OSError("the disk is gone")
        return read(self, index)

    monkeypatch.setattr(type(pictures), "read", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        data.write_tfrecords(pictures, tmp_path / "records", shards=2)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    (tmp_path / "records").mkdir()
    data.write_tfrecords(pictures, tmp_path / "records")
    with pytest.raises(FileExistsError, match="new or empty"):
        data.write_tfrecords(pictures, tmp_path / "records")
    with pytest.raises(ValueError, match="at most the examples, 13"):
        data.write_tfrecords(pictures, tmp_path / "more", shards=14)


def test_damaged_records(pictures, tmp_path):
    folder = data.write_tfrecords(pictures, tmp_path / "records")
    path = folder / "data-00000-of-00001.tfrecord"
    whole = path.read_bytes()
    spec = f"tfrecord:{path}"
    for content, message in (
        (whole[:-1], "ends in the middle of record 12"),
        (whole[:5], "ends in the middle of record 0"),
        (b"\1" + whole[1:], "damaged at byte 0, or no TFRecord file"),
        (b"", "has no records"),
        (b"PK\3\4" + b"x" * 100, "no TFRecord file"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            data.open_source(spec)
    path.write_bytes(whole)
    (folder / "dataset.json").write_text(json.dumps({"class_names": ["a"], "files": [path.name]}))
    with pytest.raises(ValueError, match="dataset.json is damaged"):
        data.open_source(spec)
    (folder / "dataset.json").write_text(json.dumps({"class_names": ["a"], "files": []}))
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\). Received: 1 at #5"):
        data.open_source(spec)
    with pytest.raises(ValueError, match="No TFRecord file matches"):
        data.open_source(f"tfrecord:{tmp_path}/none*")


def test_records_of_something_else(tmp_path):
    import tensorflow as tf

    path = str(tmp_path / "other.tfrecord")
    feature = {"label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))}
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(
            tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
        )
    with pytest.raises(ValueError, match=r"'image/encoded' .* Received: \['label'\]"):
        data.open_source(f"tfrecord:{path}")


# Checks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "expects", "found"),
    [
        (0, 255, "0..255", None),
        (0, 1, "0..255", "0..1"),
        (-1, 1, "0..255", "-1..1"),
        (-2.1, 2.6, "0..255", "standardised"),
        (0, 255, "0..1", "0..255"),
        (0, 1, "0..1", None),
        (-1, 1, "-1..1", None),
        (-2.1, 2.6, "standardised", None),
        (0, 255, "standardised", "0..255"),
        (7, 7, "0..255", None),
    ],
)
def test_pixels_are_looked_at(low, high, expects, found):
    images = np.linspace(low, high, 3 * 4 * 4 * 3, dtype="float32").reshape(3, 4, 4, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        right = data.check_pixels(images, expects)
    assert right == (found is None)
    assert [f"look like {found} " in str(w.message) for w in caught] == ([] if right else [True])


def test_arrays_in_0_to_1_are_warned_of():
    images = harness.random_for("unit").uniform(size=(5, 4, 4, 3))
    with pytest.warns(UserWarning, match=r"look like 0\.\.1 .*include_rescaling=False"):
        data.Pipeline((images, np.arange(5)), 4, crop="none")


def test_tensors_of_the_backend_are_looked_at():
    import keras

    with pytest.warns(UserWarning, match=r"look like 0\.\.1"):
        data.check_pixels(keras.ops.convert_to_tensor(np.eye(4, dtype="float32")[None, ..., None]))


# Pictures without labels -------------------------------------------------------------------


def test_read_images(folder, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    paths = [folder / "ape" / "0.png", tmp_path / "broken.jpg", tmp_path / "gone.png",
             folder / "bee" / "1.jpg"]  # fmt: skip
    images, read, problems = data.read_images(paths, 11)
    assert read == [0, 3] and images.shape == (2, 11, 11, 3) and images.dtype == np.uint8
    assert [path for path, _ in problems] == [str(path) for path in paths[1:3]]
    expected = np.asarray(
        Image.open(io.BytesIO(paths[0].read_bytes())).resize((11, 11), Image.Resampling.BILINEAR)
    )
    np.testing.assert_array_equal(images[0], expected)
    assert data.read_images([], (5, 7), channels=1)[0].shape == (0, 5, 7, 1)
