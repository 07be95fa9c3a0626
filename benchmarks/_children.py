"""What benchmarks that start processes share."""

import os
import resource
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_path() -> str:
    """For PYTHONPATH of a child: the package's folder before what the environment has."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def resident(field: str) -> int:
    """Bytes resident now ("VmRSS"), or at most so far ("VmHWM").

    The kernel's figures of this very process; `ru_maxrss` of a child begins at its parent's. It
    stands in, for both, where there is no /proc.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024
