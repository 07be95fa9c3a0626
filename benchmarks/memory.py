"""Peak memory of training steps on one GPU, and the largest batch that fits.

    python benchmarks/memory.py --who jax --model vit_h14 --remat --batch 128
    python benchmarks/memory.py --who torch --model vit_h14 --remat --largest
    python benchmarks/memory.py --who timm-compile --model vit_b16 --batch 256

Each try is three training steps in a process of its own, of ours (`jax`, `torch`, `tensorflow`) or
of a peer of `peers.py`. The largest batch is found by doubling, then by halving what lies between,
to a multiple of `--multiple`. JAX, which takes three quarters of a card unless told otherwise, may
have 95% (`XLA_PYTHON_CLIENT_MEM_FRACTION`). Prints a line a try and one line of JSON at the end.
"""

import argparse
import json
import os
from pathlib import Path

import _cases as cases
from peers import KERAS_HUB, TORCH_PEERS

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def largest(fits, start, most, multiple):
    """The largest multiple up to `most` that fits, or 0; `fits` is tried from `start` on."""
    batch, worked, failed = start, 0, most + multiple
    while batch < failed and not worked >= most:
        if fits(batch):
            worked, batch = batch, min(2 * batch, most)
        else:
            failed = batch
    while failed - worked > multiple:
        batch = (worked + failed) // 2 // multiple * multiple
        if fits(batch):
            worked = batch
        else:
            failed = batch
    return worked


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        *("--who", "--backend"), default="jax", help="one of ours, or a peer of peers.py"
    )
    parser.add_argument("--model", default="vit_h14")
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--remat", action="store_true", help="ours only")
    parser.add_argument("--batch", type=int, default=128, help="or where --largest begins")
    parser.add_argument("--largest", action="store_true")
    parser.add_argument("--most", type=int, default=4096, help="bound of --largest")
    parser.add_argument("--multiple", type=int, default=8, help="what --largest is exact to")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a try")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.who not in (*cases.OURS, *TORCH_PEERS, *KERAS_HUB):
        known = ", ".join((*cases.OURS, *TORCH_PEERS, *KERAS_HUB))
        parser.error(f"--who takes {known}, not {options.who}")
    if options.largest and (options.batch % options.multiple or options.most % options.multiple):
        parser.error(f"--batch and --most must be multiples of {options.multiple}")
    shared = ["--model", options.model, "--precision", options.precision, "--modes", "train"]
    shared += ["--windows", 0, *(["--remat"] if options.remat else [])]
    shared += ["--smoke"] if options.smoke else []
    tries = {}

    def fits(batch):
        found = cases.run(
            *(options.who, *shared, "--batch", batch),
            limit=options.limit,
            environment={FRACTION: os.environ.get(FRACTION, "0.95")},
        )
        if "failed" in found and not found.get("out_of_memory"):
            raise SystemExit("\n".join([f"batch {batch}: {found['failed']}", *found["last_lines"]]))
        tries[batch] = found
        peak = "out of memory" if "failed" in found else f"{found['train']['peak_gib']} GiB"
        if "failed" not in found and found["train"]["peak_gib"] is None and options.largest:
            raise SystemExit("--largest needs a GPU: nothing says what is free elsewhere.")
        print(f"{options.who} {options.model} batch {batch}: {peak}", flush=True)
        return "failed" not in found

    result = {"who": options.who, "remat": options.remat}
    if options.largest:
        batch = largest(fits, options.batch, options.most, options.multiple)
        result["largest_batch"] = batch
    else:
        batch = options.batch
        result["fits"] = fits(batch)
    known = next((found for found in tries.values() if "failed" not in found), {})
    for key in ("model", "precision", "card", "date", "versions"):
        result[key] = known.get(key)
    if batch in tries and "failed" not in tries[batch]:
        result |= {"batch": batch, "peak_gib": tries[batch]["train"]["peak_gib"]}
    text = json.dumps(result)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
