"""Metrics against loops that do the same one image at a time."""

import json
import math

import harness
import numpy as np
import pytest

from keras_vit.evaluation import metrics

LOGITS = harness.noise((60, 7), "logits", 3)
LABELS = harness.random_for("labels").integers(0, 6, 60)  # the last class has no image
NAMES = tuple("abcdefg")


@pytest.fixture(scope="module")
def result():
    return metrics(LOGITS, LABELS, NAMES)


def test_equal_a_loop(result):
    top1 = top5 = loss = 0
    confusion = [[0] * 7 for _ in range(7)]
    for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True):
        order = sorted(range(7), key=lambda c: -row[c])
        top1 += order[0] == label
        top5 += label in order[:5]
        loss -= row[label] - math.log(sum(math.exp(value) for value in row))
        confusion[label][order[0]] += 1
    assert result.count == 60 and result.top_k == 5
    assert result.top1 == pytest.approx(top1 / 60)
    assert result.top5 == pytest.approx(top5 / 60)
    assert result.loss == pytest.approx(loss / 60, rel=1e-6)
    np.testing.assert_array_equal(result.confusion, confusion)
    recalls = []
    for index, row in enumerate(result.classes):
        column = sum(line[index] for line in confusion)
        assert (row.name, row.count) == (NAMES[index], sum(confusion[index]))
        assert (row.correct, row.predicted) == (confusion[index][index], column)
        if row.count:
            recalls.append(row.correct / row.count)
            assert row.accuracy == row.recall == recalls[-1]
        if column:
            assert row.precision == row.correct / column
    assert result.mean_per_class == pytest.approx(sum(recalls) / len(recalls))
    assert math.isnan(result.classes[6].accuracy)


def test_losses_and_confidences_of_each_image(result):
    shares = np.exp(LOGITS.astype("float64"))
    shares /= shares.sum(1, keepdims=True)
    np.testing.assert_allclose(result.confidences, shares.max(1), rtol=1e-5)
    np.testing.assert_allclose(result.losses, -np.log(shares[range(60), LABELS]), rtol=1e-5)


def test_most_confused(result):
    matrix = result.confusion.copy()
    np.fill_diagonal(matrix, 0)
    found = result.most_confused(1000)
    assert sum(count for *_, count in found) == matrix.sum()
    assert all(matrix[true, predicted] == count for true, predicted, count in found)
    counts = [count for *_, count in found]
    assert counts == sorted(counts, reverse=True)
    np.testing.assert_array_equal(
        result.confusion_of([4, 1]), result.confusion[np.ix_([4, 1], [4, 1])]
    )


def test_nobody_is_right_by_a_tie():
    zeros = metrics(np.zeros((10, 10)), np.arange(10))
    assert (zeros.top1, zeros.top5) == (0.1, 0.5)
    assert zeros.loss == pytest.approx(math.log(10))


def test_few_classes_and_blocks():
    two = metrics(np.array([[1.0, 2.0]]), [0])
    assert (two.top1, two.top5, two.top_k) == (0, 1, 2)
    logits, labels = harness.noise((9000, 3)), np.arange(9000) % 3
    whole = metrics(logits, labels)
    assert whole.top1 == (logits.argmax(1) == labels).mean() and len(whole.losses) == 9000


def test_labels_as_shares():
    shares = np.array([[0.7, 0.3, 0], [0, 0, 1]])
    logits = np.array([[1.0, 0, 0], [0, 0, 2]])
    result = metrics(logits, shares)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert result.top1 == 1 and result.loss == pytest.approx(-(shares * logs).sum() / 2)
    one_hot = metrics(LOGITS, np.eye(7)[LABELS])
    assert one_hot.loss == pytest.approx(metrics(LOGITS, LABELS).loss)
    assert metrics(LOGITS, LABELS[:, None]).top1 == one_hot.top1


def test_huge_logits_do_not_overflow():
    result = metrics(np.array([[1e30, -1e30]], "float32"), [1])
    assert result.loss == pytest.approx(2e30)


def test_text_and_json(result):
    text = result.text()
    assert f"top-1 {result.top1:.2%}, top-5 {result.top5:.2%}, loss {result.loss:.4f}" in text
    row = next(line for line in text.splitlines() if line.startswith("a "))
    assert row.split()[:3] == ["a", str(result.classes[0].count), str(result.classes[0].correct)]
    assert next(x for x in text.splitlines() if x.startswith("g ")).split()[3] == "-"
    short = result.text(rows=2)
    lowest = min((r for r in result.classes if r.count), key=lambda r: r.accuracy)
    assert f"\n{lowest.name}  " in short and "the 2 lowest of 7 classes" in short
    loaded = json.loads(result.json())
    assert loaded["top1"] == result.top1 and loaded["classes"][6]["accuracy"] is None
    assert loaded["confusion"] == result.confusion.tolist()
    true, predicted, count = result.most_confused(1)[0]
    assert loaded["most_confused"][0] == {
        "true": NAMES[true],
        "predicted": NAMES[predicted],
        "count": count,
    }


def test_many_classes_make_no_matrix():
    result = metrics(harness.noise((20, 21_843)), np.arange(20))
    assert result.to_dict()["confusion"] is None
    assert len(result.to_dict()["classes"]) == 21_843


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((3, 4, 5)), [0] * 3), r"`logits`.*\(3, 4, 5\)"),
        ((np.zeros((0, 4)), []), r"`logits`.*\(0, 4\)"),
        ((np.array([[1.0, 2], [np.nan, 0]]), [0, 1]), "1 of 2 rows, the first is row 1"),
        ((np.zeros((2, 4)), [0, 4]), "0 to 3.*1 others.*4.* at 1"),
        ((np.zeros((2, 4)), [-1, 3]), "the first is .*-1.* at 0"),
        ((np.zeros((2, 4)), [0.5, 3]), "0.5.* at 0"),
        ((np.zeros((2, 4)), [0, 1, 2]), r"`labels` must have shape \(2,\)"),
        ((np.zeros((2, 4)), [0, 1], ["x"]), "`class_names`.* 4 classes.*1 names"),
    ],
)
def test_what_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        metrics(*arguments)
