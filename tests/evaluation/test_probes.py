"""k-NN and the few-shot probe against direct computations."""

import harness
import numpy as np
import pytest

from keras_vit.evaluation import few_shot_probe, fit_probe, knn
from keras_vit.evaluation.few_shot import BIAS_COLUMN, STRENGTHS, draw


def clouds(count, name, width=6, classes=3, spread=1.0):
    """Points around one centre a class; the labels are not in order."""
    rng = harness.random_for(name)
    labels = rng.permutation(np.arange(count) % classes)
    centres = harness.noise((classes, width), "centres", 2)
    return (centres[labels] + spread * rng.normal(size=(count, width))).astype("float32"), labels


TRAIN, TRAIN_LABELS = clouds(50, "train")
TEST, TEST_LABELS = clouds(40, "test")


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("k", [1, 7, 50])
def test_knn_equals_a_loop(metric, k):
    votes = knn(TRAIN, TRAIN_LABELS, TEST, k=k, temperature=0.5, metric=metric)
    assert votes.shape == (40, 3)
    for point, row in zip(TEST.astype("float64"), votes, strict=True):
        if metric == "cosine":
            lengths = np.linalg.norm(TRAIN, axis=1) * np.linalg.norm(point)
            similar = TRAIN @ point / lengths
        else:
            similar = -((TRAIN - point) ** 2).sum(1) / 2
        expected = np.zeros(3)
        for index in np.argsort(-similar)[:k]:
            expected[TRAIN_LABELS[index]] += np.exp((similar[index] - similar.max()) / 0.5)
        np.testing.assert_allclose(row, expected / expected.sum(), atol=1e-4)


def test_knn_of_far_points_and_blocks():
    votes = knn(TRAIN, TRAIN_LABELS, 1e4 * TEST, metric="euclidean", temperature=1e-3)
    np.testing.assert_allclose(votes.sum(1), 1, atol=1e-5)
    many = knn(TRAIN, TRAIN_LABELS, np.tile(TEST, (60, 1)), num_classes=5)
    np.testing.assert_allclose(many[-40:], knn(TRAIN, TRAIN_LABELS, TEST, num_classes=5), atol=1e-6)
    assert many.shape == (2400, 5) and not many[:, 3:].any()
    assert np.isfinite(knn(TRAIN, TRAIN_LABELS, np.zeros((1, 6)))).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 51}, "`k`.* 50 training features.*k=51"),
        ({"k": 0}, "`k`"),
        ({"temperature": 0}, "`temperature`"),
        ({"metric": "manhattan"}, "`metric`.*manhattan"),
        ({"features": TEST[:, :4]}, "one width.*6 and 4"),
        ({"features": TEST[0]}, "`features`"),
        ({"features": TEST * np.nan}, "`features` must be finite"),
        ({"num_classes": 2}, "0 to 1"),
        ({"train_labels": TRAIN_LABELS[:9]}, "`labels`"),
    ],
)
def test_knn_refuses(changes, message):
    arguments = {"train_features": TRAIN, "train_labels": TRAIN_LABELS, "features": TEST}
    with pytest.raises(ValueError, match=message):
        knn(**{**arguments, **changes})


def least_squares(features, labels, points, strength, classes=3):
    """The probe by the normal equations, with the bias column written out."""
    mean, deviation = features.mean(0), features.std(0)

    def rows(x):
        scaled = (x - mean) / np.maximum(deviation, 1e-5)
        return np.hstack([scaled, np.full((len(x), 1), BIAS_COLUMN)])

    x, targets = rows(features.astype("float64")), 2 * np.eye(classes)[labels] - 1
    kernel = np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ targets)
    return rows(points.astype("float64")) @ kernel


@pytest.mark.parametrize("strength", [2.0**-10, 1.0, 2.0**20])
@pytest.mark.parametrize(("count", "width"), [(40, 6), (5, 30)])
def test_the_probe_equals_the_normal_equations(strength, count, width):
    features, labels = clouds(count, "fit", width)
    features[:, 1] = 4.0  # a feature that never varies
    points = clouds(20, "points", width)[0]
    points[:, 1] = 4.0
    found = fit_probe(features, labels, strength)(points)
    expected = least_squares(features, labels, points, strength)
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_blocks_change_nothing():
    features, labels = clouds(9000, "many")
    expected = least_squares(features, labels, TEST, 8.0)
    np.testing.assert_allclose(fit_probe(features, labels, 8.0)(TEST), expected, atol=2e-4)


def test_the_penalty_is_chosen_by_validation():
    features, labels = clouds(30, "noisy", width=25, spread=4.0)
    validation = clouds(200, "judge", width=25, spread=4.0)
    points, expected = clouds(300, "rest", width=25, spread=4.0)
    (result,) = few_shot_probe(
        features, labels, points, expected, validation=validation, shots=[None]
    )
    scores = {
        s: (least_squares(features, labels, validation[0], s).argmax(1) == validation[1]).mean()
        for s in STRENGTHS
    }
    assert scores[result.strengths[0]] == max(scores.values()) > min(scores.values())
    right = least_squares(features, labels, points, result.strengths[0]).argmax(1) == expected
    assert result.accuracy == pytest.approx(right.mean())
    assert result.train_count == 30 and result.deviation == 0


def test_shots_are_drawn_for_each_class():
    labels = np.array([0] * 9 + [1] * 2 + [2] * 5 + [4])
    drawn = draw(labels, 3, np.random.default_rng(0))
    np.testing.assert_array_equal(np.bincount(labels[drawn]), [3, 2, 3, 0, 1])
    assert len(set(drawn)) == len(drawn)
    draws = {tuple(draw(labels, 3, np.random.default_rng(seed))) for seed in range(20)}
    assert len(draws) > 5
    assert set().union(*draws) == set(range(len(labels)))
    np.testing.assert_array_equal(draw(labels, None, np.random.default_rng(0)), range(17))


def test_more_shots_help_and_seeds_repeat():
    train, test = clouds(300, "large", spread=3.0), clouds(600, "held", spread=3.0)
    results = few_shot_probe(*train, *test, shots=(1, 10, None), repeats=3)
    one, ten, every = (result.accuracy for result in results)
    assert 1 / 3 < one < ten < every
    assert [result.train_count for result in results] == [3, 30, 300]
    assert len(set(results[0].accuracies)) > 1 and results[0].deviation > 0
    again = few_shot_probe(*train, *test, shots=(1, 10, None), repeats=3)
    assert again == results
    other = few_shot_probe(*train, *test, shots=(1,), repeats=3, seed=1)
    assert other[0].accuracies != results[0].accuracies
    assert results[0].text().startswith("1-shot: ") and "±" in results[0].text()
    assert results[2].to_dict()["shots"] is None


def test_one_image_in_all():
    (result,) = few_shot_probe(TEST[:1], [0], TEST[:1], [0], shots=[1])
    assert result.accuracy == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shots": [0]}, "`shots`"),
        ({"repeats": 0}, "`repeats`"),
        ({"strengths": []}, "`strengths`"),
        ({"strengths": [0.0]}, "`strengths`"),
        ({"validation": (TEST[0], [0])}, "`validation`"),
        ({"num_classes": 2}, "0 to 1"),
    ],
)
def test_the_probe_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        few_shot_probe(TRAIN, TRAIN_LABELS, TEST, TEST_LABELS, **changes)
