"""Ways to adapt a model to a data set, for `run_vtab`: a linear probe, or fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.evaluation.batches import BATCH_SIZE
from keras_vit.evaluation.features import FeatureExtractor
from keras_vit.evaluation.few_shot import STRENGTHS, choose_strength, fit_probe
from keras_vit.evaluation.prediction import predict_all
from keras_vit.evaluation.vtab import Adapt, Examples
from keras_vit.models.base import FlatModel
from keras_vit.models.surgery import replace_head


def probe_adapter(
    model: keras.Model, *, strengths: Sequence[float] = STRENGTHS, batch_size: int = BATCH_SIZE
) -> Adapt:
    """Closed-form least squares on frozen features.

    Args:
        model: see `extract_features`.
        strengths: penalties, of which the validation pictures choose one; the probe is then
            fitted to all pictures.
        batch_size: images at once.

    Returns:
        An `adapt` for `run_vtab`.
    """
    features = FeatureExtractor(model, batch_size)

    def adapt(train: Examples, validation: Examples, num_classes: int):
        known, judged = features(train[0]), features(validation[0])
        strength = choose_strength(
            (known, train[1]), (judged, validation[1]), num_classes, strengths
        )
        labels = np.concatenate([train[1], validation[1]])
        probe = fit_probe(np.concatenate([known, judged]), labels, strength, num_classes)
        return lambda images: probe(features(images))

    return adapt


def fine_tune_adapter(
    model: FlatModel,
    *,
    learning_rates: Sequence[float] = (0.003, 0.01, 0.03),
    steps: int = 500,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> Adapt:
    """Fine-tuning of all weights as in the paper: SGD with momentum, cosine decay, clipping at 1.

    Args:
        model: a model of this package; it is not touched.
        learning_rates: peaks, of which the validation pictures choose one; the model is then
            fine-tuned anew on all pictures. One is taken as it is.
        steps: batches of each fine-tuning, a tenth of them warm-up. The paper has 2,500.
        batch_size: images of a batch. The paper has 512.
        seed: of the order, and of dropout.

    Returns:
        An `adapt` for `run_vtab`.

    Raises:
        ValueError: on arguments out of range.

    Reference:
        arXiv 2010.11929, appendix B.1.1.
    """
    rates = [_checks.positive_float("learning_rates", rate) for rate in learning_rates]
    if not rates:
        raise ValueError("`learning_rates` must hold at least one. Received: none")
    _checks.positive_int("steps", steps)
    _checks.positive_int("batch_size", batch_size)

    def tuned(examples: Examples, num_classes: int, rate: float) -> FlatModel:
        keras.utils.set_random_seed(seed)
        new = replace_head(model, num_classes, classifier_activation=None)
        new.trainable = True
        warmup = steps // 10
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0 if warmup else rate, max(steps - warmup, 1), warmup_target=rate, warmup_steps=warmup
        )
        optimizer = keras.optimizers.SGD(schedule, momentum=0.9, global_clipnorm=1.0)
        new.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        new.fit(
            _stream(examples, batch_size, seed), steps_per_epoch=steps, shuffle=False, verbose=0
        )
        return new

    def adapt(train: Examples, validation: Examples, num_classes: int):
        best = rates[0]
        if len(rates) > 1:
            scores = []
            for rate in rates:
                scored = tuned(train, num_classes, rate)
                logits, _ = predict_all(scored, validation, progress=False, batch_size=batch_size)
                # A rate at which it diverged is the worst.
                right = (logits.argmax(axis=1) == validation[1]).mean()
                scores.append(right if np.isfinite(logits).all() else -1.0)
            best = rates[int(np.argmax(scores))]
        images, labels = (np.concatenate(both) for both in zip(train, validation, strict=True))
        final = tuned((images, labels), num_classes, best)
        return lambda x: predict_all(final, x, progress=False, batch_size=batch_size)[0]

    return adapt


def _stream(examples: Examples, batch_size: int, seed: int) -> Iterator[Examples]:
    """Batches without end; they run on across epochs, each of which is shuffled anew."""
    images, labels = examples
    rng, order = np.random.default_rng(seed), np.zeros(0, int)
    while True:
        while len(order) < batch_size:
            order = np.concatenate([order, rng.permutation(len(labels))])
        chosen, order = order[:batch_size], order[batch_size:]
        yield images[chosen], labels[chosen]
