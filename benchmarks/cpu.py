r"""Speed of ViT-S/16 on a CPU in float32, beside timm: `python benchmarks/cpu.py --cores 1`.

A forward pass at batch 1 and 8, and a training step at batch 8 with AdamW. Every competitor lives
in a process of its own; rounds go over all of them in turn, each time in another order, so that a
busy machine slows all alike. Prints medians, and ratios to the better of timm eager and compiled;
with one core by the process' CPU time, with more by wall time.

JAX allocates the memory of a training step anew for every step, and the system clears it page by
page. On Linux with glibc this keeps it, at the price that the process never gives memory back; it
makes JAX train a seventh faster on one core, and changes little for the others:

    GLIBC_TUNABLES=glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:\
glibc.malloc.trim_threshold=8000000000 python benchmarks/cpu.py

Where timm is installed in another environment, name its interpreter: `--timm-python PATH`.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from _children import python_path

CHILD = Path(__file__).resolve().with_name("_cpu_child.py")
OURS = ("keras_vit-tensorflow", "keras_vit-jax", "keras_vit-torch")
PEERS = ("timm-eager", "timm-compiled")
OPTIONAL = ("keras_vit-torch-jit", "keras_hub-tensorflow", "keras_hub-jax", "keras_hub-torch")
TASKS = {"forward b1": ("forward", 1), "forward b8": ("forward", 8), "train b8": ("train", 8)}


class Competitor:
    """A child process; after it failed once, `error` says why and it is asked no more."""

    def __init__(self, name, options):
        there = name.startswith("timm") or (options.same_torch and "torch" in name)
        python = options.timm_python if there else sys.executable
        size = "tiny" if options.smoke else "s16"
        self.name, self.error, self.versions = name, None, None
        self.seconds = {task: [] for task in TASKS}
        self.process = subprocess.Popen(
            [python, str(CHILD), name, str(options.cores), size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if options.verbose else subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": python_path()},
            text=True,
        )

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.error = "its process ended; --verbose shows why"
            return {}
        return json.loads(line)

    def ready(self) -> None:
        """Waits until its model is built."""
        self.versions = self._answer().get("versions")

    def ask(self, task, steps, keep=True) -> None:
        """Runs a task so many times."""
        if self.error:
            return
        try:
            self.process.stdin.write(json.dumps([*TASKS[task], steps]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.error = "its process ended; --verbose shows why"
            return
        answer = self._answer()
        if answer and keep:
            self.seconds[task].append(answer)

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def figures(self) -> dict:
        """Medians in milliseconds."""
        medians = {
            task: {
                clock: round(1000 * statistics.median(found[clock] for found in rounds), 2)
                for clock in ("wall", "cpu")
            }
            for task, rounds in self.seconds.items()
            if rounds
        }
        return {"versions": self.versions, "error": self.error, "milliseconds": medians}


def measure(options) -> dict:
    """Runs all rounds."""
    names = list(options.competitors)
    competitors = [Competitor(name, options) for name in names]
    try:
        for competitor in competitors:
            competitor.ready()
        for task in TASKS:  # compiles what compiles, and fills caches
            for competitor in competitors:
                competitor.ask(task, options.warm_up, keep=False)
        for number in range(options.rounds):
            turn = number % len(competitors)
            for task in TASKS:
                for competitor in competitors[turn:] + competitors[:turn]:
                    competitor.ask(task, options.steps)
    finally:
        for competitor in competitors:
            competitor.close()
    return {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": options.cores,
        "model": "a tiny ViT" if options.smoke else "ViT-S/16, 224 px, float32, AdamW",
        "rounds": options.rounds,
        "steps": options.steps,
        "clock": clock_of(options.cores),
        "competitors": {competitor.name: competitor.figures() for competitor in competitors},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def clock_of(cores: int) -> str:
    """CPU time leaves out what other processes take, but counts threads that wait for others."""
    return "cpu" if cores == 1 else "wall"


def ratios(report: dict) -> dict:
    """For each task the speed of every competitor, as a multiple of the better timm's."""
    clock, found = report["clock"], {}
    for task in TASKS:
        times = {
            name: figures["milliseconds"][task][clock]
            for name, figures in report["competitors"].items()
            if task in figures["milliseconds"]
        }
        peers = [times[name] for name in PEERS if name in times]
        if peers:
            found[task] = {name: round(min(peers) / time, 3) for name, time in times.items()}
    return found


def table(report: dict) -> str:
    """Markdown: milliseconds of both clocks, and the ratio by the one that counts."""
    lines = ["| | " + " | ".join(TASKS) + " |", "|---|" + "---:|" * len(TASKS)]
    for name, figures in report["competitors"].items():
        cells = []
        for task in TASKS:
            times = figures["milliseconds"].get(task)
            ratio = report["ratios"].get(task, {}).get(name)
            cell = "" if times is None else f"{times['wall']:.1f} / {times['cpu']:.1f}"
            cells.append(cell if ratio is None else f"{cell} ({ratio:.2f}x)")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    notes = f"\n\nms a step, wall / CPU time of the process; x: speed by {report['clock']} time, "
    return "\n".join(lines) + notes + "against the better timm.\n"


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first round")
    parser.add_argument(
        "--competitors",
        nargs="+",
        choices=(*OURS, *OPTIONAL, *PEERS),
        help="by default, keras_vit on each backend, and timm eager and compiled where found",
    )
    parser.add_argument("--timm-python", help="interpreter of an environment that has timm")
    parser.add_argument(
        "--same-torch", action="store_true", help="run Keras on PyTorch by --timm-python too"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    parser.add_argument("--verbose", action="store_true", help="show what the processes print")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, to try the script")
    options = parser.parse_args(argv)
    available = len(os.sched_getaffinity(0))
    if not 1 <= options.cores <= available:
        parser.error(f"--cores must be 1 to {available}. Received: {options.cores}")
    has_timm = options.timm_python or importlib.util.find_spec("timm")
    options.competitors = options.competitors or (*OURS, *(PEERS if has_timm else ()))
    options.timm_python = options.timm_python or sys.executable
    report = measure(options)
    report["ratios"] = ratios(report)
    print(table(report), flush=True)
    failed = {n: f["error"] for n, f in report["competitors"].items() if f["error"]}
    for name, error in failed.items():
        print(f"{name}: {error}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return int(bool(set(failed) & set(OURS)))


if __name__ == "__main__":
    sys.exit(main())
