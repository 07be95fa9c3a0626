"""Name maps from other projects' checkpoints to the variables of a keras_vit model.

A dialect is a table of rows `(their module, our module, kind)`. `{i}` stands for a Transformer
block, `{b}` and `{u}` for a ResNet block and unit (from 1; `{b0}` and `{u0}` are one less). A
kind lists the arrays of a module: `(their leaf, our leaf, transform)`, a leaf with the separator
before it. Several of their modules in one row are joined along the last axis: query, key and
value into one projection.

The model drives: each of its variables must find one row, each array that the row names must be
there, and no array may be left. Arrays are NumPy throughout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

Array = np.ndarray
Kind = tuple[tuple[str, str, Callable[[Array], Array]], ...]
Row = tuple[str | tuple[str, ...], str, Kind]


def same(x: Array) -> Array:
    return x


def rows(x: Array) -> Array:
    """(..., D) -> (*, D): convolution kernels, output kernels by head, position tables."""
    return x.reshape(-1, x.shape[-1])


def columns(x: Array) -> Array:
    """(D, heads, head_dim) -> (D, D)."""
    return x.reshape(x.shape[0], -1)


def vector(x: Array) -> Array:
    """(heads, head_dim) or (1, 1, 1, C) -> one axis."""
    return x.reshape(-1)


def transposed(x: Array) -> Array:
    """torch's (out, in) -> (in, out)."""
    return x.T


def hwio(x: Array) -> Array:
    """torch's (out, in, height, width) -> (height, width, in, out)."""
    return x.transpose(2, 3, 1, 0)


def patch(x: Array) -> Array:
    return rows(hwio(x))


# One array that the row names in full.
LONE: Kind = (("", "", same),)
TABLE: Kind = (("", "/embedding", rows),)

# Flax: kernels are (in, out) and HWIO; attention keeps an axis for the heads.
F_NORM: Kind = (("/scale", "/gamma", vector), ("/bias", "/beta", vector))
F_DENSE: Kind = (("/kernel", "/kernel", same), ("/bias", "/bias", same))
F_PATCH: Kind = (("/kernel", "/kernel", rows), ("/bias", "/bias", same))
F_TO_HEADS: Kind = (("/kernel", "/kernel", columns), ("/bias", "/bias", vector))
F_FROM_HEADS: Kind = F_PATCH
F_CONV: Kind = (("/kernel", "/kernel", same),)
# The published BiT, a TensorFlow dump.
B_NORM: Kind = (("/gamma", "/gamma", same), ("/beta", "/beta", same))
# torch: kernels are (out, in) and OIHW.
T_NORM: Kind = ((".weight", "/gamma", same), (".bias", "/beta", same))
T_DENSE: Kind = ((".weight", "/kernel", transposed), (".bias", "/bias", same))
T_PATCH: Kind = ((".weight", "/kernel", patch), (".bias", "/bias", same))
T_CONV: Kind = ((".weight", "/kernel", hwio),)


def each(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)


def flax_vit(
    attention="MultiHeadDotProductAttention_0",
    norm="LayerNorm_1",
    mlp="MlpBlock_0",
    positions="pos_embedding",
    map_head="MAPHead_0/",
) -> list[Row]:
    """vit_jax and big_vision; the defaults are big_vision's names."""
    block, pool = "Transformer/encoderblock_{i}", f"{map_head}MultiHeadDotProductAttention_0"
    return [
        ("embedding", "patch_encoder/projection", F_PATCH),
        ("cls", "patch_encoder/class_token", LONE),
        (positions, "patch_encoder/position_embedding", TABLE),
        (f"{block}/LayerNorm_0", "encoder_block_{i}/attention_norm", F_NORM),
        (
            each(f"{block}/{attention}/", "query", "key", "value"),
            "encoder_block_{i}/attention/qkv",
            F_TO_HEADS,
        ),
        (f"{block}/{attention}/out", "encoder_block_{i}/attention/out", F_FROM_HEADS),
        (f"{block}/{norm}", "encoder_block_{i}/mlp_norm", F_NORM),
        (f"{block}/{mlp}/Dense_0", "encoder_block_{i}/mlp/fc1", F_DENSE),
        (f"{block}/{mlp}/Dense_1", "encoder_block_{i}/mlp/fc2", F_DENSE),
        ("Transformer/encoder_norm", "encoder_norm", F_NORM),
        (f"{map_head}probe", "pooling/probe", LONE),
        (f"{pool}/query", "pooling/query", F_TO_HEADS),
        (each(f"{pool}/", "key", "value"), "pooling/key_value", F_TO_HEADS),
        (f"{pool}/out", "pooling/out", F_FROM_HEADS),
        (f"{map_head}LayerNorm_0", "pooling/norm", F_NORM),
        (f"{map_head}MlpBlock_0/Dense_0", "pooling/mlp/fc1", F_DENSE),
        (f"{map_head}MlpBlock_0/Dense_1", "pooling/mlp/fc2", F_DENSE),
        ("pre_logits", "pre_logits", F_DENSE),
        ("head", "head", F_DENSE),
    ]


