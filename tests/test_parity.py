"""Outputs of other projects' models, reproduced with their weights."""

import functools
import re

import harness
import keras
import numpy as np
import pytest
from parity_cases import CASES, RESIZED, WITH_OUTPUTS, Case, case, needs_fixtures

pytestmark = needs_fixtures

# What `io.npz` holds beside outputs at the model's own size: inputs, the float64 run, other image
# sizes, and the embedding of a CLIP projection that belongs to another checkpoint.
NOT_OUTPUTS = r"images_uint8.*|inputs.*|.*_f64|.*_\d+x\d+|embedding_openai_clip"
# Their names of outputs where they are not ours.
ALIASES = {
    "head_input": "pooled",
    "last_hidden_state": "tokens",
    "pooler_output": "pre_logits",
    "image_embeds": "logits",
    "resnet_features": "features",
    "cls_logits": "logits_class_head",
    "distillation_logits": "logits_distillation_head",
}


def probe(model) -> keras.Model:
    """The model with every output that a reference has, as a dict by `io.npz`'s names."""
    layers = {layer.name: layer for layer in model.layers}
    outputs = {"pre_logits": model.output}
    if "head" in layers:
        outputs = {"logits": model.output, "pre_logits": layers["head"].input}
    if "head_dist" in layers:
        heads = [layers["head"], layers["head_dist"]]
        outputs["pre_logits"] = keras.layers.average([head.input for head in heads])
        outputs["logits_class_head"], outputs["logits_distillation_head"] = (
            head.output for head in heads
        )
    if "patch_encoder" in layers:
        encoder, blocks = layers["patch_encoder"], model.encoder_blocks
        embedded = layers.get("pre_norm", encoder)
        outputs |= {
            "patch_embedding": encoder.projection(encoder.input),
            "hidden_states_last": blocks[-1].output,
            "hidden_states_image0": keras.ops.stack(
                [state[0] for state in (embedded.output, *(block.output for block in blocks))]
            ),
            "tokens": layers.get("encoder_norm", blocks[-1]).output,
            "pooled": layers["pooling"].output,
        }
    if root := layers.get("root", layers.get("stem_root")):
        outputs["stem"] = outputs["features"] = root.output
        if root.norm is not None:
            outputs["resnet_gn_root"] = root.norm(root.conv(root.input))
        for name, layer in layers.items():
            if block := re.match(r"(?:stem_)?(block\d+)_unit", name):
                outputs[f"resnet_{block[1]}"] = outputs["features"] = layer.output
        if "final_activation" in layers:
            outputs["features"] = layers["final_activation"].output
    return keras.Model(model.input, outputs)


@functools.cache
def outputs_of(reference: Case) -> dict[str, np.ndarray]:
    outputs = probe(reference.build()).predict_on_batch(reference.io["inputs"])
    return {name: keras.ops.convert_to_numpy(value) for name, value in outputs.items()}


