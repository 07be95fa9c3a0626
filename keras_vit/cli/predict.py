"""Names what pictures show, with probabilities.

keras-vit predict --model runs/a holiday/*.jpg
keras-vit predict --model runs/a --json "pictures/**/*.png" > found.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys

from keras_vit.cli import options as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    shared.add_inference_options(parser, 32, "print a JSON object a line")
    parser.add_argument("files", nargs="+", metavar="FILE", help="pictures, or patterns of them")
    parser.add_argument("--top", type=shared.positive, default=3, metavar="N", help="classes (3)")


def check(options: argparse.Namespace) -> None:
    """Raises a ValueError on bad arguments, before Keras is imported."""
    shared.check_model("--model", options.model)
    shared.picture_paths(options.files)


def run(options: argparse.Namespace) -> int:
    """Predicts and prints; the status is 1 if no picture could be read."""
    from keras_vit.cli.models import load
    from keras_vit.data import read_images
    from keras_vit.inspection.predictions import as_probabilities

    paths = shared.picture_paths(options.files)
    model, known = load(options.model)
    config = model.flat_config
    if config["num_classes"] is None:
        raise ValueError(f"{options.model} has no head: it gives features, no classes.")
    names = known.get("class_names") or [str(i) for i in range(config["num_classes"])]
    top = min(options.top, config["num_classes"])
    read, width = 0, max(len(path) for path in paths)
    for start in range(0, len(paths), options.batch_size):
        chunk = paths[start : start + options.batch_size]
        images, indices, problems = read_images(
            chunk,
            image_size=config["image_shape"][:2],
            channels=config["image_shape"][2],
            crop=options.crop or known.get("evaluation") or "squash",
        )
        for path, reason in problems:
            print(f"{path}: {reason}", file=sys.stderr)
        read += len(images)
        if len(images):
            found = as_probabilities(model, model.predict(images, verbose=0))
            for row, index in zip(found, indices, strict=True):
                order = (-row).argsort(kind="stable")[:top]
                _show(chunk[index], [(names[i], float(row[i])) for i in order], options, width)
    return 0 if read else 1


def _show(path: str, found, options: argparse.Namespace, width: int) -> None:
    if options.json:
        classes = [{"class": name, "probability": round(p, 6)} for name, p in found]
        print(json.dumps({"file": path, "classes": classes}, ensure_ascii=False), flush=True)
    else:
        words = "  ".join(f"{name} {probability:.1%}" for name, probability in found)
        print(f"{path.ljust(width)}  {words}", flush=True)
