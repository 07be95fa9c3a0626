"""The loss of each part: named rightly, and adding up to what quantising it does."""

import json

import keras
import numpy as np
import pytest

import keras_vit

if keras.backend.backend() != "tensorflow":
    pytest.skip("it does not depend on the backend", allow_module_level=True)
pytest.importorskip("ai_edge_quantizer")

from keras_vit.export.sensitivity import part_of, sensitivity  # noqa: E402

pytestmark = pytest.mark.export

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 16, 24, 3)).astype("uint8")


@pytest.fixture(scope="module")
def found():
    model = keras_vit.VisionTransformer(
        image_shape=(16, 24, 3), patch_size=8, hidden_dim=12, num_layers=2, num_heads=3,
        mlp_dim=20, num_classes=5,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    for weight in model.trainable_variables:
        if weight.path.startswith("head/"):
            weight.assign(rng.normal(size=weight.shape))
        # One coarse weight that nothing but the second MLP has: its rounding is felt there.
        if weight.path == "encoder_block_1/mlp/fc2/kernel":
            values = rng.normal(size=weight.shape)
            values[0] = 300
            weight.assign(values)
    return sensitivity(model, IMAGES, quantize="dynamic")


def test_parts_are_the_models(found):
    assert [each.part for each in found.parts] == [
        "stem",
        *(f"block {index} {kind}" for index in (0, 1) for kind in ("attention", "mlp")),
        "head",
        "everything",
    ]
    assert found.images == 6 and found.quantize == "dynamic"


def test_the_part_that_loses_most_is_found(found):
    losses = {each.part: each.mean_difference for each in found.parts}
    everything = losses.pop("everything")
    assert max(losses, key=losses.get) == "block 1 mlp"
    assert everything > 0.5 * losses["block 1 mlp"] > 0
    assert all(0 < each.mean_difference <= each.max_difference for each in found.parts)


def test_text_and_dict(found):
    lines = str(found).splitlines()
    assert "6 images" in lines[0] and len(lines) == 2 + len(found.parts)
    assert json.loads(json.dumps(found.to_dict()))["parts"][1]["part"] == "block 0 attention"


@pytest.mark.parametrize(
    ("scope", "part"),
    [
        ("m/encoder_block_11_1/attention_norm_1/Rsqrt;", "block 11 attention"),
        ("m/encoder_block_0/add;", "block 0 attention"),
        ("m/encoder_block_0_1/add_1;", "block 0 mlp"),
        ("m/encoder_block_1/Reshape;m/encoder_block_0/Reshape_3;", "block 1 attention"),
        ("m/encoder_block_1_1/Reshape_2;", "block 1 attention"),
        ("m/encoder_block_1_1/Reshape_3;", "block 1 mlp"),
        ("m/stem_root_1/conv/convolution;", "stem"),
        ("m/stem_block2_unit10_1/Relu;", "stem_block2_unit10"),
        ("m/block3_unit1_1/add;", "block3_unit1"),
        ("m/encoder_norm_1/mul;", "head"),
        ("StatefulPartitionedCall:0;", "head"),
    ],
)
def test_names_of_parts(scope, part):
    assert part_of(scope) == part


def test_wrong_arguments():
    model = keras.Sequential(
        [keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    with pytest.raises(ValueError, match="`quantize` must be one of"):
        sensitivity(model, IMAGES, quantize=None)
    with pytest.raises(ValueError, match="`images` holds no image"):
        sensitivity(model, np.zeros((0, 4, 4, 3)))
