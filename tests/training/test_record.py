"""What a run writes down: metrics.csv and TensorBoard's event files say the same."""

import csv

import harness  # noqa: F401  # chooses the backend
import pytest

from keras_vit.training.record import Record

tf = pytest.importorskip("tensorflow", reason="event files are written by TensorFlow")

ROWS = [
    {"epoch": 1, "step": 12, "loss": 2.5, "accuracy": 0.25, "learning_rate": 1e-3},
    {"epoch": 2, "step": 24, "loss": 1.25, "accuracy": 0.5, "val_loss": 1.5, "learning_rate": 0.0},
]


def events(folder):
    """(step, tag, value) of all event files."""
    found, versions = [], 0
    for path in sorted((folder / "logs").iterdir()):
        assert "tfevents" in path.name  # what TensorBoard looks for
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            versions += event.file_version == "brain.Event:2"
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
    assert versions == 1
    return found


def expected(rows):
    kept = [(row, name) for row in rows for name in row if name not in ("epoch", "step")]
    return [(row["step"], name, pytest.approx(row[name])) for row, name in kept]


def test_rows_are_written_as_they_come(tmp_path):
    record = Record(tmp_path)
    for count, row in enumerate(ROWS, 1):
        record.add(row)
        assert events(tmp_path) == expected(ROWS[:count])  # flushed: a killed run has them
    record.close()
    with open(tmp_path / "metrics.csv", newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in found] == [2.5, 1.25]
    assert [row["val_loss"] for row in found] == ["", "1.5"]


def test_a_restart_begins_with_the_rows_of_its_state(tmp_path):
    first = Record(tmp_path)
    for row in (*ROWS, {**ROWS[1], "epoch": 3, "step": 36}):
        first.add(row)
    again = Record(tmp_path, ROWS[:1])
    assert events(tmp_path) == expected(ROWS[:1])
    again.add(ROWS[1])
    again.close()
    assert events(tmp_path) == expected(ROWS)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3


def test_without_tensorflow_a_line_says_so(tmp_path, monkeypatch, capsys):
    from keras_vit.training import record as module

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    record = Record(tmp_path)
    record.add(ROWS[0])
    record.close()
    assert "no TensorBoard logs: they need tensorflow" in capsys.readouterr().out
    assert (tmp_path / "metrics.csv").exists() and not (tmp_path / "logs").exists()
