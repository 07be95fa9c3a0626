"""What a dialect is: how one project names, shapes and interprets the weights of a ViT."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.rules import Row
from keras_vit.checkpoints.shapes import Config, Shape
from keras_vit.checkpoints.store import Entry, Store
from keras_vit.variants import SIZES

# What our note in a file leaves out: what arrays say, what is for training, or for taste.
_NOT_STORED = frozenset(
    (
        *("include_rescaling", "classifier_activation", "remat", "dtype", "name", "trainable"),
        *("frozen_layers", "dropout_rate", "attention_dropout_rate", "drop_path_rate"),
        *("patch_dropout_rate", "hidden_dim", "num_layers", "mlp_dim", "num_classes"),
        *("patch_size", "num_registers", "block_counts", "width_factor", "preactivation"),
    )
)
_STEM_ARRAYS = ("block_counts", "width")
METADATA_KEY = "keras_vit"

# Files of torch do not hold the number of heads. hidden_dim -> heads where it is not 64 a head.
_HEADS = {dim: heads for dim, _, _, heads in SIZES.values()} | {1152: 16}
_USUAL_HEAD_DIM = 64

# timm's and transformers' GroupNorm and weight standardisation.
TORCH_STEM = {
    "groups": 32,
    "group_norm_epsilon": 1e-5,
    "std_conv_epsilon": 1e-8,
    "std_conv_mode": "variance",
}

# Mean and standard deviation as other projects write them, of pixels 0..1.
_MEANS: dict[tuple[float, ...], str] = {
    (0.5, 0.5, 0.5): "inception",
    (0.485, 0.456, 0.406): "imagenet",
    (0.481, 0.458, 0.408): "clip",
    (0.0, 0.0, 0.0): "unit",
}
PIXEL_STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "unit": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


@dataclass(frozen=True)
class Hints:
    """What the caller knows beside the file.

    Attributes:
        image_shape: `(height, width, channels)` wanted, or `None`.
        num_heads: or `None`.
        pixels: whether they say how pixels are scaled, so that the file need not.
    """

    image_shape: Shape | None = None
    num_heads: int | None = None
    pixels: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Hints:
        """What arguments of a model say."""
        scaled = "pixel_range" in arguments or arguments.get("include_rescaling") is False
        return cls(arguments.get("image_shape"), arguments.get("num_heads"), scaled)


@dataclass(frozen=True)
class Found:
    """What a dialect makes of a file.

    Attributes:
        dialect: name of the dialect.
        config: arguments of `VisionTransformer` or `BiTResNet` that the file decides.
        layout: what this file does in its own way within the dialect; plain JSON values.
        ignored: pattern of array names, in full, that serve something else.
        resampling: how the project resamples positions, key of `adapt.METHODS`.
        zeros: pattern of our paths that the file leaves out because they are zero.
        class_names: names of the classes, where the file has them.
        assumed: what the file does not say and was taken as usual, in words.
    """

    dialect: str
    config: dict[str, Any]
    layout: dict[str, Any] = field(default_factory=dict)
    ignored: str = r"(?!)"
    resampling: str = "bilinear_align_corners"
    zeros: str = r"(?!)"
    class_names: tuple[str, ...] | None = None
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where a model's weights came from, so that they can go back in the same form.

    Attributes:
        dialect: name of the dialect.
        layout: as in `Found`.
        shapes: arrays whose shape says the same in another way than usual.
        extras: arrays that serve pre-training alone.
        class_names: as in `Found`.
    """

    dialect: str
    layout: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Target:
    """What a file of a dialect needs of a model; the writer brings about what changes nothing.

    Attributes:
        rules: `(holds, sentence)` pairs; a sentence says why the format cannot hold the model.
        class_positions: whether prefix tokens have position entries; `None`: as the model does.
        norm_after_pooling: where the last norm stands; `None`: as in the model. Before and after
            are the same where the class token alone is pooled.
        qkv_bias: `True` if there always is one, `None`: as in the model.
        head_bias: `True` if there always is one, `False` if never, `None`: as in the model.
        layer_scale: whether blocks have LayerScale; `False` multiplies it into the projections
            before it, `True` makes one of ones where there is none, `None`: as in the model.
        fixed_positions: whether there are sincos2d positions without a table; `False` writes
            their values as a table.
        joint_pooling: whether the head reads class token and mean of the patches.
        fixed: what the project's own code does whatever the file says: argument -> value.
    """

    rules: tuple[tuple[bool, str], ...] = ()
    class_positions: bool | None = None
    norm_after_pooling: bool | None = None
    qkv_bias: bool | None = None
    head_bias: bool | None = True
    layer_scale: bool | None = None
    fixed_positions: bool = True
    joint_pooling: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    """One project's files.

    Attributes:
        name: as in `to_checkpoint(format=...)`.
        title: the project, for messages.
        recognises: whether a store is of this dialect.
        describe: what is in it.
        rows: the table of names, from config and layout.
        container: `"npz"` or `"safetensors"`; `None` where files are only read.
        holds_bit: whether it has names for BiT ResNets.
        directory: whether the arrays are of no use without the documents.
        target: what its files need, from config and layout.
        layout: the layout of a file that is written afresh, from the config.
        keep: a source file's layout, changed where the model has been changed since.
        documents: JSON files beside the arrays, from config, layout and class names.
        extras: arrays of zeros that serve pre-training alone, but must be there; name -> shape.
    """

    name: str
    title: str
    recognises: Callable[[Store], bool]
    describe: Callable[[Store, Hints], Found]
    rows: Callable[[Config, Mapping[str, Any]], list[Row]]
    container: str | None = None
    holds_bit: bool = False
    directory: bool = False
    target: Callable[[Config, Mapping[str, Any]], Target] = lambda config, layout: Target()
    layout: Callable[[Config], dict[str, Any]] = lambda config: {}
    keep: Callable[[Config, Mapping[str, Any]], dict[str, Any]] = lambda config, layout: dict(
        layout
    )
    documents: Callable[..., dict[str, Any]] = lambda config, layout, class_names: {}
    extras: Callable[[Config, Mapping[str, Any]], dict[str, Shape]] = lambda config, layout: {}


