"""What tf.data wraps up in long errors of its own, in plain words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator


def reason(error: BaseException) -> str | None:
    """What an error of TensorFlow says of this package's data; `None` if it is another."""
    if not type(error).__module__.startswith("tensorflow."):
        return None
    found = re.search(r"\b(?:ValueError|OSError|BadPicture): (.+)", str(error))
    return found and found[1]


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Raises a ValueError with the reason, where there is one."""
    try:
        yield
    except Exception as error:
        words = reason(error)
        if words is None:
            raise
        raise ValueError(words) from error
