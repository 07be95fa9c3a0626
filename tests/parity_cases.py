"""Reference cases under KERAS_VIT_FIXTURES: configs in our words, models with their weights.

A case is a folder with the weights as the source project writes them, `io.npz` (inputs and
outputs) and `case.json` (config, float32 noise).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import parity
import pytest

import keras_vit

FIXTURES = os.environ.get("KERAS_VIT_FIXTURES")
needs_fixtures = pytest.mark.skipif(
    not FIXTURES, reason="KERAS_VIT_FIXTURES does not name the folder of the reference data"
)

# Figures of float32 against float64 are multiplied by this.
MARGIN = 10
LEAST_TOLERANCE = 1e-5
LARGEST_RELATIVE_TOLERANCE = 1e-4

Config = dict[str, Any]


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


def _shape(size) -> tuple[int, int, int]:
    return (*((size, size) if isinstance(size, int) else size), 3)


def vit_jax(config: Config) -> Config:
    resnet = config["resnet"]
    stem = resnet and {
        "block_counts": resnet["num_layers"],
        "width": int(64 * resnet["width_factor"]),
        "group_norm_epsilon": (config["group_norm"] or {}).get("epsilon", 1e-6),
    }
    return {
        "image_shape": _shape(config["image_size"]),
        "patch_size": config["patch_size"],
        "hidden_dim": config["hidden_size"],
        "num_layers": config["num_layers"],
        "num_heads": config["num_heads"],
        "mlp_dim": config["mlp_dim"],
        "num_classes": config["num_classes"],
        "pooling": config["classifier"],
        "representation_size": config["representation_size"],
        "stem": stem,
    }


def big_vision(config: Config) -> Config:
    representation = config["rep_size"]
    return {
        "image_shape": _shape(config["image_size"]),
        "patch_size": config["patch_size"],
        "hidden_dim": config["hidden_size"],
        "num_layers": config["num_layers"],
        "num_heads": config["num_heads"],
        "mlp_dim": config["mlp_dim"],
        "num_classes": config["num_classes"],
        "pooling": {"tok": "token"}.get(config["pool_type"], config["pool_type"]),
        "representation_size": config["hidden_size"] if representation is True else representation,
        "position_embedding": {"learn": "learned"}.get(config["posemb"], config["posemb"]),
        "class_token_position": False,
        "norm_epsilon": config["layer_norm_epsilon"],
    }


def bit(config: Config) -> Config:
    return {
        "image_shape": _shape(config["image_size"]),
        "block_counts": config["blocks"],
        "width_factor": config["width_factor"],
        "num_classes": config["num_classes"],
        "preactivation": config["pre_activation"],
        "group_norm_epsilon": config["group_norm"]["epsilon"],
    }


def timm(config: Config) -> Config:
    gated = config["mlp"] == "GluMlp"
    hybrid = config["hybrid"]
    stem = hybrid and {
        "block_counts": hybrid["layers"],
        "width": hybrid["stem_width"],
        "group_norm_epsilon": hybrid["group_norm"]["epsilon"],
        "std_conv_epsilon": 1e-8,
        "std_conv_mode": "variance",
    }
    return {
        "image_shape": _shape(config["image_size"]),
        "patch_size": config["patch_size"],
        "hidden_dim": config["embed_dim"],
        "num_layers": config["depth"],
        "num_heads": config["num_heads"],
        "mlp_dim": config["mlp_hidden"] // (2 if gated else 1),
        "num_classes": config["num_classes"] or None,
        "pooling": {"avg": "gap"}.get(config["global_pool"], config["global_pool"]),
        "distillation": "head" if config.get("distilled") else None,
        "stem": stem,
        "class_token": config["class_token"],
        "class_token_position": not config["no_embed_class"],
        "num_registers": config["reg_tokens"],
        "activation": {
            "GELU(approximate='none')": "gelu",
            "GELUTanh()": "gelu_tanh",
            "QuickGELU()": "quick_gelu",
            "SiLU()": "swiglu",
        }[config["activation"]],
        "norm_epsilon": config["layer_norm_epsilon"],
        "qkv_bias": config["qkv_bias"],
        "qk_norm": config["qk_norm"],
        "pre_norm": config["pre_norm"],
        "norm_after_pooling": config["fc_norm"],
        "layer_scale_init": 1.0 if config["layer_scale"] else None,
    }


def torchvision(config: Config) -> Config:
    return {
        "image_shape": _shape(config["image_size"]),
        **{
            key: config[key]
            for key in ("patch_size", "hidden_dim", "num_layers", "num_heads", "mlp_dim")
        },
        "num_classes": config["num_classes"],
        "representation_size": config.get("representation_size"),
        "activation": "gelu",
        "norm_epsilon": config["layer_norm_epsilon"],
    }


# What the config does not say: it follows from the class of the model.
HF_HEADS: dict[str, Config] = {
    "DeiTForImageClassification": {"distillation": "token"},
    "DeiTForImageClassificationWithTeacher": {"distillation": "head"},
    "Dinov2ForImageClassification": {"pooling": "token_gap"},
    "Dinov2WithRegistersForImageClassification": {"pooling": "token_gap"},
}


def huggingface(config: Config) -> Config:
    hidden = config["hidden_size"]
    return {
        "image_shape": _shape(config["image_size"]),
        "patch_size": config["patch_size"],
        "hidden_dim": hidden,
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "mlp_dim": config.get("intermediate_size") or int(hidden * config["mlp_ratio"]),
        "num_classes": len(config["id2label"]) if "id2label" in config else None,
        "num_registers": config.get("num_register_tokens", 0),
        "activation": config["hidden_act"],
        "norm_epsilon": config["layer_norm_eps"],
        "layer_scale_init": config.get("layerscale_value"),
        **HF_HEADS.get(config["architectures"][0], {}),
    }


@dataclasses.dataclass(frozen=True)
class Case:
    """One checkpoint of one case.

    Args:
        name: folder below KERAS_VIT_FIXTURES.
        dialect: key of `parity.DIALECTS`.
        config: turns the config of `case.json` into ours.
        file: the checkpoint.
        prefix: what stands before the names in it.
        unused: pattern of names that belong to no model of ours.
        overrides: what this checkpoint stores in another way than the config says.
    """

    name: str
    dialect: str
    config: Callable[[Config], Config]
    file: str = "model.safetensors"
    prefix: str = ""
    unused: str = r"(?!)"
    overrides: tuple[tuple[str, Any], ...] = ()

    def __str__(self):
        return self.name if self.file in USUAL_FILES else f"{self.name}/{Path(self.file).stem}"

    @property
    def folder(self) -> Path:
        return Path(FIXTURES or "") / self.name

    @property
    def description(self) -> Config:
        return _description(self.folder)

    @property
    def io(self) -> dict[str, np.ndarray]:
        return _io(self.folder)

    @property
    def source(self) -> dict[str, np.ndarray]:
        """The arrays of the checkpoint by name, as read."""
        return parity.read(self.folder / self.file, self.prefix)

    def build(self, **changes) -> keras_vit.models.base.FlatModel:
        """The model with the checkpoint's weights; pixels come in scaled unless `changes` say."""
        config = self.config(self.description["config"]) | dict(self.overrides)
        kind = keras_vit.BiTResNet if self.config is bit else keras_vit.VisionTransformer
        with without_random_values():
            model = kind(**{**config, "include_rescaling": False, **changes})
        parity.load(model, self.source, self.dialect, self.unused)
        return model

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
        noise = self.description["precision"]["float32_vs_float64_max_abs_diff"]
        size = float(np.abs(output).max())
        if key in noise:
            figure = noise[key]
        else:
            sizes = {name: np.abs(self.io[name]).max() for name in noise if name in self.io}
            figure = size * max(noise[name] / value for name, value in sizes.items())
        return min(max(MARGIN * figure, LEAST_TOLERANCE), LARGEST_RELATIVE_TOLERANCE * size)


