"""A function for every named variant: `ViTB16(num_classes=10)`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from keras_vit.checkpoints import pretrained
from keras_vit.models.base import FlatModel
from keras_vit.models.checkpoints import from_checkpoint
from keras_vit.models.resnet import BiTResNet
from keras_vit.models.vit import VisionTransformer
from keras_vit.variants import VARIANTS, Variant, parse

_CLASSES: dict[str, type[FlatModel]] = {
    "vit": VisionTransformer,
    "hybrid": VisionTransformer,
    "bit": BiTResNet,
}


def create_model(variant: str, *, weights=None, **arguments) -> FlatModel:
    """Builds a variant by name.

    Args:
        variant: any usual spelling, see `keras_vit.list_variants`.
        weights: `None` for fresh weights; a name of `keras_vit.list_pretrained(variant)`, such as
            `"augreg_in21k"`, which is downloaded once into the cache; whatever `from_checkpoint`
            takes; or a file that `Model.save_weights` of the same architecture wrote
            (`.weights.h5`). With another project's weights, what is not given (classes, image
            size, pixel range, ...) is theirs.
        **arguments: arguments of `VisionTransformer` or `BiTResNet`; they replace the variant's.

    Returns:
        A compiled model, `VisionTransformer` or `BiTResNet`.

    Raises:
        ValueError: on an unknown variant, arguments out of range, or weights that are unknown,
            damaged (`CheckpointError`), or of another architecture.
    """
    return _build(parse(variant), weights, arguments)


def _build(variant: Variant, weights, arguments) -> FlatModel:
    if weights is not None and not str(weights).endswith(".weights.h5"):
        return _pretrained(variant, weights, arguments)
    config = {"name": variant.function.lower(), **variant.config(), **arguments}
    if variant.family == "hybrid" and isinstance(arguments.get("stem"), dict):
        config["stem"] = {**variant.config()["stem"], **arguments["stem"]}
    model = _CLASSES[variant.family](**config)
    if weights is not None:
        model.load_weights(weights)
    return model


def _pretrained(variant: Variant, weights, arguments) -> FlatModel:
    """Builds a variant with another project's weights."""
    if not isinstance(weights, str | os.PathLike):
        raise ValueError(
            f"`weights` must be None, a name, an address or a path. Received: weights={weights!r}"
        )
    known: dict[str, Any] = {}
    source, digest = weights, None
    # What is neither an address nor a path is a name of the table.
    if isinstance(weights, str) and "://" not in weights and not Path(weights).exists():
        row = pretrained.find(variant.name, weights)
        known = {"pixel_range": row.pixel_range}
        source, digest = row.source, row.sha256
    expected = variant.config()
    if variant.family != "bit":
        known["num_heads"] = expected["num_heads"]
    name = {"name": variant.function.lower()}
    model = from_checkpoint(source, sha256=digest, **{**name, **known, **arguments})
    _check_architecture(model, variant, weights, arguments)
    return model


def _check_architecture(model: FlatModel, variant: Variant, weights, arguments) -> None:
    """Raises a ValueError if the weights are those of another variant."""
    config = dict(model.flat_config)
    expected: dict[str, Any] = {**variant.config()}
    if variant.patch_size is not None:
        expected["patch_size"] = (variant.patch_size, variant.patch_size)
        config["stem"] = config["stem"] and {
            key: config["stem"][key] for key in ("block_counts", "width")
        }
        expected.setdefault("stem", None)
    wrong = [
        f"{key}={config.get(key)!r}, not {value!r}"
        for key, value in expected.items()
        if key not in arguments and config.get(key) != value
    ]
    if wrong:
        raise ValueError(
            f"{weights} does not hold a {variant.name}: it has {'; '.join(wrong)}. Build the model "
            "that it holds by keras_vit.from_checkpoint."
        )


def _application(name: str):
    variant = VARIANTS[name]

    def build(*, weights=None, **arguments):
        return _build(variant, weights, arguments)

    build.__name__ = build.__qualname__ = variant.function
    build.__doc__ = f"""Builds {name}, compiled and ready to fit.

    Args:
        weights: `None`, a name of `keras_vit.list_pretrained("{name}")`, or any source of
            `keras_vit.from_checkpoint`.
        **arguments: arguments of `keras_vit.{_CLASSES[variant.family].__name__}`, such as
            `num_classes`, `image_shape`, `pooling`, `dtype`.

    Returns:
        `keras_vit.{_CLASSES[variant.family].__name__}`.

    Raises:
        ValueError: on arguments out of range.
    """
    return build


ViTTi16 = _application("ViT-Ti/16")
ViTS32 = _application("ViT-S/32")
ViTS16 = _application("ViT-S/16")
ViTB32 = _application("ViT-B/32")
ViTB16 = _application("ViT-B/16")
ViTB8 = _application("ViT-B/8")
ViTL32 = _application("ViT-L/32")
ViTL16 = _application("ViT-L/16")
ViTL14 = _application("ViT-L/14")
ViTH14 = _application("ViT-H/14")
ViTg14 = _application("ViT-g/14")
ViTG14 = _application("ViT-G/14")

RViTTi16 = _application("R+ViT-Ti/16")
R26ViTS32 = _application("R26+ViT-S/32")
R26ViTB32 = _application("R26+ViT-B/32")
R50ViTB32 = _application("R50+ViT-B/32")
R50ViTB16 = _application("R50+ViT-B/16")
R50ViTL32 = _application("R50+ViT-L/32")
R50ViTL16 = _application("R50+ViT-L/16")

BiTR50x1 = _application("BiT R50x1")
BiTR50x2 = _application("BiT R50x2")
BiTR50x3 = _application("BiT R50x3")
BiTR101x1 = _application("BiT R101x1")
BiTR101x3 = _application("BiT R101x3")
BiTR152x1 = _application("BiT R152x1")
BiTR152x2 = _application("BiT R152x2")
BiTR152x4 = _application("BiT R152x4")
BiTR200x3 = _application("BiT R200x3")
