"""Updates of lists of tensors are those of one variable after the other, as other backends do."""

import contextlib

import harness
import keras
import numpy as np
import pytest

from keras_vit.optimizers.decoupled import DecoupledOptimizer
from keras_vit.training import SGD, AdamW

if harness.BACKEND != "torch":
    pytest.skip("PyTorch's lists of tensors", allow_module_level=True)

import torch

STEPS = 5
MAKE = {
    "adamw": lambda **options: AdamW(0.1, weight_decay=0.2, **options),
    "sgd": lambda **options: SGD(0.1, momentum=0.9, weight_decay=0.2, **options),
}
OPTIONS = {
    "plain": {},
    "groups": {"multipliers": {"kernel": 0.3, "bias": 0.0}},
    "clip": {"clip_norm": 0.5},
    "accumulation and average": {"accumulation_steps": 2, "ema_decay": 0.9},
    "all": {
        "multipliers": {"other/kernel": 2.0},
        "clip_norm": 0.5,
        "accumulation_steps": 3,
        "ema_decay": 0.9,
    },
}


@pytest.fixture
def one_by_one(monkeypatch):
    """A context in which optimizers update variable by variable."""

    def update(self, gradients, variables, learning_rate):
        with torch.no_grad():
            for gradient, variable in zip(gradients, variables, strict=True):
                self.update_step(gradient, variable, learning_rate)

    @contextlib.contextmanager
    def context():
        with monkeypatch.context() as patch:
            patch.setattr(DecoupledOptimizer, "_backend_update_step", update)
            yield

    return context


def variables(dtype="float32"):
    shapes = {"kernel": (3, 4), "bias": (4,), "other/kernel": (4, 2), "scale": ()}
    found = []
    for name, shape in shapes.items():
        variable = keras.Variable(harness.noise(shape, name), dtype=dtype, name=name.split("/")[-1])
        variable._path = name
        found.append(variable)
    return found


def steps(optimizer, trained, missing=(), broken=None):
    """All state after some updates."""
    for step in range(STEPS):
        gradients = [
            torch.as_tensor(harness.noise(tuple(v.shape), f"{v.path} {step}")).to(v.value.dtype)
            for v in trained
        ]
        if step == broken:
            gradients[0][0] = np.nan
        gradients = [None if i in missing else g for i, g in enumerate(gradients)]
        optimizer.apply(gradients, trained)
    state = [*trained, *optimizer.variables]
    return {f"{i} {v.path}": harness.numpy(v.value.detach()) for i, v in enumerate(state)}


def assert_same(found, expected, atol=1e-5):
    assert [*map(len, (found, expected))] == [len(expected)] * 2
    for (name, one), other in zip(found.items(), expected.values(), strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MAKE)
def test_lists_equal_one_by_one(name, options, one_by_one):
    found = steps(MAKE[name](**OPTIONS[options]), variables())
    with one_by_one():
        expected = steps(MAKE[name](**OPTIONS[options]), variables())
    assert_same(found, expected)


@pytest.mark.parametrize("name", MAKE)
def test_bfloat16_variables(name, one_by_one):
    options = OPTIONS["all"]
    found = steps(MAKE[name](**options), variables("bfloat16"))
    with one_by_one():
        expected = steps(MAKE[name](**options), variables("bfloat16"))
    assert_same(found, expected, 3e-2)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("name", MAKE)
def test_variables_without_gradients_stay(name, one_by_one):
    options = {"accumulation_steps": 2, "clip_norm": 0.5}
    trained = variables()
    before = trained[1].numpy()
    found = steps(MAKE[name](**options), trained, missing=(1,))
    np.testing.assert_array_equal(trained[1].numpy(), before)
    with one_by_one():
        expected = steps(MAKE[name](**options), variables(), missing=(1,))
    assert_same(found, expected)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.5}, {"accumulation_steps": 2}], ids=str)
@pytest.mark.parametrize("name", MAKE)
def test_broken_gradients_show(name, options, one_by_one):
    """NaN stays NaN: it must not pass for an update that was left out."""
    found = steps(MAKE[name](**options), variables(), broken=0)
    with one_by_one():
        expected = steps(MAKE[name](**options), variables(), broken=0)
    assert any(np.isnan(value).any() for value in found.values())
    assert_same(found, expected)


@pytest.mark.parametrize("name", MAKE)
def test_float16_skips_what_is_not_finite(name):
    trained = variables()
    before = [v.numpy() for v in trained]
    optimizer = keras.optimizers.LossScaleOptimizer(MAKE[name](), initial_scale=8.0)
    gradients = [torch.full(tuple(v.shape), np.inf) for v in trained]
    optimizer.apply(gradients, trained)
    for variable, value in zip(trained, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    optimizer.apply([torch.full(tuple(v.shape), 4.0) for v in trained], trained)
    assert optimizer.inner_optimizer.iterations.item() == 1
    other = variables()
    MAKE[name]().apply([torch.full(tuple(v.shape), 1.0) for v in other], other)
    for variable, value in zip(trained, other, strict=True):
        np.testing.assert_allclose(variable.numpy(), value.numpy(), atol=1e-6)


@pytest.mark.parametrize("name", MAKE)
def test_weights_in_another_order_of_memory(name):
    """As `model.to(memory_format=torch.channels_last)` leaves them, their states as they were."""
    found = []
    for moved in (False, True):
        variable = keras.Variable(harness.noise((2, 3, 4, 5)), name="kernel")
        optimizer = MAKE[name]()
        gradients = [torch.as_tensor(harness.noise((2, 3, 4, 5), str(i))) for i in range(3)]
        optimizer.apply(gradients[:1], [variable])
        if moved:
            value = variable._value
            value.data = value.data.contiguous(memory_format=torch.channels_last)
        for gradient in gradients[1:]:
            optimizer.apply([gradient], [variable])
        found.append(harness.numpy(variable))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MAKE)
def test_variables_of_two_dtypes(name, one_by_one):
    def mixed():
        return [*variables("bfloat16")[:2], *variables()[2:]]

    found = steps(MAKE[name](), mixed())
    with one_by_one():
        expected = steps(MAKE[name](), mixed())
    for (name, one), other in zip(found.items(), expected.values(), strict=True):
        exact = "other" in name or "scale" in name  # not bfloat16, which has 8 bits
        np.testing.assert_allclose(one, other, rtol=1e-5 if exact else 2**-4, atol=1e-2)
