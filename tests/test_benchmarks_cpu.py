"""The benchmark of CPUs runs, and its arithmetic holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import harness

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "cpu.py"


def _run(*arguments):
    command = [sys.executable, str(SCRIPT), "--smoke", "--rounds", "1", "--steps", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_smoke(tmp_path):
    name, file = f"keras_vit-{harness.BACKEND}", tmp_path / "cpu.json"
    done = _run("--competitors", name, "--warm-up", "1", "--json", str(file))
    assert not done.returncode, done.stderr
    assert f"| {name} |" in done.stdout
    found = json.loads(file.read_text())["competitors"][name]
    assert found["error"] is None and "keras_vit" in found["versions"]
    for times in found["milliseconds"].values():
        assert times["wall"] > 0 and times["cpu"] > 0


def test_a_competitor_that_is_not_installed_is_named():
    done = _run("--competitors", "timm-eager", "--timm-python", "/bin/false")
    assert "timm-eager: its process ended" in done.stdout


def test_ratios_are_to_the_better_timm(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import cpu

    milliseconds = {"ours": 5.0, "timm-eager": 8.0, "timm-compiled": 10.0}
    report = {
        "clock": cpu.clock_of(2),
        "competitors": {
            name: {"milliseconds": {"train b8": {"wall": time, "cpu": 1.0}}}
            for name, time in milliseconds.items()
        },
    }
    assert cpu.ratios(report)["train b8"] == pytest.approx(
        {"ours": 1.6, "timm-eager": 1.0, "timm-compiled": 0.8}
    )
