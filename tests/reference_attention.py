"""Attention maps of transformers and timm for the reference checkpoints, kept in `golden`.

    KERAS_VIT_FIXTURES=... python tests/reference_attention.py   # writes golden/attention.npz

Needs both libraries and PyTorch. Only the first image of each case is kept.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "attention.npz"
TRANSFORMERS = (
    *("clip_vision", "deit_classification", "deit_teacher", "dinov2_classification"),
    *("dinov2_model", "dinov2_registers_classification", "dinov2_registers_model"),
    *("dinov2_swiglu", "siglip_vision", "vit_classification", "vit_mae", "vit_model_pooler"),
    *("vit_nonsquare", "vit_sharded"),
)
TIMM = (
    *("clip_quickgelu", "deit3_no_embed_class", "deit_distilled", "dinov2_features"),
    *("dinov2_reg4", "hybrid_resnetv2", "hybrid_stem_only", "no_qkv_bias", "qk_norm"),
    *("reg4_gap_no_class_token", "siglip_gap", "siglip_map", "siglip_map_tanh_head"),
    *("swiglu_dinov2", "vit_avg_fcnorm", "vit_token"),
)


def of_transformers(folder: Path) -> np.ndarray:
    """`(layers, heads, tokens, tokens)` by `output_attentions`."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    name = {"ViTMAEModel": "ViTModel", "ViTMAEForPreTraining": "ViTModel"}.get(name, name)
    model = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        outputs = model.eval()(_first_image(folder), output_attentions=True)
    return np.stack([scores[0].numpy() for scores in outputs.attentions])


def of_timm(folder: Path) -> np.ndarray:
    """`(layers, heads, tokens, tokens)`: what reaches the dropout of each attention."""
    import timm
    import torch

    hybrid = folder.name.startswith("hybrid")
    made = _hybrid(folder) if hybrid else timm.create_model(f"local-dir:{folder}", pretrained=True)
    model = made.eval()
    found: list[np.ndarray] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_pre_hook(
            lambda module, inputs: found.append(inputs[0][0].numpy())
        )
    with torch.no_grad():
        model(_first_image(folder))
    return np.stack(found)


def _hybrid(folder: Path):
    """A hybrid of sizes that timm has no name for."""
    from functools import partial

    from safetensors.torch import load_file
    from timm.layers import GroupNormAct, StdConv2dSame
    from timm.models.resnetv2 import ResNetV2
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.vision_transformer_hybrid import HybridEmbed

    config = json.loads((folder / "case.json").read_text())["config"]
    stem = config["hybrid"]
    backbone = ResNetV2(
        layers=stem["layers"] or (1,),
        channels=stem["channels"] or (128,),
        num_classes=0,
        global_pool="",
        preact=False,
        stem_type="same",
        stem_chs=stem["stem_width"],
        conv_layer=partial(StdConv2dSame, eps=1e-8),
        norm_layer=partial(GroupNormAct, num_groups=stem["group_norm"]["groups"]),
    )
    if not stem["layers"]:
        backbone = backbone.stem
    model = VisionTransformer(
        embed_layer=partial(HybridEmbed, backbone=backbone),
        **{"patch_size": 1, **config["overrides"]},
    )
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


PROJECTS = {"hf": (of_transformers, TRANSFORMERS), "timm": (of_timm, TIMM)}


def _first_image(folder: Path):
    import torch

    with np.load(folder / "io.npz") as stored:
        return torch.from_numpy(stored["inputs"][:1].transpose(0, 3, 1, 2).copy())


def main() -> None:
    root = Path(os.environ["KERAS_VIT_FIXTURES"])
    found = {
        f"{project}/{name}": measure(root / project / name)
        for project, (measure, names) in PROJECTS.items()
        for name in names
    }
    np.savez_compressed(GOLDEN, **found)
    print(f"wrote {GOLDEN}: {len(found)} cases, {GOLDEN.stat().st_size:,} bytes")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