# What the dialects share.


def entry(store: Store, name: str, rank: int | None = None) -> Entry:
    """The header of an array that must be there.

    Raises:
        CheckpointError: if it is not, or has another number of axes than `rank`, or an empty one.
    """
    found = store.entries.get(name)
    if found is None:
        raise CheckpointError(
            f"{store.path} has no array {name!r}: the file is incomplete, or of another kind of "
            "model."
        )
    if (rank is not None and len(found.shape) != rank) or not found.size:
        raise CheckpointError(
            f"{store.path}: {name!r} must have {rank} axes, none of them empty. "
            f"Received: shape={found.shape}"
        )
    return found


def count(store: Store, pattern: str) -> int:
    """One more than the largest number in the first group of names that begin like `pattern`."""
    expression = re.compile(pattern)
    found = [int(m[1]) for name in store.entries if (m := expression.match(name))]
    return max(found, default=-1) + 1


def num_heads(width: int, stated: Any, hints: Hints, store: Store) -> int:
    """Attention heads: from the caller, the file's documents, or the usual number.

    Raises:
        CheckpointError: if nothing tells, or the number does not divide the width.
    """
    usual = width // _USUAL_HEAD_DIM if width % _USUAL_HEAD_DIM == 0 else None
    heads = hints.num_heads or stated or _HEADS.get(width, usual)
    if heads is None:
        raise CheckpointError(
            f"{store.path} does not say how many attention heads its tokens of width {width} "
            "have: pass num_heads=..."
        )
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1 or width % heads:
        raise CheckpointError(
            f"{store.path}: num_heads must divide the width of a token. "
            f"Received: num_heads={heads!r}, width={width}"
        )
    return heads


