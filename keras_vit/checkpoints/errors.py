"""The one error that checkpoints raise."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, does not fit, or cannot be written.

    The message names the file, the arrays concerned, what was expected and what to do.
    """
