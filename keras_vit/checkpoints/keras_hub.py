"""keras-hub's ViT presets: `model.weights.h5`, `task.weights.h5` and their JSON. Read only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import dialect
from keras_vit.checkpoints.dialect import Dialect, Found, Hints
from keras_vit.checkpoints.rules import (
    FLAT_TABLE,
    FROM_HEADS,
    LONE,
    PATCH_HWIO,
    SAME,
    TO_HEADS,
    Kind,
    Row,
    each,
)
from keras_vit.checkpoints.shapes import Config
from keras_vit.checkpoints.store import Store

Layout = Mapping[str, Any]

_ENCODER = "layers/vi_t_encoder"
_EMBEDDING = "layers/vi_t_patching_and_embedding"
_CONV = f"{_EMBEDDING}/patch_embedding/vars/0"


# Dense layers of a classifier, without and with a layer before the head.
_HEADS = {False: [["dense", "head"]], True: [["dense", "pre_logits"], ["dense_1", "head"]]}


def _vars(kernel=SAME, bias=SAME, names=("kernel", "bias")) -> Kind:
    return (
        ("/vars/0", f"/{names[0]}", kernel),
        ("/vars/1", f"/{names[1]}", bias),
    )


_NORM = _vars(names=("gamma", "beta"))


def _rows(config: Config, layout: Layout) -> list[Row]:
    # Keras counts layers of one class: the first block has no number.
    rows: list[Row] = []
    for index in range(config["num_layers"]):
        block = _block(index)
        ours = f"encoder_block_{index}"
        parts = each(f"{block}/mha/", "query_dense", "key_dense", "value_dense")
        rows += [
            (f"{block}/layer_norm_1", f"{ours}/attention_norm", _NORM),
            (parts, f"{ours}/attention/qkv", _vars(TO_HEADS, TO_HEADS)),
            (f"{block}/mha/output_dense", f"{ours}/attention/out", _vars(FROM_HEADS)),
            (f"{block}/layer_norm_2", f"{ours}/mlp_norm", _NORM),
            (f"{block}/mlp/dense_1", f"{ours}/mlp/fc1", _vars()),
            (f"{block}/mlp/dense_2", f"{ours}/mlp/fc2", _vars()),
        ]
    return [
        *rows,
        (f"{_EMBEDDING}/patch_embedding", "patch_encoder/projection", _vars(PATCH_HWIO)),
        (f"{_EMBEDDING}/vars/0", "patch_encoder/class_token", LONE),
        (
            f"{_EMBEDDING}/position_embedding/vars/0",
            "patch_encoder/position_embedding",
            FLAT_TABLE,
        ),
        (f"{_ENCODER}/layer_norm", "encoder_norm", _NORM),
        *((f"task/layers/{theirs}", ours, _vars()) for theirs, ours in layout["head"]),
    ]


def _block(index: int) -> str:
    return f"{_ENCODER}/encoder_layers/vi_t_encoder_block" + (f"_{index}" if index else "")


def _describe(store: Store, hints: Hints) -> Found:
    has = store.entries.__contains__
    backbone, task = _configs(store)
    kernel = dialect.entry(store, _CONV, 4).shape
    block = _block(0)
    query = dialect.entry(store, f"{block}/mha/query_dense/vars/0", 3).shape
    inner = dialect.entry(store, f"{block}/mlp/dense_1/vars/0", 2).shape[1]
    table = dialect.entry(store, f"{_EMBEDDING}/position_embedding/vars/0", 2).shape
    token = has(f"{_EMBEDDING}/vars/0")
    stated = backbone.get("image_shape")
    height, width = dialect.image_size(
        table[0] - token,
        kernel[:2],
        hints,
        store,
        None if not isinstance(stated, list) else stated[:2],
    )
    two = has("task/layers/dense_1/vars/0")
    head = store.entries.get("task/layers/dense_1/vars/0" if two else "task/layers/dense/vars/0")
    first = store.entries.get("task/layers/dense/vars/0")
    absent = {
        r"encoder_block_\d+/attention/out/bias": not has(f"{block}/mha/output_dense/vars/1"),
        r"encoder_block_\d+/mlp/fc[12]/bias": not has(f"{block}/mlp/dense_1/vars/1"),
        r"patch_encoder/projection/bias": not has(f"{_EMBEDDING}/patch_embedding/vars/1"),
    }
    epsilon = backbone.get("layer_norm_epsilon", 1e-6)
    pooled = task.get("pooling", "token" if token else "gap")
    numbered = dialect.count(
        store, re.escape(f"{_ENCODER}/encoder_layers/vi_t_encoder_block_") + r"(\d+)/"
    )
    return Found(
        "keras_hub",
        {
            "image_shape": (height, width, kernel[2]),
            "patch_size": kernel[:2],
            "hidden_dim": kernel[3],
            "num_layers": max(numbered, 1),
            "num_heads": query[1],
            "mlp_dim": inner,
            "num_classes": None if head is None else head.shape[1],
            # Its "gap" averages the class token too.
            "pooling": ("mean" if token else "gap") if pooled == "gap" else "token",
            "class_token": token,
            "representation_size": first.shape[1] if two and first is not None else None,
            "activation": "gelu",
            "norm_epsilon": epsilon if isinstance(epsilon, float) else 1e-6,
            "qkv_bias": has(f"{block}/mha/query_dense/vars/1"),
            "pixel_range": "inception",
        },
        {"head": _HEADS[two]},
        ignored=r"(task/)?optimizer/.*|task/layers/.*/seed_generator/.*|.*seed_generator.*",
        zeros="|".join(pattern for pattern, missing in absent.items() if missing) or r"(?!)",
    )


def _configs(store: Store) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of backbone and classifier, as far as the preset's JSON has them."""
    backbone = dialect.document(store, "config.json").get("config")
    task = dialect.document(store, "task.json").get("config")
    return (
        backbone if isinstance(backbone, dict) else {},
        task if isinstance(task, dict) else {},
    )


KERAS_HUB = Dialect(
    name="keras_hub",
    title="keras-hub",
    recognises=lambda store: _CONV in store.entries,
    describe=_describe,
    rows=_rows,
)