def flax_resnet(prefix: str) -> list[Row]:
    """The post-activation ResNet, as hybrid stem (`prefix` "stem_") or as classifier ("")."""
    theirs, ours = "block{b}/unit{u}", prefix + "block{b}_unit{u}"
    parts = ("1", "2", "3", "_proj")
    return [
        ("conv_root", f"{prefix}root/conv", F_CONV),
        ("gn_root", f"{prefix}root/norm", F_NORM),
        *((f"{theirs}/conv{part}", f"{ours}/conv{part}", F_CONV) for part in parts),
        *((f"{theirs}/gn{part}", f"{ours}/norm{part}", F_NORM) for part in parts),
    ]


def bit_paper() -> list[Row]:
    """The published pre-activation BiT; their convolutions a, b, c are ours 1, 2, 3."""
    theirs, ours = "resnet/block{b}/unit{u:02d}", "block{b}_unit{u}"
    table: list[Row] = [
        ("resnet/root_block/standardized_conv2d", "root/conv", F_CONV),
        (f"{theirs}/a/proj/standardized_conv2d", f"{ours}/conv_proj", F_CONV),
        ("resnet/group_norm", "final_norm", B_NORM),
        ("resnet/head/conv2d", "head", F_PATCH),
    ]
    for letter, number in zip("abc", "123", strict=True):
        table += [
            (f"{theirs}/{letter}/standardized_conv2d", f"{ours}/conv{number}", F_CONV),
            (f"{theirs}/{letter}/group_norm", f"{ours}/norm{number}", B_NORM),
        ]
    return table


def timm_vit(stem: str = "patch_embed.backbone.stem") -> list[Row]:
    """timm; `stem` names a hybrid's root block."""
    block, ours = "blocks.{i}", "encoder_block_{i}"
    unit = "patch_embed.backbone.stages.{b0}.blocks.{u0}"
    our_unit = "stem_block{b}_unit{u}"
    return [
        (f"{stem}.conv", "stem_root/conv", T_CONV),
        (f"{stem}.norm", "stem_root/norm", T_NORM),
        *((f"{unit}.conv{n}", f"{our_unit}/conv{n}", T_CONV) for n in (1, 2, 3)),
        *((f"{unit}.norm{n}", f"{our_unit}/norm{n}", T_NORM) for n in (1, 2, 3)),
        (f"{unit}.downsample.conv", f"{our_unit}/conv_proj", T_CONV),
        (f"{unit}.downsample.norm", f"{our_unit}/norm_proj", T_NORM),
        ("patch_embed.proj", "patch_encoder/projection", T_PATCH),
        ("cls_token", "patch_encoder/class_token", LONE),
        ("dist_token", "patch_encoder/distillation_token", LONE),
        ("reg_token", "patch_encoder/registers", LONE),
        ("pos_embed", "patch_encoder/position_embedding", TABLE),
        ("norm_pre", "pre_norm", T_NORM),
        (f"{block}.norm1", f"{ours}/attention_norm", T_NORM),
        (f"{block}.attn.qkv", f"{ours}/attention/qkv", T_DENSE),
        (f"{block}.attn.q_norm", f"{ours}/attention/query_norm", T_NORM),
        (f"{block}.attn.k_norm", f"{ours}/attention/key_norm", T_NORM),
        (f"{block}.attn.proj", f"{ours}/attention/out", T_DENSE),
        (f"{block}.ls1.gamma", f"{ours}/attention_scale/gamma", LONE),
        (f"{block}.norm2", f"{ours}/mlp_norm", T_NORM),
        (f"{block}.mlp.fc1", f"{ours}/mlp/fc1", T_DENSE),
        (f"{block}.mlp.fc2", f"{ours}/mlp/fc2", T_DENSE),
        (f"{block}.ls2.gamma", f"{ours}/mlp_scale/gamma", LONE),
        ("norm", "encoder_norm", T_NORM),
        ("attn_pool.latent", "pooling/probe", LONE),
        ("attn_pool.q", "pooling/query", T_DENSE),
        ("attn_pool.kv", "pooling/key_value", T_DENSE),
        ("attn_pool.proj", "pooling/out", T_DENSE),
        ("attn_pool.norm", "pooling/norm", T_NORM),
        ("attn_pool.mlp.fc1", "pooling/mlp/fc1", T_DENSE),
        ("attn_pool.mlp.fc2", "pooling/mlp/fc2", T_DENSE),
        ("fc_norm", "pooled_norm", T_NORM),
        ("head", "head", T_DENSE),
        ("head_dist", "head_dist", T_DENSE),
    ]


