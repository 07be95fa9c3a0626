"""One line that moves on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24
_INTERVAL = 0.2  # seconds between two drawings


class ProgressLine:
    """Draws how far something is, how fast, and how long it will take.

    Args:
        total: steps in all.
        title: stands before the bar.
        unit: what `count` counts, such as "images".
        file: where to draw; standard error where left out. Nothing moves unless it is a terminal.
    """

    def __init__(
        self, total: int, title: str = "", unit: str = "images", file: TextIO | None = None
    ):
        self.total = max(total, 1)
        self.title = title
        self.unit = unit
        self.file = file or sys.stderr
        self._moves = self.file.isatty()
        self._start = time.perf_counter()
        self._drawn = 0.0
        self._first: int | None = None
        self._width = 0

    def due(self) -> bool:
        """Whether it is time to draw again."""
        return self._moves and time.perf_counter() - self._drawn >= _INTERVAL

    def update(self, done: int, count: int = 0, words: str = "") -> None:
        """Draws the state, at most a few times a second.

        Args:
            done: steps so far.
            count: units so far in this process.
            words: stand behind the figures.
        """
        if self._first is None:
            self._first = done - 1
        now = time.perf_counter()
        if not self._moves or (now - self._drawn < _INTERVAL and done < self.total):
            return
        self._drawn = now
        elapsed = max(now - self._start, 1e-9)
        left = elapsed / max(done - self._first, 1) * (self.total - done)
        filled = _WIDTH * done // self.total
        speed = f"  {count / elapsed:,.0f} {self.unit}/s" if count else ""
        line = (
            f"{self.title} [{'=' * filled}{'.' * (_WIDTH - filled)}] {done}/{self.total}"
            f"{speed}  {duration(left)} left  {words}"
        )
        self.file.write("\r" + line.ljust(self._width))
        self.file.flush()
        self._width = len(line)

    def close(self) -> None:
        """Removes the line."""
        if self._moves and self._width:
            self.file.write("\r" + " " * self._width + "\r")
            self.file.flush()
            self._width = 0


def duration(seconds: float) -> str:
    """Seconds as "4:05" or "1:04:05"."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    text = f"{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{text}" if hours else text
