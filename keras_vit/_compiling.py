"""Whether layers may compile their work by themselves now, which only PyTorch needs.

Models say so, and layers ask (`layers.regions`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class State:
    """What holds now.

    Attributes:
        allowed: whether anything is compiled.
        in_step: whether this is a step of `fit` or its like, of which many follow.
    """

    allowed: bool = False
    in_step: bool = False


_states = [State()]


def current() -> State:
    """What holds now."""
    return _states[-1]


@contextlib.contextmanager
def changed(**fields: bool) -> Iterator[None]:
    """Inside, fields of the state are other ones."""
    _states.append(replace(_states[-1], **fields))
    try:
        yield
    finally:
        _states.pop()
