"""Time of loading ViT-B/16 from a safetensors file, against reading the file and building.

    python benchmarks/load_checkpoint.py

Prints the medians and the ratio of `from_checkpoint` to both together; the file has random
weights and lies in a temporary directory, in the page cache.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras

from keras_vit.checkpoints.files import open_checkpoint


def seconds(run) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def read(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file in memory: by the safetensors library, or where it is not by ours."""
    try:
        from safetensors.numpy import load_file
    except ImportError:
        with open_checkpoint(path) as store:
            return {name: store.read(name) for name in store.entries}
    return load_file(path)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="ViT-B/16")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*own code runs this file")
            keras_vit.to_checkpoint(keras_vit.create_model(options.variant), path, format="timm")
        runs = {
            "read": lambda: read(path),
            "build": lambda: keras_vit.create_model(options.variant),
            "from_checkpoint": lambda: keras_vit.from_checkpoint(path),
        }
        times = {name: [] for name in runs}
        for repeat in range(options.repeats + 1):
            for name, run in runs.items():
                elapsed = seconds(run)
                if repeat:  # the first compiles
                    times[name].append(elapsed)
    medians = {name: round(statistics.median(values), 3) for name, values in times.items()}
    ratio = medians["from_checkpoint"] / (medians["read"] + medians["build"])
    print(json.dumps({"backend": keras.backend.backend(), **medians, "ratio": round(ratio, 2)}))


if __name__ == "__main__":
    main()
