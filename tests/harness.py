"""What every layer and model of the package has to hold, and the helpers that check it.

No product class lives here. `run` and `gradients` are the places that know the backends; the rest
is plain Keras and NumPy.
"""

import importlib.util
import inspect
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from unittest import mock

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
BACKEND = keras.backend.backend()
BACKENDS = ("tensorflow", "jax", "torch")
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
TINY_VIT = {"image_shape": (16, 16, 3), "patch_size": 8, "hidden_dim": 16, "num_layers": 2}
TINY_VIT |= {"num_heads": 2, "mlp_dim": 32, "num_classes": 3}

# Layers that do not follow the policy, and why: the head and what follows it stay in float32,
# since half-precision logits cost accuracy and the softmax needs their differences.
FLOAT32_LAYERS = ("head", "head_dist", "distillation_mean", "logits", "features")


# Values ------------------------------------------------------------------------------------


def once(reason):
    """Skips where the same tests run under PyTorch too, the quickest."""
    elsewhere = BACKEND != "torch" and importlib.util.find_spec("torch") is not None
    return pytest.mark.skipif(elsewhere, reason=reason)


def cases(values, everywhere):
    """Parameters by name: those that run on each backend, and those that run under PyTorch alone.

    Args:
        values: name -> value.
        everywhere: names of those for each backend.
    """
    seldom = once("other cases of the same code run on this backend")
    return [
        pytest.param(value, id=name, marks=() if name in everywhere else seldom)
        for name, value in values.items()
    ]


def numpy(tensor):
    """A tensor as an array; float32 where NumPy has no such dtype (bfloat16)."""
    if keras.backend.standardize_dtype(tensor.dtype) in ("bfloat16", "float16"):
        tensor = keras.ops.cast(tensor, "float32")
    return keras.ops.convert_to_numpy(tensor)


def random_for(name):
    """A generator that depends on the name only: the same on every backend and machine."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def noise(shape, name="noise", scale=1.0):
    return (random_for(name).normal(size=shape) * scale).astype("float32")


def pixels(shape, name="pixels", high=255.0):
    return random_for(name).uniform(0, high, size=shape).astype("float32")


def randomize(layer):
    """Gives each weight values that its path alone decides, none of them zero."""
    for variable in layer.weights:
        shape, kind = tuple(variable.shape), variable.path.split("/")[-1]
        values = noise(shape, variable.path)
        if kind == "gamma":
            values = 1.0 + 0.3 * values
        elif kind == "kernel":
            values = values / np.sqrt(np.prod(shape[:-1]))
        else:
            values = 0.3 * values
        variable.assign(values)


def randomize_by_order(layer):
    """As `randomize`, but by the weights' order, for layers with automatic names."""
    for index, variable in enumerate(layer.weights):
        variable.assign(noise(tuple(variable.shape), f"weight {index}"))


def parameters(model):
    """The model's weights by path, without the states of random layers."""
    return {v.path: v for v in model.weights if "seed_generator" not in v.path}


def copy_state(source, target):
    """Copies all variables, random states included."""
    assert len(source.variables) == len(target.variables)
    for old, new in zip(source.variables, target.variables, strict=True):
        new.assign(keras.ops.convert_to_numpy(old))


def snapshot(layer):
    """path -> value of all variables; names of random states count up, so those get numbers."""
    values = {}
    for variable in layer.variables:
        random_state = "seed" in variable.path.split("/")[-1]
        key = f"random state {len(values)}" if random_state else variable.path
        values[key] = keras.ops.convert_to_numpy(variable)
    return values


def assert_same(actual, expected, message=""):
    """Equal to the bit: two tensors, or two results of `snapshot`."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), message
        for name, value in expected.items():
            np.testing.assert_array_equal(actual[name], value, f"{message} {name}")
        return
    np.testing.assert_array_equal(numpy(actual), numpy(expected), message)


# Running -----------------------------------------------------------------------------------


def _stateless(layer, training):
    """The layer as a pure function of (trainable, other variables, inputs), for JAX to compile."""
    trainable, other = layer.trainable_variables, layer.non_trainable_variables

    def function(weights, states, inputs):
        mapping = zip([*trainable, *other], [*weights, *states], strict=True)
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = layer(inputs, training=training)
        return outputs, [scope.get_current_value(variable) for variable in other]

    return function


def _values(layer):
    trainable, other = layer.trainable_variables, layer.non_trainable_variables
    return [v.value for v in trainable], [v.value for v in other]


def run(layer, inputs, training=False):
    """The layer's outputs: eagerly, or compiled under JAX. Random states move on."""
    inputs = keras.ops.convert_to_tensor(inputs)
    if not layer.built:
        layer.build(tuple(inputs.shape))
    if BACKEND != "jax":
        return layer(inputs, training=training)
    import jax

    outputs, states = jax.jit(_stateless(layer, training))(*_values(layer), inputs)
    for variable, value in zip(layer.non_trainable_variables, states, strict=True):
        variable.assign(value)
    return outputs


