"""Reference checkpoints under KERAS_VIT_FIXTURES, as other projects wrote them.

A case is a folder with the weights, `io.npz` (inputs and outputs) and `case.json` (config, float32
noise).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.files import open_checkpoint

FIXTURES = os.environ.get("KERAS_VIT_FIXTURES")
needs_fixtures = pytest.mark.skipif(
    not FIXTURES, reason="KERAS_VIT_FIXTURES does not name the folder of the reference data"
)

# Figures of float32 against float64 are multiplied by this.
MARGIN = 10
LEAST_TOLERANCE = 1e-5
LARGEST_RELATIVE_TOLERANCE = 1e-4


@contextlib.contextmanager
def without_random_values():
    """Gives weights NaN where they would get random numbers.

    A weight that is left out cannot hide, and JAX need not compile a generator for each shape.
    """

    def call(self, shape, dtype=None, **kwargs):
        return keras.ops.convert_to_tensor(np.full(shape, np.nan, "float32"), dtype)

    with contextlib.ExitStack() as stack:
        for initializer in (keras.initializers.VarianceScaling, keras.initializers.RandomNormal):
            stack.enter_context(mock.patch.object(initializer, "__call__", call))
        yield


@dataclasses.dataclass(frozen=True)
class Case:
    """One checkpoint of one case.

    Args:
        name: folder below KERAS_VIT_FIXTURES.
        file: the checkpoint in it; "" for the folder itself.
        heads: whether the file does not say its number of heads, so that it has to be given.
        shape: whether the file does not say its image size.
        outputs: whether `io.npz` has outputs of this very file.
    """

    name: str
    file: str = "model.safetensors"
    heads: bool = False
    shape: bool = False
    outputs: bool = True

    def __str__(self):
        if self.file in ("checkpoint.npz", "model.safetensors", "", "preset"):
            return self.name
        return f"{self.name}/{self.file.partition('.')[0]}"

    @property
    def folder(self) -> Path:
        return Path(FIXTURES or "") / self.name

    @property
    def path(self) -> Path:
        return self.folder / self.file

    @property
    def description(self) -> dict[str, Any]:
        return _json(self.folder / "case.json")

    @property
    def io(self) -> dict[str, np.ndarray]:
        return _io(self.folder)

    @property
    def source(self) -> dict[str, np.ndarray]:
        """The arrays of the checkpoint by name."""
        with open_checkpoint(self.path) as store:
            return {name: store.read(name) for name in store.entries}

    @property
    def arguments(self) -> dict[str, Any]:
        """What has to be said beside the file."""
        arguments = {}
        if self.heads:
            arguments["num_heads"] = self.description["config"]["num_heads"]
        if self.shape:
            arguments["image_shape"] = self.io["inputs"].shape[1:]
        return arguments

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Other heights and widths that there are outputs for."""
        found = (re.fullmatch(r"inputs_(\d+)x(\d+)", name) for name in self.io)
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def build(self, **changes) -> keras_vit.models.base.FlatModel:
        """The model with the checkpoint's weights; pixels come in scaled unless `changes` say."""
        arguments = {"include_rescaling": False, **self.arguments, **changes}
        with without_random_values():
            return keras_vit.from_checkpoint(self.path, **arguments)

    def tolerance(self, key: str, output: np.ndarray) -> float:
        """What an output may differ by.

        Args:
            key: its name in `io.npz`.
            output: the reference.

        Returns:
            Ten times the source's own float32 noise, at least 1e-5, at most 1e-4 of the output's
            size. Outputs without a figure count as noisy as the worst of those with one, each
            against its size.
        """
        precision = self.description.get("precision", {})
        noise = precision.get("float32_vs_float64_max_abs_diff", {})
        size = float(np.abs(output).max())
        if key in noise:
            figure = noise[key]
        else:
            sizes = {name: np.abs(self.io[name]).max() for name in noise if name in self.io}
            figure = size * max((noise[name] / sizes[name] for name in sizes), default=0.0)
        return min(max(MARGIN * figure, LEAST_TOLERANCE), LARGEST_RELATIVE_TOLERANCE * size)


