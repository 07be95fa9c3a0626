"""The runner of the suite itself: its verdicts, and the totals on its last line."""

import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest
import run


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "report.xml"
    cases = (
        "<testcase/><testcase/>"
        "<testcase><failure/></testcase><testcase><error/></testcase>"
        "<testcase><skipped/></testcase>"
    )
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return path


def test_reads_a_report(report):
    assert run.read_report(report) == (2, 2, 1)


def test_a_failure_fails(report):
    result = run.judge(run.Result("jax"), 1, report)
    assert not result.ok and result.counts() == "2 passed, 2 failed, 1 skipped"


@pytest.mark.parametrize("code", [0, 5])
def test_nothing_collected_fails(tmp_path, code):
    path = tmp_path / "report.xml"
    path.write_text("<testsuites><testsuite/></testsuites>")
    result = run.judge(run.Result("jax"), code, path)
    assert not result.ok and result.failed == 1 and "no test" in result.note


def test_a_crash_fails(tmp_path):
    result = run.judge(run.Result("jax"), -11, tmp_path / "report.xml")
    assert not result.ok and result.failed == 1 and "-11" in result.note


def test_a_bad_status_without_a_failed_test_fails(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text("<testsuites><testsuite><testcase/></testsuite></testsuites>")
    assert run.judge(run.Result("jax"), 0, path).ok
    result = run.judge(run.Result("jax"), 2, path)
    assert not result.ok and result.counts() == "1 passed, 1 failed, 0 skipped"


def start(*arguments):
    command = [sys.executable, run.__file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_an_unknown_backend_is_refused():
    done = start("--backends", "jax,theano")
    assert done.returncode == 2 and "Received: theano" in done.stderr


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jax", "torch")),
    reason="needs JAX and PyTorch",
)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_last_line_has_the_totals(tmp_path, jobs):
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n"
        "def test_a(): pass\n"
        "def test_b(): pytest.skip()\n"
        "def test_c(): assert os.environ['KERAS_BACKEND'] == 'jax'\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]")
    done = start("--backends", "jax,torch", "--jobs", jobs, str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "3 passed, 1 failed, 2 skipped"


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ending_the_runner_ends_its_tests(tmp_path):
    started = tmp_path / "started"
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_it.py").write_text(
        "import pathlib, time\n"
        f"def test_a(): pathlib.Path({str(started)!r}).touch(); time.sleep(60)\n"
    )
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    command = [sys.executable, run.__file__, "--backends", backend, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    end = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.terminate()
    # The pipe ends when every process that writes to it has.
    process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM


def test_halves_have_every_test_once():
    """What the second half names, the first leaves out, and all of it exists."""
    first, second = (arguments for _, _, arguments in run.runs(["jax"], [])[:2])
    assert first == [f"--ignore={path}" for path in second]
    assert all((run.ROOT / path).exists() for path in second)
    assert [backend for _, backend, _ in run.runs(["jax", "torch"], [])] == [
        *("jax", "jax", "torch", "torch")
    ]
    assert run.runs(["jax"], ["tests/test_run.py"]) == [("jax", "jax", ["tests/test_run.py"])]
