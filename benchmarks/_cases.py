"""A case of `throughput.py` or `peers.py` in a process of its own, with a time limit."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from _children import python_path

# What the cases call our own ways to train; any other word is a peer of peers.py.
OURS = {
    "jax": ["--backend", "jax"],
    "torch": ["--backend", "torch"],
    "torch-eager": ["--backend", "torch", "--jit-compile", "false"],
    "torch-compile": ["--backend", "torch", "--jit-compile", "true"],
    "tensorflow": ["--backend", "tensorflow"],
}
OUT_OF_MEMORY = re.compile(r"out of memory|RESOURCE_EXHAUSTED|OutOfMemory|failed to allocate", re.I)
KEPT_LINES = 12


def command(who, *arguments):
    """The command line of a case."""
    folder = Path(__file__).parent
    known = who in OURS
    script = folder / ("throughput.py" if known else "peers.py")
    chosen = OURS[who] if known else ["--peer", who]
    return [sys.executable, script, *chosen, *arguments]


def run(who, *arguments, limit=None, environment=None):
    """What the case found, or `{"failed": why}`, with "out_of_memory" where that was why.

    Args:
        who: a key of `OURS`, or a peer.
        *arguments: further options of the script.
        limit: seconds after which it and its children are ended.
        environment: variables beside those of this process.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, errors = Path(folder) / "result.json", Path(folder) / "errors"
        words = [*map(str, command(who, *arguments)), "--json", str(result)]
        with open(errors, "wb") as stream:
            process = subprocess.Popen(
                words,
                env={**os.environ, **(environment or {}), "PYTHONPATH": python_path()},
                stdout=subprocess.DEVNULL,
                stderr=stream,
                start_new_session=True,  # compilers start processes that a limit must end as well
            )
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                return {"failed": f"not done in {limit:g} s", **_end(process, errors)}
            except BaseException:
                _end(process, errors)
                raise
        if process.returncode == 0 and result.exists():
            return json.loads(result.read_text())
        found = {"failed": f"exit status {process.returncode}", **_last_lines(errors)}
        if OUT_OF_MEMORY.search(errors.read_text(errors="replace")):
            found["out_of_memory"] = True
        return found


def _end(process, errors):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return _last_lines(errors)


def _last_lines(errors):
    lines = errors.read_text(errors="replace").strip().splitlines()
    return {"last_lines": lines[-KEPT_LINES:]}
