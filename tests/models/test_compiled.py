"""Compiled models on PyTorch answer as their layers do, and see whatever changes.

Most tests run the recorded graphs operation by operation: Inductor takes seconds for each.
"""

import contextlib
import copy
import gc
import pickle
import threading
import warnings

import harness
import keras
import numpy as np
import pytest

from keras_vit import BiTResNet, VisionTransformer
from keras_vit.models import compiled, recorded
from keras_vit.training import SGD, Distiller, enable_lora

if harness.BACKEND != "torch":
    pytest.skip("other backends compile whole steps", allow_module_level=True)

import torch

VIT = {"image_shape": (8, 12, 3), "patch_size": 4, "hidden_dim": 16, "num_layers": 2}
VIT |= {"num_heads": 2, "mlp_dim": 24, "num_classes": 5}
X = harness.pixels((10, *VIT["image_shape"]))
Y = np.arange(10) % 5
WHOLE = X[:8]  # two batches of 4, no partial one


@pytest.fixture
def quick(monkeypatch):
    """Graphs run as they were recorded; a list of those that were compiled."""
    made = []

    class Graph(recorded.Graph):
        def __init__(self, module, *args):
            made.append(module)
            super().__init__(module, *args)

    monkeypatch.setattr(recorded, "Graph", Graph)
    monkeypatch.setattr("torch._inductor.compile", lambda module, arguments: module)
    gc.collect()  # graphs of other tests' models
    return made


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(compiled, "PATIENCE", 1)


def vit(jit=True, optimizer=None, **options):
    keras.utils.set_random_seed(1)
    model = VisionTransformer(**{**VIT, **options})
    model.compile(optimizer or SGD(0.05), model.loss, jit_compile=jit)
    return model


def fit(model, epochs=2, x=X, y=Y, **options):
    history = model.fit(x, y, 4, epochs=epochs, shuffle=False, verbose=0, **options)
    return history.history["loss"]


def predict(model, x=WHOLE):
    return model.predict(x, 4, verbose=0)


def layer_by_layer(model, x=WHOLE):
    """The outputs without any graph."""
    with torch.no_grad():
        return harness.numpy(keras.Model(model.input, model.output)(x, training=False))


def chains(model):
    """Whether each part of each chain has a graph."""
    known = compiled._models.get(model)
    found = [] if known is None else known.chains.values()
    return [chain and [step.graph is not None for step in chain.steps] for chain in found]


def is_compiled(model):
    return any(chain and all(chain) for chain in chains(model))


def assert_close(actual, expected, atol=1e-5):
    actual, expected = (harness.numpy(keras.ops.convert_to_tensor(x)) for x in (actual, expected))
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=0)


# Inductor itself --------------------------------------------------------------------------------


def test_compiled_training_equals_layer_by_layer():
    losses, outputs = [], []
    for jit in (True, False):
        model = vit(jit, num_layers=1)
        losses.append(fit(model))  # the last batch is a partial one
        outputs.append(predict(model))
        assert is_compiled(model) is jit
    assert_close(*losses)
    assert_close(*outputs)
    assert len(set(losses[0])) == 2


def test_remat_keeps_a_block_input_alone():
    model = vit(remat=True, num_layers=1)
    x = torch.as_tensor(X[:4])

    def kept(stepping):
        sizes = []

        def pack(tensor):
            if not isinstance(tensor, torch.nn.Parameter):
                sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            context = model._compiling(model) if stepping else contextlib.nullcontext()
            with context:
                loss = model(x, training=True).square().sum()
        loss.backward()
        gradients = [v.value.grad.clone() for v in model.trainable_variables]
        model.zero_grad()
        return sum(sizes), gradients

    harness.randomize(model)
    kept(True)
    size, gradients = kept(True)
    assert is_compiled(model)
    model.compile(jit_compile=False)
    assert chains(model) == []
    _, expected = kept(False)
    for mine, one in zip(gradients, expected, strict=True):
        assert_close(mine, one, 1e-4 * float(one.abs().max() + 1))
    tokens = 4 * 7 * VIT["hidden_dim"]
    assert size < 5 * tokens + X[:4].size * 2  # without `remat` a block keeps 15 times the tokens


# Numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "map", "qk_norm": True, "layer_scale_init": 0.1},
        {"position_embedding": "relative", "activation": "swiglu"},
        {"distillation": "head"},
        {"num_classes": None},
        {"dtype": "mixed_bfloat16"},
        {"num_layers": 1},
    ],
    ids=str,
)
def test_outputs_and_gradients_are_those_of_the_layers(quick, options):
    model = vit(**options) if options.get("num_classes", 1) else VisionTransformer(**VIT | options)
    model.jit_compile = True
    harness.randomize(model)
    rough = 2e-2 if options.get("dtype") else 1e-5
    expected = layer_by_layer(model)
    assert_close(predict(model), expected, rough * np.abs(expected).max())
    assert is_compiled(model)
    results = []
    for jit in (True, False):
        model.jit_compile = jit
        with model._compiling(model):
            model(X, training=True).square().sum().backward()
        results.append([v.value.grad.clone() for v in model.trainable_variables])
        model.zero_grad()
    for mine, one in zip(*results, strict=True):
        assert_close(mine, one, max(rough * float(one.abs().max()), 1e-5))


def test_resnets_and_hybrids(quick):
    stem = {"block_counts": (1, 1), "width": 32}
    for model in (
        BiTResNet(image_shape=(32, 32, 3), block_counts=(2, 1), width_factor=0.5, num_classes=5),
        VisionTransformer(**VIT | {"image_shape": (32, 32, 3), "patch_size": 1}, stem=stem),
    ):
        harness.randomize(model)
        model.compile(SGD(), model.loss, jit_compile=True)
        x = harness.pixels((2, 32, 32, 3))
        assert_close(predict(model, x), layer_by_layer(model, x), 1e-4)
        assert is_compiled(model)


def test_inputs_of_all_kinds(quick, patience):
    model = vit()
    harness.randomize(model)
    images = WHOLE.astype("uint8")
    expected = layer_by_layer(model, images)
    turned = torch.as_tensor(images.transpose(0, 3, 1, 2).copy()).permute(0, 2, 3, 1)
    for inputs in (images, images.astype("float32"), torch.as_tensor(images), turned):
        for _ in range(3):
            assert_close(model(inputs), expected)
        assert is_compiled(model)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_calls_without_gradients(quick, patience, context):
    model = vit()
    harness.randomize(model)
    expected = layer_by_layer(model)
    with context():
        for _ in range(3):
            assert_close(model(WHOLE), expected)
    assert is_compiled(model)
    outputs = [model(WHOLE) for _ in range(3)]
    assert_close(outputs[-1], expected)
    assert outputs[-1].requires_grad


def test_gradients_of_inputs(quick, patience):
    model = vit()
    harness.randomize(model)
    found = []
    for _ in range(3):
        x = torch.as_tensor(X).requires_grad_()
        model(x).square().sum().backward()
        found.append(x.grad)
    assert is_compiled(model)
    assert float(found[0].abs().max()) > 0
    assert_close(found[-1], found[0], 1e-5 * float(found[0].abs().max()))


# Random parts -----------------------------------------------------------------------------------


def test_drop_path_draws_anew_and_by_block(quick):
    rate = 0.5
    model = vit(drop_path_rate=rate, num_layers=3)
    x = np.repeat(X[:1], 4000, axis=0)
    harness.randomize(model)
    outputs = []
    with model._compiling(model), torch.no_grad():
        for _ in range(2):
            outputs.append(harness.numpy(model(x, training=True)))
    assert chains(model) == [[True] * 4]
    known = compiled._models[model]
    (chain,) = known.chains.values()
    assert [step.rates for step in chain.steps] == [[], [0.25] * 2, [0.5] * 2, []]
    assert not np.array_equal(*outputs)
    # Two blocks of two branches each: so many ways through, each as likely as it should be.
    _, counts = np.unique(outputs[0].round(4), axis=0, return_counts=True)
    assert len(counts) == 16
    assert counts.max() / 4000 == pytest.approx(0.75**2 * 0.5**2, abs=0.03)


