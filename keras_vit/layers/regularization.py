"""What keeps deep Transformers in check: DropPath, LayerScale, PatchDropout."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit import _checks, _compiling


class _RandomDrop(keras.layers.Layer):
    """What layers share that drop a random part in training: rate, seed, random state."""

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.rate = _checks.rate("rate", rate)
        self.seed = seed
        if self.rate:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable(package="keras_vit")
class DropPath(_RandomDrop):
    """Zeroes a whole residual branch for a random part of the samples, scaling up the others.

    Args:
        rate: probability that a sample loses the branch, in [0, 1).
        seed: int or `None`.

    Call arguments:
        inputs: `(batch, ...)`, the branch.
        training: whether anything is dropped.

    Returns:
        The same shape.

    Raises:
        ValueError: if the rate is not in [0, 1).

    Reference:
        arXiv 1603.09382.
    """

    def call(self, inputs, training=None):
        if not training or not self.rate:
            return inputs
        recording = _compiling.current().recording
        if recording is not None and self.seed is None:
            return inputs * recording.factors(self.rate, inputs)
        ones = ops.ones((ops.shape(inputs)[0],) + (1,) * (len(inputs.shape) - 1), "float32")
        # Keras' dropout draws without waiting for the device, which its `uniform` does on PyTorch.
        factors = keras.random.dropout(ones, self.rate, seed=self.seed_generator)
        return inputs * ops.cast(factors, inputs.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(keras.layers.Layer):
    """A learnable factor for each channel of a residual branch.

    Args:
        initial_value: every factor at the start, such as 1e-5.

    Call arguments:
        inputs: `(batch, ..., channels)`.

    Returns:
        The same shape.

    Reference:
        arXiv 2103.17239, section 2.
    """

    def __init__(self, initial_value=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial_value = _checks.positive_float("initial_value", initial_value)

    def build(self, input_shape):
        self.gamma = self.add_weight(
            name="gamma",
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
        )
        self.built = True

    def call(self, inputs):
        return inputs * ops.cast(self.gamma, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "initial_value": self.initial_value}


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchDropout(_RandomDrop):
    """Leaves out a random part of the patch tokens in training; prefix tokens always stay.

    Args:
        rate: part of the patches that each sample loses, in [0, 1). At least one stays.
        num_prefix_tokens: tokens before the patches.
        seed: int or `None`.

    Call arguments:
        inputs: `(batch, num_prefix_tokens + patches, hidden_dim)`, positions already added.
        training: whether anything is dropped.

    Returns:
        `(batch, num_prefix_tokens + kept, hidden_dim)`, the kept patches in their order; the
        input itself outside training.

    Raises:
        ValueError: if the rate is not in [0, 1).

    Reference:
        arXiv 2208.07220; arXiv 2212.00794.
    """

    def __init__(self, rate, num_prefix_tokens=0, seed=None, **kwargs):
        super().__init__(rate, seed, **kwargs)
        self.num_prefix_tokens = _checks.non_negative_int("num_prefix_tokens", num_prefix_tokens)

    def call(self, inputs, training=None):
        if not training or not self.rate:
            return inputs
        prefix, patches = inputs[:, : self.num_prefix_tokens], inputs[:, self.num_prefix_tokens :]
        batch, count, _ = ops.shape(patches)
        kept = max(1, round(count * (1.0 - self.rate)))
        noise = keras.random.uniform((batch, count), seed=self.seed_generator)
        index = ops.sort(ops.argsort(noise, axis=1)[:, :kept], axis=1)
        patches = ops.take_along_axis(patches, ops.expand_dims(index, -1), axis=1)
        return ops.concatenate([prefix, patches], axis=1)

    def get_config(self):
        return {**super().get_config(), "num_prefix_tokens": self.num_prefix_tokens}