def gradients(layer, inputs, training=False):
    """path -> gradient of a fixed random projection of the outputs, for each trainable weight.

    The one place that knows how each backend differentiates. Random states move on.
    """
    inputs = keras.ops.convert_to_tensor(inputs)

    def project(outputs):
        outputs = keras.ops.cast(outputs, "float32")
        cotangent = keras.ops.convert_to_tensor(noise(outputs.shape, "cotangent"))
        return keras.ops.sum(outputs * cotangent)

    weights = layer.trainable_variables
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = project(layer(inputs, training=training))
        found = tape.gradient(loss, [v.value for v in weights])
    elif BACKEND == "torch":
        import torch

        loss = project(layer(inputs, training=training))
        found = torch.autograd.grad(loss, [v.value for v in weights], allow_unused=True)
    else:
        import jax

        call = _stateless(layer, training)

        def loss_of(*values):
            outputs, new = call(*values)
            return project(outputs), new

        found, states = jax.jit(jax.grad(loss_of, has_aux=True))(*_values(layer), inputs)
        for variable, value in zip(layer.non_trainable_variables, states, strict=True):
            variable.assign(value)
    return {
        variable.path: None if gradient is None else numpy(gradient)
        for variable, gradient in zip(weights, found, strict=True)
    }


def check_gradients(layer, inputs, without_gradient=()):
    """Every trainable weight gets a finite gradient that is not zero.

    Softmax does not see what all keys share, so the key part of a fused bias has none; paths that
    end with one of `without_gradient` have none either.
    """
    randomize(layer)
    found = gradients(layer, inputs)
    assert found.keys() == {v.path for v in layer.trainable_variables}
    for path, gradient in found.items():
        assert gradient is not None, f"{path} is not connected to the output"
        assert np.isfinite(gradient).all(), f"the gradient of {path} is not finite"
        if path.endswith(tuple(without_gradient)):
            continue
        if path.endswith(("qkv/bias", "key_value/bias")):
            gradient = gradient[gradient.size // 3 :] if path.endswith("qkv/bias") else gradient
            gradient = gradient[gradient.size // 2 :]
        assert np.abs(gradient).max() > 0, f"the gradient of {path} is zero"


# Configs -----------------------------------------------------------------------------------


def plain(config):
    """A config as JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(config))


def arguments(cls):
    """name -> default of all arguments of `__init__`, those of the package's own bases included."""
    found = {}
    for owner in cls.__mro__:
        if not owner.__module__.startswith("keras_vit") or "__init__" not in vars(owner):
            continue
        parameters = inspect.signature(owner.__init__).parameters.values()
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                found.setdefault(parameter.name, parameter.default)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break  # takes nothing of its bases
    for name in ("self", "name", "dtype"):
        found.pop(name, None)
    return found


def check_config(cls, kwargs):
    """The config holds every argument, and survives JSON both ways; returns the rebuilt object."""
    original = cls(**kwargs)
    config = original.get_config()
    assert arguments(cls).keys() <= config.keys()
    for name, value in kwargs.items():
        if name != "dtype":
            assert plain(config[name]) == plain(value), name
    text = json.dumps(keras.saving.serialize_keras_object(original))
    rebuilt = keras.saving.deserialize_keras_object(json.loads(text), safe_mode=True)
    assert type(rebuilt) is cls
    assert rebuilt.get_config() == config
    # A config that went through plain JSON, where tuples are lists, builds the same object.
    assert cls.from_config(plain(config)).get_config() == config
    return original, rebuilt


def check_coverage(cls, cases):
    """The cases together give every argument a value other than its default."""
    missing = {
        name
        for name, default in arguments(cls).items()
        if not any(name in kwargs and kwargs[name] != default for kwargs in cases)
    }
    assert not missing, f"{cls.__name__}: no case sets {sorted(missing)}"


# Policies ----------------------------------------------------------------------------------


def sublayers(layer):
    """The layer and all layers in it."""
    return layer._flatten_layers(include_self=True, recursive=True)


def check_policy(layer, policy, exceptions=()):
    """The dtype policy reaches each sublayer, and weights are float32."""
    found = [x for x in sublayers(layer) if not isinstance(x, keras.layers.InputLayer)]
    for sublayer in found:
        expected = "float32" if sublayer.name in exceptions else policy
        assert sublayer.dtype_policy.name == expected, sublayer.path
    for variable in layer.weights:
        assert variable.dtype == "float32", variable.path
    return found


# The contract ------------------------------------------------------------------------------


@keras.saving.register_keras_serializable(package="keras_vit_tests")
class CallCounter(keras.layers.Layer):
    """Passes its input on, and counts how often Python runs it: once a trace, where one traces."""

    calls = 0

    def call(self, inputs):
        CallCounter.calls += 1
        return inputs

    def compute_output_shape(self, input_shape):
        return input_shape


def check_no_retrace(run):
    """A second run on the same shapes traces nothing (TensorFlow, JAX; PyTorch runs eagerly)."""
    run()
    before = CallCounter.calls
    run()
    if BACKEND != "torch":
        assert CallCounter.calls == before, "the second call of the same shape traced again"


def check_layer(cls, kwargs, input_shape, policy="float32", without_gradient=(), inputs=None):
    """The whole contract for one layer, its arguments and a dtype policy.

    Args:
        cls: the class.
        kwargs: arguments of its constructor.
        input_shape: with the batch, all sizes known.
        policy: name of a dtype policy.
        without_gradient: endings of the paths of weights that rightly have no gradient.
        inputs: array of `input_shape`; normal noise if not given.
    """
    kwargs = {**kwargs, "dtype": policy, "name": "tested"}
    inputs = noise(input_shape, "inputs") if inputs is None else inputs
    layer, rebuilt = check_config(cls, kwargs)

    # Shapes: as built, as computed, as traced, as run.
    layer.build(input_shape)
    rebuilt.build(input_shape)
    tensor = keras.KerasTensor(input_shape, dtype="float32")
    symbolic = cls(**kwargs)(tensor)
    fresh = cls(**kwargs)
    outputs = fresh(inputs, training=False) if policy == "float32" else run(layer, inputs)
    if not fresh.built:
        fresh.build(input_shape)
    expected = tuple(outputs.shape)
    assert tuple(symbolic.shape) == expected
    assert tuple(layer.compute_output_shape(input_shape)) == expected
    open_batch = (None, *input_shape[1:])
    assert tuple(layer.compute_output_shape(open_batch)) == (None, *expected[1:])
    names = [(v.path, tuple(v.shape)) for v in layer.weights]
    assert names == [(v.path, tuple(v.shape)) for v in fresh.weights]
    assert len({path for path, _ in names}) == len(names), "two weights share a path"

    # Dtypes.
    check_policy(layer, policy)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    assert keras.backend.standardize_dtype(symbolic.dtype) == layer.compute_dtype

    # Inference is deterministic; the rebuilt layer with the same variables computes the same.
    randomize(layer)
    copy_state(layer, rebuilt)
    once = run(layer, inputs)
    assert np.isfinite(numpy(once)).all()
    assert_same(run(layer, inputs), once, "inference is random")
    assert_same(run(rebuilt, inputs), once, "the rebuilt layer differs")
    if policy == "float32":
        copy_state(layer, rebuilt)
        trained = []
        for each in (layer, rebuilt):
            keras.utils.set_random_seed(0)  # PyTorch's dropout draws from the global state.
            trained.append(run(each, inputs, training=True))
        assert_same(trained[0], trained[1], "training differs")
    if layer.trainable_variables:
        check_gradients(layer, inputs, without_gradient)


def check_layer_in_model(cls, kwargs, input_shape, policy, path, inputs=None):
    """A model around the layer trains, compiled, without tracing twice, and reloads equal."""
    inputs = noise(input_shape, "inputs") if inputs is None else inputs
    x = entry = keras.Input(input_shape[1:])
    x = cls(**kwargs, dtype=policy, name="tested")(CallCounter(dtype="float32")(x))
    if len(x.shape) > 2:
        x = keras.layers.Reshape((-1, x.shape[-1]), dtype="float32")(x)
        x = keras.layers.GlobalAveragePooling1D(data_format="channels_last", dtype="float32")(x)
    model = keras.Model(entry, keras.layers.Dense(1, dtype="float32")(x))
    model.compile(keras.optimizers.SGD(1e-5), "mse")
    labels = np.ones((len(inputs), 1), "float32")

    def fit():
        history = model.fit(inputs, labels, batch_size=len(inputs), verbose=0)
        assert np.isfinite(history.history["loss"]).all()

    check_no_retrace(fit)
    check_finite(model)
    model.save(path)
    loaded = keras_vit.load_model(path, safe_mode=True)
    assert_same(run(loaded, inputs), run(model, inputs), "the reloaded model differs")


def check_finite(model):
    for name, value in snapshot(model).items():
        assert np.isfinite(value).all(), f"{name} is not finite"


def check_model(cls, kwargs, policy, path, without_gradient=(), batch=5):
    """The whole contract for one model, its arguments and a dtype policy.

    Args:
        cls: the class.
        kwargs: arguments of its constructor, `image_shape` among them.
        policy: name of a dtype policy.
        path: where to save it.
        without_gradient: endings of the paths of weights that rightly have no gradient.
        batch: number of images.
    """
    kwargs = {**kwargs, "dtype": policy, "name": "tested"}
    model, rebuilt = check_config(cls, kwargs)
    images = pixels((batch, *kwargs["image_shape"]), "images")
    assert [v.path for v in model.weights] == [v.path for v in rebuilt.weights]

    outputs = run(model, images)
    assert tuple(outputs.shape) == (batch, *model.output_shape[1:])
    assert tuple(model.compute_output_shape(images.shape)) == tuple(outputs.shape)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    assert keras.backend.standardize_dtype(model.output.dtype) == "float32"
    assert model.input.name == "images"
    check_policy(model, policy, FLOAT32_LAYERS)
    # Keras makes a plain functional model of the same layers, whatever the class was.
    clone = keras.models.clone_model(model)
    assert [v.path for v in clone.weights] == [v.path for v in model.weights]

    check_gradients(model, images, without_gradient)
    copy_state(model, rebuilt)
    once = run(model, images)
    assert_same(run(model, images), once, "inference is random")
    assert_same(run(rebuilt, images), once, "the rebuilt model differs")

    model.save(path)
    loaded = keras_vit.load_model(path, safe_mode=True)
    assert type(loaded) is cls
    assert loaded.get_config() == model.get_config()
    assert_same(run(loaded, images), once, "the reloaded model differs")
    return model


def check_training(model, steps=20, scale=1000.0, batch=8):
    """Steps of the default compilation on uniform noise stay finite, and are traced once."""
    images = pixels((batch, *model.input_shape[1:]), "noise", high=scale)
    labels = np.arange(batch) % model.output_shape[-1]
    history = model.fit(images, labels, batch_size=batch, epochs=steps, verbose=0).history
    assert np.isfinite(history["loss"]).all(), history["loss"]
    check_finite(model)
    logits = run(model, images)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert np.isfinite(numpy(logits)).all()

    calls, call = [], type(model).call

    def counting(self, *args, **kwargs):
        calls.append(self)
        return call(self, *args, **kwargs)

    with mock.patch.object(type(model), "call", counting):
        model.fit(images, labels, batch_size=batch, verbose=0)
    if BACKEND != "torch":  # which runs eagerly
        assert not calls, "the second fit on the same shape traced again"
    return history


# Processes ---------------------------------------------------------------------------------


def run_python(code, *args, backend=BACKEND, folder=None):
    """Runs code in a fresh process under a backend; returns what it printed."""
    return run_interpreter("-P", "-c", code, *args, backend=backend, folder=folder)


def run_interpreter(*arguments, backend=BACKEND, folder=None):
    """Runs Python with arguments in a fresh process under a backend; returns what it printed."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["PYTHONUTF8"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