def assumed_heads(width: int, stated: Any, hints: Hints) -> tuple[str, ...]:
    """What to tell where `num_heads` takes the usual number."""
    if hints.num_heads or stated:
        return ()
    return (f"attention heads: those usual for tokens of width {width}",)


def image_size(
    patches: int, cell: Sequence[int], hints: Hints, store: Store, stated: Any = None
) -> tuple[int, int]:
    """The image size that a position table belongs to.

    Args:
        patches: rows of the table without those of prefix tokens.
        cell: pixels of a patch, `(height, width)`.
        hints: what the caller knows.
        store: for messages.
        stated: `(height, width)` or side from the file's documents, or `None`.

    Raises:
        CheckpointError: if the number of patches is no square and nothing tells their grid.
    """
    if stated is not None:
        return pair(stated, "image size", store)
    side = math.isqrt(max(patches, 0))
    if side * side == patches and patches:
        return side * cell[0], side * cell[1]
    if hints.image_shape is not None:
        height, width = hints.image_shape[:2]
        if -(-height // cell[0]) * -(-width // cell[1]) == patches:
            return height, width
        if (height // cell[0]) * (width // cell[1]) == patches:
            return height, width
    raise CheckpointError(
        f"{store.path} has positions for {patches} patches of {cell[0]} x {cell[1]} pixels, which "
        "are no square, and does not say how they lie: pass the image_shape=(height, width, "
        "channels) that the file was made for."
    )


def pair(value: Any, name: str, store: Store) -> tuple[int, int]:
    """A side or `(height, width)` out of a document, as a pair.

    Raises:
        CheckpointError: if it is neither.
    """
    sides = value if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2 or not all(type(n) is int and n > 0 for n in sides):
        raise CheckpointError(
            f"{store.path}: the {name} in its documents must be a positive integer or a "
            f"(height, width) pair. Received: {value!r}"
        )
    return sides[0], sides[1]


def pixel_range(mean: Any, store: Store, default: str, hints: Hints) -> str:
    """The pixel range that a mean stands for; `default` without one.

    Raises:
        CheckpointError: if it is none of the known ones.
    """
    if mean is None:
        return default
    try:
        key = tuple(round(float(value), 3) for value in mean)
    except (TypeError, ValueError):
        key = ()
    if key not in _MEANS and hints.pixels:
        return default
    if key not in _MEANS:
        raise CheckpointError(
            f"{store.path}: its documents give a pixel mean that is none of {list(_MEANS)}. "
            f"Pass pixel_range=..., or include_rescaling=False. Received: mean={mean!r}"
        )
    return _MEANS[key]


def document(store: Store, name: str) -> dict[str, Any]:
    """A JSON document beside the arrays; empty if there is none or it is no object."""
    found = store.documents.get(name)
    return found if isinstance(found, dict) else {}


def class_names(labels: Any) -> tuple[str, ...] | None:
    """Class names out of a mapping of indices to names; `None` if it is no full one."""
    if not isinstance(labels, Mapping):
        return None
    names = {str(key): str(value) for key, value in labels.items()}
    if set(names) != {str(index) for index in range(len(names))}:
        return None
    ordered = tuple(names[str(index)] for index in range(len(names)))
    usual = all(name == f"LABEL_{index}" for index, name in enumerate(ordered))
    return None if usual else ordered


def to_metadata(config: Config) -> dict[str, str]:
    """The strings that our files carry, so that they load with nothing to guess."""
    stored = {key: value for key, value in config.items() if key not in _NOT_STORED}
    if stored.get("stem"):
        stored["stem"] = {k: v for k, v in stored["stem"].items() if k not in _STEM_ARRAYS}
    return {"format": "pt", METADATA_KEY: json.dumps(stored)}


def from_metadata(store: Store) -> dict[str, Any]:
    """The config that `to_metadata` wrote; empty for other files."""
    try:
        stored = json.loads(store.metadata.get(METADATA_KEY, "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in stored.items()
        if key not in _NOT_STORED
    }
