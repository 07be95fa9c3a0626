"""The one table of sizes and stems, and the names they go by.

A variant is data: a size (`SIZES`), for hybrids a stem (`STEMS`), and a patch. Adding one means
adding a line to `VARIANTS` and its published parameter count to `tests/test_counts.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

# size -> (hidden_dim, num_layers, mlp_dim, num_heads): arXiv 2010.11929 table 1, 2106.10270
# table 2 (Ti, S), 2106.04560 table 2 (g, G).
SIZES: dict[str, tuple[int, int, int, int]] = {
    "Ti": (192, 12, 768, 3),
    "S": (384, 12, 1536, 6),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "H": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
}

# (stem, stride named in the variant) -> (block counts, root width, patch over the feature map).
# The patch is stated, not derived: "R+ViT-Ti/16" spans 32 pixels a token, and the stride-16 R50
# moves the blocks of stage 4 into stage 3 (arXiv 2010.11929, appendix B.1).
STEMS: dict[tuple[str, int], tuple[tuple[int, ...], int, int]] = {
    ("R", 16): ((), 64, 8),
    ("R26", 32): ((2, 2, 2, 2), 64, 1),
    ("R50", 32): ((3, 4, 6, 3), 64, 1),
    ("R50", 16): ((3, 4, 9), 64, 1),
}

# BiT ResNets: depth -> block counts (arXiv 1912.11370; R200 from arXiv 2010.11929).
BIT_DEPTHS: dict[int, tuple[int, ...]] = {
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}


@dataclass(frozen=True)
class Variant:
    """One named architecture.

    Attributes:
        name: the published name, such as `"R50+ViT-B/16"`.
        function: the name of the function in `keras_vit` that builds it, such as `"R50ViTB16"`.
        family: `"vit"`, `"hybrid"` or `"bit"`.
        size: key of `SIZES`; `None` for a BiT ResNet.
        patch_size: side of the patch in pixels, or in cells of the stem's feature map.
        block_counts: residual units a block of the stem or ResNet; `None` for a plain ViT.
        width: channels after the ResNet's root convolution; `None` for a plain ViT.
    """

    name: str
    function: str
    family: str
    size: str | None = None
    patch_size: int | None = None
    block_counts: tuple[int, ...] | None = None
    width: int | None = None

    def config(self) -> dict[str, Any]:
        """Returns the keyword arguments of the model class that build this variant."""
        if self.family == "bit":
            return {"block_counts": self.block_counts, "width_factor": (self.width or 0) // 64}
        hidden_dim, num_layers, mlp_dim, num_heads = SIZES[self.size or ""]
        config: dict[str, Any] = {
            "patch_size": self.patch_size,
            "hidden_dim": hidden_dim,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "mlp_dim": mlp_dim,
        }
        if self.family == "hybrid":
            config["stem"] = {"block_counts": self.block_counts, "width": self.width}
        return config


def _vit(size: str, patch: int) -> Variant:
    return Variant(f"ViT-{size}/{patch}", f"ViT{size}{patch}", "vit", size, patch)


def _hybrid(stem: str, size: str, stride: int) -> Variant:
    block_counts, width, patch = STEMS[stem, stride]
    name, function = f"{stem}+ViT-{size}/{stride}", f"{stem}ViT{size}{stride}"
    return Variant(name, function, "hybrid", size, patch, block_counts, width)


def _bit(depth: int, factor: int) -> Variant:
    name = f"R{depth}x{factor}"
    return Variant(
        f"BiT {name}", f"BiT{name}", "bit", block_counts=BIT_DEPTHS[depth], width=64 * factor
    )


_ALL = (
    *(_vit(*v) for v in (("Ti", 16), ("S", 32), ("S", 16), ("B", 32), ("B", 16), ("B", 8))),
    *(_vit(*v) for v in (("L", 32), ("L", 16), ("L", 14), ("H", 14), ("g", 14), ("G", 14))),
    *(_hybrid(*v) for v in (("R", "Ti", 16), ("R26", "S", 32), ("R26", "B", 32))),
    *(_hybrid("R50", *v) for v in (("B", 32), ("B", 16), ("L", 32), ("L", 16))),
    *(_bit(*v) for v in ((50, 1), (50, 2), (50, 3), (101, 1), (101, 3))),
    *(_bit(*v) for v in ((152, 1), (152, 2), (152, 4), (200, 3))),
)
VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _ALL}


def _key(name: str) -> str:
    """Folds case and separators, keeping the one case that matters: ViT-g is not ViT-G."""
    letters = re.sub(r"[^A-Za-z0-9]", "", name)
    return re.sub(r"[A-FH-Z]|G(?!14)", lambda match: match[0].lower(), letters)


def _aliases(variant: Variant) -> set[str]:
    """The spellings of one variant: with and without "ViT" or "BiT", and the paper's "R50x1+"."""
    key = _key(variant.name)
    names = {key, key.replace("vit", ""), key.removeprefix("bit")}
    if variant.block_counts and variant.family == "hybrid":
        names |= {key.replace("vit", "x1vit"), key.replace("vit", "x1")}
    return names


_BY_ALIAS = {alias: variant for variant in _ALL for alias in _aliases(variant)}


def parse(name: str) -> Variant:
    """Finds a variant by any of its usual spellings.

    Args:
        name: such as `"ViT-B/16"`, `"B/16"`, `"vit_b16"`, `"R50+ViT-B/16"`, `"R50x1+ViT-B/16"`,
            `"BiT R50x1"`. Case and separators do not matter, except that g and G are two sizes.

    Returns:
        The `Variant`.

    Raises:
        ValueError: if the name is unknown; the message lists the known ones.
    """
    variant = _BY_ALIAS.get(_key(name)) if isinstance(name, str) else None
    if variant is None:
        raise ValueError(f"Unknown variant. Expected one of {list_variants()}. Received: {name!r}")
    return variant


def list_variants() -> list[str]:
    """Returns the published names of all variants, in the table's order."""
    return list(VARIANTS)