def torchvision_vit() -> list[Row]:
    block, ours = "encoder.layers.encoder_layer_{i}", "encoder_block_{i}"
    # The fused projection has no module of its own: `in_proj_weight`, not `in_proj.weight`.
    fused: Kind = (("_weight", "/kernel", transposed), ("_bias", "/bias", same))
    return [
        ("conv_proj", "patch_encoder/projection", T_PATCH),
        ("class_token", "patch_encoder/class_token", LONE),
        ("encoder.pos_embedding", "patch_encoder/position_embedding", TABLE),
        (f"{block}.ln_1", f"{ours}/attention_norm", T_NORM),
        (f"{block}.self_attention.in_proj", f"{ours}/attention/qkv", fused),
        (f"{block}.self_attention.out_proj", f"{ours}/attention/out", T_DENSE),
        (f"{block}.ln_2", f"{ours}/mlp_norm", T_NORM),
        (f"{block}.mlp.0", f"{ours}/mlp/fc1", T_DENSE),
        (f"{block}.mlp.3", f"{ours}/mlp/fc2", T_DENSE),
        ("encoder.ln", "encoder_norm", T_NORM),
        ("heads.pre_logits", "pre_logits", T_DENSE),
        ("heads.head", "head", T_DENSE),
    ]


def huggingface_vit(
    prefix="",
    norm1="norm1",
    norm2="norm2",
    fc1="mlp.fc1",
    fc2="mlp.fc2",
    head="classifier",
) -> list[Row]:
    """transformers; the defaults are `Dinov2Model`'s names in files."""
    block, ours = prefix + "encoder.layer.{i}", "encoder_block_{i}"
    parts = each(f"{block}.attention.attention.", "query", "key", "value")
    embeddings = f"{prefix}embeddings"
    return [
        (f"{embeddings}.patch_embeddings.projection", "patch_encoder/projection", T_PATCH),
        (f"{embeddings}.cls_token", "patch_encoder/class_token", LONE),
        (f"{embeddings}.distillation_token", "patch_encoder/distillation_token", LONE),
        (f"{embeddings}.register_tokens", "patch_encoder/registers", LONE),
        (f"{embeddings}.position_embeddings", "patch_encoder/position_embedding", TABLE),
        (f"{block}.{norm1}", f"{ours}/attention_norm", T_NORM),
        (parts, f"{ours}/attention/qkv", T_DENSE),
        (f"{block}.attention.output.dense", f"{ours}/attention/out", T_DENSE),
        (f"{block}.layer_scale1.lambda1", f"{ours}/attention_scale/gamma", LONE),
        (f"{block}.{norm2}", f"{ours}/mlp_norm", T_NORM),
        (f"{block}.{fc1}", f"{ours}/mlp/fc1", T_DENSE),
        (f"{block}.{fc2}", f"{ours}/mlp/fc2", T_DENSE),
        (f"{block}.layer_scale2.lambda1", f"{ours}/mlp_scale/gamma", LONE),
        (f"{prefix}layernorm", "encoder_norm", T_NORM),
        (head, "head", T_DENSE),
        ("distillation_classifier", "head_dist", T_DENSE),
    ]


HF_VIT_BLOCK = ("layernorm_before", "layernorm_after", "intermediate.dense", "output.dense")
PUBLISHED_FLAX = {
    "attention": "MultiHeadDotProductAttention_1",
    "norm": "LayerNorm_2",
    "mlp": "MlpBlock_3",
    "positions": "Transformer/posembed_input/pos_embedding",
}

