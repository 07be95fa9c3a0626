"""Copies that PyTorch does not wait for: what goes which way, and what the logs of `fit` become."""

import copy
import pickle
import warnings

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.engines import model_hooks, torch_copies
from keras_vit.models import compiled

torch = pytest.importorskip("torch", reason="they are PyTorch's")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="of the PyTorch backend alone"
)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
X = harness.pixels((22, 16, 16, 3)).astype("uint8")
Y = np.arange(22) % 3


class Late:
    """What `Arriving` offers, and no more."""

    def __init__(self, tensor):
        self.value = float(tensor)

    def __float__(self):
        return self.value

    def __array__(self, dtype=None, copy=None):
        return np.array(self.value, dtype=dtype or "float32")


def results(model):
    history = model.fit(X, Y, 4, epochs=2, shuffle=False, verbose=0, validation_data=(X, Y))
    return [
        *(value for values in history.history.values() for value in values),
        *model.evaluate(X, Y, verbose=0),
        *model.train_on_batch(X[:4], Y[:4]),
        *model.test_on_batch(X[:4], Y[:4], return_dict=True).values(),
    ]


def test_keras_reads_logs_that_are_on_their_way(monkeypatch):
    found = []
    for late in (True, False):
        if late:
            monkeypatch.setattr(
                model_hooks, "arriving", lambda logs: {k: Late(v) for k, v in logs.items()}
            )
        else:
            monkeypatch.undo()
        keras.utils.set_random_seed(0)
        found.append(results(keras_vit.VisionTransformer(**harness.TINY_VIT)))
    np.testing.assert_array_equal(*found)
    assert len(found[0]) == 14


def test_logs_on_a_cpu_stay_as_they_are():
    logs = {"loss": torch.tensor(1.0), "parts": torch.ones(2), "count": 3}
    assert torch_copies.arriving(logs) == logs
    assert torch_copies.arriving(None) is None


class Event:
    waits = 0

    def synchronize(self):
        self.waits += 1


def sent():
    """An output as if it had been sent from a GPU, what it holds, and the event."""
    tensor, event = torch.arange(6.0).reshape(2, 3), Event()
    return torch_copies._marked(tensor, tensor.clone(), event), tensor.clone(), event


def test_an_output_on_its_way_is_waited_for_once():
    output, expected, event = sent()
    for _ in range(2):
        np.testing.assert_array_equal(output.cpu(), expected)
    assert event.waits == 1
    assert keras.ops.is_tensor(output) and type(output + 1.0) is torch.Tensor


def test_an_output_on_its_way_is_a_tensor_like_any(tmp_path):
    output, expected, _ = sent()
    output.cpu().mul_(100.0)  # a copy of the caller's own
    np.testing.assert_array_equal(output.cpu(), expected)
    torch.save(output, tmp_path / "output.pt")
    loaded = torch.load(tmp_path / "output.pt", weights_only=True)
    for copied in (loaded, pickle.loads(pickle.dumps(output)), copy.deepcopy(output)):
        assert type(copied) is torch.Tensor
        np.testing.assert_array_equal(copied, expected)
    output += 1.0
    np.testing.assert_array_equal(output.cpu(), expected + 1.0)


def test_outputs_on_a_cpu_stay_as_they_are():
    outputs = {"logits": torch.ones(2), "features": [torch.ones(3)]}
    found = torch_copies.arriving_outputs(outputs)
    assert found["logits"] is outputs["logits"] and found["features"][0] is outputs["features"][0]


def test_nothing_changes_on_a_cpu():
    with torch_copies.without_waiting("cpu"):
        assert torch.tensor(1.0).device.type == "cpu"


class Host:
    """A tensor that notes what is done to it."""

    def __init__(self, value):
        self.value, self.done = value, []

    def pin_memory(self):
        self.done.append("pinned")
        return self

    def to(self, device, non_blocking=False):
        self.done.append((str(device), non_blocking))
        return self


def test_numbers_go_by_way_of_pinned_memory(monkeypatch):
    """Without a GPU: the functions that would copy to one are not PyTorch's."""
    made = []

    def as_tensor(data, dtype=None, device=None):
        made.append((data, dtype, device))
        return Host(data)

    mode = torch_copies._mode.__wrapped__
    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    handler = mode()()
    sent = handler.__torch_function__(as_tensor, (), (3,), {"dtype": torch.int32, "device": "cuda"})
    assert made == [(3, torch.int32, None)]
    assert sent.done == ["pinned", ("cuda", True)]
    kept = handler.__torch_function__(as_tensor, (), (3,), {"dtype": None, "device": "cpu"})
    assert kept.done == [] and made[-1] == (3, None, "cpu")


@on_gpu
@pytest.mark.parametrize("options", [{}, {"drop_path_rate": 0.2}], ids=str)
def test_no_step_waits_for_the_gpu(options):
    model = keras_vit.VisionTransformer(**harness.TINY_VIT, **options)
    model.fit(X, Y, 4, verbose=0)
    batch = torch.as_tensor(X[:4]).cuda(), torch.as_tensor(Y[:4]).cuda()
    model.make_train_function()
    model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "synchronization debug mode is a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(compiled.STEPS_BEFORE_REPLAY - 1):
            logs = model.train_function([batch])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    compiled.rest(model, trained=True)
    assert isinstance(logs["loss"], torch_copies.Arriving)
    assert np.isfinite(float(logs["loss"])) and np.array(logs["loss"]).dtype == "float32"


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_predict_does_not_wait_for_the_gpu(dtype):
    model = keras_vit.VisionTransformer(**harness.TINY_VIT, dtype=dtype)
    harness.randomize(model)
    whole = model.predict(X, 4, verbose=0)
    images = torch.as_tensor(X[:4]).cuda()
    model.make_predict_function()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "synchronization debug mode is a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        outputs = [model.predict_function([(images,)]) for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for output in outputs:
        assert output.own.is_pinned() and output.arrived is not None
        expected = output.plain().cpu()
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(output), expected)
        np.testing.assert_array_equal(expected, whole[:4])
        assert not output.own.is_pinned() and output.arrived is None
