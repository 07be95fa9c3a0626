"""Whether a model may be compiled now by this package itself, which only PyTorch needs.

Models say so where a step begins; `models.compiled` and layers ask.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class State:
    """What holds now, in this thread.

    Attributes:
        allowed: whether models are compiled.
        stepping: the model whose step of `fit` or its like this is, of which many follow.
        unchanging: the model whose `predict` or `evaluate` runs, so that its weights stay.
        recording: `None`, or what layers tell of themselves while their work is recorded.
    """

    allowed: bool = False
    stepping: Any = None
    unchanging: Any = None
    recording: Any = None


_IDLE = State()
_here = threading.local()  # not a ContextVar, which torch.export's tracer does not know


def current() -> State:
    """What holds now."""
    return getattr(_here, "state", _IDLE)


@contextlib.contextmanager
def changed(**fields: Any) -> Iterator[None]:
    """Inside, fields of the state are other ones."""
    before = current()
    _here.state = replace(before, **fields)
    try:
        yield
    finally:
        _here.state = before
