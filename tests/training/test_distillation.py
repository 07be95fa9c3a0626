"""Distillation: its losses against NumPy, what trains, and what stays to the bit."""

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training.distillation import Distiller

VIT = {"image_shape": (8, 12, 3), "patch_size": 4, "hidden_dim": 10, "num_layers": 1}
VIT |= {"num_heads": 2, "mlp_dim": 13, "num_classes": 5}
IMAGES = harness.pixels((12, 8, 12, 3))
LABELS = np.arange(12) % 5
MIXED = 0.7 * np.eye(5)[LABELS] + 0.3 * np.eye(5)[LABELS[::-1]]


def build(**changes):
    model = keras_vit.VisionTransformer(**{**VIT, **changes})
    harness.randomize(model)
    return model


def other(classes=5, activation=None, size=(8, 12)):
    """A teacher of another kind, with a state that training would change."""
    images = keras.Input((*size, 3))
    x = keras.layers.Rescaling(1 / 127.5, -1.0)(images)
    x = keras.layers.Conv2D(4, 3, strides=2, data_format="channels_last")(x)
    x = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(x))
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last")(x)
    model = keras.Model(images, keras.layers.Dense(classes, activation=activation)(x))
    harness.randomize_by_order(model)
    for variable in model.weights:
        if variable.path.endswith("moving_variance"):
            variable.assign(np.abs(harness.numpy(variable)))
        if variable.path.endswith("kernel"):
            variable.assign(4 * harness.numpy(variable))
    return model


def log_softmax(x):
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def reference(kind, head, head_dist, teacher, labels, alpha, temperature, smoothing, weight=None):
    """The loss as the paper writes it, in float64."""
    head, head_dist, teacher = (x.astype("float64") for x in (head, head_dist, teacher))
    target = labels if np.ndim(labels) == 2 else np.eye(5)[labels]
    target = (1 - smoothing) * target + smoothing / 5
    own = -(target * log_softmax(head)).sum(1)
    if kind == "hard":
        theirs = -log_softmax(head_dist)[np.arange(len(head)), teacher.argmax(1)]
    else:
        p = np.exp(log_softmax(teacher / temperature))
        q = log_softmax(head_dist / temperature)
        theirs = temperature**2 * (p * (np.log(p) - q)).sum(1)
    losses = (1 - alpha) * own + alpha * theirs
    return (losses if weight is None else weight * losses).mean()


def heads_of(student):
    other_head = "head_dist" if student.flat_config["distillation"] == "head" else "head"
    outputs = [student.get_layer(name).output for name in ("head", other_head)]
    model = keras.Model(student.input, outputs)
    return [harness.numpy(x) for x in model(IMAGES, training=False)]


