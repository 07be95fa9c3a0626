"""What benchmarks that start processes share."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_path() -> str:
    """For PYTHONPATH of a child: the package's folder before what the environment has."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
