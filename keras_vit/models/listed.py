"""What Keras finds by walking over all layers several times a step, kept from step to step.

Of a step of ViT-S/16 on PyTorch, these walks take the host as long as to start its kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from keras_vit.engines.torch_copies import as_ever
from keras_vit.models import compiled

_Model = keras.Model if TYPE_CHECKING else object  # Keras must not take the mixin for a model


class Listed(_Model):
    """A mixin before `keras.Model`: inside of a compiled step it answers by what was found once.

    `compiled.ready` looks whether that still holds as each step begins.
    """

    @property
    def weights(self):
        """As `keras.Model.weights`."""
        found = compiled.seen(self)
        return super().weights if found is None else list(found.weights)

    @property
    def metrics(self):
        """As `keras.Model.metrics`."""
        found = compiled.seen(self)
        return super().metrics if found is None else [*self._get_own_metrics(), *found.metrics]

    def zero_grad(self, set_to_none=True):
        """As `torch.nn.Module.zero_grad`."""
        found = compiled.seen(self)
        if found is None or found.foreign or not set_to_none:
            super().zero_grad(set_to_none)
            return
        with as_ever():  # hundreds of calls
            for value in found.values:
                value.grad = None

    def _flatten_layers(self, include_self=True, recursive=True):
        found = compiled.seen(self)
        if found is None or include_self or not recursive:
            return super()._flatten_layers(include_self, recursive)
        return list(found.layers)

    def _clear_losses(self):
        found = compiled.seen(self)
        if found is None:
            super()._clear_losses()
            return
        for layer in (self, *found.layers):
            if layer._losses:
                layer._losses.clear()
            if layer._loss_ids:
                layer._loss_ids.clear()
