"""How much memory converting a checkpoint takes: `python benchmarks/convert_memory.py`.

Writes a ViT-L/16 of random numbers in timm's names (304 M parameters, 1.2 GB; nothing is kept) and
converts it to other projects' formats, each in a process of its own. Printed is the largest
resident memory after the imports, less what was resident before the conversion began, over the
size of the file: for `convert_checkpoint`, which builds no model, and for `from_checkpoint` with
`to_checkpoint` on the backend of KERAS_BACKEND ("torch" where it is not set). Exits with 1 if
`convert_checkpoint` takes more than 1.3 times the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _children import python_path, resident

LARGEST_RATIO = 1.3
# format -> what the file's name ends in; a directory has no ending.
FORMATS = {"google": ".npz", "huggingface": "", "torchvision": ".safetensors"}
ROUTES = ("convert_checkpoint", "from_checkpoint + to_checkpoint")


def write_source(path: Path, **config: Any) -> None:
    """Writes a Vision Transformer of random numbers in timm's names, an array at a time."""
    import numpy as np

    from keras_vit.checkpoints import writing
    from keras_vit.checkpoints.shapes import weight_shapes
    from keras_vit.counts import VIT_DEFAULTS
    from keras_vit.models import vit_config

    # What counts leave out, as the model's class has it.
    rest = {
        **dict.fromkeys(("dropout_rate", "attention_dropout_rate", "drop_path_rate"), 0.0),
        **{"patch_dropout_rate": 0.0, "norm_epsilon": 1e-6, "norm_after_pooling": False},
        **{"remat": False, "classifier_activation": None, "include_rescaling": True},
        **{"pixel_range": "inception", "activation": "gelu"},
    }
    full = vit_config.resolve({**VIT_DEFAULTS, **rest, **config})
    shapes, generator = weight_shapes(full), np.random.default_rng(0)

    def get(name: str) -> np.ndarray:
        return generator.standard_normal(shapes[name], "float32")

    writing.write(full, get, path, format="timm")


def measure(source: Path, target: Path, name: str, route: str, backend: str) -> dict[str, float]:
    """Converts in a child process.

    Args:
        source: the file to convert.
        target: where to.
        name: the format.
        route: one of `ROUTES`.
        backend: the child's.

    Returns:
        `"ratio"`: memory above the baseline over the file's size; `"baseline"`, in bytes;
        `"seconds"`.
    """
    child = [sys.executable, __file__, "--child", str(source), str(target), name, route]
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": python_path()}
    done = subprocess.run(child, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "ratio": found["growth"] / source.stat().st_size}


def _child(source: str, target: str, name: str, route: str) -> None:
    import keras_vit

    before, start = resident("VmRSS"), time.perf_counter()
    if route == ROUTES[0]:
        keras_vit.convert_checkpoint(source, target, format=name)
    else:
        keras_vit.to_checkpoint(keras_vit.from_checkpoint(source), target, format=name)
    seconds = time.perf_counter() - start
    growth = resident("VmHWM") - before
    print(json.dumps({"growth": growth, "baseline": before, "seconds": seconds}))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the memory of conversions.")
    parser.add_argument("--folder", help="where to write some 3 GB; a temporary one by default")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(*options.child)
        return 0
    backend = os.environ.setdefault("KERAS_BACKEND", "torch")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = Path(folder, "vit_large_patch16_224.safetensors")
        write_source(source, hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)
        size = source.stat().st_size
        print(f"ViT-L/16, {size / 1e6:,.0f} MB, timm; KERAS_BACKEND={backend}\n")
        print("| to | route | memory over the file's size | in MB | seconds |")
        print("|---|---|---:|---:|---:|")
        worst = 0.0
        for name, ending in FORMATS.items():
            for route in ROUTES:
                with tempfile.TemporaryDirectory(dir=folder) as inner:
                    target = Path(inner, f"converted{ending}")
                    found = measure(source, target, name, route, backend)
                if route == ROUTES[0]:
                    worst = max(worst, found["ratio"])
                print(
                    f"| {name} | {route} | {found['ratio']:.2f} | "
                    f"{found['growth'] / 1e6:,.0f} | {found['seconds']:.1f} |",
                    flush=True,
                )
    return 0 if worst <= LARGEST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
