"""A Dense layer whose product and bias are one operation."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit.layers.fused_attention import jax_on_gpu


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(keras.layers.Dense):
    """Keras' Dense with less traffic between product, bias and activation.

    On PyTorch the bias is added inside of the matrix product: eager PyTorch else reads and writes
    the whole product once more, of a block of ViT-S/16 on a CPU a fifth of the forward pass.

    On a GPU under JAX the backward pass computes bias and activation again, from the product as it
    came: XLA else writes and reads what the activation's derivative is made of, such as GELU's
    tanh, as large as the product.

    Args:
        units: width of the outputs.
        **kwargs: as for `keras.layers.Dense`.

    Call arguments:
        inputs: `(batch, values)`; what has more axes is left to Keras.

    Returns:
        `(batch, units)`.
    """

    def call(self, inputs, training=None):
        product = _PRODUCTS.get(keras.backend.backend())
        symbolic = isinstance(inputs, keras.KerasTensor)
        if product is None or symbolic or self.bias is None or len(inputs.shape) != 2:
            return super().call(inputs, training=training)
        bias, kernel = (ops.convert_to_tensor(x) for x in (self.bias, self.kernel))
        if not inputs.dtype == kernel.dtype == bias.dtype:  # Keras promotes
            return super().call(inputs, training=training)
        return product(inputs, kernel, bias, self.activation, training)

    def quantize(self, mode=None, type_check=True, config=None):
        """Quantizes as `keras.layers.Dense` does, whose variables these are."""
        super().quantize(mode, type_check=False, config=config)


def _torch_product(inputs, kernel, bias, activation, training):
    import torch

    outputs = torch.addmm(bias, inputs, kernel)
    return outputs if activation is None else activation(outputs)


def _jax_product(inputs, kernel, bias, activation, training):
    import jax.numpy as jnp

    on_gpu = jax_on_gpu()
    # Off GPUs the product is there in float32 before it is rounded; that costs nothing but where
    # gradients would be as wide. Rounded before the bias and behind it, errors are a tenth larger.
    wide = None if training or on_gpu else "float32"
    dtype = inputs.dtype
    product = jnp.matmul(inputs, kernel, preferred_element_type=wide)
    if activation in (None, keras.activations.linear):
        return (product + bias).astype(dtype)

    def activated(product, bias):
        return activation(product + bias).astype(dtype)

    return (keras.remat(activated) if on_gpu else activated)(product, bias)


_PRODUCTS = {"torch": _torch_product, "jax": _jax_product}
