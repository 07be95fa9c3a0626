"""The README's section on speed, made from the results of `speed.py` and `cpu.py`.

    python benchmarks/speed_table.py
    python benchmarks/speed_table.py --write README.md
    python benchmarks/speed_table.py --check README.md

The section stands between two comments of the README; `--check` exits with 1 if it is not what the
files `speed_*.json` and `cpu_*.json` under `benchmarks/results` give.
"""

import argparse
import difflib
import json
import sys
from pathlib import Path

import cpu

RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
BASELINE = "timm-compile"
MODELS = {"vit_s16": "S/16", "vit_b16": "B/16", "vit_l16": "L/16", "r50_vit_b16": "R50+B/16"}
MODELS |= {"vit_h14": "H/14"}
WHO = {
    "jax": "keras_vit, JAX",
    "torch": "keras_vit, PyTorch",
    "torch-eager": "keras_vit, PyTorch, not compiled",
    "torch-compile": "keras_vit, PyTorch, compiled",
    "tensorflow": "keras_vit, TensorFlow",
    "timm-compile": "timm, compiled",
    "timm-max-autotune": "timm, max-autotune",
    "timm": "timm",
    "transformers-compile": "transformers, compiled",
    "transformers": "transformers",
    "keras-hub-jax": "keras-hub, JAX",
    "keras-hub-torch": "keras-hub, PyTorch",
}
PACKAGES = ("keras", "jax", "torch", "tensorflow", "timm", "keras-hub", "transformers")


def rate(case):
    """What a user gets: `fit` or `predict` where there is such, the own loop elsewhere."""
    return case.get("fit") or case.get("predict") or case.get("raw")


def ratio(cases, name):
    """(images a second against those of compiled timm, whether one call of speed.py took both)."""
    kind, model, _ = name.split("/")
    ours, theirs = cases[name], cases.get(f"{kind}/{model}/{BASELINE}", {})
    if not rate(ours) or not rate(theirs):
        return None, False
    value = rate(ours)["images_per_second"] / rate(theirs)["images_per_second"]
    return value, ours.get("call") == theirs.get("call")


def speed_cell(cases, name):
    found = rate(cases[name])
    if not found:
        return None
    value, together = ratio(cases, name)
    text = f"{found['images_per_second']:,.0f}"
    if value is not None:
        text += f" ({value:.2f}{'' if together else '*'})"
    return text + (f" {found['mfu']:.0%}" if found.get("mfu") else "")


def plain_cell(key, digits):
    def cell(cases, name):
        value = cases[name].get(key)
        return None if value is None else f"{value:.{digits}f}"

    return cell


# Title, kind of case, cell.
TABLES = [
    ("training", "train", speed_cell),
    ("inference", "predict", speed_cell),
    ("GiB at the peak, training", "train", plain_cell("peak_gib", 1)),
    ("GiB at the peak, inference", "predict", plain_cell("peak_gib", 1)),
    ("first step of training, caches cold, seconds", "cold", plain_cell("first_step_seconds", 0)),
    ("GiB at the peak, training with `remat=True`", "memory", plain_cell("peak_gib", 1)),
]


def table(cases, title, kind, cell):
    """Lines of one table; none if no case belongs to it."""
    cells = {}
    for name, case in cases.items():
        if name.startswith(f"{kind}/") and "failed" not in case:
            text = cell(cases, name)
            if text:
                _, model, who = name.split("/")
                cells[model, who] = text
    models = [model for model in MODELS if any(model == key[0] for key in cells)]
    rows = [who for who in WHO if any(who == key[1] for key in cells)]
    if not rows:
        return []
    heads = [MODELS[model] + batch_of(cases, kind, model) for model in models]
    lines = [f"| {title} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for who in rows:
        found = [cells.get((model, who), "") for model in models]
        lines.append(f"| {WHO[who]} | {' | '.join(found)} |")
    return lines


def batch_of(cases, kind, model):
    start = f"{kind}/{model}/"
    batches = {
        case["batch"] for name, case in cases.items() if name.startswith(start) and "batch" in case
    }
    return f", batch {', '.join(map(str, sorted(batches)))}"


def section(path):
    """The tables of one file of results, under a line that says where they come from."""
    cases = json.loads(path.read_text())["cases"]
    done = [case for case in cases.values() if "failed" not in case and case.get("card")]
    if not done:
        return []
    cards = sorted({case["card"] for case in done})
    dates = sorted({case["date"][:10] for case in done})
    versions = {}
    for case in done:
        for package in PACKAGES:
            if package in case["versions"]:
                versions.setdefault(package, set()).add(case["versions"][package])
    names = ", ".join(f"{name} {' / '.join(sorted(versions[name]))}" for name in versions)
    precisions = ", ".join(sorted({case["precision"] for case in done}))
    sizes = ", ".join(str(size) for size in sorted({case.get("image_size", 224) for case in done}))
    ceilings = [case["ceiling_tflops"] for case in done if case.get("ceiling_tflops")]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines = [f"**{', '.join(cards)}**, {when}, {precisions}, {sizes} px: {names}."]
    if ceilings:
        lines.append(
            "Images a second, medians of windows (against compiled timm) and the share of the "
            f"matrix products' ceiling, {min(ceilings):.0f} to {max(ceilings):.0f} TFLOP/s. "
            f"Ours and keras-hub through `fit` and `predict`, the others in loops of their own."
        )
    if any(not together for value, together in (ratio(cases, name) for name in cases) if value):
        lines.append("`*`: not in one call of `speed.py` with timm.")
    for entry in TABLES:
        found = table(cases, *entry)
        lines += ["", *found] if found else []
    return lines


def cpu_section(path):
    """The table of one file of `cpu.py`, under a line that says where it comes from."""
    report = json.loads(path.read_text())
    cores = "one core" if report["cores"] == 1 else f"{report['cores']} cores"
    found = {c["versions"] for c in report["competitors"].values() if c["versions"]}
    versions = sorted({package for line in found for package in line.split(", ")})
    head = f"**{report['processor']}**, {cores}, {report['date']}, {report['model']}: "
    return [f"{head}{', '.join(versions)}.", "", *cpu.table(report).strip().splitlines()]


def text(folder):
    """All sections."""
    parts = [section(path) for path in sorted(folder.glob("speed_*.json"))]
    parts += [cpu_section(path) for path in sorted(folder.glob("cpu_*.json"))]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def split(readme):
    """(before, between, after) the comments."""
    before, begin, rest = readme.partition(BEGIN)
    between, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"The README lacks the comments {BEGIN} and {END}.")
    return before, between, after


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of speed_*.json")
    parser.add_argument(
        "--write", type=Path, metavar="README", help="put the section into the file"
    )
    parser.add_argument("--check", type=Path, metavar="README", help="exit with 1 if it differs")
    options = parser.parse_args(arguments)
    if not options.results.is_dir():
        parser.error(f"--results {options.results}: no such folder")
    made = text(options.results)
    if options.write:
        before, _, after = split(options.write.read_text())
        lines = f"{made}\n" if made else ""
        options.write.write_text(f"{before}{BEGIN}\n{lines}{END}{after}")
    elif options.check:
        found = split(options.check.read_text())[1].strip()
        for line in difflib.unified_diff(
            found.splitlines(), made.splitlines(), str(options.check), "made", lineterm="", n=0
        ):
            print(line)
        return int(found != made)
    else:
        print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
