"""Linear probe of a checkpoint's features on Fashion-MNIST: logistic regression, few pictures.

    python benchmarks/linear_probe.py dinov2_small/ --size 112 --features token_gap

The first 2,000 training and 1,000 test pictures, resized bilinearly, grey repeated over the
channels; features standardised by the training pictures; the strength of the regularisation is
chosen by five-fold cross-validation on the training pictures alone.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _fashion_mnist_data import load  # noqa: E402

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
POOLINGS = ("token", "gap", "token_gap")


def features(model, images: np.ndarray, size: int, batch: int = 100) -> np.ndarray:
    """Features of grey pictures `(n, 28, 28, 1)`, uint8."""
    found = []
    for start in range(0, len(images), batch):
        part = np.repeat(images[start : start + batch], 3, axis=-1).astype("float32")
        part = keras.ops.image.resize(part, (size, size), interpolation="bilinear")
        found.append(keras.ops.convert_to_numpy(model.predict_on_batch(part)))
    return np.concatenate(found)


def probe(train, train_labels, test, test_labels) -> dict[str, float]:
    """Test accuracy of logistic regression, and the strength that cross-validation chose."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def classifier(strength):
        return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))

    scores = {
        strength: cross_val_score(classifier(strength), train, train_labels, cv=5).mean()
        for strength in STRENGTHS
    }
    best = max(scores, key=scores.get)
    fitted = classifier(best).fit(train, train_labels)
    return {"accuracy": float(fitted.score(test, test_labels)), "C": best}


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="whatever keras_vit.from_checkpoint takes")
    parser.add_argument("--size", type=int, default=98, help="side of the images in pixels")
    parser.add_argument("--features", choices=POOLINGS, default="token")
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--test", type=int, default=1000)
    options = parser.parse_args(argv)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*positions were resampled")
        model = keras_vit.from_checkpoint(
            options.checkpoint,
            num_classes=None,
            image_shape=(options.size, options.size, 3),
            pooling=options.features,
        )
    (train, train_labels), (test, test_labels) = load()
    started = time.perf_counter()
    splits = [
        features(model, s, options.size) for s in (train[: options.train], test[: options.test])
    ]
    seconds = time.perf_counter() - started
    result = probe(splits[0], train_labels[: options.train], splits[1], test_labels[: options.test])
    result |= {"size": options.size, "features": options.features, "seconds": round(seconds, 1)}
    print(json.dumps({"backend": keras.backend.backend(), **result}))


if __name__ == "__main__":
    main()
