"""Argument checks that name the argument, the expectation and what came."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any


def positive_int(name: str, value: Any) -> int:
    """Returns `value` as an int; a ValueError unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")
    return int(value)


def non_negative_int(name: str, value: Any) -> int:
    """Returns `value` as an int; a ValueError unless it is a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise ValueError(f"`{name}` must be a non-negative integer. Received: {name}={value!r}")
    return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def number(name: str, value: Any) -> float:
    """Returns `value` as a float; a ValueError unless it is a finite number."""
    if not _is_number(value) or not abs(value) < float("inf"):
        raise ValueError(f"`{name}` must be a number. Received: {name}={value!r}")
    return float(value)


def rate(name: str, value: Any) -> float:
    """Returns `value` as a float; a ValueError unless it lies in [0, 1)."""
    if not _is_number(value) or not 0.0 <= value < 1.0:
        raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={value!r}")
    return float(value)


def positive_float(name: str, value: Any) -> float:
    """Returns `value` as a float; a ValueError unless it is a finite number above 0."""
    if not _is_number(value) or not 0.0 < value < float("inf"):
        raise ValueError(f"`{name}` must be a positive number. Received: {name}={value!r}")
    return float(value)


def boolean(name: str, value: Any) -> bool:
    """Returns `value`; a ValueError unless it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return value


def choice(name: str, value: Any, options: Sequence[Any]) -> Any:
    """Returns `value`; a ValueError unless it is one of `options`."""
    if not any(value is option or (value == option and value is not True) for option in options):
        raise ValueError(f"`{name}` must be one of {tuple(options)}. Received: {name}={value!r}")
    return value


def int_pair(name: str, value: Any) -> tuple[int, int]:
    """Returns `value` as (height, width); one integer counts for both."""
    if isinstance(value, numbers.Integral):
        side = positive_int(name, value)
        return side, side
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(
            f"`{name}` must be a positive integer or a (height, width) pair of them. "
            f"Received: {name}={value!r}"
        )
    return positive_int(name, value[0]), positive_int(name, value[1])


def int_tuple(name: str, value: Any, length: int | None = None) -> tuple[int, ...]:
    """Returns `value` as a tuple of positive integers, of `length` entries where that is given."""
    wanted = "a sequence" if length is None else f"{length}"
    if not isinstance(value, (tuple, list)) or (length is not None and len(value) != length):
        raise ValueError(
            f"`{name}` must be {wanted} of positive integers. Received: {name}={value!r}"
        )
    return tuple(positive_int(name, entry) for entry in value)


def divides(name: str, divisor: int, whole_name: str, whole: int) -> None:
    """Raises a ValueError that names both numbers unless `divisor` divides `whole`."""
    if whole % divisor:
        raise ValueError(
            f"`{name}` must divide `{whole_name}`. Received: {name}={divisor}, {whole_name}={whole}"
        )
