"""Steps as CUDA graphs: who calls them and when, and on a GPU what they compute."""

import types

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import compiled, replayed

torch = pytest.importorskip("torch", reason="CUDA graphs are PyTorch's")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="other backends start whole steps by themselves"
)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
X = harness.pixels((22, 16, 16, 3)).astype("uint8")
Y = np.arange(22) % 3


class Stand:
    """What a `Replay` does with its memory, by calling the function."""

    made = calls = 0

    def __init__(self, function, inputs, weights):
        Stand.made += 1
        self.function, self.free = function, True

    def fits(self, inputs, weights):
        return self.free

    def __call__(self, *arguments):
        assert self.free
        Stand.calls += 1
        self.free = False
        outputs = self.function(*arguments)
        outputs[0].register_hook(self._set_free)
        return outputs

    def _set_free(self, gradient):
        self.free = True


@pytest.fixture
def stand(monkeypatch):
    """No GPU and no Inductor: the graphs run operator by operator."""
    monkeypatch.setattr(torch._inductor, "compile", lambda module, arguments: module)
    monkeypatch.setattr(replayed, "affordable", lambda device: True)
    monkeypatch.setattr(replayed, "Replay", Stand)
    Stand.made = Stand.calls = 0
    return Stand


def vit(**options):
    jit_compile = options.pop("jit_compile", True)
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(**{**harness.TINY_VIT, **options})
    harness.randomize(model)
    model.compile(
        keras_vit.optimizers.AdamW(1e-3, weight_decay=0.05, clip_norm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    return model


def fit(model, epochs=5, batch=4, **options):
    history = model.fit(X, Y, batch, epochs=epochs, shuffle=False, verbose=0, **options)
    return history.history["loss"]


def test_from_which_step_on(stand):
    model = vit()
    fit(model, 3)  # 5 whole batches and a partial one an epoch
    assert (stand.made, stand.calls) == (1, 15 - (compiled.STEPS_BEFORE_REPLAY - 1))
    (chain,) = compiled._models[model].chains.values()
    assert chain.replay is None and chain.trained == 0  # `fit` is over
    fit(model, 1)
    assert stand.made == 1


def losses_of(monkeypatch, replays, **options):
    """Losses of a run with or without replays."""
    steps = 10 if replays else 10**9
    monkeypatch.setattr(compiled, "STEPS_BEFORE_REPLAY", steps)
    model = vit(**options)
    torch.manual_seed(0)
    return fit(model)


@pytest.mark.parametrize("options", [{}, {"drop_path_rate": 0.2}, {"remat": True}], ids=str)
def test_losses_with_a_stand(stand, monkeypatch, options):
    mine, plain = (losses_of(monkeypatch, replays, **options) for replays in (True, False))
    assert stand.calls == 16
    assert mine == plain


def test_second_call_before_the_first_ones_backward_pass(stand):
    """Nothing that a step still needs is written over: the second call goes kernel by kernel."""
    model = vit()

    def loss(labels, logits):
        with model._compiling(stepping=model):
            again = model(torch.as_tensor(X[:4]), training=True)
        found = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return found + 0.0 * keras.ops.sum(again)

    model.compile(keras_vit.optimizers.AdamW(1e-3), loss, jit_compile=True)
    fit(model, 3)
    # From the tenth on: 1 of step 5, 1 of each of 10 steps, 1 beside each of 3 partial batches.
    assert stand.calls == 14


class Foreign(keras.layers.Layer):
    def call(self, inputs):
        return inputs


def test_layers_without_a_graph_are_not_replayed(stand):
    model = vit()
    model.encoder_blocks[1]._tracker.unlock()
    model.encoder_blocks[1].dropout = Foreign()
    with pytest.warns(UserWarning, match="layer by layer"):
        fit(model, 3)
    assert stand.made == 0


def test_where_recording_fails(stand, monkeypatch):
    def fails(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(replayed, "Replay", fails)
    model = vit()
    with pytest.warns(UserWarning, match="not replayed as CUDA graphs: CUDA out of memory"):
        losses = fit(model)
    assert losses[-1] < losses[0]


def test_gradients_outlast_the_next_backward_pass():
    """Else a gradient that is kept, or added to, would turn into the next one."""
    replay = object.__new__(replayed.Replay)
    place = torch.tensor([1.0, -0.0])
    replay._differentiable, replay._arriving = [True], [torch.zeros(2)]
    replay._leaving, replay._trained = [place, None], [True, False, True]
    replay._backward = types.SimpleNamespace(replay=lambda: place.mul_(2.0))
    first, *rest = replay.run_backward([torch.ones(2)])
    assert rest == [None, None]
    replay.run_backward([torch.ones(2)])
    assert first.tolist() == [2.0, -0.0] and place.tolist() == [4.0, -0.0]


def test_affordable():
    assert not replayed.affordable(torch.device("cpu"))


@on_gpu
@pytest.mark.parametrize(
    "options", [{}, {"drop_path_rate": 0.2}, {"remat": True}, {"dtype": "mixed_bfloat16"}], ids=str
)
def test_losses(monkeypatch, options):
    mine, plain = (losses_of(monkeypatch, replays, **options) for replays in (True, False))
    np.testing.assert_allclose(mine, plain, rtol=1e-3 if "dtype" in options else 1e-5)


@on_gpu
def test_second_call_before_the_first_ones_backward_pass_on_gpu(monkeypatch):
    model = vit()
    calls = replayed.Replay.__call__
    counted = []
    monkeypatch.setattr(
        replayed.Replay, "__call__", lambda self, *x: counted.append(0) or calls(self, *x)
    )
    fit(model, 3)
    assert len(counted) == 15 - (compiled.STEPS_BEFORE_REPLAY - 1)
    assert all(np.isfinite(harness.numpy(variable)).all() for variable in model.variables)


@on_gpu
def test_dropout_draws_anew_on_gpu():
    """In each replay, as kernel by kernel."""
    model = vit(dropout_rate=0.5)
    model.optimizer.learning_rate = 0.0
    losses = []
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    )
    model.fit(X[:4], Y[:4], 4, epochs=30, verbose=0, callbacks=[keep])
    assert len(set(losses)) == 30
