"""Writes a page to look into a model: what it attends to in pictures, layer by layer.

keras-vit inspect runs/a holiday/*.jpg --output report.html
keras-vit inspect hf://owner/name "pictures/**/*.png" --image-size 448 --output report.html
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from keras_vit.cli import options as shared

HOVERS = ("heads", "mean", "last", "none")
_LESS = {
    "mean": "of single patches the page knows the mean of all heads",
    "last": "of single patches the page knows the mean of the last block's heads",
    "none": "the page does not know where single patches attend",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    shared.add_looked_at_options(parser)
    parser.add_argument("files", nargs="+", metavar="IMAGES", help="pictures, or patterns of them")
    parser.add_argument("--output", required=True, metavar="FILE", help="the page to write, .html")
    parser.add_argument("--overwrite", action="store_true", help="write over an old page")
    parser.add_argument("--title", help="heading of the page (the end of MODEL)")
    parser.add_argument(
        "--hover",
        choices=HOVERS,
        help="what the page knows of single patches' attention: of each head of each block, of the "
        "mean of the heads, of the last block, or nothing; else as much as fits into about 48 MB",
    )


def check(options: argparse.Namespace) -> None:
    """Raises a ValueError on bad arguments, before Keras is imported."""
    shared.check_model("MODEL", options.model)
    shared.picture_paths(options.files)
    path = Path(options.output).expanduser()
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--output must be a page, such as report.html. Received: {path}")
    if not path.parent.is_dir():
        raise ValueError(f"--output: there is no folder {path.parent}.")
    if path.is_dir():
        raise ValueError(f"--output: {path} is a directory.")
    if path.exists() and not options.overwrite:
        raise ValueError(f"{path} exists: pass --overwrite to replace it.")


def run(options: argparse.Namespace) -> int:
    """Writes the page; the status is 1 if no picture could be read."""
    from keras_vit.cli.models import load_to_look
    from keras_vit.data import read_images
    from keras_vit.inspection.page import chosen_hover, write_page

    model, known = load_to_look(options.model, options.image_size)
    config = model.flat_config
    paths = shared.picture_paths(options.files)
    images, indices, problems = read_images(
        paths,
        image_size=config["image_shape"][:2],
        channels=config["image_shape"][2],
        crop=options.crop or known.get("evaluation") or "squash",
    )
    for path, reason in problems:
        print(f"{path}: {reason}", file=sys.stderr)
    if not len(images):
        print("None of the pictures can be read: no page is written.", file=sys.stderr)
        return 1
    hover = chosen_hover(model, len(images), options.hover)
    if options.hover is None and hover in _LESS:
        print(f"note: to stay small, {_LESS[hover]} (--hover heads: all)", file=sys.stderr)
    path = write_page(
        model,
        images,
        options.output,
        names=[Path(paths[index]).name for index in indices],
        class_names=known.get("class_names"),
        title=options.title or shared.short_name(options.model),
        hover=hover,
        progress=lambda done: print(f"{done} of {len(images)} pictures", file=sys.stderr),
    )
    left_out = f"; {len(problems)} of {len(paths)} files are left out" if problems else ""
    size = shared.megabytes(path.stat().st_size)
    print(f"wrote {path} ({size}): open it in a browser{left_out}")
    return 0
