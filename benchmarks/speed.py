"""The cases behind the README's section on speed, each in a process of its own.

    python benchmarks/speed.py
    python benchmarks/speed.py --cases '^(train|predict)/vit_b16/' --budget 240
    python benchmarks/speed.py --list

A case is `kind/model/who`: `train` and `predict` are measured by one process; of ViT-L/16 it
starts with empty compiler caches and finds `cold` too, the first training step. `memory` is the
peak of training with remat (`memory.py` finds the largest batch). After every process the results
go into one file, by default `results/speed_<card>.json`; what is there already is skipped unless
`--again` is given. Ratios are to compiled timm of the same file.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import _cases as cases
import speed_table

RESULTS = Path(__file__).parent / "results"
BATCHES = {"vit_s16": 256, "vit_b16": 256, "vit_l16": 128, "r50_vit_b16": 256, "vit_h14": 128}
BOTH = ("predict", "train")
COLD = ("cold", "train", "predict")
MAIN = ("timm-compile", "torch", "jax")
# (kinds that one process measures, model, who), those that matter most first.
PLAN = [
    *((BOTH, "vit_b16", who) for who in (*MAIN, "keras-hub-jax")),
    *((BOTH, "vit_s16", who) for who in MAIN),
    *((COLD, "vit_l16", who) for who in MAIN),
    *((("memory",), "vit_h14", who) for who in ("jax", "torch")),
    *((BOTH, "r50_vit_b16", who) for who in MAIN),
    (("predict",), "vit_b16", "timm-max-autotune"),
    *((BOTH, "vit_b16", who) for who in ("timm", "transformers-compile", "keras-hub-torch")),
    *((BOTH, model, "timm") for model in ("vit_s16", "vit_l16", "r50_vit_b16")),
    *((BOTH, model, "keras-hub-jax") for model in ("vit_s16", "vit_l16")),
    *((("cold",), "vit_b16", who) for who in MAIN),
]


def card():
    """Name of the first GPU, or "cpu", without a framework."""
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "_", found.splitlines()[0].lower()).strip("_") if found else "cpu"


def read(path):
    return json.loads(path.read_text()) if path.exists() else {"cases": {}}


def write(path, results):
    """Whole or not at all: the next run begins with this file."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(path)


def due(kinds, model, who, options, known):
    """Those of the kinds that are asked for, and not known unless they are asked for again."""
    names = {kind: f"{kind}/{model}/{who}" for kind in kinds}
    asked = {kind: name for kind, name in names.items() if re.search(options.cases, name)}
    unknown = {"failed": "not run"}
    return tuple(
        kind
        for kind, name in asked.items()
        if options.again or "failed" in known.get(name, unknown)
    )


def arguments_of(kinds, model, options):
    """The options of the process that measures these kinds."""
    words = ["--model", model, "--batch", BATCHES[model]]
    modes = [kind for kind in kinds if kind in BOTH]
    windows = options.windows if modes else 0
    words += ["--modes", *(modes or ["train"]), "--windows", windows]
    words += ["--seconds", options.seconds, *(["--cold"] if "cold" in kinds else [])]
    words += ["--remat"] if "memory" in kinds else []
    return words + (["--smoke"] if options.smoke else [])


def measured(kinds, model, who, options):
    """Name of the case -> what its process found."""
    found = cases.run(who, *arguments_of(kinds, model, options), limit=options.limit)
    shared = {key: value for key, value in found.items() if key not in BOTH}
    parts = {kind: found.get(kind if kind in BOTH else "train") or {} for kind in kinds}
    return {f"{kind}/{model}/{who}": {**shared, **parts[kind]} for kind in kinds}


def line(results, name):
    """A case's result in a line."""
    case = results["cases"][name]
    if "failed" in case:
        return f"{name}: failed, {case['failed']}: {' | '.join(case.get('last_lines', [])[-2:])}"
    words = [f"{name}:"]
    rate = speed_table.rate(case)
    if rate:
        words.append(f"{rate['images_per_second']:,.0f} images/s")
        ratio, _ = speed_table.ratio(results["cases"], name)
        words += [f"{ratio:.3f} of timm compiled"] if ratio else []
        words += [f"raw {case['raw']['images_per_second']:,.0f}", f"MFU {rate['mfu']:.1%}"]
    for key, unit in (("first_step_seconds", "s first step"), ("peak_gib", "GiB")):
        words += [f"{case[key]} {unit}"] if case.get(key) is not None else []
    for key in ("recompilations", "messages"):
        words += [f"{case[key]} {key}"] if case.get(key) else []
    return " ".join(words[:1]) + " " + ", ".join(words[1:])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="default: results/speed_<card>.json")
    parser.add_argument("--cases", default="", help="regular expression that names must match")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--budget", type=float, help="seconds after which no case is begun")
    parser.add_argument("--limit", type=float, default=240, help="seconds of a process")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="of a window")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--smoke", action="store_true", help="tiny models, to see that it runs")
    options = parser.parse_args(arguments)
    if options.smoke and options.output is None:
        parser.error("--smoke needs --output: what it finds is no result")
    output = options.output or RESULTS / f"speed_{card()}.json"
    results = read(output)
    call, start = datetime.datetime.now(datetime.UTC), time.monotonic()
    asked = failed = 0
    for kinds, model, who in PLAN:
        asked += any(re.search(options.cases, f"{kind}/{model}/{who}") for kind in kinds)
        kinds = due(kinds, model, who, options, results["cases"])
        if not kinds:
            continue
        if options.list:
            print(*(f"{kind}/{model}/{who}" for kind in kinds), sep="\n")
            continue
        if options.budget is not None and time.monotonic() - start > options.budget:
            print(f"{options.budget:g} s are over, cases are left", flush=True)
            break
        begun = time.monotonic()
        for name, found in measured(kinds, model, who, options).items():
            seconds = round(time.monotonic() - begun, 1)
            found |= {"call": call.isoformat(timespec="seconds"), "process_seconds": seconds}
            results["cases"][name] = found
            print(line(results, name), flush=True)
            failed += "failed" in found
        output.parent.mkdir(parents=True, exist_ok=True)
        write(output, results)
    if not asked:
        parser.error(f"no case matches {options.cases!r}; --list prints all")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
