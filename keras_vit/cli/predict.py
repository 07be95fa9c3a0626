"""Names what pictures show, with probabilities.

keras-vit predict --model runs/a holiday/*.jpg
keras-vit predict --model runs/a --json "pictures/**/*.png" > found.jsonl
"""

from __future__ import annotations

import argparse
import glob
import json
import sys
from pathlib import Path

from keras_vit.cli import options as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    shared.add_inference_options(parser, 32, "print a JSON object a line")
    parser.add_argument("files", nargs="+", metavar="FILE", help="pictures, or patterns of them")
    parser.add_argument("--top", type=shared.positive, default=3, metavar="N", help="classes (3)")


def check(options: argparse.Namespace) -> None:
    """Raises a ValueError on bad arguments, before Keras is imported."""
    shared.check_model("--model", options.model)
    _paths(options.files)


def _paths(patterns: list[str]) -> list[str]:
    """The files that names and patterns stand for, each once."""
    found: list[str] = []
    for pattern in patterns:
        # A file whose name looks like a pattern is meant itself.
        names = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
        names = [name for name in names if not Path(name).is_dir()]
        if not names and Path(pattern).is_dir():
            raise ValueError(f"{pattern} is a directory: name its pictures, as '{pattern}/*.jpg'.")
        if not names:
            raise ValueError(f"No such file, and no file matches: {pattern}")
        found += names
    return list(dict.fromkeys(found))


def run(options: argparse.Namespace) -> int:
    """Predicts and prints; the status is 1 if no picture could be read."""
    from keras_vit.cli.models import load
    from keras_vit.data import read_images

    paths = _paths(options.files)
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
            for row, index in zip(_probabilities(model, images), indices, strict=True):
                order = (-row).argsort(kind="stable")[:top]
                _show(chunk[index], [(names[i], float(row[i])) for i in order], options, width)
    return 0 if read else 1


def _probabilities(model, images):
    import keras

    logits = model.predict(images, verbose=0)
    activation = model.flat_config["classifier_activation"]
    if activation is not None:
        return logits
    return keras.ops.convert_to_numpy(keras.ops.softmax(logits, axis=-1))


def _show(path: str, found, options: argparse.Namespace, width: int) -> None:
    if options.json:
        classes = [{"class": name, "probability": round(p, 6)} for name, p in found]
        print(json.dumps({"file": path, "classes": classes}, ensure_ascii=False), flush=True)
    else:
        words = "  ".join(f"{name} {probability:.1%}" for name, probability in found)
        print(f"{path.ljust(width)}  {words}", flush=True)
