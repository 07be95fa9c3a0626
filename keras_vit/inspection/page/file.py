"""A page about a model and some pictures, in one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from keras_vit import _checks
from keras_vit._atomic import replacing
from keras_vit.data.checks import check_pixels as check_range
from keras_vit.inspection.page import contents
from keras_vit.inspection.page.render import render
from keras_vit.inspection.subject import check
from keras_vit.models.vit import VisionTransformer

BUDGET = 48_000_000


def write_page(
    model: VisionTransformer,
    images,
    path: str | os.PathLike,
    *,
    names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    title: str | None = None,
    hover: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Writes a page to look into a model: what it attends to in pictures, layer by layer.

    The page holds all it needs and loads nothing; any current browser shows it. A layer and a head
    are chosen, a patch that is pointed at shows where it attends; with a head there are classes,
    and what speaks for them.

    Args:
        model: a `VisionTransformer` that takes pixels 0..255.
        images: `(n, height, width, channels)`, as the model takes them.
        path: the file to write; its folder must be there.
        names: a name for each picture; `None`: they are numbered.
        class_names: names of the model's classes; `None` for numbers.
        title: heading; `None`: the model's name.
        hover: what the page knows of where single patches attend: `"heads"` (each head of each
            block), `"mean"` (the mean of the heads of each block), `"last"` (of the last block) or
            `"none"`. `None`: the first of them that takes no more than about 48 MB.
        progress: called with the number of pictures that are through.

    Returns:
        The path.

    Warns:
        UserWarning: if pixels look scaled already.

    Raises:
        ValueError: if the model is no `VisionTransformer` or takes scaled pixels, if there is no
            such folder, or names and images do not go together.
    """
    check_pixels(model)
    path = Path(path).expanduser()
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {path.parent} to write {path.name} to.")
    images = np.asarray(images.detach().cpu() if hasattr(images, "detach") else images)
    if images.ndim != 4 or not len(images):
        raise ValueError(
            "`images` must be (n, height, width, channels), one at least. "
            f"Received: images.shape={images.shape}"
        )
    names = [f"picture {n + 1}" for n in range(len(images))] if names is None else list(names)
    if len(names) != len(images):
        raise ValueError(f"`names` must be {len(images)}, one a picture. Received: {len(names)}")
    check_classes(model, class_names)
    check_range(images)
    hover = chosen_hover(model, len(images), hover)
    shown = np.clip(np.rint(images), 0, 255).astype("uint8")
    found = []
    for image, picture, name in zip(images, shown, names, strict=True):
        options = {"class_names": class_names, "hover": hover}
        found.append(contents.of_picture(model, image, picture, str(name), **options))
        if progress is not None:
            progress(len(found))
    content = {
        "title": model.name if title is None else str(title),
        "live": False,
        "model": contents.of_model(model),
        "pictures": found,
    }
    with replacing(path) as partial:
        partial.write_text(render(content), "utf-8")
    return path


def chosen_hover(model: VisionTransformer, count: int, hover: str | None) -> str:
    """The given one, or the first that `count` pictures leave room for."""
    if hover is not None:
        return _checks.choice("hover", hover, contents.HOVERS)
    return next(
        hover for hover in contents.HOVERS if count * contents.hover_bytes(model, hover) <= BUDGET
    )


def check_pixels(model: VisionTransformer) -> None:
    """Raises a ValueError unless the model is a `VisionTransformer` that pictures can be fed to."""
    check(model)
    if not model.flat_config["include_rescaling"]:
        raise ValueError(
            "`model` must take pixels 0..255, so that what it sees can be shown. "
            "Received: a model with include_rescaling=False"
        )


def check_classes(model: VisionTransformer, class_names: Sequence[str] | None) -> None:
    """Raises a ValueError unless there is a name for each class, or none at all."""
    count = model.flat_config["num_classes"]
    if class_names is not None and count is not None and len(class_names) != count:
        raise ValueError(
            f"`class_names` must be {count}, one a class. Received: {len(class_names)}"
        )
