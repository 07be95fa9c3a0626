"""What all models of the package share: flat config, default compilation, safe saving."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras

from keras_vit import _checks
from keras_vit._atomic import replacing
from keras_vit.checkpoints.dialect import Source
from keras_vit.engines.engine import current
from keras_vit.engines.model_hooks import SpreadsOut
from keras_vit.layers.pixel_scaling import PIXEL_RANGES, check_channels
from keras_vit.models import compiled
from keras_vit.models.listed import Listed
from keras_vit.models.quantized import quantize_again, quantized_layers
from keras_vit.optimizers import AdamW

CLASSIFIER_ACTIVATIONS = (None, "softmax", "sigmoid")
DEFAULT_LEARNING_RATE = 3e-4
DEFAULT_WEIGHT_DECAY = 0.004  # of kernels alone


class FlatModel(Listed, SpreadsOut, keras.Model):
    """A functional model that is rebuilt from the flat keyword arguments it was made with.

    Args:
        images: the input tensor.
        outputs: the output tensor.
        config: every argument of the subclass but `dtype` and `name`, checked and complete.
        dtype: the dtype policy of the layers.
        name: name of the model.
    """

    def __init__(self, images, outputs, config: Mapping[str, Any], dtype, name: str | None):
        super().__init__(inputs=images, outputs=outputs, name=name)
        self.dtype_policy = dtype
        # A proxy, since Keras would take a plain dict for a container of layers.
        self._flat_config = MappingProxyType(dict(config))
        # The checkpoint that the weights came from, see `checkpoints.dialect.Source`.
        self.source: Source | None = None
        if config["num_classes"] is not None:
            self.compile(**default_compilation(config["classifier_activation"]))

    def _ready(self):
        return compiled.ready(self)

    def _rest(self, trained):
        compiled.rest(self, trained=trained)

    def call(self, inputs, training=None, mask=None):
        """Runs the model; a ValueError names the shape that images must have."""
        expected = self._flat_config["image_shape"]
        for images in keras.tree.flatten(inputs):
            if len(images.shape) != 4 or tuple(images.shape[1:]) != expected:
                raise ValueError(
                    f"`images` must have shape (batch, {', '.join(map(str, expected))}); resize "
                    "them, or build the model with another `image_shape`. "
                    f"Received: images.shape={tuple(images.shape)}"
                )
        options = {"training": training, "mask": mask}
        return current().inside(self, self._computed, (inputs,), options)

    def _computed(self, inputs, training=None, mask=None):
        outputs = compiled.call(self, inputs, training) if mask is None else None
        if outputs is None:
            return super().call(inputs, training=training, mask=mask)
        return keras.tree.pack_sequence_as(self.output, outputs)

    def compile(self, *args, **kwargs):
        """Compiles as `keras.Model.compile` does.

        Args:
            *args: as in `keras.Model.compile`.
            **kwargs: as in `keras.Model.compile`. On PyTorch, `jit_compile` is about blocks, not
                about whole steps, see `keras_vit.models.compiled`; "auto" says yes on GPUs. What is
                compiled has no gradients of gradients, which need False.
        """
        compiled.forget(self)
        super().compile(*args, **kwargs)

    def compile_from_config(self, config):
        """Compiles as `get_compile_config` described, and makes the optimizer's state."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def load_checkpoint(self, source, *, skip=(), resampling=None):
        """Loads weights of another project; see `keras_vit.models.checkpoints.load_checkpoint`.

        Args:
            source: file, directory, `hf://owner/name` or https address.
            skip: regular expressions of names that may be missing, left over or misshapen.
            resampling: how positions are resampled; `None`: as the project itself does.
        """
        from keras_vit.models.checkpoints import load_checkpoint

        load_checkpoint(self, source, skip=skip, resampling=resampling)

    @property
    def flat_config(self) -> Mapping[str, Any]:
        """The arguments that it was made with, but for `dtype` and `name`.

        Unlike `get_config` it serialises no dtype policy, for which Keras imports TensorFlow
        wherever that is installed.
        """
        return self._flat_config

    def get_config(self):
        """Returns all constructor arguments, and which layers are frozen or quantized."""
        quantized = quantized_layers(self)
        return {
            **self._flat_config,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
            "trainable": self.trainable,
            "frozen_layers": [layer.name for layer in self.layers if not layer.trainable],
            **({"quantized_layers": quantized} if quantized else {}),
        }

    def get_compile_config(self):
        """Returns the arguments of `compile`; whether to compile, each backend decides."""
        # Keras writes what "auto" came to under the backend that saves: True under JAX, which
        # makes PyTorch compile for minutes, and False under TensorFlow, which leaves JAX without.
        config = super().get_compile_config()
        return {**config, "jit_compile": "auto"} if config else config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Builds the model that `get_config` described."""
        arguments = dict(config)
        trainable = arguments.pop("trainable", True)
        frozen = set(arguments.pop("frozen_layers", ()))
        quantized = arguments.pop("quantized_layers", {})
        if isinstance(arguments.get("dtype"), dict):
            arguments["dtype"] = keras.dtype_policies.deserialize(arguments["dtype"])
        model = cls(**arguments)
        model.trainable = trainable
        for layer in model.layers if frozen else ():
            layer.trainable = layer.name not in frozen
        quantize_again(model, quantized)
        return model

    def save(self, filepath, *args, **kwargs):
        """Saves as `keras.Model.save` does; a run that dies leaves no half-written file.

        Args:
            filepath: str or path, ending in `.keras`.
            *args: as in `keras.Model.save`.
            **kwargs: as in `keras.Model.save`.
        """
        path = Path(filepath)
        overwrite = args[0] if args else kwargs.get("overwrite", True)
        if path.suffix != ".keras" or "://" in str(filepath) or (path.exists() and not overwrite):
            super().save(filepath, *args, **kwargs)
            return
        with replacing(path) as partial:
            super().save(partial, *args, **kwargs)


def default_compilation(classifier_activation: str | None) -> dict[str, Any]:
    """Arguments of `compile` that make `fit` work at once.

    Args:
        classifier_activation: the head's; `None` means logits.

    Returns:
        AdamW (rate 3e-4, decay 0.004 of kernels), and the loss and metric that fit the head:
        integer labels for logits and "softmax", 0/1 labels for each class for "sigmoid".
    """
    if classifier_activation == "sigmoid":
        loss, metric = keras.losses.BinaryCrossentropy(), "binary_accuracy"
    else:
        logits = classifier_activation is None
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=logits)
        metric = "accuracy"
    optimizer = AdamW(DEFAULT_LEARNING_RATE, weight_decay=DEFAULT_WEIGHT_DECAY)
    return {"optimizer": optimizer, "loss": loss, "metrics": [metric]}


def check_shared(
    *, image_shape, num_classes, classifier_activation, include_rescaling, pixel_range
) -> dict[str, Any]:
    """Checks the arguments that every model has, and returns them in their normal form."""
    image_shape = _checks.int_tuple("image_shape", image_shape, length=3)
    if num_classes is not None:
        num_classes = _checks.positive_int("num_classes", num_classes)
    _checks.choice("classifier_activation", classifier_activation, CLASSIFIER_ACTIVATIONS)
    if num_classes is None and classifier_activation is not None:
        raise ValueError(
            "`classifier_activation` needs a head. Received: num_classes=None, "
            f"classifier_activation={classifier_activation!r}"
        )
    _checks.choice("pixel_range", pixel_range, tuple(PIXEL_RANGES))
    if _checks.boolean("include_rescaling", include_rescaling):
        check_channels(pixel_range, image_shape[-1])
    return {
        "image_shape": image_shape,
        "num_classes": num_classes,
        "classifier_activation": classifier_activation,
        "include_rescaling": include_rescaling,
        "pixel_range": pixel_range,
    }


def head(
    x,
    num_classes: int | None,
    classifier_activation: str | None,
    *,
    use_bias: bool = True,
    distilled=None,
):
    """Puts the classifier on pooled features, in float32 whatever the policy.

    Args:
        x: `(batch, ..., features)`.
        num_classes: classes, or `None` for the features themselves.
        classifier_activation: `None`, `"softmax"` or `"sigmoid"`.
        use_bias: whether the head has a bias.
        distilled: `None`, or the features of a distillation token, which get a head of their own
            ("head_dist"); what comes out is the mean of both.

    Returns:
        float32, from a layer named "logits", or "features" without a head.
    """
    found = {"head": x} if distilled is None else {"head": x, "head_dist": distilled}
    if num_classes is not None:
        for name, features in found.items():
            found[name] = keras.layers.Dense(
                num_classes,
                use_bias=use_bias,
                kernel_initializer="zeros",
                dtype="float32",
                name=name,
            )(features)
    x = found["head"]
    if distilled is not None:
        x = keras.layers.Average(dtype="float32", name="distillation_mean")(list(found.values()))
    activation, name = classifier_activation or "linear", "logits"
    if num_classes is None:
        activation, name = "linear", "features"
    return keras.layers.Activation(activation, dtype="float32", name=name)(x)