USUAL_FILES = ("checkpoint.npz", "model.safetensors")


@functools.cache
def _description(folder: Path) -> Config:
    return json.loads((folder / "case.json").read_text())


@functools.cache
def _io(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "io.npz") as stored:
        return dict(stored)


def google(name, **changes) -> Case:
    options = {"dialect": "vit_jax", "config": vit_jax, "file": "checkpoint.npz", **changes}
    return Case(f"google/{name}", **options)


def bv(name, **changes) -> Case:
    options = {"dialect": "big_vision", "config": big_vision, "prefix": "params/", **changes}
    return google(name, **options)


def from_timm(name, dialect="timm") -> Case:
    return Case(f"timm/{name}", dialect, timm)


CASES = (
    google("vit_token"),
    google("vit_token", file="checkpoint_linen.npz", dialect="vit_jax_linen"),
    google("vit_token_prelogits"),
    google("vit_gap", dialect="vit_jax_linen"),
    google("vit_gap_nonsquare"),
    bv("bv_gap_rep"),
    bv("bv_gap_sincos2d"),
    bv("bv_tok_rep"),
    # Here the class token has a position entry of its own, as in vit_jax.
    bv(
        "bv_tok_rep",
        file="checkpoint_joint_pos.npz",
        dialect="vit_jax_linen",
        overrides=(("class_token_position", True),),
    ),
    bv("bv_map"),
    # An image tower beside a text tower, a temperature and a bias.
    bv("bv_map_siglip", prefix="params/img/", unused=r"params/(t|b|txt/.*)"),
    bv("bv_map_siglip", file="checkpoint_inlined_head.npz", dialect="big_vision_inlined"),
    bv("bv_gap_scan"),
    bv("bv_gap_scan", file="checkpoint_unrolled_opt.npz", prefix="opt/target/"),
    google("hybrid_r50_s16"),
    google("hybrid_r26_s32"),
    google("hybrid_r50_s32"),
    google("hybrid_tiny_odd"),
    google("hybrid_stem_only"),
    google("bit_v1_r26", dialect="bit", config=bit),
    google("bit_v2_paper", dialect="bit_paper", config=bit),
    from_timm("vit_token"),
    from_timm("vit_avg_fcnorm"),
    from_timm("dinov2_reg4"),
    from_timm("reg4_gap_no_class_token"),
    from_timm("deit3_no_embed_class"),
    from_timm("deit_distilled"),
    from_timm("dinov2_features"),
    from_timm("qk_norm"),
    from_timm("no_qkv_bias"),
    from_timm("swiglu_dinov2"),
    from_timm("clip_quickgelu"),
    from_timm("siglip_gap"),
    from_timm("siglip_map"),
    from_timm("siglip_map_tanh_head"),
    from_timm("hybrid_resnetv2"),
    from_timm("hybrid_stem_only", "timm_stem_only"),
    Case("torchvision/vit", "torchvision", torchvision),
    Case("torchvision/vit_representation", "torchvision", torchvision),
    Case("hf/vit_classification", "hf_vit", huggingface),
    Case("hf/deit_classification", "hf_deit", huggingface),
    Case("hf/deit_teacher", "hf_deit_teacher", huggingface),
    # The mask token serves pre-training alone.
    *(
        Case(f"hf/{name}", f"hf_{dialect}", huggingface, unused=r".*\.embeddings\.mask_token")
        for name, dialect in (
            ("dinov2_classification", "dinov2_classifier"),
            ("dinov2_registers_classification", "dinov2_registers_classifier"),
        )
    ),
    Case("hf/dinov2_model", "hf_dinov2", huggingface, unused=r"embeddings\.mask_token"),
)

RESIZED = (
    google("vit_token_resize"),
    google("vit_gap_resize"),
    bv("bv_gap_rep"),
    bv("bv_map"),
)


def case(label: str) -> Case:
    """The case of `CASES` that prints as `label`."""
    return next(c for c in CASES if str(c) == label)
