"""transformers' files as one dialect: which of the two sets of names a file or a model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from keras_vit.checkpoints import huggingface, huggingface_clip, huggingface_config
from keras_vit.checkpoints.dialect import Dialect
from keras_vit.checkpoints.shapes import Config
from keras_vit.checkpoints.store import Store

_TOWERS = ("clip_vision_model", "siglip_vision_model")


def _of_store(store: Store) -> ModuleType:
    return huggingface_clip if huggingface_clip.recognises(store) else huggingface


def _of_layout(layout: Mapping[str, Any]) -> ModuleType:
    return huggingface_clip if layout["model_type"] in _TOWERS else huggingface


def _documents_of(layout: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    tower = layout["model_type"] in _TOWERS
    return huggingface_clip.documents if tower else huggingface_config.documents


def _of_config(config: Config) -> ModuleType:
    tower = config["pre_norm"] or config["pooling"] == "map"
    return huggingface_clip if tower else huggingface


HUGGINGFACE = Dialect(
    name="huggingface",
    title="transformers",
    recognises=lambda s: huggingface.recognises(s) or huggingface_clip.recognises(s),
    describe=lambda store, hints: _of_store(store).describe(store, hints),
    rows=lambda config, layout: _of_layout(layout).rows(config, layout),
    container="safetensors",
    directory=True,
    target=lambda config, layout: _of_layout(layout).target(config, layout),
    layout=lambda config: _of_config(config).layout(config),
    keep=lambda config, layout: _of_layout(layout).keep(config, layout),
    documents=lambda config, layout, names: _documents_of(layout)(config, layout, names),
    extras=lambda config, layout: huggingface.extras(config, layout),
)
