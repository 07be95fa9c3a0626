"""The Transformer's feed-forward block and its activations."""

from __future__ import annotations

import functools
import math

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers.dense import Dense


def _in_float32(function):
    """Computes in float32 what PyTorch's own kernels and its compiler compute so too.

    bfloat16 has 8 bits, which GELU's cube, say, would lose at every step. In a loop that XLA makes,
    float32 costs nothing.
    """

    @functools.wraps(function)
    def activation(x):
        dtype = keras.backend.standardize_dtype(x.dtype)
        if keras.backend.backend() == "torch" or dtype not in ("bfloat16", "float16"):
            return function(x)
        return ops.cast(function(ops.cast(x, "float32")), dtype)

    return activation


@_in_float32
def gelu(x):
    """Exact GELU, `x * Phi(x)`."""
    if keras.backend.backend() == "torch":
        return ops.gelu(x, approximate=False)
    # Written with erf, so that every exporter reads it; XLA makes one loop of it.
    half, root = ops.cast(0.5, x.dtype), ops.cast(1.0 / math.sqrt(2.0), x.dtype)
    return half * x * (1.0 + ops.erf(x * root))


@_in_float32
def gelu_tanh(x):
    """GELU by its tanh approximation: what Flax calls `gelu` (arXiv 1606.08415)."""
    return ops.gelu(x, approximate=True)


@_in_float32
def quick_gelu(x):
    """`x * sigmoid(1.702 x)`: CLIP's GELU."""
    return x * ops.sigmoid(ops.cast(1.702, x.dtype) * x)


@_in_float32
def swiglu(x):
    """`silu(first half) * second half` of the last axis (arXiv 2002.05202)."""
    gate, values = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * values


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "swiglu": swiglu,
}


@keras.saving.register_keras_serializable(package="keras_vit")
class MLP(keras.layers.Layer):
    """Dense, activation, dropout, Dense, dropout; back to the input's width.

    Args:
        mlp_dim: width after the activation. SwiGLU reads twice that from the first Dense.
        activation: `"gelu"` (erf), `"gelu_tanh"`, `"quick_gelu"` or `"swiglu"`.
        dropout_rate: dropout after the activation and after the second Dense.

    Call arguments:
        inputs: `(batch, tokens, hidden_dim)`.
        training: whether dropout is active.

    Returns:
        `(batch, tokens, hidden_dim)`.

    Raises:
        ValueError: on an unknown activation or arguments out of range.

    Reference:
        arXiv 2010.11929, section 3.1; initial values as in the official Flax code.
    """

    def __init__(self, mlp_dim, *, activation="gelu_tanh", dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = _checks.positive_int("mlp_dim", mlp_dim)
        self.dropout_rate = _checks.rate("dropout_rate", dropout_rate)
        _checks.choice("activation", activation, tuple(ACTIVATIONS))
        self.fc1 = self._dense(self.mlp_dim * (2 if activation == "swiglu" else 1), "fc1")
        self.activation = activation
        self.dropout1 = keras.layers.Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name="dropout1"
        )
        self.dropout2 = keras.layers.Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name="dropout2"
        )

    @property
    def activation(self):
        """Name of the activation, which the first Dense computes together with its bias."""
        function = self.fc1.activation
        return next((name for name, known in ACTIVATIONS.items() if known is function), function)

    @activation.setter
    def activation(self, name):
        """Sets it by name."""
        self.fc1.activation = ACTIVATIONS[name]

    def _dense(self, units, name):
        return Dense(
            units,
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape):
        self.fc2 = self._dense(input_shape[-1], "fc2")
        self.fc1.build(input_shape)
        self.fc2.build((*input_shape[:-1], self.mlp_dim))
        self.built = True

    def call(self, inputs, training=None):
        shape = ops.shape(inputs)
        # Matmuls run on (batch * tokens, width): no transposes on any backend.
        x = self.fc1(ops.reshape(inputs, (-1, shape[-1])))
        x = self.dropout1(x, training=training)
        x = self.dropout2(self.fc2(x), training=training)
        return ops.reshape(x, (-1, *shape[1:]))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "activation": self.activation,
            "dropout_rate": self.dropout_rate,
        }
