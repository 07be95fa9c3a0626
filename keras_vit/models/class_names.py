"""Names for the classes that a model scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vit import _checks
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.models.download import cached_path, fetch, keras_home

# The list that `keras.applications` itself downloads, under the name that it uses.
IMAGENET = "imagenet_class_index.json"
IMAGENET_URL = f"https://storage.googleapis.com/download.tensorflow.org/data/{IMAGENET}"
# The 21,843 classes of Google's models, a line each; other projects leave one or two out.
IMAGENET21K = 21843
IMAGENET21K_URLS = tuple(
    f"https://storage.googleapis.com/bit_models/imagenet21k_wordnet_{part}.txt"
    for part in ("ids", "lemmas")
)

Label = tuple[str | int, str]


def decode_predictions(
    predictions,
    top: int = 5,
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    softmax: bool = False,
) -> list[list[tuple[str | int, str, float]]]:
    """Names the best classes of each image, as `keras.applications` models do.

    Names of ImageNet-1k (1,000 classes) and of Google's ImageNet-21k (21,843 classes) are
    downloaded once, into Keras' cache.

    Args:
        predictions: `(batch, classes)`, logits or probabilities: an array or tensor, as
            `model.predict` returns it.
        top: how many classes to name; all, if there are fewer.
        class_names: names in the order of the classes, or a dictionary from index to name.
        softmax: whether to turn logits into probabilities. By default scores come as they are,
            since ImageNet-21k models are trained on classes that do not exclude each other.

    Returns:
        For each image a list of `(class, name, score)`, best first. The class is the WordNet id,
        such as `"n02123045"`, or the index where `class_names` is given.

    Raises:
        ValueError: if the predictions are no matrix, or there are no names for so many classes.
        CheckpointError: if the names cannot be downloaded; the message says where to put the
            file by hand.

    Example:
        ```python
        keras_vit.decode_predictions(model.predict(images), top=3, softmax=True)
        ```
    """
    scores = np.asarray(keras.ops.convert_to_numpy(predictions)).astype("float32")
    if scores.ndim != 2:
        raise ValueError(
            f"`predictions` must be (batch, classes). Received: an array of shape {scores.shape}"
        )
    top = _checks.positive_int("top", top)
    labels = _labels(scores.shape[1], class_names)
    if softmax:
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [(*labels[index], float(row[index])) for index in indices]
        for row, indices in zip(scores, best, strict=True)
    ]


def _labels(classes: int, class_names) -> list[Label]:
    if class_names is not None:
        return _given(classes, class_names)
    if classes == 1000:
        path = fetch(IMAGENET_URL, keras_home() / "models" / IMAGENET, _read_index)
        return _read_index(path)
    if classes == IMAGENET21K:
        ids, lemmas = (
            _read_lines(fetch(url, cached_path(url), _read_lines)) for url in IMAGENET21K_URLS
        )
        return list(zip(ids, lemmas, strict=True))
    raise ValueError(
        f"`class_names` is needed unless there are 1000 (ImageNet-1k) or {IMAGENET21K} "
        f"(ImageNet-21k) classes. Received: predictions of {classes} classes"
    )


def _given(classes: int, class_names) -> list[Label]:
    if isinstance(class_names, Mapping):
        # JSON makes strings of the indices.
        by_index = {int(index): name for index, name in class_names.items()}
    else:
        by_index = dict(enumerate(class_names))
    if by_index.keys() != set(range(classes)):
        raise ValueError(
            f"`class_names` must name the classes 0 to {classes - 1}, those of the predictions. "
            f"Received: {len(by_index)} names"
        )
    return [(index, by_index[index]) for index in range(classes)]


def _read_index(path: Path) -> list[Label]:
    """Reads Keras' list: `{"0": ["n01440764", "tench"], ...}`."""
    try:
        index = json.loads(path.read_text("utf-8"))
        return [(str(index[str(i)][0]), str(index[str(i)][1])) for i in range(1000)]
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{path} is no list of the 1000 ImageNet classes") from error


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is no text ({error})") from error
    if len(lines) != IMAGENET21K or not all(lines):
        raise CheckpointError(
            f"{path} must have {IMAGENET21K} lines, none empty. Received: {len(lines)} lines"
        )
    return lines
