"""What a model of this package does differently in `fit` where there are several devices."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit import _compiling
from keras_vit.engines.adoption import engine_for, entered, explained
from keras_vit.engines.engine import current
from keras_vit.engines.torch_copies import arriving, arriving_outputs, without_waiting

_Model = keras.Model if TYPE_CHECKING else object  # Keras must not take the mixin for a model


class SpreadsOut(_Model):
    """A mixin before `keras.Model`: asks the engine wherever several devices need more.

    On one device, nothing but the asking is added.
    """

    _in_step = False

    def fit(self, x=None, y=None, batch_size=None, *args, **kwargs):
        """As `keras.Model.fit`; what the devices cannot do right is refused before it starts."""
        engine = engine_for(self)
        engine.check_model(self)
        engine.check_data(x, batch_size, training=True)
        with entered(engine), engine.guard(self):
            engine.attach(self)
            try:
                return super().fit(x, y, batch_size, *args, **kwargs)
            finally:
                self._rest(trained=True)

    def evaluate(self, x=None, y=None, batch_size=None, *args, **kwargs):
        """As `keras.Model.evaluate`."""
        engine = engine_for(self)
        engine.check_data(x, batch_size)
        with entered(engine), engine.guard(self), self._unchanging():
            return super().evaluate(x, y, batch_size, *args, **kwargs)

    def predict(self, x, batch_size=None, *args, **kwargs):
        """As `keras.Model.predict`."""
        engine = engine_for(self)
        engine.check_predict()
        engine.check_data(x, batch_size)
        with entered(engine), engine.guard(self), self._unchanging():
            return super().predict(x, batch_size, *args, **kwargs)

    def predict_on_batch(self, x):
        """As `keras.Model.predict_on_batch`; with several processes, given the same in all."""
        engine = engine_for(self)
        if engine.devices == 1 and engine.processes == 1:
            return super().predict_on_batch(x)
        images = np.asarray(x)
        missing = -len(images) % engine.replicas
        filled = np.concatenate([images, np.repeat(images[-1:], missing, axis=0)])
        with explained(engine):
            outputs = engine.predict(self, filled)
        return keras.tree.map_structure(lambda array: array[: len(images)], outputs)

    def __call__(self, *args, **kwargs):
        state = _compiling.current()
        if state.stepping is self:
            return current().call(self, super().__call__, args, kwargs)
        with self._compiling(stepping=None):
            return current().call(self, super().__call__, args, kwargs)

    def _ready(self):
        """Looks at the model before a call of it: whether `models.compiled` may be asked."""
        return False

    def _rest(self, trained):
        """Gives back what only the steps of one `fit` (trained), or of one `predict`, need."""

    @contextlib.contextmanager
    def _unchanging(self):
        try:
            with _compiling.changed(unchanging=self):
                yield
        finally:
            self._rest(trained=False)

    def make_train_function(self, force=False):
        """As in `keras.Model`; on GPUs PyTorch goes on while the logs come from there."""
        self.train_function = None if force else self.train_function
        if self.train_function is None:
            super().make_train_function()
            self.train_function = _then(arriving, self.train_function)
        return self.train_function

    def make_test_function(self, force=False):
        """As `make_train_function`, of `evaluate`."""
        self.test_function = None if force else self.test_function
        if self.test_function is None:
            super().make_test_function()
            self.test_function = _then(arriving, self.test_function)
        return self.test_function

    def make_predict_function(self, force=False):
        """As `make_train_function`, of `predict`, whose outputs come from there."""
        self.predict_function = None if force else self.predict_function
        if self.predict_function is None:
            super().make_predict_function()
            self.predict_function = _then(arriving_outputs, self.predict_function)
        return self.predict_function

    def train_step(self, *args):
        """A step of `fit`."""
        current().check_step(args[-1])
        with self._compiling(stepping=self), without_waiting(self._device_type()):
            return super().train_step(*args)

    def test_step(self, *args):
        """A step of `evaluate`."""
        with self._compiling(stepping=self), without_waiting(self._device_type()):
            return super().test_step(*args)

    def predict_step(self, *args):
        """A step of `predict`."""
        with self._compiling(stepping=self), without_waiting(self._device_type()):
            return super().predict_step(*args)

    def _compiling(self, stepping):
        allowed = bool(self.jit_compile) and self._ready()
        return _compiling.changed(allowed=allowed, stepping=stepping)

    def _resolve_auto_jit_compile(self):
        # Keras says no on PyTorch, where to compile whole steps takes minutes.
        if keras.backend.backend() == "torch":
            return self._device_type() == "cuda"
        return super()._resolve_auto_jit_compile()

    def _device_type(self):
        """On PyTorch, of the variables; elsewhere `None`."""
        if keras.backend.backend() != "torch":
            return None
        # Not by an operation, which lies nowhere where the call is a symbolic one.
        device = next((getattr(v._value, "device", None) for v in self.weights), None)
        return None if device is None else device.type

    def _should_torch_compile(self):
        return False  # see `models.compiled`

    def compute_metrics(self, *args, **kwargs):
        """Updates the metrics, and returns what they come to in this process."""
        self._in_step = True
        try:
            return super().compute_metrics(*args, **kwargs)
        finally:
            self._in_step = False

    def get_metrics_result(self):
        """What the metrics come to; at the end of an epoch, over all processes."""
        engine = current()
        if self._in_step or not engine.partial_metrics:
            return super().get_metrics_result()
        own = [keras.ops.convert_to_numpy(v.value) for v in self.metrics_variables]
        _assign(self.metrics_variables, engine.arrays(self.metrics_variables, summed=True))
        # Copies: a result may be the variable itself, as that of `keras.metrics.Sum` is.
        found = keras.tree.map_structure(keras.ops.copy, super().get_metrics_result())
        _assign(self.metrics_variables, own)
        return found


def _then(send, function):
    """A step of PyTorch whose results are sent on their way; another backend's as it is."""
    if keras.backend.backend() != "torch":
        return function
    return lambda data: send(function(data))


def _assign(variables: list[Any], arrays: list[Any]) -> None:
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
