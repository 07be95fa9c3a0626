"""A function for every named variant: `ViTB16(num_classes=10)`."""

from __future__ import annotations

from keras_vit.models.base import FlatModel
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
        weights: `None` for fresh weights, or the path of a file that `Model.save_weights` of the
            same architecture wrote (`.weights.h5`). Nothing is downloaded.
        **arguments: arguments of `VisionTransformer` or `BiTResNet`; they replace the variant's.

    Returns:
        A compiled model, `VisionTransformer` or `BiTResNet`.

    Raises:
        ValueError: on an unknown variant, arguments out of range, or other weights.
    """
    return _build(parse(variant), weights, arguments)


def _build(variant: Variant, weights, arguments) -> FlatModel:
    if weights is not None and not str(weights).endswith(".weights.h5"):
        raise ValueError(
            "`weights` must be None or the path of a '.weights.h5' file. "
            f"Received: weights={weights!r}"
        )
    config = {"name": variant.function.lower(), **variant.config(), **arguments}
    if variant.family == "hybrid" and isinstance(arguments.get("stem"), dict):
        config["stem"] = {**variant.config()["stem"], **arguments["stem"]}
    model = _CLASSES[variant.family](**config)
    if weights is not None:
        model.load_weights(weights)
    return model


def _application(name: str):
    variant = VARIANTS[name]

    def build(*, weights=None, **arguments):
        return _build(variant, weights, arguments)

    build.__name__ = build.__qualname__ = variant.function
    build.__doc__ = f"""Builds {name}, compiled and ready to fit.

    Args:
        weights: `None`, or the path of a `.weights.h5` file of the same architecture.
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