def test_drop_path_keeps_the_mean(quick):
    factors = torch.stack(compiled._factors([0.5, 0.1], torch.zeros(20000)))
    assert_close(factors.mean(dim=1), [1.0, 1.0], 0.03)
    assert sorted(set(factors[0].tolist())) == [0.0, 2.0]
    assert float((factors[1] == 0).float().mean()) == pytest.approx(0.1, abs=0.01)


def test_dropout_is_compiled_and_draws_anew(quick):
    model = vit(dropout_rate=0.5, attention_dropout_rate=0.2)
    harness.randomize(model)
    with model._compiling(model):
        outputs = [harness.numpy(model(X, training=True)) for _ in range(2)]
    assert is_compiled(model)
    assert not np.array_equal(*outputs)
    assert_close(predict(model), layer_by_layer(model))


def test_dropout_with_remat_runs_layer_by_layer(quick):
    model = vit(dropout_rate=0.5, remat=True)
    with pytest.warns(UserWarning, match="dropout inside of a block with remat"):
        fit(model, 1)
    assert chains(model)[0] == [False, False, True]


def test_patch_dropout_leaves_the_blocks_compiled(quick):
    model = vit(patch_dropout_rate=0.5, drop_path_rate=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model)
    assert chains(model) == [[False, True, True, True]]


# What changes -----------------------------------------------------------------------------------


def test_new_values_are_seen(quick):
    for dtype in ("float32", "mixed_bfloat16"):
        model = vit(dtype=dtype)
        before = predict(model)
        harness.randomize(model)
        assert np.abs(predict(model) - before).max() > 0.1
        expected = layer_by_layer(model)
        assert_close(predict(model), expected, (1e-5 if dtype == "float32" else 2e-2) * 10)


def _set(path, value):
    def change(model):
        *parents, name = path.split(".")
        target = model.encoder_blocks[1]
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)

    return change


def _replace_layer(model):
    block = model.encoder_blocks[1]
    block._tracker.unlock()
    old = block.mlp_norm
    block.mlp_norm = keras.layers.LayerNormalization(epsilon=0.5)
    block.mlp_norm.build((None, None, 16))
    block.mlp_norm.gamma.assign(old.gamma)


def _call_otherwise(model):
    block = model.encoder_blocks[0]
    forward = block.call
    block.call = lambda inputs, training=None: 2 * forward(inputs, training=training)


def _hook(model):
    model.encoder_blocks[0].register_forward_hook(lambda layer, inputs, outputs: 2 * outputs)


def _policy(model):
    model.encoder_blocks[1].mlp.fc1.dtype_policy = "mixed_bfloat16"


def _lora(model):
    enable_lora(model, 2)
    for block in model.encoder_blocks:
        block.mlp.fc1.lora_kernel_b.assign(np.ones(block.mlp.fc1.lora_kernel_b.shape))


