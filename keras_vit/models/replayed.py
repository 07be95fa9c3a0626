"""Both passes of a training step as CUDA graphs, which PyTorch starts at once.

Kernel by kernel, Python takes longer to start a step of ViT-S/16 than an H100 to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras_vit.optimizers.torch_updates import scaled

# Of the GPU's memory: while graphs are recorded, what a step needs is there twice.
SHARE = 0.4
_WARM_UP = 2  # calls before recording, in which libraries choose kernels and take memory


def affordable(device) -> bool:
    """Whether steps so far left enough of a GPU's memory to record graphs of one.

    Args:
        device: a `torch.device`.
    """
    import torch

    if device.type != "cuda" or torch.distributed.is_available() and _in_group():
        return False
    total = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.max_memory_allocated(device) < SHARE * total


def _in_group() -> bool:
    import torch

    # Between processes, gradients are summed while others are still computed; out of a graph all
    # of them come at the end.
    return torch.distributed.is_initialized()


class Replay:
    """A function of tensors, forward and backward, as CUDA graphs.

    Its inside and what it keeps for the backward pass lie where the next call writes. So a second
    call has to wait for the first one's backward pass.

    Args:
        function: takes the inputs and then the weights, returns a list of tensors.
        inputs: examples; those of later calls are copied to where these lie.
        weights: the function's other arguments, which stay where they are.

    Attributes:
        free: whether it may be called now.
    """

    def __init__(self, function: Callable, inputs: Sequence[Any], weights: Sequence[Any]):
        import torch

        with torch.cuda.device(inputs[0].device):
            self._record(function, inputs, weights)

    def _record(self, function, inputs, weights) -> None:
        import torch

        self.free = True
        self._inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        self._places = [weight.data_ptr() for weight in weights]
        # Not the weights themselves: what adds to their gradients would stay bound to the stream
        # that this records on.
        own = [weight.detach().requires_grad_(weight.requires_grad) for weight in weights]
        arguments = [*self._inputs, *own]
        self._trained = [x.requires_grad for x in arguments]
        sources = [x for x in arguments if x.requires_grad]

        def forward():
            return list(function(*arguments))

        def backward(outputs, gradients):
            sinks = [x for x in outputs if x.requires_grad]
            return torch.autograd.grad(sinks, sources, gradients, allow_unused=True)

        def gradients_of(outputs):
            return [torch.ones_like(x) for x in outputs if x.requires_grad]

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                outputs = forward()
                backward(outputs, gradients_of(outputs))
                del outputs
        torch.cuda.current_stream().wait_stream(stream)

        # Other threads, of data loaders and of Keras, go on using the GPU meanwhile.
        settings: dict[str, Any] = {"pool": torch.cuda.graph_pool_handle(), "stream": stream}
        settings["capture_error_mode"] = "thread_local"
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, **settings):
            outputs = forward()
        self._arriving = gradients_of(outputs)
        with torch.cuda.graph(self._backward, **settings):
            self._leaving = backward(outputs, self._arriving)
        self._outputs = [x.detach() for x in outputs]
        self._differentiable = [x.requires_grad for x in outputs]
        self._node = _node()

    def fits(self, inputs: Sequence[Any], weights: Sequence[Any]) -> bool:
        """Whether it may be called now with these, in whose place its examples were."""
        return (
            self.free
            and [x.shape for x in inputs] == [x.shape for x in self._inputs]
            and [weight.data_ptr() for weight in weights] == self._places
        )

    def __call__(self, *arguments: Any) -> list[Any]:
        """The outputs, in memory of their own.

        Args:
            *arguments: inputs and weights.
        """
        return list(self._node.apply(self, *arguments))

    def run_forward(self, inputs: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        """(the outputs, which of them have gradients)."""
        for place, value in zip(self._inputs, inputs, strict=False):
            place.detach().copy_(value)
        self._forward.replay()
        self.free = False
        return [x.clone() for x in self._outputs], self._differentiable

    def run_backward(self, gradients: Sequence[Any]) -> list[Any]:
        """Gradients of all arguments, in memory of their own; `None` for those that have none."""
        arrived = [
            gradient
            for gradient, counts in zip(gradients, self._differentiable, strict=True)
            if counts
        ]
        for place, value in zip(self._arriving, arrived, strict=True):
            place.copy_(value)
        self._backward.replay()
        self.free = True
        copies = iter(scaled([x for x in self._leaving if x is not None], 1.0))
        leaving = iter([None if x is None else next(copies) for x in self._leaving])
        return [next(leaving) if trained else None for trained in self._trained]


def _node() -> Any:
    """What stands for a replay in PyTorch's record of what was computed."""
    import torch

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, replay, *arguments):
            """Outputs of a replay for inputs and weights."""
            ctx.replay = replay
            outputs, differentiable = replay.run_forward(arguments)
            pairs = zip(outputs, differentiable, strict=True)
            ctx.mark_non_differentiable(*(x for x, counts in pairs if not counts))
            return tuple(outputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, *gradients):
            """Gradients of all arguments."""
            return None, *ctx.replay.run_backward(gradients)

    return Node