DIALECTS: dict[str, list[Row]] = {
    "vit_jax": flax_vit(**PUBLISHED_FLAX) + flax_resnet("stem_"),
    "vit_jax_linen": flax_vit(positions=PUBLISHED_FLAX["positions"]),
    "big_vision": flax_vit(),
    "big_vision_inlined": flax_vit(positions="Transformer/pos_embedding", map_head=""),
    "bit": [*flax_resnet(""), ("head", "head", F_DENSE)],
    "bit_paper": bit_paper(),
    "timm": timm_vit(),
    "timm_stem_only": timm_vit("patch_embed.backbone"),
    "torchvision": torchvision_vit(),
    "hf_vit": huggingface_vit("vit.", *HF_VIT_BLOCK),
    "hf_deit": huggingface_vit("deit.", *HF_VIT_BLOCK),
    "hf_deit_teacher": huggingface_vit("deit.", *HF_VIT_BLOCK, head="cls_classifier"),
    "hf_dinov2": huggingface_vit(),
    "hf_dinov2_classifier": huggingface_vit("dinov2."),
    "hf_dinov2_registers_classifier": huggingface_vit("dinov2_with_registers."),
}


def read(path: Path, prefix: str = "") -> dict[str, Array]:
    """Reads an .npz or .safetensors file.

    Args:
        path: the file.
        prefix: taken off the names that have it.

    Returns:
        Arrays by name; blocks stacked along the first axis come apart.
    """
    if path.suffix == ".npz":
        with np.load(path) as stored:
            found = dict(stored)
    else:
        from safetensors.numpy import load_file

        found = load_file(path)
    found = {name.removeprefix(prefix): value for name, value in found.items()}
    stacked = "Transformer/encoderblock/"
    for name in [name for name in found if name.startswith(stacked)]:
        for index, part in enumerate(found.pop(name)):
            found[name.replace(stacked, f"Transformer/encoderblock_{index}/")] = part
    return found


def parameters(model) -> dict[str, object]:
    """The model's variables by path, without the states of random layers."""
    return {v.path: v for v in model.weights if "seed_generator" not in v.path}


def rename(
    source: Mapping[str, Array], paths: Iterable[str], dialect: str, unused: str = r"(?!)"
) -> dict[str, Array]:
    """Fits arrays to variable paths.

    Args:
        source: arrays by their names.
        paths: the variables that want a value.
        dialect: key of `DIALECTS`.
        unused: pattern of names, in full, that have no counterpart and may be left.

    Returns:
        Arrays by path, one for each path.

    Raises:
        KeyError: listing variables without a source, and arrays without a variable.
    """
    leaves = [
        (_pattern(ours + leaf), theirs, their_leaf, transform)
        for theirs, ours, kind in DIALECTS[dialect]
        for their_leaf, leaf, transform in kind
    ]
    values, used, missing = {}, set(), []
    for path in paths:
        hits = [
            (_names(theirs, their_leaf, match), transform)
            for pattern, theirs, their_leaf, transform in leaves
            if (match := pattern.fullmatch(path))
        ]
        if len(hits) != 1 or not set(hits[0][0]) <= source.keys() - used:
            missing.append(f"{path} <- {[names for names, _ in hits] or 'no row'}")
            continue
        names, transform = hits[0]
        used.update(names)
        values[path] = np.concatenate([transform(source[name]) for name in names], axis=-1)
    left = sorted(name for name in source.keys() - used if re.fullmatch(unused, name) is None)
    if missing or left:
        raise KeyError(f"variables without a source: {missing}; arrays left: {left}")
    return values


def assign(model, values: Mapping[str, Array]) -> None:
    """Gives each variable its value; shapes must be equal."""
    variables = parameters(model)
    wrong = {
        path: (tuple(variables[path].shape), value.shape)
        for path, value in values.items()
        if tuple(variables[path].shape) != value.shape
    }
    if wrong:
        raise ValueError(f"shapes differ, ours and theirs: {wrong}")
    for path, value in values.items():
        variables[path].assign(value)


def load(model, source: Mapping[str, Array], dialect: str, unused: str = r"(?!)") -> None:
    """Copies every array of `source` into the model; see `rename` and `assign`."""
    assign(model, rename(source, parameters(model), dialect, unused))


def _pattern(path: str) -> re.Pattern:
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(path)))


def _names(theirs: str | tuple[str, ...], leaf: str, match: re.Match) -> list[str]:
    index = {key: int(value) for key, value in match.groupdict().items()}
    index |= {f"{key}0": value - 1 for key, value in index.items()}
    modules = (theirs,) if isinstance(theirs, str) else theirs
    return [module.format(**index) + leaf for module in modules]
