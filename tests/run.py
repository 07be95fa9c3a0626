"""Runs the test suite once per backend, in two processes each.

    python tests/run.py                                # all three, two at a time
    python tests/run.py --backends jax,torch           # some of them
    python tests/run.py tests/test_deps.py -k select   # the rest goes to pytest

Keras fixes its backend when it is imported, hence processes for each. A backend that is not
installed is skipped, unless `--backends` names it. The exit status is 0 only if every backend that
ran collected tests and passed them; the last line is "N passed, N failed, N skipped", over all.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BACKENDS = ("tensorflow", "jax", "torch")

# What a process gets unless the user's environment says otherwise.
DEFAULTS = {
    # The models of the tests are tiny: a second OpenMP thread doubles PyTorch's processor time and
    # gives nothing back, and TensorFlow's gain nothing either.
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    # Compiling is two thirds of JAX's time: kept for the child processes and for the next run.
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "jax-compilation"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}

# About half of the time. In halves the backends share two cores well; what is asked for by
# arguments to pytest runs in one piece.
SECOND_HALF = (
    *("tests/engines", "tests/export", "tests/training"),
    *("tests/test_cli_export.py", "tests/test_cli_train.py", "tests/test_examples.py"),
)
HALVES = {
    "first half": [f"--ignore={path}" for path in SECOND_HALF],
    "second half": list(SECOND_HALF),
}


@dataclass
class Result:
    """What one run came to."""

    backend: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""
    ok: bool = False

    def counts(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "FAILED"
        note = f" ({self.note})" if self.note else ""
        return f"{self.backend:22} {verdict:6} {self.counts()} in {self.seconds:.0f} s{note}"


def read_report(path: Path) -> tuple[int, int, int]:
    """Returns (passed, failed, skipped) of a JUnit file; errors count as failures."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            failed += 1
        elif "skipped" in outcomes:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def judge(result: Result, code: int, report: Path) -> Result:
    """Fills in `result` from pytest's exit status and its report."""
    try:
        result.passed, result.failed, result.skipped = read_report(report)
    except (OSError, ElementTree.ParseError):
        result.note = f"pytest ended with status {code} and left no report"
    if result.passed + result.failed + result.skipped == 0 and not result.note:
        result.note = "no test was collected"
    elif code != 0 and result.failed == 0 and not result.note:
        result.note = f"pytest ended with status {code}"
    result.ok = code == 0 and result.failed == 0 and not result.note
    if not result.ok and result.failed == 0:
        result.failed = 1  # the totals must not read like a success
    return result


started: list[subprocess.Popen] = []


def stop(number: int, frame: object) -> None:
    """Ends the processes started here, too, when this one is told to end."""
    for process in started:
        process.terminate()
    # The other threads wait for what was ended and would start the next backend: do not wait.
    os._exit(128 + number)


def runs(names: list[str], arguments: list[str]) -> list[tuple[str, str, list[str]]]:
    """(name, backend, arguments of pytest) of each process to start."""
    if arguments:
        return [(name, name, arguments) for name in names]
    found = [(f"{name}, {half}", name, HALVES[half]) for half in HALVES for name in names]
    # Its halves are the shortest: at the end, no core waits long for the other.
    return sorted(found, key=lambda run: run[1] == "torch")


def run_backend(title: str, backend: str, arguments: list[str], capture: bool) -> Result:
    """Runs pytest under `backend`; with `capture`, prints its output in one piece at the end."""
    environment = DEFAULTS | os.environ | {"KERAS_BACKEND": backend}
    result = Result(title)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [
            *(sys.executable, "-m", "pytest", f"--junitxml={report}"),
            *("-o", f"cache_dir=.pytest_cache/{title.replace(', ', '-')}", *arguments),
        ]
        if capture:
            print(f"{title}: running, its output follows when it is through", flush=True)
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.STDOUT if capture else None,
        )
        started.append(process)
        output, _ = process.communicate()
        result.seconds = time.monotonic() - start
        if capture:
            print(f"\n===== {title} =====\n{output}", flush=True)
        return judge(result, process.returncode, report)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Splits the command line into ours and pytest's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", help=f"comma-separated, of {', '.join(BACKENDS)}")
    # A backend keeps one core busy: two at a time where there are two cores.
    jobs = min(2, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs, help="processes at the same time")
    options, rest = parser.parse_known_args(arguments)
    names = options.backends.split(",") if options.backends else list(BACKENDS)
    if unknown := [name for name in names if name not in BACKENDS]:
        parser.error(f"--backends must be of {', '.join(BACKENDS)}. Received: {','.join(unknown)}")
    options.names = names
    return options, rest


def main(arguments: list[str]) -> int:
    """Runs the backends and returns the exit status."""
    options, rest = parse(arguments)
    signal.signal(signal.SIGTERM, stop)
    missing = [name for name in options.names if importlib.util.find_spec(name) is None]
    present = [name for name in options.names if name not in missing]
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        capture = options.jobs > 1
        for result in pool.map(lambda run: run_backend(*run, capture), runs(present, rest)):
            results.append(result)

    print("\n===== summary =====")
    for result in results:
        print(result)
    for name in missing:
        print(f"{name:22} {'FAILED' if options.backends else 'skip':6} not installed")
    total = Result(
        "all",
        *(sum(getattr(r, key) for r in results) for key in ("passed", "failed", "skipped")),
    )
    print(total.counts())
    asked_and_missing = bool(options.backends and missing)
    return 0 if results and all(r.ok for r in results) and not asked_and_missing else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
