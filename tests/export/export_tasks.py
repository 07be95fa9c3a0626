"""Tasks that test_isolation.py has a child process do."""

import os
import signal
import time
from pathlib import Path


def die(model, serving):
    os.kill(os.getpid(), signal.SIGKILL)


def stay(model, serving, path):
    partial = Path(path + ".new")
    partial.write_text(str(os.getpid()))
    partial.rename(path)
    time.sleep(300)
