"""The table of dialects, and which one a file is of."""

from __future__ import annotations

from keras_vit.checkpoints.dialect import Dialect, Found, Hints, from_metadata
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.google import BIG_VISION, GOOGLE
from keras_vit.checkpoints.huggingface_dialect import HUGGINGFACE
from keras_vit.checkpoints.keras_hub import KERAS_HUB
from keras_vit.checkpoints.openai_clip import OPENAI_CLIP
from keras_vit.checkpoints.store import Store
from keras_vit.checkpoints.timm import META, TIMM
from keras_vit.checkpoints.torchvision import TORCHVISION

# The first that recognises a file has it: Meta's names are timm's and one more.
_ALL = (GOOGLE, BIG_VISION, META, TIMM, HUGGINGFACE, TORCHVISION, OPENAI_CLIP, KERAS_HUB)
DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in _ALL}
FORMATS = tuple(name for name, dialect in DIALECTS.items() if dialect.container)


def detect(store: Store, hints: Hints | None = None) -> Found:
    """Finds out whose file it is and what model it holds, from names, shapes and documents.

    Args:
        store: the open checkpoint.
        hints: what the caller knows beside it.

    Raises:
        CheckpointError: if it is of no known dialect, or contradicts itself.
    """
    found = next((d for d in _ALL if d.recognises(store)), None)
    if found is None:
        names = sorted(store.entries)
        raise CheckpointError(
            f"{store.path} holds no Vision Transformer or BiT ResNet of a known project. Known "
            f"are {', '.join(dialect.title for dialect in _ALL)}. Received: {len(names)} arrays, "
            f"such as {names[:5]}"
        )
    hints, stored = hints or Hints(), from_metadata(store)
    hints = Hints(
        # The caller's may be the size that is wanted, not the file's.
        stored.get("image_shape") or hints.image_shape,
        hints.num_heads or stored.get("num_heads"),
        hints.pixels or "pixel_range" in stored,
    )
    try:
        description = found.describe(store, hints)
    except CheckpointError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        # Documents hold any JSON, and shapes any numbers: what nobody thought of ends here.
        raise CheckpointError(
            f"{store.path} holds no model of {found.title} that can be: {error!r}. Get it again, "
            "with the JSON files beside it."
        ) from error
    stem, ours = description.config.get("stem"), stored.pop("stem", None)
    if isinstance(stem, dict) and isinstance(ours, dict):
        # What arrays say of the stem, they say for certain.
        description.config["stem"] = {**ours, **{k: stem[k] for k in ("block_counts", "width")}}
    description.config.update(stored)
    return description


def format_of(name: str) -> Dialect:
    """The dialect that files can be written in.

    Raises:
        CheckpointError: if there is none of that name; the message lists them.
    """
    if name not in FORMATS:
        raise CheckpointError(f"`format` must be one of {FORMATS}. Received: format={name!r}")
    return DIALECTS[name]
