"""How much memory looking into a large model takes: `python benchmarks/attention_memory.py`.

Builds a ViT-L/16 at 384 px (305 M parameters) and goes through the attention maps of all blocks for
one image, in a process for each way to look. Printed is the largest resident memory meanwhile less
what was resident before, on the backend of KERAS_BACKEND ("torch" where it is not set). Exits with
1 if the maps, one after the other, take more than 1.5 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from _children import python_path, resident

LARGEST_GB = 1.5
WAYS = ("maps one after the other", "rollout", "class relevance")


def look(way: str, size: int) -> dict[str, float]:
    """Looks in one way; returns GB above the model, and seconds."""
    import numpy as np

    import keras_vit
    from keras_vit import inspection

    model = keras_vit.ViTL16(image_shape=(size, size, 3), num_classes=10)
    images = np.random.default_rng(0).integers(0, 256, (1, size, size, 3)).astype("uint8")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, start = resident("VmRSS"), time.perf_counter()
    if way == WAYS[0]:
        for scores in inspection.iter_attention_maps(model, images):
            if not np.allclose(scores.sum(-1), 1, atol=1e-4):
                raise SystemExit("The rows do not sum to 1.")
    else:
        found = {WAYS[1]: inspection.attention_rollout, WAYS[2]: inspection.class_relevance}
        found[way](model, images)
    return {"gb": (resident("VmHWM") - before) / 1e9, "seconds": time.perf_counter() - start}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=384, help="side of the image")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    backend = os.environ.get("KERAS_BACKEND", "torch")
    if options.way:
        print(json.dumps(look(options.way, options.size)))
        return 0
    too_much = False
    print(f"ViT-L/16 at {options.size} px, one image, {backend}, {os.cpu_count()} cores")
    for way in WAYS:
        done = subprocess.run(
            [sys.executable, __file__, "--size", str(options.size), "--way", way],
            env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": python_path()},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{way:26} {found['gb']:5.2f} GB above the model, {found['seconds']:.0f} s")
        too_much |= way == WAYS[0] and found["gb"] > LARGEST_GB
    return int(too_much)


if __name__ == "__main__":
    sys.exit(main())