def cut(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """What of our output the reference stores: large maps only of the first images and channels.

    The patch embedding comes as a grid or as a sequence.
    """
    if ours.ndim != theirs.ndim:
        return ours.reshape(theirs.shape)
    return ours[: len(theirs), ..., : theirs.shape[-1]]


def difference(reference: Case, name: str, ours: np.ndarray) -> float:
    """The largest difference to the reference, as a part of the tolerance."""
    theirs = reference.io[name]
    assert ours.shape == theirs.shape
    assert np.isfinite(ours).all()
    return float(np.abs(ours - theirs).max()) / reference.tolerance(name, theirs)


@pytest.mark.parametrize("reference", WITH_OUTPUTS, ids=str)
def test_outputs(reference):
    outputs = outputs_of(reference)
    names = [name for name in reference.io if not re.fullmatch(NOT_OUTPUTS, name)]
    parts = {
        name: difference(reference, name, cut(outputs[ALIASES.get(name, name)], reference.io[name]))
        for name in names
    }
    assert parts
    assert {name: part for name, part in parts.items() if part > 1} == {}


@pytest.mark.parametrize("reference", WITH_OUTPUTS, ids=str)
def test_pixels(reference):
    """The plain call: the model maps pixels to the range that the file or its project says."""
    model = reference.build(include_rescaling=True)
    found = probe(model).predict_on_batch(reference.io["images_uint8"])
    names = [name for name in reference.io if not re.fullmatch(NOT_OUTPUTS, name)]
    for name in names:
        ours = keras.ops.convert_to_numpy(found[ALIASES.get(name, name)])
        assert difference(reference, name, cut(ours, reference.io[name])) <= 1, name


# Softmax is blind to what is added to all keys alike: these weights are compared themselves, by
# names that are written out here. (our variable, part of its last axis, their array)
BLIND = {
    "google/vit_token": [
        (
            "encoder_block_{i}/attention/qkv/bias",
            (1, 3),
            "Transformer/encoderblock_{i}/MultiHeadDotProductAttention_1/key/bias",
        )
    ],
    "google/bv_gap_scan/checkpoint_unrolled_opt": [
        (
            "encoder_block_{i}/attention/qkv/bias",
            (1, 3),
            "opt/target/Transformer/encoderblock_{i}/MultiHeadDotProductAttention_0/key/bias",
        )
    ],
    "google/bv_map": [
        (
            "pooling/key_value/bias",
            (0, 2),
            "params/MAPHead_0/MultiHeadDotProductAttention_0/key/bias",
        )
    ],
    "timm/qk_norm": [
        ("encoder_block_{i}/attention/key_norm/beta", (0, 1), "blocks.{i}.attn.k_norm.bias"),
        ("encoder_block_{i}/attention/qkv/bias", (0, 1), "blocks.{i}.attn.qkv.bias"),
    ],
    "timm/siglip_map": [("pooling/key_value/bias", (0, 1), "attn_pool.kv.bias")],
    "torchvision/vit": [
        (
            "encoder_block_{i}/attention/qkv/bias",
            (0, 1),
            "encoder.layers.encoder_layer_{i}.self_attention.in_proj_bias",
        )
    ],
    "hf/vit_classification": [
        (
            "encoder_block_{i}/attention/qkv/bias",
            (1, 3),
            "vit.encoder.layer.{i}.attention.attention.key.bias",
        )
    ],
    "hf/clip_vision": [
        (
            "encoder_block_{i}/attention/qkv/bias",
            (1, 3),
            "vision_model.encoder.layers.{i}.self_attn.k_proj.bias",
        )
    ],
    "timm/clip_quickgelu/openai_clip": [
        (
            "encoder_block_{i}/attention/qkv/bias",
            (0, 1),
            "visual.transformer.resblocks.{i}.attn.in_proj_bias",
        )
    ],
    "hf/deit_teacher": [
        (
            "encoder_block_{i}/attention/qkv/bias",
            (1, 3),
            "deit.encoder.layer.{i}.attention.attention.key.bias",
        )
    ],
}


@pytest.mark.parametrize("label", BLIND)
def test_weights_that_logits_do_not_show(label):
    reference = case(label)
    variables, source = harness.parameters(model := reference.build()), reference.source
    for ours, (part, parts), theirs in BLIND[label]:
        for index in range(len(model.encoder_blocks)):
            value = keras.ops.convert_to_numpy(variables[ours.format(i=index)])
            expected = source[theirs.format(i=index)].reshape(-1)
            assert np.any(expected != 0)
            np.testing.assert_array_equal(np.split(value, parts)[part], expected)


@pytest.mark.parametrize(
    "label", ["google/hybrid_tiny_odd", "google/bit_v2_paper", "timm/hybrid_stem_only"]
)
def test_epsilon_of_group_norm(label):
    """1e-5 in the place of 1e-6 moves logits by less than the tolerance."""
    reference = case(label)
    config = reference.description["config"]
    expected = _stem(config)["epsilon"]
    norms = [
        layer
        for layer in reference.build()._flatten_layers()
        if isinstance(layer, keras.layers.GroupNormalization)
    ]
    assert norms
    assert {layer.epsilon for layer in norms} == {expected}


def _stem(config):
    return config["hybrid"]["group_norm"] if config.get("hybrid") else config["group_norm"]


@pytest.mark.parametrize("reference", RESIZED, ids=str)
def test_outputs_at_another_size(reference):
    """Positions are resampled as the project itself does it."""
    assert reference.sizes
    for height, width in reference.sizes:
        label = f"{height}x{width}"
        with pytest.warns(UserWarning, match="positions were resampled"):
            model = reference.build(image_shape=(height, width, 3))
        found = probe(model).predict_on_batch(reference.io[f"inputs_{label}"])
        names = [
            name
            for name in reference.io
            if name.endswith(f"_{label}") and not re.match("images|inputs|pos", name)
        ]
        assert names
        for name in names:
            ours = found[ALIASES.get(stem := name.removesuffix(f"_{label}"), stem)]
            part = difference(reference, name, keras.ops.convert_to_numpy(ours))
            assert part <= 1, (name, part)


def test_bfloat16():
    """Weights that were rounded on purpose: outputs are near, and every weight is a bfloat16."""
    exact, rounded = case("google/bv_gap_scan"), case("google/bv_gap_scan/checkpoint_bf16")
    model = rounded.build()
    logits = keras.ops.convert_to_numpy(model.predict_on_batch(exact.io["inputs"]))
    assert 1e-4 < np.abs(logits - exact.io["logits"]).max() < 3e-2
    for variable in harness.parameters(model).values():
        bits = keras.ops.convert_to_numpy(variable).view("uint32")
        assert not np.any(bits & 0xFFFF)


def test_openai_clip():
    """The same tower as timm's, with the projection for a head."""
    reference = case("timm/clip_quickgelu/openai_clip")
    model = reference.build()
    logits = keras.ops.convert_to_numpy(model.predict_on_batch(reference.io["inputs"]))
    assert difference(reference, "embedding_openai_clip", logits) <= 1


@pytest.mark.parametrize("reference", CASES, ids=str)
def test_nothing_is_left_random(reference):
    with_nan = [
        path
        for path, variable in harness.parameters(reference.build()).items()
        if not np.isfinite(keras.ops.convert_to_numpy(variable)).all()
    ]
    assert with_nan == []