@pytest.mark.parametrize("distillation", [None, "head"])
def test_the_loss_equals_the_papers(distillation):
    student, teacher = build(distillation=distillation), other()
    settings = {"alpha": 0.3, "temperature": 2.0, "label_smoothing": 0.1}
    known = harness.numpy(teacher(IMAGES, training=False))
    heads = heads_of(student)
    weight = np.linspace(0.1, 2, 12).astype("float32")
    for kind in ("hard", "soft"):
        distiller = Distiller(student, teacher, kind, **settings)
        answers = distiller(IMAGES, training=True)
        for labels, each in ((LABELS, None), (LABELS[:, None], weight), (MIXED, weight)):
            loss = distiller.compute_loss(IMAGES, labels, answers, each)
            flat = labels.reshape(-1) if labels.shape == (12, 1) else labels
            expected = reference(kind, *heads, known, flat, *settings.values(), each)
            assert float(harness.numpy(loss)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_one_step_follows_the_gradient(kind):
    """SGD on the head's bias alone, against a numerical derivative of the reference."""
    student, teacher = build(distillation="head"), other()
    head, head_dist = heads_of(student)
    known = harness.numpy(teacher(IMAGES, training=False))
    for layer in student.layers:
        layer.trainable = layer.name == "head_dist"
    distiller = Distiller(student, teacher, kind, alpha=0.3, temperature=2.0)
    distiller.compile(keras.optimizers.SGD(1.0))
    before = harness.numpy(student.get_layer("head_dist").bias)
    logs = distiller.train_on_batch(IMAGES, LABELS, return_dict=True)
    step = before - harness.numpy(student.get_layer("head_dist").bias)

    def loss(shift):
        return reference(kind, head, head_dist + shift, known, LABELS, 0.3, 2.0, 0.0)

    assert float(logs["loss"]) == pytest.approx(loss(0), rel=1e-5)
    mean = (head + head_dist) / 2
    assert float(logs["accuracy"]) == pytest.approx((mean.argmax(1) == LABELS).mean())
    slopes = [(loss(d) - loss(-d)) / 2e-5 for d in 1e-5 * np.eye(5)]
    np.testing.assert_allclose(step, slopes, atol=1e-5)


@pytest.mark.parametrize(
    ("distillation", "labels"), [(None, LABELS), ("head", MIXED)], ids=["plain", "head-mixed"]
)
def test_fit_trains_the_student_alone(distillation, labels):
    student, teacher = build(distillation=distillation, dropout_rate=0.2), other(size=(5, 7))
    flags = [v.trainable for v in teacher.variables]
    before, old = harness.snapshot(teacher), harness.snapshot(student)
    distiller = Distiller(student, teacher, "soft", alpha=0.5)
    distiller.compile(keras.optimizers.Adam(1e-2))
    ours = {id(v) for v in student.trainable_variables}
    assert {id(v) for v in distiller.trainable_variables} == ours
    count = len(distiller.variables)
    assert len(distiller.non_trainable_variables) == count - len(ours)
    history = distiller.fit(
        IMAGES, labels, batch_size=6, epochs=12, verbose=0, validation_data=(IMAGES, labels)
    ).history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert history["loss"][-1] < history["loss"][0]
    harness.assert_same(harness.snapshot(teacher), before, "the teacher changed")
    assert [v.trainable for v in teacher.variables] == flags
    new = harness.snapshot(student)
    for variable in student.trainable_variables:
        assert (new[variable.path] != old[variable.path]).any(), variable.path
    assert distiller.student is student
    # Evaluation: cross-entropy and accuracy of the mean logits.
    logits = harness.numpy(student(IMAGES, training=False))
    target = labels if labels.ndim == 2 else np.eye(5)[labels]
    expected = -(target * log_softmax(logits)).sum(1).mean()
    assert history["val_loss"][-1] == pytest.approx(expected, rel=1e-4)
    right = (logits.argmax(1) == target.argmax(1)).mean()
    assert history["val_accuracy"][-1] == pytest.approx(right)
    np.testing.assert_allclose(distiller.predict(IMAGES, verbose=0), logits, atol=1e-5)


def test_the_distillation_head_learns_the_teacher():
    """Where labels say nothing, the heads part: one for the label, one for the teacher."""
    student, teacher = build(distillation="head"), other()
    labels = np.zeros(12, "int32")
    distiller = Distiller(student, teacher, "hard")
    distiller.compile(keras.optimizers.Adam(2e-2))
    distiller.fit(IMAGES, labels, batch_size=12, epochs=60, verbose=0)
    head, head_dist = heads_of(student)
    theirs = harness.numpy(teacher(IMAGES, training=False)).argmax(1)
    assert (theirs != 0).any()
    np.testing.assert_array_equal(head.argmax(1), labels)
    np.testing.assert_array_equal(head_dist.argmax(1), theirs)


def test_a_teacher_of_another_size_and_of_probabilities():
    teacher, same = other(size=(16, 18), activation="softmax"), other(size=(16, 18))
    images = keras.ops.image.resize(
        IMAGES, (16, 18), interpolation="bilinear", data_format="channels_last"
    )
    logits = harness.numpy(same(images, training=False))
    for model, outputs in ((teacher, "probabilities"), (same, None)):
        distiller = Distiller(build(), model, teacher_outputs=outputs)
        known = harness.numpy(distiller(IMAGES, training=True)["teacher"])
        # Below, a probability is no float32 any more.
        np.testing.assert_allclose(
            np.maximum(known, -80), np.maximum(log_softmax(logits), -80), atol=1e-4
        )
    ours = Distiller(build(), build(classifier_activation="softmax", name="teacher"))
    assert ours.teacher_outputs == "probabilities"
    whole = IMAGES.astype("uint8")
    found = [
        harness.numpy(Distiller(build(), same)(x, training=True)["teacher"])
        for x in (whole, whole.astype("float32"))
    ]
    np.testing.assert_array_equal(*found)


def test_a_student_with_an_activation_is_taken_by_its_logits():
    student = build(classifier_activation="softmax")
    plain = build()
    found = Distiller(student, other())(IMAGES, training=False)
    expected = plain(IMAGES, training=False)
    np.testing.assert_allclose(harness.numpy(found), harness.numpy(expected), atol=1e-5)


def test_a_student_of_another_kind():
    student, teacher = other(), build()
    distiller = Distiller(student, teacher, "soft")
    distiller.compile(keras.optimizers.SGD(1e-3))
    history = distiller.fit(IMAGES, LABELS, verbose=0, batch_size=6).history
    assert np.isfinite(history["loss"]).all()


def test_penalties_of_the_student_count():
    student = build()
    plain = Distiller(student, other())
    answers = plain(IMAGES, training=True)
    before = float(harness.numpy(plain.compute_loss(IMAGES, LABELS, answers)))
    student.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.5)
    penalty = 0.5 * (harness.numpy(student.get_layer("head").kernel) ** 2).sum()
    after = float(harness.numpy(plain.compute_loss(IMAGES, LABELS, answers)))
    assert after == pytest.approx(before + penalty, rel=1e-5)


