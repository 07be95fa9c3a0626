"""Time, messages and records, as every speed benchmark takes them.

One case is one process. A window is a number of steps between two moments at which the device has
nothing left to do; what is reported is the median of the windows' images a second.
"""

import contextlib
import datetime
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from _children import ROOT
from _frameworks import DTYPES, framework, installed, versions  # noqa: F401

sys.path.insert(0, str(ROOT))
GIB = 2**30
WARM = 3  # steps before a window, after the one that compiles
KEPT_LINES, WIDTH = 20, 300
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
PACKAGES = (
    *("keras", "jax", "jaxlib", "torch", "triton", "tensorflow"),
    *("timm", "transformers", "keras-hub", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)
SMOKE = {"image_shape": (32, 32, 3), "patch_size": 8, "hidden_dim": 32, "num_layers": 2}
SMOKE |= {"num_heads": 2, "mlp_dim": 64}


def add_arguments(parser):
    """The options of a case, whoever is measured."""
    parser.add_argument("--model", default="vit_b16", help="as keras_vit.variants spells it")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", default="mixed_bfloat16", choices=list(DTYPES))
    parser.add_argument("--modes", nargs="+", default=["predict", "train"], metavar="MODE")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window")
    parser.add_argument("--windows", type=int, default=5, help="0: the first step alone")
    parser.add_argument("--cold", action="store_true", help="start with empty compiler caches")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--json", type=Path, help="where the result is written as well")


def parsed(parser, arguments=None):
    """The options; caches are emptied and the tiny model is set where that is asked for."""
    options = parser.parse_args(arguments)
    if unknown := set(options.modes) - {"train", "predict"}:
        parser.error(f"--modes takes train and predict, not {sorted(unknown)}")
    if options.smoke:
        options.batch, options.seconds = 4, 0.02
        options.windows = min(options.windows, 3)
    if options.cold:
        folder = tempfile.mkdtemp(prefix="cold_caches_")
        os.environ.update({name: os.path.join(folder, name.lower()) for name in CACHES})
    return options


class Messages:
    """Passes on what is written to standard error meanwhile, and keeps its lines.

    Python's warnings, loggers and the C++ of the frameworks all end there.
    """

    def __init__(self):
        self.lines = []

    def __enter__(self):
        sys.stderr.flush()
        self._saved = os.dup(2)
        reader, writer = os.pipe()
        os.dup2(writer, 2)
        os.close(writer)
        self._thread = threading.Thread(target=self._pass_on, args=(reader,), daemon=True)
        self._thread.start()
        return self

    def _pass_on(self, reader):
        with open(reader, "rb", closefd=True) as stream:
            for line in stream:
                os.write(self._saved, line)
                text = line.decode(errors="replace").strip()
                if text:
                    self.lines.append(text)

    def __exit__(self, *_):
        sys.stderr.flush()
        os.dup2(self._saved, 2)  # closes the pipe, unless a child process holds it
        self._thread.join(timeout=1)


class Compilations:
    """Counts what the framework compiled since it was last asked; `None` where it cannot tell."""

    def __init__(self, device):
        self._count = device.count_compilations()
        self._last = self._count()

    def so_far(self):
        last, self._last = self._last, self._count()
        return None if last is None else self._last - last


def synthetic(device, batch, size):
    """(images of 8 bits, labels of 1,000 classes), random, on the device."""
    import numpy as np

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (batch, size, size, 3), "uint8")
    return device.put(images), device.put(random.integers(0, 1000, batch).astype("int32"))


def steps_a_window(step, wait, seconds):
    """Steps that fill a window, after warming up."""
    for _ in range(WARM):
        step()
    wait()
    start, done = time.perf_counter(), 0
    while done < WARM or (time.perf_counter() - start < seconds / 4 and done < 50):
        step()
        done += 1
        if done % WARM == 0:
            wait()
    wait()
    return max(1, math.ceil(seconds * done / (time.perf_counter() - start)))


def windows(step, wait, seconds, count):
    """(seconds of each window, its steps), of a step that is called in a loop."""
    steps = steps_a_window(step, wait, seconds)
    found = []
    for _ in range(count):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        found.append(time.perf_counter() - start)
    return found, steps


def speed(times, steps, case, passes):
    """Images a second of windows, and their share of the ceiling.

    A training step is worth three forward passes.
    """
    each = [steps * case["batch"] / seconds for seconds in times]
    rate = statistics.median(each)
    found = {
        "images_per_second": round(rate, 2),
        "windows": [round(value, 2) for value in each],
        "steps_a_window": steps,
    }
    if case["ceiling_tflops"]:
        needed = rate * passes * case["forward_gflop"] / 1e3
        found["mfu"] = round(needed / case["ceiling_tflops"], 4)
    return found


def ceiling_tflops(device, precision):
    """The best that products of large random matrices reach here, in the policy's compute dtype."""
    dtype = DTYPES[precision] if device.gpu else "float32"
    multiply = device.product(dtype)
    multiply()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        multiply()
        times.append(time.perf_counter() - start)
    return 2 * device.size**3 * device.products / statistics.median(times) / 1e12


def peak_gib(device):
    found = device.peak()
    return None if found is None else round(found / GIB, 3)


def _portable(line):
    """A message without the folders of this machine."""
    for folder in filter(None, sys.path):
        line = line.replace(f"{folder}{os.sep}", "")
    return line


@contextlib.contextmanager
def record(who, device, options):
    """What a case found: yields a dict to be completed, then writes it.

    Ends with one line of JSON on standard output, and in `options.json`.
    """
    from keras_vit.counts import count_flops
    from keras_vit.variants import parse

    overrides = SMOKE if options.smoke else {}
    found = {
        "who": who,
        "model": "tiny" if options.smoke else parse(options.model).name,
        "batch": options.batch,
        "precision": options.precision,
        "image_size": overrides.get("image_shape", (224,))[0],
        "card": device.card,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(*PACKAGES),
        "cold_caches": options.cold,
        "forward_gflop": round(2 * count_flops(options.model, **overrides) / 1e9, 4),
        "ceiling_tflops": None,
    }
    with Messages() as messages:
        if options.windows:
            found["ceiling_tflops"] = round(ceiling_tflops(device, options.precision), 2)
        yield found
    found["messages"] = len(messages.lines)
    lines = [_portable(line)[:WIDTH] for line in dict.fromkeys(messages.lines)]
    found["message_lines"] = lines[:KEPT_LINES]
    text = json.dumps(found)
    if options.json:
        options.json.write_text(text + "\n")
    print(text, flush=True)
