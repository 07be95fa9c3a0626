"""The table of published weights: nothing is downloaded, so rows are checked against themselves."""

import collections
import re
import urllib.parse

import pytest

from keras_vit.checkpoints.pretrained import PRETRAINED, find, list_pretrained
from keras_vit.layers.pixel_scaling import PIXEL_RANGES
from keras_vit.variants import VARIANTS, parse

by_row = pytest.mark.parametrize("row", PRETRAINED, ids=lambda row: f"{row.variant}:{row.name}")

# What the words of a repository's name stand for.
HUB_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}


def stride(variant) -> int:
    """Pixels between patches: an image size must be a multiple of it."""
    if variant.family == "hybrid":
        # The root alone takes 4 pixels a cell; each block after the first halves the map.
        return 4 * 2 ** max(len(variant.block_counts) - 1, 0) * variant.patch_size
    return variant.patch_size or 1


def words(row) -> tuple[str, int | None, int | None]:
    """What the address itself says: variant, image size, classes; `None` where it is silent."""
    parts = urllib.parse.urlsplit(row.source)
    *_, folder, file = parts.path.split("/")
    if parts.scheme == "hf":
        # The owner is the host of an hf address.
        size, patch, side = re.match(
            r"(?:vit|deit)[-_](\w+?)[-_]patch(\d+)[-_](\d+)", file
        ).groups()
        classes = None if file.endswith("-in21k") else 1000
        return f"ViT-{HUB_SIZES[size]}/{patch}", int(side), classes
    if folder == "augreg":
        name, data = re.match(r"(\w+_\d+)-(i1k|i21k)-", file).groups()
        tuned = re.search(r"--imagenet2012-.*-res_(\d+)\.npz$", file)
        side, classes = (int(tuned[1]), 1000) if tuned else (224, 21843)
        assert ("in21k" in row.name) == (data == "i21k")
        *stem, size, patch = name.split("_")
        return "+".join([*stem, f"ViT-{size}/{patch}"]), side, classes
    if folder in ("imagenet21k", "imagenet21k+imagenet2012", "sam"):
        name, side = re.match(r"(.*?_\d+)(?:-(\d+))?\.npz$", file).groups()
        pretrained = 384 if folder == "imagenet21k+imagenet2012" else 224
        classes = 21843 if folder == "imagenet21k" else 1000
        return name.replace("_", "/"), int(side or pretrained), classes
    if folder == "distill":
        name, side = re.match(r"(R\d+x\d)_(?:T_)?(\d+)\.npz$", file).groups()
        return f"BiT {name}", int(side), 1000
    series, name, tuned = re.match(r"BiT-([SM])-(R\d+x\d)(-ILSVRC2012)?\.npz$", file).groups()
    return f"BiT {name}", None, 1000 if tuned or series == "S" else 21843


@by_row
def test_address_agrees_with_the_row(row):
    variant, size, classes = words(row)
    assert parse(variant).name == row.variant
    assert size in (None, row.image_size)
    assert classes == row.num_classes


@by_row
def test_row(row):
    variant = VARIANTS[row.variant]
    assert row.image_size % stride(variant) == 0
    assert row.pixel_range in PIXEL_RANGES
    assert row.licence == "Apache-2.0"
    assert row.sha256 is None or re.fullmatch("[0-9a-f]{64}", row.sha256)
    assert re.fullmatch("[a-z0-9_]+", row.name)
    assert row.name.endswith("_384") == (row.image_size == 384)
    assert row.name.split("_384")[0].endswith(
        {1000: "in1k", 21843: "in21k"}.get(row.num_classes, "")
    )
    assert ("zeros" in row.note) == (row.name == "orig_in21k")


@by_row
def test_address_is_well_formed(row):
    parts = urllib.parse.urlsplit(row.source)
    assert parts.scheme in ("https", "hf")
    assert not parts.query and not parts.fragment and not re.search(r"[\s{}]", row.source)
    if parts.scheme == "https":
        assert parts.hostname == "storage.googleapis.com"
        assert parts.path.endswith(".npz")
    else:
        assert re.fullmatch(r"hf://[\w-]+/[\w.-]+", row.source)


def test_nothing_is_there_twice():
    names = collections.Counter((row.variant, row.name) for row in PRETRAINED)
    sources = collections.Counter(row.source for row in PRETRAINED)
    assert [*(n for n, count in names.items() if count > 1)] == []
    assert [*(s for s, count in sources.items() if count > 1)] == []


def test_find():
    row = find("b16", "AugReg_in21k_ft_in1k_384")
    assert (row.variant, row.image_size, row.num_classes) == ("ViT-B/16", 384, 1000)
    assert row.source.endswith("-res_384.npz")
    assert find("R50+ViT-B/16", "orig_in21k").num_classes == 21843
    assert find("BiT R152x4", "bit_in21k_ft_in1k").image_size == 480


def test_list():
    assert list_pretrained() == list(PRETRAINED)
    rows = list_pretrained("vit_b8")
    assert rows and {row.variant for row in rows} == {"ViT-B/8"}
    assert list_pretrained("ViT-G/14") == []


@pytest.mark.parametrize(
    ("variant", "name", "message"),
    (
        ("ViT-S/16", "augreg", "weights for ViT-S/16.*'augreg_in21k', .*Received: 'augreg'"),
        ("ViT-S/16", None, "Received: None"),
        ("ViT-G/14", "augreg_in21k", "weights for ViT-G/14. There are none"),
        ("ViT-X/16", "augreg_in21k", "Unknown variant"),
    ),
)
def test_errors(variant, name, message):
    with pytest.raises(ValueError, match=message):
        find(variant, name)
