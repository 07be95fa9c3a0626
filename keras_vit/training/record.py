"""The history of a run: in memory, as metrics.csv, and as TensorBoard logs."""

from __future__ import annotations

import csv
import shutil
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from keras_vit._atomic import replacing

METRICS_FILE = "metrics.csv"
LOGS_FOLDER = "logs"


class Record:
    """One row an epoch.

    A restart begins with the rows of the state it goes on from, so that what a killed process
    wrote after that state is gone from the files too.

    Args:
        folder: the run's directory; `None` to write nothing.
        rows: the rows so far.
    """

    def __init__(self, folder: Path | None, rows: list[dict[str, Any]] | None = None):
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self._logs: Any = None
        if folder is not None:
            self._logs = _event_writer(folder / LOGS_FOLDER)
        for row in rows or []:
            self._add(row)
        self._write()

    def add(self, row: dict[str, Any]) -> None:
        """Adds a row and writes the files."""
        self._add(row)
        self._write()

    def close(self) -> None:
        """Closes the logs."""
        if self._logs is not None:
            self._logs.close()
            self._logs = None

    def _add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self._logs is not None:
            self._logs.write(_event(row))

    def _write(self) -> None:
        if self.folder is None:
            return
        # Early rows may lack what later ones have, such as validation.
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        with (
            replacing(self.folder / METRICS_FILE) as path,
            open(path, "w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, names or ["epoch"])
            writer.writeheader()
            writer.writerows(self.rows)
        if self._logs is not None:
            self._logs.flush()


def _event_writer(folder: Path):
    """A writer of TensorBoard's event files, which are TFRecords; `None` without TensorFlow.

    TensorBoard itself is not needed: TensorFlow has the messages, and no longer brings it along.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        tf = import_module("tensorflow")
    except ImportError:
        print("no TensorBoard logs: they need tensorflow; metrics.csv holds the same")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    writer = tf.io.TFRecordWriter(str(folder / f"events.out.tfevents.{int(now)}.keras_vit"))
    version = tf.compat.v1.Event(wall_time=now, file_version="brain.Event:2")
    writer.write(version.SerializeToString())
    return writer


def _event(row: dict[str, Any]) -> bytes:
    v1 = import_module("tensorflow").compat.v1
    values = [
        v1.Summary.Value(tag=name, simple_value=float(value))
        for name, value in row.items()
        if name not in ("epoch", "step")
    ]
    summary = v1.Summary(value=values)
    event = v1.Event(wall_time=time.time(), step=int(row["step"]), summary=summary)
    return event.SerializeToString()