@functools.cache
def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@functools.cache
def _io(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "io.npz") as stored:
        return dict(stored)


def google(name, file="checkpoint.npz", **options) -> Case:
    return Case(f"google/{name}", file, **options)


def folders(project: str, *names: str, **options) -> tuple[Case, ...]:
    return tuple(Case(f"{project}/{name}", **options) for name in names)


CASES = (
    google("vit_token"),
    google("vit_token", "checkpoint_linen.npz"),
    google("vit_token_prelogits"),
    google("vit_token_resize", outputs=False),
    google("vit_gap"),
    google("vit_gap_nonsquare", shape=True),
    google("vit_gap_resize", outputs=False),
    google("bv_gap_rep"),
    google("bv_gap_sincos2d", shape=True),
    google("bv_tok_rep"),
    google("bv_tok_rep", "checkpoint_joint_pos.npz"),
    google("bv_map"),
    google("bv_map_siglip"),
    google("bv_map_siglip", "checkpoint_inlined_head.npz"),
    google("bv_gap_scan"),
    google("bv_gap_scan", "checkpoint_unrolled_opt.npz"),
    google("bv_gap_scan", "checkpoint_bf16.npz", outputs=False),
    google("hybrid_r50_s16"),
    google("hybrid_r26_s32"),
    google("hybrid_r50_s32", shape=True),
    google("hybrid_tiny_odd", shape=True),
    google("hybrid_stem_only"),
    google("bit_v1_r26", shape=True),
    google("bit_v2_paper", shape=True),
    *folders("timm", "vit_token", "vit_avg_fcnorm", "dinov2_reg4", "reg4_gap_no_class_token"),
    *folders("timm", "deit3_no_embed_class", "deit_distilled", "dinov2_features", "qk_norm"),
    *folders("timm", "no_qkv_bias", "swiglu_dinov2", "clip_quickgelu", "siglip_gap"),
    *folders("timm", "siglip_map", "siglip_map_tanh_head"),
    *folders("timm", "hybrid_resnetv2", "hybrid_stem_only", heads=True),
    Case("timm/clip_quickgelu", "openai_clip.safetensors", heads=True, outputs=False),
    *folders("torchvision", "vit", "vit_representation", heads=True),
    *folders("hf", "vit_classification", "vit_model_pooler", "vit_nonsquare", "vit_mae"),
    *folders("hf", "vit_hybrid", "vit_hybrid_small_groups", "clip_vision", "siglip_vision"),
    *folders("hf", "deit_classification", "deit_teacher", "dinov2_classification"),
    *folders("hf", "dinov2_model", "dinov2_swiglu", "dinov2_registers_model"),
    *folders("hf", "dinov2_registers_classification"),
    Case("hf/vit_sharded", ""),
    *folders("keras_hub", "vit_classifier", "vit_classifier_prelogits", file="preset"),
    Case("keras_hub/vit_backbone", "preset"),
    Case("keras_hub/vit_backbone", "backbone.weights.h5"),
)
WITH_OUTPUTS = tuple(case for case in CASES if case.outputs)
# Those with outputs at other image sizes.
RESIZED = (
    *(google(name) for name in ("vit_token_resize", "vit_gap_resize", "bv_gap_rep", "bv_map")),
    *folders("timm", "vit_token", "deit_distilled", "dinov2_reg4"),
    *folders("torchvision", "vit", heads=True),
    *folders("hf", "vit_classification", "deit_teacher", "dinov2_model"),
    *folders("hf", "dinov2_registers_model", "clip_vision", "siglip_vision"),
)


def case(label: str) -> Case:
    """The case of `CASES` that prints as `label`."""
    return next(c for c in CASES if str(c) == label)
