"""Copies to a GPU that PyTorch does not wait for.

Keras makes tensors of Python's numbers in every step, of a batch's size for one, and PyTorch waits
for all work of the GPU before it copies one. So the GPU comes to rest a few times a step, until
Python has started its next kernels.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any


def without_waiting(device_type: str | None) -> contextlib.AbstractContextManager:
    """Inside, what PyTorch copies from the host goes by way of pinned memory.

    Args:
        device_type: of a model's variables; anything but "cuda": nothing changes.
    """
    if device_type != "cuda":
        return contextlib.nullcontext()
    return _mode()()


def as_ever() -> contextlib.AbstractContextManager:
    """Inside, `without_waiting` does not hold, nor look at every call of PyTorch."""
    import torch

    return torch._C.DisableTorchFunction()


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
