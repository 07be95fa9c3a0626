"""Copies to and from a GPU that PyTorch does not wait for.

Keras makes tensors of Python's numbers in every step, of a batch's size for one, and PyTorch waits
for all work of the GPU before it copies one. So the GPU comes to rest a few times a step, until
Python has started its next kernels. And while a thread of Keras copies a loss to ordinary memory,
CUDA lets no other thread start kernels.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any

import keras
import numpy as np

_MOST_PINNED = 2**26  # bytes of an output; a larger one takes its time in any case


def without_waiting(device_type: str | None) -> contextlib.AbstractContextManager:
    """Inside, what PyTorch copies from the host goes by way of pinned memory.

    Args:
        device_type: of a model's variables; anything but "cuda": nothing changes.
    """
    if device_type != "cuda":
        return contextlib.nullcontext()
    return _mode()()


def as_ever() -> contextlib.AbstractContextManager:
    """Inside, `without_waiting` does not hold, nor does it look at every call of PyTorch."""
    import torch

    return torch._C.DisableTorchFunction()


class Arriving:
    """A number on its way from the GPU, which `float` and `numpy.array` wait for.

    Args:
        tensor: scalar, on a GPU.
    """

    def __init__(self, tensor: Any):
        import torch

        self._value = torch.empty((), dtype=tensor.dtype, pin_memory=True)
        self._value.copy_(tensor.detach(), non_blocking=True)
        self._arrived = torch.cuda.Event(blocking=True)
        self._arrived.record(torch.cuda.current_stream(tensor.device))

    def __float__(self) -> float:
        self._arrived.synchronize()
        return float(self._value)

    def __array__(self, dtype=None, copy=None):
        return np.array(float(self), dtype=dtype or "float32")


def arriving(logs: Any) -> Any:
    """Logs of a step; scalars of a dict that lie on a GPU are on their way from there."""
    import torch

    def leaves(value):
        scalar = isinstance(value, torch.Tensor) and value.ndim == 0
        return scalar and value.device.type == "cuda" and value.is_floating_point()

    if not isinstance(logs, dict):
        return logs
    return {key: Arriving(value) if leaves(value) else value for key, value in logs.items()}


def arriving_outputs(outputs: Any) -> Any:
    """Outputs of a step of `predict`; those that lie on a GPU are on their way from there too."""
    import torch

    def leaf(value):
        on_gpu = isinstance(value, torch.Tensor) and value.device.type == "cuda"
        return _sent(value) if on_gpu and value.nbytes <= _MOST_PINNED else value

    return keras.tree.map_structure(leaf, outputs)


def _sent(tensor) -> Any:
    """The tensor; its `cpu`, by which Keras makes arrays, waits for a copy that is under way."""
    import torch

    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event(blocking=True)
    arrived.record(torch.cuda.current_stream(tensor.device))
    return _marked(tensor, pinned, arrived)


def _marked(tensor, pinned, arrived) -> Any:
    sent = tensor.detach().as_subclass(_sent_class())
    sent.own, sent.arrived, sent.version = pinned, arrived, sent._version
    return sent


@functools.cache
def _sent_class() -> Any:
    import torch

    class Sent(torch.Tensor):
        own: Any = None  # the copy, pinned until it has arrived
        arrived: Any = None
        version: Any = None  # of what was sent

        def cpu(self, *args, **kwargs):
            """As `torch.Tensor.cpu`."""
            if self._version != self.version:
                return self.plain().cpu(*args, **kwargs)
            if self.arrived is not None:
                self.arrived.synchronize()
                self.own, self.arrived = self.own.clone(), None  # there is little pinned memory
            return self.own.clone()

        def plain(self):
            """The same memory as an ordinary tensor."""
            return self.as_subclass(torch.Tensor)

        def __deepcopy__(self, memo):
            return copy.deepcopy(self.plain(), memo)

        def __reduce_ex__(self, protocol):
            return self.plain().__reduce_ex__(protocol)

    results: Any = torch._C._disabled_torch_function_impl  # which are no such tensors
    Sent.__torch_function__ = results
    return Sent


@functools.cache
def _mode() -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    def copied(tensor, device):
        return tensor.pin_memory().to(device, non_blocking=True)

    def goes_to_gpu(device):
        return device is not None and torch.device(device).type == "cuda"

    class WithoutWaiting(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if func in (torch.as_tensor, torch.tensor) and goes_to_gpu(kwargs.get("device")):
                (data,) = args
                if not isinstance(data, torch.Tensor):
                    return copied(func(data, dtype=kwargs.get("dtype")), kwargs["device"])
            if func is torch.Tensor.to and len(args) == 2 and not kwargs:
                tensor, target = args
                known = isinstance(target, (str, torch.device))
                if tensor.device.type == "cpu" and known and goes_to_gpu(target):
                    return copied(tensor, target)
            return func(*args, **kwargs)

    return WithoutWaiting
