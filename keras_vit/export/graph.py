"""A model as functions of TensorFlow's, and the plain SavedModel that converters read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit.export.isolation import function
from keras_vit.export.preparation import Serving, exportable


def run_task(
    model: keras.Model,
    serving: Serving,
    on_graph: str,
    batch_size: int | None,
    outputs: Sequence[str],
    arguments: dict[str, Any],
) -> Any:
    """Has `on_graph` work on a plain SavedModel in a temporary folder; see `with_graph`."""
    with tempfile.TemporaryDirectory(prefix="keras-vit-graph-") as name:
        folder = Path(name) / "graph"
        write_plain(exportable(model), serving, folder, batch_size, outputs)
        return function(on_graph)(folder, **arguments)


def write_plain(network, serving: Serving, folder: Path, batch_size, outputs) -> None:
    """Writes a SavedModel with the signature `serving_default` alone.

    Args:
        network: what `exportable` returned.
        serving: of the model.
        folder: the directory to write.
        batch_size: the only size of batches; `None`: any.
        outputs: names of what it gives.
    """
    import tensorflow as tf

    module, compute = tf.Module(), computation(network, serving)
    # A module keeps, and saves, what hangs on it.
    module.variables_of_model = [variable.value for variable in network.variables]  # type: ignore[attr-defined]
    images = tf.TensorSpec((batch_size, *serving.image_shape), tf.float32, name="images")

    @tf.function(input_signature=[images])
    def serving_default(images):
        found = compute(images)
        return {name: found[name] for name in outputs if name in found} or found

    tf.saved_model.save(module, str(folder), signatures={"serving_default": serving_default})


def computation(network, serving: Serving):
    """The function of images float32 that gives `logits`, `probabilities` and `features`."""
    import tensorflow as tf

    activation = {"softmax": tf.nn.softmax, "sigmoid": tf.nn.sigmoid}[serving.probabilities]

    def compute(images):
        found = dict(network(images, training=False))
        if "logits" in found:
            found["probabilities"] = activation(found["logits"])
        return found

    return compute
