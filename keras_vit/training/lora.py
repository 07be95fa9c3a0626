"""Low-rank adaptation (LoRA) of attention and MLPs: few weights train, the rest stays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras

from keras_vit import _checks
from keras_vit.models.base import FlatModel
from keras_vit.models.surgery import HEAD_LAYERS
from keras_vit.models.vit import VisionTransformer

TARGETS = ("qkv", "out", "fc1", "fc2")
_UPDATES = ("lora_kernel_a", "lora_kernel_b")


@dataclass(frozen=True)
class LoraReport:
    """What `enable_lora` made.

    Attributes:
        rank: rank of the updates.
        alpha: their scale is `alpha / rank`.
        layers: paths of the layers that got one.
        trainable: parameters that train: the updates and the head.
        total: all parameters.
    """

    rank: int
    alpha: float
    layers: tuple[str, ...]
    trainable: int
    total: int

    def text(self) -> str:
        """One line."""
        return (
            f"LoRA of rank {self.rank} on {len(self.layers)} layers: {self.trainable:,} of "
            f"{self.total:,} parameters train ({self.trainable / self.total:.2%})"
        )


def enable_lora(
    model: VisionTransformer,
    rank: int,
    alpha: float | None = None,
    targets: Sequence[str] = TARGETS,
) -> LoraReport:
    """Adds low-rank updates to the blocks' dense layers, and freezes all but them and the head.

    In place. The outputs stay as they are until it is trained, since the second factor starts at
    zero. Call it after whatever else freezes layers: setting `trainable` of a layer later
    unfreezes its weights. A compiled model stays compiled; an optimizer that has already trained
    starts anew. Keras writes `.keras` files with the updates merged (under mixed precision
    rounded to the compute dtype), and warns when it loads one that the optimizer's state does not
    fit the plain model: save what `merge_lora` returns.

    Args:
        model: a `VisionTransformer`.
        rank: rank of the updates.
        alpha: the updates are multiplied by `alpha / rank`; `None`: by 1.
        targets: layers to adapt in each block: "qkv" (all three projections as one matrix),
            "out", "fc1" and "fc2".

    Returns:
        What was adapted, and how many parameters train.

    Raises:
        ValueError: on arguments out of range, a model without such layers, or one that has
            updates already.

    Reference:
        arXiv 2106.09685.
    """
    rank = _checks.positive_int("rank", rank)
    scale = float(rank) if alpha is None else _checks.positive_float("alpha", alpha)
    targets = (targets,) if isinstance(targets, str) else tuple(targets)
    if not targets:
        raise ValueError(f"`targets` must name some of {TARGETS}. Received: none")
    for target in targets:
        _checks.choice("targets", target, TARGETS)
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            "`model` must be a VisionTransformer: its blocks hold the dense layers that LoRA "
            f"adapts. Received: model of type {type(model).__name__}"
        )
    if any(layer.lora_enabled for layer in _dense_layers(model)):
        raise ValueError(
            "`model` has LoRA updates already: train those, or go on from what `merge_lora(model)` "
            "returns."
        )
    adapted = list(_dense_layers(model, targets))
    # Layers frozen before would freeze their updates too.
    model.trainable = True
    for layer in adapted:
        layer.enable_lora(rank, lora_alpha=scale)
    for variable in model.weights:
        head = variable.path.split("/")[0] in HEAD_LAYERS
        variable.trainable = head or variable.path.endswith(_UPDATES)
    _start_anew(model)
    return LoraReport(
        rank=rank,
        alpha=scale,
        layers=tuple(layer.path for layer in adapted),
        trainable=sum(math.prod(v.shape) for v in model.trainable_weights),
        total=sum(math.prod(v.shape) for v in model.weights),
    )


def merge_lora(model: VisionTransformer) -> VisionTransformer:
    """A new model whose kernels hold what the updates learned.

    Args:
        model: what `enable_lora` worked on. It stays as it is.

    Returns:
        A model of the same class with the weights of a model that never had updates, freshly
        compiled: it saves, converts, resizes and quantizes as any other. Its outputs are the same.

    Raises:
        ValueError: if the model has no updates.
    """
    adapted = list(_dense_layers(model)) if isinstance(model, VisionTransformer) else []
    adapted = [layer for layer in adapted if layer.lora_enabled]
    if not adapted:
        raise ValueError("`model` has no LoRA updates: nothing to merge. Call `enable_lora` first.")
    merged = {}
    for layer in adapted:
        a, b = (keras.ops.convert_to_numpy(getattr(layer, name)) for name in _UPDATES)
        update = layer.lora_alpha / layer.lora_rank * (a.astype("float64") @ b.astype("float64"))
        merged[f"{layer.path}/kernel"] = update
    new = type(model).from_config(model.get_config())
    old = {variable.path: variable for variable in model.weights}
    for variable in new.weights:
        # Through NumPy: JAX deletes arrays that two models share when one of them trains.
        value = keras.ops.convert_to_numpy(old[variable.path])
        if variable.path in merged:
            value = (value + merged[variable.path]).astype(value.dtype)
        variable.assign(value)
    new.source = model.source
    return new


def _dense_layers(model: VisionTransformer, targets=TARGETS) -> Iterator[keras.layers.Dense]:
    for block in model.encoder_blocks:
        for layer in (block.attention.qkv, block.attention.out, block.mlp.fc1, block.mlp.fc2):
            if layer.name in targets:
                yield layer


def _start_anew(model: FlatModel) -> None:
    """Makes a compiled model see its new variables."""
    model.train_function = model.test_function = model.predict_function = None
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        model.optimizer = type(optimizer).from_config(optimizer.get_config())
