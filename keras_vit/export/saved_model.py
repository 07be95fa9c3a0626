"""A SavedModel for TF Serving: pixels or encoded pictures in, logits and named classes out."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit import _checks, _deps
from keras_vit.export import warm_up
from keras_vit.export.batching import write_batching
from keras_vit.export.folders import staged
from keras_vit.export.graph import computation
from keras_vit.export.isolation import under_tensorflow
from keras_vit.export.preparation import TOP, Serving, exportable, serving_of

LABELS = "labels.txt"
SETTINGS = "keras_vit.json"
_EXTRA = "assets.extra"
_LAST = 2**63 - 1  # TF Serving's versions are of 64 bits
# Pictures that are decoded have these numbers of channels.
_DECODED = (1, 3)


def to_saved_model(
    model: keras.Model,
    path,
    *,
    overwrite: bool = False,
    class_names: Sequence[str] | None = None,
    probabilities: str | None = None,
    crop: str = "squash",
    crop_fraction: float = 0.875,
    interpolation: str = "bilinear",
    top: int = TOP,
    warmup: bool | None = None,
    max_batch_size: int | None = None,
) -> Path:
    """Writes a SavedModel, from any backend, that runs without Keras and takes any batch.

    Signatures, images being `(batch, height, width, channels)` pixels 0..255:

    - `serving_default`: `images` float32 to `logits` and `probabilities`, `(batch, classes)`.
    - `serve_uint8`: the same from `images` uint8.
    - `serve_bytes`: `image_bytes` `(batch,)`, encoded JPEG or PNG, of any size: decoded, turned
      upright and resized as `keras_vit.data.read_images` does it; also gives `classes`
      `(batch, top)`, names from `assets/labels.txt`, best first, and `scores`, their
      probabilities. A picture that cannot be read is an error that names its index.
    - `features`: `images` float32 to `features` `(batch, width)`, what the head reads.

    A model without a head gives `features` in all of them. One that takes scaled images
    (`include_rescaling=False`) has neither `serve_uint8` nor `serve_bytes`, which a warning says.

    Args:
        model: a model of this package under any policy (it is exported in float32), or a Keras
            model in float32 from images to logits.
        path: `"serving/vit/3"` for that version, or `"serving/vit"` for the next free one.
        overwrite: whether an existing version may be replaced.
        class_names: names of the classes; `None`: those of the checkpoint the model came from,
            else their numbers.
        probabilities: `"softmax"` or `"sigmoid"`; `None`: the model's `classifier_activation`,
            else `"softmax"`.
        crop: how pictures get their size in `serve_bytes`, see `keras_vit.data.read_images`.
        crop_fraction: see `keras_vit.data.Pipeline`.
        interpolation: "bilinear" or "bicubic".
        top: how many classes are named.
        warmup: whether `assets.extra/tf_serving_warmup_requests` is written, which takes
            tensorflow-serving-api; `None`: if that is installed.
        max_batch_size: writes `batching_parameters.txt` for a GPU beside the version.

    Returns:
        The version's directory.

    Raises:
        ValueError: on a model that cannot be exported, or arguments that do not fit it.
        FileExistsError: if the version is there, and `overwrite` is not set.
        ImportError: if TensorFlow is missing, or what `warmup` takes.
        RuntimeError: if the exporting process died; the message has its last words.
    """
    serving = serving_of(
        model,
        class_names,
        probabilities,
        crop=crop,
        crop_fraction=crop_fraction,
        interpolation=interpolation,
        top=top,
    )
    if max_batch_size is not None:
        _checks.positive_int("max_batch_size", max_batch_size)
    if warmup is not None and _checks.boolean("warmup", warmup):
        _deps.require(warm_up.PACKAGE, "export", "Writing warm-up requests")
    for name, reason in _left_out(serving).items():
        warnings.warn(f"The signature {name} is left out: {reason}.", stacklevel=2)
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"`path` must be a path. Received: {path!r}")
    version = version_of(Path(path).expanduser())
    with staged(version, overwrite) as partial:
        under_tensorflow(
            model,
            "keras_vit.export.saved_model:write",
            serving,
            path=str(partial),
            name=version.parent.name,
            warmup=warm_up.available() if warmup is None else warmup,
        )
    if max_batch_size is not None:
        write_batching(version.parent, max_batch_size)
    return version


def version_of(path: Path) -> Path:
    """The directory of the version that a path means: itself, or the next one below it."""
    strange = set("[]*?") & set(str(path))
    if strange:
        raise ValueError(
            f"`path` must be without {' '.join(sorted(strange))}, which TensorFlow takes for a "
            f"pattern when it loads a model. Received: {path}"
        )
    if path.name.isdecimal():
        if path.name != str(int(path.name)) or int(path.name) > _LAST:
            raise ValueError(
                f"A version is a number from 0 to {_LAST}, without zeros before it. "
                f"Received: {path.name}"
            )
        return path
    if (path / "saved_model.pb").exists():
        raise FileExistsError(
            f"{path} is a SavedModel itself, without a version: name a directory that is to hold "
            "numbered versions, such as serving/vit."
        )
    known = path.iterdir() if path.is_dir() else ()
    names = [entry.name for entry in known]
    versions = [int(name) for name in names if name.isascii() and name.isdecimal()]
    return path / str(max(versions, default=0) + 1)


def write(model, serving: Serving, path: str, name: str, warmup: bool) -> None:
    """Writes the SavedModel; runs where Keras runs on TensorFlow.

    Args:
        model: see `to_saved_model`.
        serving: of the model.
        path: the directory to make.
        name: of the model on the server.
        warmup: whether to write warm-up requests.
    """
    import tensorflow as tf

    folder = Path(path)
    folder.mkdir()
    module, network = tf.Module(), exportable(model)
    # A module keeps, and saves, what hangs on it.
    module.variables_of_model = [variable.value for variable in network.variables]  # type: ignore[attr-defined]
    labels = folder / LABELS
    if serving.num_classes is not None:
        labels.write_text("".join(f"{label}\n" for label in serving.labels), encoding="utf-8")
    signatures = _signatures(module, network, serving, labels)
    tf.saved_model.save(module, str(folder), signatures=signatures)
    labels.unlink(missing_ok=True)  # its copy is in assets/
    (folder / _EXTRA).mkdir()
    settings = json.dumps({"producer": "keras_vit", **serving.to_dict()}, indent=2)
    (folder / _EXTRA / SETTINGS).write_text(settings + "\n", encoding="utf-8")
    if warmup:
        warm_up.write_requests(folder / _EXTRA, name, sorted(signatures), serving)


def _left_out(serving: Serving) -> dict[str, str]:
    """Signatures that the model cannot have, and why."""
    if not serving.pixels:
        reason = "the model takes images that are scaled already (include_rescaling=False)"
        return {"serve_uint8": reason, "serve_bytes": reason}
    channels = serving.image_shape[-1]
    if channels not in _DECODED:
        return {"serve_bytes": f"pictures have 1 or 3 channels, and the model takes {channels}"}
    return {}


def _signatures(module, network, serving: Serving, labels: Path) -> dict[str, Callable]:
    """Name -> function; what they need is hung onto `module`, which keeps it."""
    import tensorflow as tf

    compute = computation(network, serving)
    shape = (None, *serving.image_shape)
    scores = ("logits", "probabilities") if serving.num_classes is not None else ("features",)
    name_best = None
    if serving.num_classes is not None:
        name_best = _naming(module, serving, labels)

    def answer(images, names=scores):
        found = compute(tf.cast(images, tf.float32))
        return {name: found[name] for name in names}

    def from_bytes(image_bytes):
        from keras_vit.export.decoding_graph import decode_images

        found = answer(decode_images(image_bytes, serving))
        return {**found, **name_best(found["probabilities"])} if name_best else found

    images = tf.TensorSpec(shape, tf.float32, name="images")
    pixels = tf.TensorSpec(shape, tf.uint8, name="images")
    encoded = tf.TensorSpec((None,), tf.string, name="image_bytes")
    table: dict[str, tuple[Callable, Any]] = {
        "serving_default": (lambda images: answer(images), images),
        "serve_uint8": (lambda images: answer(images), pixels),
        "serve_bytes": (from_bytes, encoded),
        "features": (lambda images: answer(images, ("features",)), images),
    }
    for left_out in _left_out(serving):
        del table[left_out]
    if "features" not in network.output:
        del table["features"]
    return {name: tf.function(body, input_signature=[spec]) for name, (body, spec) in table.items()}


def _naming(module, serving: Serving, labels: Path) -> Callable:
    """A function of probabilities that names the best classes, out of an asset file."""
    import tensorflow as tf

    lookup = tf.lookup
    module.labels = tf.saved_model.Asset(str(labels))
    module.names = lookup.StaticHashTable(
        lookup.TextFileInitializer(
            module.labels,
            tf.int64,
            lookup.TextFileIndex.LINE_NUMBER,
            tf.string,
            lookup.TextFileIndex.WHOLE_LINE,
        ),
        default_value="",
    )

    def name_best(probabilities):
        top = min(serving.top, probabilities.shape[-1])
        scores, indices = tf.math.top_k(probabilities, top)
        return {"classes": module.names.lookup(tf.cast(indices, tf.int64)), "scores": scores}

    return name_best