CHANGES = {
    "activation": _set("mlp.activation", "quick_gelu"),
    "activation of a Dense": _set("mlp.fc1.activation", keras.activations.tanh),
    "epsilon": _set("mlp_norm.epsilon", 0.7),
    "no scale": _set("attention_scale", None),
    "layer": _replace_layer,
    "call": _call_otherwise,
    "hook": _hook,
    "policy": _policy,
    "lora": _lora,
    "int8": lambda model: model.encoder_blocks[1].mlp.fc1.quantize("int8"),
    "half": lambda model: model.encoder_blocks[1].mlp.fc1.kernel.value.data.mul_(2.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(quick, patience, name):
    model = vit(layer_scale_init=0.5)
    harness.randomize(model)
    before = predict(model)
    for _ in range(3):
        model(WHOLE)
    assert is_compiled(model)
    CHANGES[name](model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*cannot be compiled")
        for _ in range(3):
            found = predict(model)
            expected = layer_by_layer(model)
            assert np.abs(expected - before).max() > 1e-4
            assert_close(found, expected, 1e-4)
            with torch.no_grad():
                assert_close(model(WHOLE), expected, 1e-4)


def test_changes_between_steps_are_seen(quick, monkeypatch):
    class Schedule(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.encoder_blocks[1].mlp_drop_path.rate = 0.1 * (batch + 1)

    model = vit(drop_path_rate=0.3)
    monkeypatch.setattr(compiled, "PATIENCE", 1)
    fit(model, 1, callbacks=[Schedule()])
    monkeypatch.setattr(compiled, "PATIENCE", 50)
    (chain,) = compiled._models[model].chains.values()
    rates = [rate for step in chain.steps for rate in step.rates]
    assert rates == pytest.approx([0.3, 0.3])
    # If it goes on like that, to compile does not pay.
    fit(model, 3, callbacks=[Schedule()])
    assert chains(model) == []


def test_another_order_of_memory_is_seen():
    """By Inductor itself, whose code checks strides."""
    model = vit(num_layers=1)
    harness.randomize(model)
    expected = predict(model)
    assert is_compiled(model)
    value = model.encoder_blocks[0].mlp.fc1.kernel._value
    value.data = value.data.t().contiguous().t()
    assert_close(predict(model), expected)


def test_autocast_is_seen(quick):
    model = vit(dtype="mixed_bfloat16", num_layers=1)
    harness.randomize(model)
    before = predict(model)
    model.encoder_blocks[0].mlp.fc1.autocast = False
    assert (predict(model) != before).any()
    assert_close(predict(model), layer_by_layer(model))


def test_frozen_layers(quick):
    results = []
    for jit in (True, False):
        model = vit(jit)
        fit(model, 1)
        for block in model.encoder_blocks[:1]:
            block.trainable = False
        model.get_layer("patch_encoder").trainable = False
        frozen = model.encoder_blocks[0].mlp.fc1.kernel.numpy()
        fit(model, 1)
        np.testing.assert_array_equal(model.encoder_blocks[0].mlp.fc1.kernel.numpy(), frozen)
        model.trainable = True
        for layer in model.layers:
            layer.trainable = True
        model.compile(SGD(0.05), model.loss, jit_compile=jit)
        fit(model, 1)
        assert (model.encoder_blocks[0].mlp.fc1.kernel.numpy() != frozen).any()
        results.append(predict(model))
    assert_close(*results)


def test_nothing_is_kept_for_frozen_blocks(quick):
    model = vit()
    model.trainable = False
    model.get_layer("head").trainable = True
    with model._compiling(model):
        for _ in range(2):
            outputs = model(X, training=True)
    assert is_compiled(model)
    assert not quick[0](torch.as_tensor(X), *compiled._models[model].parts[0].values)[
        0
    ].requires_grad
    assert outputs.requires_grad


# What is made of weights alone ------------------------------------------------------------------


class Between(keras.callbacks.Callback):
    """Calls a function before the second batch of `predict`."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_predict_batch_begin(self, batch, logs=None):
        if batch == 1:
            self.function(self.model)


@pytest.fixture
def preparations(monkeypatch):
    """How often weights were prepared."""
    made = []
    prepared = recorded.Graph.prepared

    def counted(self, weights):
        made.append(1)
        return prepared(self, weights)

    monkeypatch.setattr(recorded.Graph, "prepared", counted)
    return made


@pytest.mark.parametrize("policy", harness.POLICIES)
def test_weights_are_prepared_once_a_predict(quick, preparations, policy):
    model = vit(dtype=policy)
    harness.randomize(model)
    expected = layer_by_layer(model)
    first = predict(model)
    assert_close(first, expected, 1e-5 if policy == "float32" else 0.05)
    (chain,) = compiled._models[model].chains.values()
    assert len(chain.steps) == 3 and chain.prepared is None
    del preparations[:]
    np.testing.assert_array_equal(predict(model), first)
    model.evaluate(WHOLE, Y[:8], batch_size=4, verbose=0)
    assert len(preparations) == 2 * 3  # of two batches each
    assert chain.prepared is None


def test_weights_are_prepared_again_where_a_callback_changes_them(quick, preparations):
    def halve(model):
        kernel = model.encoder_blocks[1].mlp.fc2.kernel
        kernel.assign(kernel * 0.5)

    model = vit(dtype="mixed_bfloat16")
    harness.randomize(model)
    before = predict(model)
    found = model.predict(WHOLE, batch_size=4, verbose=0, callbacks=[Between(halve)])
    after = predict(model)
    np.testing.assert_array_equal(found[:4], before[:4])
    np.testing.assert_array_equal(found[4:], after[4:])
    assert np.abs(before - after).max() > 0.01


def test_weights_whose_preparation_failed_are_prepared_again(quick, monkeypatch):
    def fail_once(model):
        kernel = model.encoder_blocks[1].mlp.fc2.kernel
        kernel.assign(kernel * 0.0)
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no memory"):
            patch.setattr(recorded.Graph, "prepared", fail)
            with torch.no_grad():
                model(WHOLE[:4], training=False)

    def fail(self, weights):
        raise RuntimeError("no memory")

    model = vit(dtype="mixed_bfloat16")
    harness.randomize(model)
    predict(model)
    found = model.predict(WHOLE, batch_size=4, verbose=0, callbacks=[Between(fail_once)])
    np.testing.assert_array_equal(found[4:], predict(model)[4:])


def test_weights_made_in_inference_mode(quick):
    with torch.inference_mode():
        model = vit(dtype="mixed_bfloat16")
    expected = layer_by_layer(model)
    assert_close(predict(model), expected, 0.05)
    assert is_compiled(model)


def test_rest_while_another_thread_adds_chains(quick):
    model = vit()
    predict(model)
    chains_of = compiled._models[model].chains

    class Adding(dict):
        def values(self):
            for value in list(super().values()):
                yield value
                self["another"] = None  # as another thread may do

    known = compiled._models[model]
    known.chains = Adding(chains_of)
    compiled.rest(model, trained=False)
    assert "another" in known.chains


def test_validation_leaves_steps_of_fit_as_they_are(quick):
    model = vit()
    counts = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: counts.append(
            max(chain.trained for chain in compiled._models[model].chains.values() if chain)
        )
    )
    fit(model, 2, WHOLE, Y[:8], validation_data=(WHOLE, Y[:8]), callbacks=[count])
    assert counts == [2, 4]


# When it is compiled, and how often -------------------------------------------------------------


def test_equal_blocks_are_compiled_once(quick):
    model = vit(num_layers=5)
    predict(model)
    assert len(quick) == 3  # what comes before the second block, the others, the rest
    other = vit(num_layers=4)
    predict(other)
    assert len(quick) == 3


@pytest.mark.parametrize(
    "change", ["activation", "activation of a Dense", "epsilon", "no scale", "policy"]
)
def test_blocks_that_differ_share_nothing(quick, change):
    model = vit(layer_scale_init=0.5, num_layers=4)
    harness.randomize(model)
    CHANGES[change](model)
    assert_close(predict(model), layer_by_layer(model), 1e-4)
    assert len(quick) == 4


def test_blocks_with_other_dropout_share_nothing(quick):
    model = vit(dropout_rate=0.5, num_layers=4)
    model.encoder_blocks[2].mlp.dropout1.rate = 0.25
    fit(model, 1)
    assert len(quick) == 4


def test_other_batch_sizes_wait(quick, monkeypatch):
    monkeypatch.setattr(compiled, "PATIENCE", 3)
    model = vit()
    for epoch in range(5):  # batches of 4, 4 and 2
        fit(model, 1)
        assert len(chains(model)) == (1 if epoch < 3 else 2)


@pytest.mark.parametrize("jit", [False, "auto"])
def test_what_is_not_to_be_compiled_is_not(quick, patience, jit):
    model = vit(jit)
    fit(model)
    predict(model)
    for _ in range(4):
        model(WHOLE)
    assert model.evaluate(X, Y, verbose=0)
    assert chains(model) == [] and quick == []


def test_one_that_is_not_to_be_compiled_inside_of_one_that_is(quick):
    inner = vit(False, name="inner")
    predict(inner)

    class Outer(VisionTransformer):
        def call(self, inputs, training=None, mask=None):
            return super().call(inputs, training=training) + inner(inputs)

    keras.utils.set_random_seed(1)
    model = Outer(**VIT)
    model.compile(SGD(), model.loss, jit_compile=True)
    predict(model)
    assert is_compiled(model) and chains(inner) == []


def test_what_cannot_be_compiled_runs_with_one_warning(monkeypatch):
    def fail(module, arguments):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr("torch._inductor.compile", fail)
    model = vit()
    with pytest.warns(UserWarning, match="runs layer by layer, more slowly: no compiler") as caught:
        fit(model)
    assert len([one for one in caught if "layer by layer" in str(one.message)]) == 1
    assert_close(predict(vit(False)), predict(vit(False)))
    assert chains(model) == [None]


# Layers that do more ----------------------------------------------------------------------------


@keras.saving.register_keras_serializable(package="keras_vit_tests")
class Counting(keras.layers.Layer):
    """Does what no graph can: it counts its calls."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._count = 0

    def call(self, inputs, training=None):
        self._count += 1
        return inputs * self._count


def test_layers_of_others_are_called(quick):
    model = vit()
    harness.randomize(model)
    model.encoder_blocks[1]._tracker.unlock()
    model.encoder_blocks[1].dropout = counting = Counting()
    with pytest.warns(UserWarning, match="'counting.*' is not one of"):
        predict(model)
    assert chains(model) == [[True, False, True]]
    before = counting._count
    predict(model)
    assert counting._count == before + 2


def test_losses_of_layers_count(quick):
    losses = []
    for jit in (True, False):
        model = vit(jit)
        model.encoder_blocks[1].mlp.fc1.activity_regularizer = keras.regularizers.L2(0.01)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*cannot be compiled")
            losses.append(fit(model))
        assert len(model.losses) == 1
    assert_close(*losses)
    assert losses[0][0] > fit(vit(), 1)[0] + 1e-4


def test_regularizers_of_weights_count(quick):
    losses = []
    for jit in (True, False):
        model = vit(jit)
        kernel = model.encoder_blocks[1].mlp.fc1.kernel
        kernel.regularizer = keras.regularizers.L2(0.01)
        losses.append(fit(model))
    assert is_compiled(model) is False
    assert_close(*losses)
    assert losses[0][0] > fit(vit(), 1)[0] + 1e-4


# Around the model -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_inside_of_a_model_of_the_user(quick, patience, policy):
    keras.config.set_dtype_policy(policy)
    inner = vit()
    harness.randomize(inner)
    inputs = keras.Input(VIT["image_shape"])
    outer = keras.Model(inputs, keras.layers.Dense(5, kernel_initializer="ones")(inner(inputs)))
    outer.compile(SGD(0.05), inner.loss, jit_compile=False)
    weights = outer.get_weights()
    results = []
    for jit in (True, False):
        inner.jit_compile = jit
        outer.set_weights(weights)
        outer.compile(SGD(0.005), inner.loss, jit_compile=False)
        results.append([*fit(outer), *predict(outer).ravel()])
        assert is_compiled(inner)
    assert_close(*results, 1e-4 if policy == "float32" else 0.1)


def test_a_loop_of_the_user(quick, patience):
    results = []
    for jit in (True, False):
        model = vit(jit)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(X, training=True), torch.as_tensor(Y))
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
        assert is_compiled(model) is jit
        results.append(loss.item())
    assert results[0] == pytest.approx(results[1], abs=1e-5)


def test_values_of_a_stateless_scope_are_used(quick, patience):
    model = vit()
    for _ in range(3):
        model(WHOLE)
    assert is_compiled(model)
    other = vit(False)
    harness.randomize(other)
    trained = [v.value for v in other.trainable_variables]
    rest = [v.value for v in other.non_trainable_variables]
    expected = layer_by_layer(other)
    assert_close(model.stateless_call(trained, rest, WHOLE)[0], expected)
    mapping = list(zip(model.trainable_variables, trained, strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        assert_close(model(WHOLE), expected)
        assert_close(model(WHOLE), expected)


def test_pytorch_sees_each_operation_where_it_asks(quick, patience):
    from torch.utils.flop_counter import FlopCounterMode

    model = vit()
    harness.randomize(model)
    x = torch.as_tensor(WHOLE)
    with torch.no_grad():
        for _ in range(3):
            expected = model(x)
        assert is_compiled(model)
        with FlopCounterMode(display=False) as counter:
            model(x)
        assert counter.get_total_flops() > 0
        with torch.autocast("cpu", torch.bfloat16):
            assert 0 < np.abs(harness.numpy(model(x)) - harness.numpy(expected)).max() < 1.0
        saliency = torch.func.grad(lambda images: model(images).sum())(x)
        assert float(saliency.abs().max()) > 0


def test_copies_are_models_of_their_own(quick, tmp_path):
    model = vit()
    harness.randomize(model)
    fit(model)
    expected = predict(model)
    model.save(tmp_path / "model.keras")
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        keras.models.load_model(tmp_path / "model.keras"),
    ]
    for other in copies:
        other.compile(SGD(), model.loss, jit_compile=True)
        assert_close(predict(other), expected)
        assert is_compiled(other)
        other.get_layer("head").bias.assign(np.full(5, 3.0))
        assert_close(predict(model), expected)
        assert np.abs(predict(other) - expected).max() > 1


def test_a_dropped_model_takes_its_graphs_along(quick):
    model = vit(hidden_dim=24, num_layers=2)
    fit(model)
    predict(model)
    before, parts = len(recorded._graphs), len(compiled._models)
    assert before >= 6
    del model
    gc.collect()
    assert len(recorded._graphs) <= before - 6 and len(compiled._models) < parts


def test_threads(quick, patience):
    models = [vit(), vit(drop_path_rate=0.2, name="other")]
    for model in models:
        harness.randomize(model)
    expected = [layer_by_layer(model) for model in models]
    wrong = []

    def work(model, outputs):
        for _ in range(8):
            with torch.no_grad():
                difference = np.abs(harness.numpy(model(WHOLE)) - outputs).max()
            if difference > 1e-5:
                wrong.append(difference)

    pairs = [*zip(models, expected, strict=True)] * 2
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all(map(is_compiled, models))


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_distillation(quick, kind):
    results = []
    for jit in (True, False):
        student, teacher = vit(distillation="head"), vit(hidden_dim=8, name="teacher")
        harness.randomize(teacher)
        distiller = Distiller(student, teacher, kind)
        distiller.compile(SGD(0.05), jit_compile=jit)
        losses = fit(distiller)
        heads = distiller._hidden["heads"]
        assert is_compiled(heads) is jit and is_compiled(teacher) is jit
        teacher.get_layer("head").bias.assign(np.array([9.0, 0, 0, 0, 0]))
        losses += fit(distiller)
        results.append(
            [*losses, *predict(distiller).ravel(), distiller.evaluate(X, Y, verbose=0)[0]]
        )
        distiller.compile(SGD(0.05), jit_compile=jit)
        assert chains(heads) == []
    assert_close(*results)
