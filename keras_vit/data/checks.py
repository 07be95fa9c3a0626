"""Whether pixels look like what the model expects."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from keras_vit import _checks

RANGES = ("0..255", "0..1", "-1..1", "standardised")
_SAMPLE = 64


def check_pixels(images: Any, expects: str = "0..255") -> bool:
    """Warns if pixels look like another range than the model's.

    Args:
        images: `(batch, height, width, channels)`, or a single image; 64 of them are looked at.
        expects: one of `RANGES`: "0..255" unless the model was built without its rescaling.

    Returns:
        Whether they look right, or nothing can be told, as of black pictures.
    """
    _checks.choice("expects", expects, RANGES)
    images = images.detach().cpu() if hasattr(images, "detach") else images
    if len(images) > _SAMPLE:
        images = images[:: len(images) // _SAMPLE]
    pixels = np.asarray(images)
    low, high = float(pixels.min()), float(pixels.max())
    if not np.isfinite([low, high]).all():
        warnings.warn("Pixels are not finite.", stacklevel=2)
        return False
    if low == high:
        return True
    if low < 0:
        found = "-1..1" if low >= -1 and high <= 1 else "standardised"
    else:
        found = "0..1" if high <= 1 else "0..255"
    if found == expects or {found, expects} == {"-1..1", "standardised"}:
        return True
    if expects == "-1..1" and found == "0..1":
        return True  # a bright batch
    advice = (
        "leave the scaling out, since the model carries its own (or build it with "
        "`include_rescaling=False`)"
        if expects == "0..255"
        else f"scale them to {expects}"
    )
    warnings.warn(
        f"Pixels look like {found} (they lie between {low:.4g} and {high:.4g}), but {expects} is "
        f"expected: {advice}.",
        stacklevel=2,
    )
    return False
