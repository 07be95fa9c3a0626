"""Whether a model may be compiled now by this package itself, which only PyTorch needs.

Models say so where a step begins; `models.compiled` and layers ask.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class State:
    """What holds now.

    Attributes:
        allowed: whether models are compiled.
        in_step: whether this is a step of `fit` or its like, of which many follow.
        recording: `None`, or what layers tell of themselves while their work is recorded.
    """

    allowed: bool = False
    in_step: bool = False
    recording: Any = None


_states = [State()]


def current() -> State:
    """What holds now."""
    return _states[-1]


@contextlib.contextmanager
def changed(**fields: Any) -> Iterator[None]:
    """Inside, fields of the state are other ones."""
    _states.append(replace(_states[-1], **fields))
    try:
        yield
    finally:
        _states.pop()
