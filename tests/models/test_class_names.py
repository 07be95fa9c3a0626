"""Names of classes, from lists that lie in Keras' cache already: nothing is downloaded."""

import json

import keras
import numpy as np
import pytest

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.models import class_names, download
from keras_vit.models.class_names import IMAGENET21K, IMAGENET21K_URLS, decode_predictions


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty cache; a download is an error."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))

    def refuse(url, path, file):
        raise CheckpointError(f"{url} would be downloaded to {path}")

    monkeypatch.setattr(download, "_download", refuse)
    return tmp_path


def put_imagenet(home, count=1000):
    path = home / "models" / "imagenet_class_index.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({str(i): [f"n{i:08}", f"thing_{i}"] for i in range(count)}))


def put_imagenet21k(count=IMAGENET21K, ending="\n"):
    for url, word in zip(IMAGENET21K_URLS, ("n{:08}", "thing {}, té"), strict=True):
        path = download.cached_path(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ending.join(word.format(i) for i in range(count))
        path.write_text(lines + ending, "utf-8")


def scores(classes, *best):
    """A row an image; its best classes in order."""
    table = np.zeros((len(best), classes), "float32")
    for row, order in zip(table, best, strict=True):
        row[list(order)] = 9.0 - np.arange(len(order))
    return table


def test_imagenet(home):
    put_imagenet(home)
    found = decode_predictions(scores(1000, (7, 3, 999), (0, 500, 2)), top=2)
    assert found == [
        [("n00000007", "thing_7", 9.0), ("n00000003", "thing_3", 8.0)],
        [("n00000000", "thing_0", 9.0), ("n00000500", "thing_500", 8.0)],
    ]
    assert all(type(score) is float for row in found for *_, score in row)


def test_equals_keras(home, monkeypatch):
    """The same file at the same place, and the same answers where no two scores are equal."""
    put_imagenet(home)
    predictions = np.random.default_rng(0).normal(size=(3, 1000)).astype("float32")
    index = json.loads((home / "models" / "imagenet_class_index.json").read_text())
    names = keras.applications.imagenet_utils.decode_predictions.__globals__
    monkeypatch.setitem(names, "CLASS_INDEX", index)
    assert names["CLASS_INDEX_PATH"] == class_names.IMAGENET_URL
    expected = keras.applications.imagenet_utils.decode_predictions(predictions, top=4)
    assert decode_predictions(predictions, top=4) == expected


@pytest.mark.parametrize("ending", ("\n", "\r\n"))
def test_imagenet21k(ending):
    put_imagenet21k(ending=ending)
    found = decode_predictions(scores(IMAGENET21K, (21842, 1)), top=2)
    assert found == [[("n00021842", "thing 21842, té", 9.0), ("n00000001", "thing 1, té", 8.0)]]


@pytest.mark.parametrize(
    "names",
    (
        ["cat", "dog", "eel"],
        ("cat", "dog", "eel"),
        {2: "eel", 0: "cat", 1: "dog"},
        {"0": "cat", "1": "dog", "2": "eel"},
        np.array(["cat", "dog", "eel"]),
    ),
)
def test_names_of_the_caller(names):
    found = decode_predictions(scores(3, (2, 0)), class_names=names)
    assert found == [[(2, "eel", 9.0), (0, "cat", 8.0), (1, "dog", 0.0)]]


def test_names_of_the_caller_for_a_thousand_classes():
    names = [str(i) for i in range(1000)]
    assert decode_predictions(scores(1000, (4,)), 1, names) == [[(4, "4", 9.0)]]


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
def test_tensors(dtype):
    predictions = keras.ops.cast(scores(3, (1, 2)), dtype)
    assert decode_predictions(predictions, 1, "abc") == [[(1, "b", 9.0)]]


def test_softmax():
    logits = np.array([[1.0, 1000.0, 999.0]])
    (found,) = decode_predictions(logits, class_names="abc", softmax=True)
    assert [index for index, *_ in found] == [1, 2, 0]
    expected = np.array([1.0, np.exp(-1.0), 0.0]) / (1.0 + np.exp(-1.0))
    np.testing.assert_allclose([score for *_, score in found], expected, rtol=1e-6)


def test_equal_scores_keep_the_order_and_nan_comes_last():
    found = decode_predictions([[np.nan, 2.0, 3.0, 2.0]], class_names="abcd")
    assert [index for index, *_ in found[0]] == [2, 1, 3, 0]


def test_no_images(home):
    put_imagenet(home)
    assert decode_predictions(np.zeros((0, 1000))) == []
    assert decode_predictions(np.zeros((0, 3)), class_names="abc", softmax=True) == []


@pytest.mark.parametrize(
    ("predictions", "options", "message"),
    (
        (np.zeros(1000), {}, r"must be \(batch, classes\). Received: an array of shape \(1000,\)"),
        (np.zeros((1, 10)), {}, "is needed unless there are 1000 .*21843 .*predictions of 10"),
        (np.zeros((1, 21841)), {}, "predictions of 21841 classes"),
        (np.zeros((1, 3)), {"class_names": "ab"}, "name the classes 0 to 2.*Received: 2 names"),
        (np.zeros((1, 2)), {"class_names": {1: "a", 2: "b"}}, "name the classes 0 to 1"),
        (np.zeros((1, 3)), {"class_names": "abc", "top": 0}, "`top` must be"),
    ),
)
def test_errors(predictions, options, message):
    with pytest.raises(ValueError, match=message):
        decode_predictions(predictions, **options)


def test_damaged_lists_are_fetched_again(home):
    put_imagenet(home, count=999)
    with pytest.raises(CheckpointError, match="would be downloaded to .*imagenet_class_index.json"):
        decode_predictions(np.zeros((1, 1000)))
    put_imagenet21k(count=21841)
    with pytest.raises(CheckpointError, match="bit_models/imagenet21k_wordnet_ids.txt would"):
        decode_predictions(np.zeros((1, IMAGENET21K)))


@pytest.mark.parametrize("content", ("", "[]", "null", "{}", "<html>", '{"0": []}'))
def test_no_list(tmp_path, content):
    path = tmp_path / "list"
    path.write_text(content)
    for read in (class_names._read_index, class_names._read_lines):
        with pytest.raises(CheckpointError, match="list"):
            read(path)
    path.write_bytes(b"\xff\xfe\x00")
    for read in (class_names._read_index, class_names._read_lines):
        with pytest.raises(CheckpointError, match="list"):
            read(path)
