"""Whole numbers from environment variables, which others set."""

from __future__ import annotations

import os


def whole_number(name: str, least: int = 1, default: int | None = None) -> int:
    """The variable's number.

    Args:
        name: of the variable.
        least: smallest number allowed.
        default: where the variable is not set; `None`: then that is an error.

    Raises:
        ValueError: if it is not set, or no such number.
    """
    text = os.environ.get(name) or ("" if default is None else str(default))
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name} must be an integer from {least} on. Received: {name}={text!r}")
    return int(text)
