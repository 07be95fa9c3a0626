"""The processes that torchrun started: how they find each other, meet, and exchange arrays.

Two groups. Gradients go over NCCL on GPUs, gloo elsewhere. All else goes over gloo on the CPU:
before each exchange the processes tell each other what they are about to do, so that one that does
something else, or more of it, gives an error instead of a hang or of mixed-up numbers.
"""

from __future__ import annotations

import atexit
import datetime
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from keras_vit.engines.engine import PeerLostError
from keras_vit.engines.environment import whole_number
from keras_vit.engines.torch_lifeline import Lifeline

_VARIABLES = ("RANK", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun, beside WORLD_SIZE
# How long to wait for processes that have not started yet.
START_TIMEOUT = datetime.timedelta(minutes=5)
# One may evaluate, or write files, while others wait. A process that dies is noticed at once, as
# its connections close.
MEETING_TIMEOUT = datetime.timedelta(minutes=30)
# Of gradients. All processes meet at the beginning of each step, so that none waits for a slow one
# here. Not less, since the watchdog of NCCL counts from when the work is queued.
GRADIENT_TIMEOUT = datetime.timedelta(minutes=10)
# NCCL does not notice a dead process. See `torch_lifeline`.
WATCHED = ("cuda",)

# What processes may be about to do, and in words.
ACTIONS = ("train a step", "begin to fit", "sum", "predict", "gather", "draw random numbers")
STEP, FIT, SUM, PREDICT, GATHER, RANDOM = range(len(ACTIONS))

# What gloo, the store and NCCL say of another process that ended or does not answer.
_LOST = (
    "closed by peer",
    "onnection reset",
    "onnection refused",
    "roken pipe",
    "imed out",
    "imeout",
    "ailed to recv",
    "ncclRemoteError",
    "ncclSystemError",
    "communicator was aborted",
)

_store: list[Any] = []
_count = itertools.count()


def size_of_environment() -> int:
    """Number of processes, as a group that is there already or torchrun's variables say."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return whole_number("WORLD_SIZE", default=1)


class Processes:
    """All processes of a run, of which this is one; joins the others, or raises.

    Args:
        device: where this process' variables lie.

    Attributes:
        process: number of this one.
        count: of all.
        gradients: the group for gradients and weights.

    Raises:
        ValueError: if the environment does not say how to find the others.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._owned = not dist.is_initialized()
        self._lifeline = None
        backend = "nccl" if device.type == "cuda" else "gloo"
        if self._owned:
            _join(backend)
        self.process, self.count = dist.get_rank(), dist.get_world_size()
        self.gradients: Any = dist.new_group(backend=backend, timeout=GRADIENT_TIMEOUT)
        self._meeting: Any = dist.new_group(backend="gloo", timeout=MEETING_TIMEOUT)
        if device.type in WATCHED:
            self._lifeline = Lifeline(self.process, self.count, str(self._loss()))

    def _loss(self) -> PeerLostError:
        return PeerLostError(self.process, self.count)

    def leave(self, failed: bool = False) -> None:
        """Closes the connections that were opened here; others then notice.

        Args:
            failed: whether an error is the reason, so that others may still wait for this one.
        """
        if self._lifeline is not None:
            self._lifeline.leave(failed)
            self._lifeline = None
        if not dist.is_initialized():
            return
        if failed and self.device.type == "cuda":
            # NCCL would finish what is queued first, for ever if that needs a process that is gone.
            atexit.register(_end_at_once)
        elif self._owned:
            dist.destroy_process_group()
        else:
            for group in (self.gradients, self._meeting):
                dist.destroy_process_group(group)

    def meet(self, action: int, number: int = 0, what: str = "") -> None:
        """Waits until all are here, to do the same.

        Args:
            action: one of `ACTIONS`.
            number: must be the same in all.
            what: the number in words, with a place for it: "on {} images".

        Raises:
            ValueError: if another is about to do something else.
            PeerLostError: if another has ended.
        """
        mine = torch.tensor([action, number], dtype=torch.int64)
        theirs = [torch.empty_like(mine) for _ in range(self.count)]
        with self.explained():
            dist.all_gather(theirs, mine, group=self._meeting)
        for process, other in enumerate(theirs):
            if not torch.equal(other, theirs[0]):
                words = [
                    f"process {index} is about to {ACTIONS[int(row[0])]} "
                    + (what.format(int(row[1])) if int(row[0]) == action else "")
                    for index, row in ((0, theirs[0]), (process, other))
                ]
                raise ValueError(
                    f"All processes must do the same, and {words[0].strip()}, but "
                    f"{words[1].strip()}. Run the same program in each, on the same model, and "
                    "give each as many batches of the same size (drop the remainder)."
                )

    def sum(self, array: np.ndarray) -> np.ndarray:
        """The sum of the processes' arrays, which have one shape; float64 or int64."""
        total = torch.from_numpy(np.array(array))
        self.meet(SUM, total.numel(), "{} numbers")
        with self.explained():
            dist.all_reduce(total, group=self._meeting)
        return total.numpy()

    def gather(self, array: np.ndarray, action: int = GATHER) -> list[np.ndarray]:
        """The processes' arrays, which have one shape and dtype."""
        array = np.ascontiguousarray(array)
        own = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
        self.meet(action, own.numel(), "{} bytes")
        found = [torch.empty_like(own) for _ in range(self.count)]
        with self.explained():
            dist.all_gather(found, own, group=self._meeting)
        return [part.numpy().view(array.dtype).reshape(array.shape) for part in found]

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrites tensors, which lie on `device`, with those of process 0."""
        with self.explained(), torch.no_grad():
            sent = [tensor.detach().contiguous() for tensor in tensors]
            works: list[Any] = [
                # As bytes: not every backend knows every dtype.
                dist.broadcast(
                    tensor.reshape(-1).view(torch.uint8),
                    src=0,
                    group=self.gradients,
                    async_op=True,
                )
                for tensor in sent
            ]
            for work in works:
                work.wait()
            for tensor, value in zip(tensors, sent, strict=True):
                if value.data_ptr() != tensor.data_ptr():
                    tensor.copy_(value)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns the loss of another process into a `PeerLostError`."""
        try:
            yield
        except RuntimeError as error:
            clear = self.explain(error)
            if clear is None:
                raise
            raise clear from error

    def explain(self, error: BaseException) -> PeerLostError | None:
        """A `PeerLostError`, if that is what torch's error comes from."""
        text = str(error)
        # Gloo's errors have no class of their own.
        if not isinstance(error, dist.DistError) and not (
            isinstance(error, RuntimeError) and "gloo" in text
        ):
            return None
        return self._loss() if any(word in text for word in _LOST) else None


def _end_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _join(backend: str) -> None:
    """Makes a group with the processes that the environment tells of."""
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"WORLD_SIZE is {os.environ.get('WORLD_SIZE')}, but {', '.join(missing)} is not set: "
            "start the processes by torchrun, or unset WORLD_SIZE."
        )
    try:
        if not _store:  # kept: the first process serves it, and a later scope needs it again
            _store[:] = next(iter(rendezvous("env://", timeout=START_TIMEOUT)))
        store, process, count = _store
        # What an earlier scope, or an earlier attempt of torchrun --max-restarts, left is in there.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            backend,
            timeout=START_TIMEOUT,
            store=PrefixStore(f"keras_vit/{attempt}/{next(_count)}", store),
            rank=process,
            world_size=count,
        )
    except dist.DistError as error:
        reason = (str(error).splitlines() or [""])[0]
        raise RuntimeError(
            f"Process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} did not find the others "
            f"at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} ({reason}). All must be "
            f"started within {START_TIMEOUT.seconds} seconds, by torchrun, with a free port."
        ) from error
