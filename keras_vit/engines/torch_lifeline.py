"""Notices that another process ended, where this one may wait for a GPU that waits for that one."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist

GRACE = 20.0  # seconds for this process to notice by itself, and to end in good order
_FOREVER = datetime.timedelta(days=365)
_GOODBYE, _LOST = 0, 1


class Lifeline:
    """A thread that waits for a word of the next process, which ends if that process does.

    The word that one is lost goes around, so that all end together. A process that has not left
    after `GRACE` seconds is stuck in a kernel of NCCL, which no exception reaches: it is ended.

    Args:
        process: number of this process.
        count: of all.
        message: what to say then.
    """

    def __init__(self, process: int, count: int, message: str):
        self._group: Any = dist.new_group(backend="gloo", timeout=_FOREVER)
        self._before, self._after = (process - 1) % count, (process + 1) % count
        self._message = message
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lifeline", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        word = torch.tensor([_LOST])
        with contextlib.suppress(RuntimeError):
            dist.recv(word, src=self._after, group=self._group)
        if int(word) == _GOODBYE or self._left.is_set():
            return
        self._say(_LOST)
        print(self._message, file=sys.stderr, flush=True)
        if not self._left.wait(GRACE):
            os._exit(1)

    def _say(self, word: int) -> None:
        with contextlib.suppress(RuntimeError):
            dist.send(torch.tensor([word]), dst=self._before, group=self._group)

    def leave(self, failed: bool) -> None:
        """Tells the others that this process goes, in good order or not."""
        self._left.set()
        self._say(_LOST if failed else _GOODBYE)
        if not failed:
            self._thread.join(GRACE)
