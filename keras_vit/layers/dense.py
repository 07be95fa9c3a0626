"""A Dense layer whose product and bias are one operation."""

from __future__ import annotations

import keras


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(keras.layers.Dense):
    """Keras' Dense, which on PyTorch adds the bias inside of the matrix product.

    Eager PyTorch else reads and writes the whole product once more: of a block of ViT-S/16 on a
    CPU, that is a fifth of the forward pass.

    Args:
        units: width of the outputs.
        **kwargs: as for `keras.layers.Dense`.

    Call arguments:
        inputs: `(batch, values)`; what has more axes is left to Keras.

    Returns:
        `(batch, units)`.
    """

    def call(self, inputs, training=None):
        if (
            keras.backend.backend() != "torch"
            or isinstance(inputs, keras.KerasTensor)
            or len(inputs.shape) != 2
            or self.bias is None
        ):
            return super().call(inputs, training=training)
        import torch

        bias, kernel = (keras.ops.convert_to_tensor(x) for x in (self.bias, self.kernel))
        if not inputs.dtype == kernel.dtype == bias.dtype:  # Keras promotes
            return super().call(inputs, training=training)
        outputs = torch.addmm(bias, inputs, kernel)
        return outputs if self.activation is None else self.activation(outputs)

    def quantize(self, mode=None, type_check=True, config=None):
        """Quantizes as `keras.layers.Dense` does, whose variables these are."""
        super().quantize(mode, type_check=False, config=config)
