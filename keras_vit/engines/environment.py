"""What environment variables, which others set, say of several processes."""

from __future__ import annotations

import json
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


def processes(backend: str) -> int:
    """As many processes as the environment speaks of, to the backend; 1 without a word.

    Raises:
        ValueError: if a variable is no number.
    """
    return _COUNTS[backend]() if backend in _COUNTS else 1


def _count_of_cluster() -> int:
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return max(sum(len(addresses) for addresses in cluster.values()), 1)
    except (ValueError, AttributeError, TypeError):
        return 2  # the engine says what is wrong with it


_COUNTS = {
    "tensorflow": _count_of_cluster,
    "jax": lambda: whole_number("KERAS_DISTRIBUTION_NUM_PROCESSES", default=1),
    "torch": lambda: whole_number("WORLD_SIZE", default=1),
}