def test_a_saved_distiller_goes_on(tmp_path):
    distiller = Distiller(build(distillation="head"), other(), "soft", 0.3, 2.0, 0.1, name="both")
    distiller.compile(keras.optimizers.Adam(1e-2))
    distiller.fit(IMAGES, LABELS, batch_size=12, verbose=0)
    distiller.save(tmp_path / "both.keras")
    loaded = keras_vit.load_model(tmp_path / "both.keras")
    for name in ("kind", "alpha", "temperature", "label_smoothing", "teacher_outputs", "name"):
        assert getattr(loaded, name) == getattr(distiller, name)
    losses = [
        m.fit(IMAGES, LABELS, batch_size=12, epochs=2, verbose=0).history["loss"]
        for m in (distiller, loaded)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_half_precision():
    student = build(distillation="head", dtype="mixed_bfloat16")
    distiller = Distiller(student, other())
    answers = distiller(IMAGES + 0.3, training=True)
    # The teacher's images are not rounded.
    exact = log_softmax(harness.numpy(other()(IMAGES + 0.3, training=False)))
    np.testing.assert_allclose(harness.numpy(answers["teacher"]), exact, rtol=1e-5, atol=1e-5)
    distiller.compile(keras.optimizers.SGD(1e-2))
    assert np.isfinite(distiller.fit(IMAGES, LABELS, verbose=0).history["loss"]).all()


def test_what_cannot_be():
    student, teacher = build(), other()
    sharing = keras.Model(student.input, student.get_layer("head").output)
    cases = [
        (lambda: Distiller(student, teacher, "firm"), "`kind`.*firm"),
        (lambda: Distiller(student, teacher, alpha=1.5), "`alpha`.*1.5"),
        (lambda: Distiller(student, teacher, temperature=0), "`temperature`"),
        (lambda: Distiller(student, teacher, label_smoothing=1), "`label_smoothing`"),
        (lambda: Distiller(student, teacher, teacher_outputs="odds"), "`teacher_outputs`"),
        (lambda: Distiller(student, student), "the same twice"),
        (lambda: Distiller(student, sharing), "share"),
        (lambda: Distiller(student, other(classes=4)), r"\(batch, 5\).*\(None, 4\)"),
        (lambda: Distiller(student, build(num_classes=None, pooling=None)), "output shape"),
        (lambda: Distiller(build(num_classes=None), teacher), "`student` has no head"),
        (lambda: Distiller(build(image_shape=(8, 12, 1), pixel_range="unit"), teacher), "channels"),
        (lambda: Distiller(student, build(classifier_activation="sigmoid")), "sigmoid"),
        (lambda: Distiller(student, teacher).compile("sgd", loss="mse"), "own loss.*mse"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
