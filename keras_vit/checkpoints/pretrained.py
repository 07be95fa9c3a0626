"""The table of published weights: where they lie, and what they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keras_vit.variants import parse

_BUCKETS = "https://storage.googleapis.com"
_VIT, _BIT = f"{_BUCKETS}/vit_models", f"{_BUCKETS}/bit_models"
_IN1K, _IN21K = 1000, 21843


@dataclass(frozen=True)
class Pretrained:
    """Weights that a project published.

    Attributes:
        name: what to ask for, such as `"augreg_in21k"`: how they were trained, `in21k` or `in1k`
            for the data, `ft` for fine-tuning. Weights for 384 pixels end in `"_384"`.
        variant: the published name of the architecture, such as `"ViT-B/16"`.
        source: `https://` or `hf://` address.
        image_size: side of the images in pixels that the weights were last trained with. Position
            tables have it; a BiT ResNet takes any size.
        num_classes: outputs of the head; `None` if there is no head.
        pixel_range: key of `keras_vit.layers.pixel_scaling.PIXEL_RANGES`.
        licence: SPDX identifier of the weights' licence.
        note: what else one has to know.
        sha256: hexadecimal digest of the file; `None` where nobody published one.
    """

    name: str
    variant: str
    source: str
    image_size: int
    num_classes: int | None
    pixel_range: str = "inception"
    licence: str = "Apache-2.0"
    note: str = ""
    sha256: str | None = None


# AugReg (arXiv 2106.10270) published thousands of files. For each variant these are timm's pick
# of the best, and hold the recipe's words of the file name:
# variant -> (letters of the file name, in21k, fine-tuned at 224, fine-tuned at 384); a fine-tuned
# file is (recipe of its pre-training, learning rate of the fine-tuning).
_Tuned = tuple[str, str]
_TI = "aug_none-wd_0.03-do_0.0-sd_0.0"
_LIGHT1 = "aug_light1-wd_0.03-do_0.0-sd_0.0"
_MEDIUM1 = "aug_medium1-wd_0.1-do_0.0-sd_0.0"
_MEDIUM1_B32 = "aug_medium1-wd_0.03-do_0.0-sd_0.0"
_MEDIUM1_DROP = "aug_medium1-wd_0.1-do_0.1-sd_0.1"
_MEDIUM2_R26 = "aug_medium2-wd_0.03-do_0.0-sd_0.0"
_MEDIUM2 = "aug_medium2-wd_0.1-do_0.0-sd_0.0"
_AUGREG_21K: dict[str, tuple[str, str, _Tuned, _Tuned | None]] = {
    "ViT-Ti/16": ("Ti_16", _TI, (_TI, "0.03"), (_TI, "0.03")),
    "ViT-S/32": ("S_32", _LIGHT1, (_LIGHT1, "0.03"), (_LIGHT1, "0.03")),
    "ViT-S/16": ("S_16", _LIGHT1, (_LIGHT1, "0.03"), (_LIGHT1, "0.03")),
    "ViT-B/32": (
        *("B_32", _MEDIUM1_B32, (_MEDIUM1_B32, "0.03")),
        ("aug_light1-wd_0.1-do_0.0-sd_0.0", "0.03"),
    ),
    "ViT-B/16": ("B_16", _MEDIUM1, (_MEDIUM1, "0.01"), (_MEDIUM1, "0.01")),
    "ViT-B/8": ("B_8", _MEDIUM1, (_MEDIUM1, "0.01"), None),
    "ViT-L/16": ("L_16", _MEDIUM1_DROP, (_MEDIUM1_DROP, "0.01"), (_MEDIUM1_DROP, "0.01")),
    "R+ViT-Ti/16": ("R_Ti_16", _TI, (_TI, "0.03"), (_TI, "0.03")),
    "R26+ViT-S/32": (
        *("R26_S_32", _MEDIUM2_R26, ("aug_light0-wd_0.03-do_0.1-sd_0.1", "0.03")),
        (_MEDIUM2_R26, "0.03"),
    ),
    "R50+ViT-L/32": ("R50_L_32", _MEDIUM2, (_MEDIUM1_DROP, "0.01"), (_MEDIUM2, "0.01")),
}
# variant -> (letters, recipe), pre-trained on ImageNet-1k alone and tuned at 224 and 384.
_AUGREG_1K = {
    "ViT-S/16": ("S_16", _MEDIUM2),
    "ViT-B/32": ("B_32", "aug_medium2-wd_0.1-do_0.1-sd_0.1"),
    "ViT-B/16": ("B_16", "aug_strong2-wd_0.1-do_0.1-sd_0.1"),
}
_TUNED = "{}-{}-300ep-lr_0.001-{}--imagenet2012-steps_20k-lr_{}-res_{}.npz"


def _augreg() -> Iterator[Pretrained]:
    for variant, (letters, recipe, *tuned) in _AUGREG_21K.items():
        file = f"{letters}-i21k-300ep-lr_0.001-{recipe}.npz"
        yield Pretrained("augreg_in21k", variant, f"{_VIT}/augreg/{file}", 224, _IN21K)
        for size, choice in zip((224, 384), tuned, strict=True):
            if choice is not None:
                file = _TUNED.format(letters, "i21k", *choice, size)
                name = _sized("augreg_in21k_ft_in1k", size)
                yield Pretrained(name, variant, f"{_VIT}/augreg/{file}", size, _IN1K)
    for variant, (letters, recipe) in _AUGREG_1K.items():
        for size in (224, 384):
            file = _TUNED.format(letters, "i1k", recipe, "0.01", size)
            name = _sized("augreg_in1k", size)
            yield Pretrained(name, variant, f"{_VIT}/augreg/{file}", size, _IN1K)


# The folders of the paper (arXiv 2010.11929) and of SAM (2106.01548), as listed in vit_jax.ipynb:
# (folder, name, image size, classes, note) -> file names without their ending.
_ZEROED = "The head is all zeros: take num_classes=None or your own."
_FOLDERS = {
    ("imagenet21k", "orig_in21k", 224, _IN21K, _ZEROED): (
        *("ViT-B_32", "ViT-B_16", "ViT-B_8", "ViT-L_32", "ViT-L_16", "ViT-H_14"),
        *("R26+ViT-B_32", "R50+ViT-B_16", "R50+ViT-L_32"),
    ),
    ("imagenet21k+imagenet2012", "orig_in21k_ft_in1k", 224, _IN1K, ""): (
        *("ViT-B_16-224", "ViT-L_16-224"),
    ),
    ("imagenet21k+imagenet2012", "orig_in21k_ft_in1k", 384, _IN1K, ""): (
        *("ViT-B_32", "ViT-B_16", "ViT-B_8", "ViT-L_32", "ViT-L_16", "R50+ViT-B_16"),
    ),
    ("sam", "sam_in1k", 224, _IN1K, "Trained with Sharpness-Aware Minimization."): (
        *("ViT-B_32", "ViT-B_16", "ViT-L_32", "ViT-L_16"),
    ),
}


def _paper() -> Iterator[Pretrained]:
    for (folder, name, size, classes, note), files in _FOLDERS.items():
        for file in files:
            variant = file.removesuffix("-224").replace("_", "/")
            source = f"{_VIT}/{folder}/{file}.npz"
            yield Pretrained(_sized(name, size), variant, source, size, classes, note=note)


# BiT (arXiv 1912.11370): S is trained on ImageNet-1k, M on ImageNet-21k. The recipe of the
# project fine-tunes on crops of 480 pixels (`bit_hyperrule.py`).
_BIT_NAMES = ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4")
_BIT_FILES = (
    ("bit_in1k", "BiT-S-{}.npz", 224, _IN1K),
    ("bit_in21k", "BiT-M-{}.npz", 224, _IN21K),
    ("bit_in21k_ft_in1k", "BiT-M-{}-ILSVRC2012.npz", 480, _IN1K),
)
# Of "A good teacher is patient and consistent" (arXiv 2106.05237).
_BIT_DISTILLED = (
    ("bit_distilled_in1k", "R50x1", "R50x1_224", 224),
    ("bit_teacher_in21k_ft_in1k", "R152x2", "R152x2_T_224", 224),
    ("bit_teacher_in21k_ft_in1k_384", "R152x2", "R152x2_T_384", 384),
)


def _bit() -> Iterator[Pretrained]:
    for short in _BIT_NAMES:
        for name, file, size, classes in _BIT_FILES:
            source = f"{_BIT}/{file.format(short)}"
            yield Pretrained(name, f"BiT {short}", source, size, classes)
    for name, short, file, size in _BIT_DISTILLED:
        source = f"{_BIT}/distill/{file}.npz"
        yield Pretrained(name, f"BiT {short}", source, size, _IN1K)


# The Hugging Face Hub. Names of the paper's models as transformers has them begin with "hf_":
# they came through timm, and the repositories do not say which of Google's files they were.
_HUB = (
    ("hf_in21k", "ViT-B/32", "google/vit-base-patch32-224-in21k"),
    ("hf_in21k", "ViT-B/16", "google/vit-base-patch16-224-in21k"),
    ("hf_in21k", "ViT-L/32", "google/vit-large-patch32-224-in21k"),
    ("hf_in21k", "ViT-L/16", "google/vit-large-patch16-224-in21k"),
    ("hf_in21k", "ViT-H/14", "google/vit-huge-patch14-224-in21k"),
    ("hf_in21k_ft_in1k", "ViT-B/16", "google/vit-base-patch16-224"),
    ("hf_in21k_ft_in1k", "ViT-L/16", "google/vit-large-patch16-224"),
    ("hf_in21k_ft_in1k_384", "ViT-B/32", "google/vit-base-patch32-384"),
    ("hf_in21k_ft_in1k_384", "ViT-B/16", "google/vit-base-patch16-384"),
    ("hf_in21k_ft_in1k_384", "ViT-L/32", "google/vit-large-patch32-384"),
    ("hf_in21k_ft_in1k_384", "ViT-L/16", "google/vit-large-patch16-384"),
    # Without its distillation token DeiT (arXiv 2012.12877) is a plain ViT.
    ("deit_in1k", "ViT-Ti/16", "facebook/deit-tiny-patch16-224"),
    ("deit_in1k", "ViT-S/16", "facebook/deit-small-patch16-224"),
    ("deit_in1k", "ViT-B/16", "facebook/deit-base-patch16-224"),
    ("deit_in1k_384", "ViT-B/16", "facebook/deit-base-patch16-384"),
    # A second AugReg fine-tuning, by timm's authors.
    ("augreg2_in21k_ft_in1k", "ViT-B/16", "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
    ("augreg2_in21k_ft_in1k", "ViT-B/8", "timm/vit_base_patch8_224.augreg2_in21k_ft_in1k"),
)


def _hub() -> Iterator[Pretrained]:
    for name, variant, repo in _HUB:
        size = 384 if name.endswith("_384") else 224
        classes = None if name == "hf_in21k" else _IN1K
        pixels = "imagenet" if name.startswith("deit") else "inception"
        yield Pretrained(name, variant, f"hf://{repo}", size, classes, pixels)


def _sized(name: str, size: int) -> str:
    return name if size == 224 else f"{name}_{size}"


PRETRAINED: tuple[Pretrained, ...] = (*_augreg(), *_paper(), *_bit(), *_hub())


def list_pretrained(variant: str | None = None) -> list[Pretrained]:
    """Returns the published weights that are known.

    Args:
        variant: any usual spelling, see `keras_vit.list_variants`; `None` for all.

    Returns:
        Rows of the table; none if nothing was published for the variant.

    Raises:
        ValueError: on an unknown variant.
    """
    wanted = None if variant is None else parse(variant).name
    return [row for row in PRETRAINED if wanted in (None, row.variant)]


def find(variant: str, name: str) -> Pretrained:
    """Finds the weights of a name for a variant.

    Args:
        variant: any usual spelling, see `keras_vit.list_variants`.
        name: as `Pretrained.name`; case does not matter.

    Returns:
        Its row of the table.

    Raises:
        ValueError: on an unknown variant or name; the message lists the names that exist.
    """
    rows = {row.name: row for row in list_pretrained(variant)}
    row = rows.get(name.lower()) if isinstance(name, str) else None
    if row is None:
        known = f"Expected one of {list(rows)}" if rows else "There are none"
        raise ValueError(f"Unknown weights for {parse(variant).name}. {known}. Received: {name!r}")
    return row
