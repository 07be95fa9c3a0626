"""Models of timm itself, there and back; see `live`."""

import numpy as np
import pytest
from live import (
    PLAIN,
    assert_close,
    assert_same_state,
    images_for,
    keeper,
    ours,
    randomize,
    randomize_ours,
    temporary,
    their_warnings,
    theirs,
    torch,
)

import keras_vit
from keras_vit.checkpoints import CheckpointError

pytestmark = pytest.mark.slow


@pytest.fixture
def folder():
    with temporary() as path:
        yield path


@pytest.fixture
def record(request, record_property):
    return keeper(request, record_property)


@pytest.fixture
def timm():
    return pytest.importorskip("timm")


def save_timm(timm, module, path):
    """What `push_to_hf_hub` pushes."""
    with their_warnings():
        timm.models.save_for_hf(module, path, safe_serialization=True)


def load_timm(timm, path):
    with their_warnings():
        return timm.create_model(f"local-dir:{path}", pretrained=True)


TIMM = {
    "vit_tiny_patch16_224": {},
    "vit_base_r50_s16_224": {},
    "vit_small_r26_s32_224": {"img_size": 96, "num_classes": 11, "depth": 3},
    "vit_tiny_r_s16_p8_224": {"img_size": 64, "num_classes": 11, "depth": 3},
    "deit_tiny_distilled_patch16_224": {},
    "deit3_small_patch16_224": {"depth": 3},
    "vit_small_patch14_reg4_dinov2": {"img_size": 224},
    "vit_giant_patch14_reg4_dinov2": {
        "img_size": 56, "num_classes": 11, "embed_dim": 96, "depth": 2, "num_heads": 4,
    },
    "vit_base_patch16_siglip_224": {},
    "vit_base_patch16_siglip_gap_224": {"depth": 2, "num_classes": 11},
    "vit_base_patch32_siglip_256": {"depth": 2, "num_classes": 11},
    "vit_base_patch16_clip_224": {},
    "vit_base_patch16_clip_quickgelu_224": {"num_classes": 512},
    "vit_medium_patch16_reg4_gap_256": {"depth": 3},
    "vit_base_patch16_gap_224": {"depth": 2},
}  # fmt: skip
# Arguments of `create_model` that change what arrays mean.
TIMM_ARGUMENTS = {
    "registers_with_positions": {"reg_tokens": 3},
    "registers_without_positions": {"reg_tokens": 3, "no_embed_class": True},
    "registers_without_class_token": {
        "reg_tokens": 3, "class_token": False, "global_pool": "avg",
    },
    "norm_after_token": {"fc_norm": True},
    "norm_before_mean": {"fc_norm": False, "global_pool": "avg"},
    "mean_of_all": {"global_pool": "avg", "pool_include_prefix": True},
    "map_of_all": {"global_pool": "map", "pool_include_prefix": True, "reg_tokens": 2},
    "tokens": {"global_pool": "", "num_classes": 0},
    "qk_norm_layer_scale": {"qk_norm": True, "init_values": 0.1, "qkv_bias": False},
    "gelu_tanh": {"act_layer": "gelu_tanh"},
    "wide_image": {"img_size": (32, 64)},
    "gray": {"in_chans": 1},
}  # fmt: skip
SMALL_TIMM = {
    "img_size": 48, "patch_size": 16, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 7,
}  # fmt: skip


def there_and_back_by_timm(timm, module, folder, record):
    randomize(module)
    save_timm(timm, module, folder / "theirs")
    model = keras_vit.from_checkpoint(folder / "theirs", include_rescaling=False)
    images = images_for(model.get_config())
    expected = theirs(module, images)
    assert_close(ours(model, images), expected, record, "theirs to ours")
    keras_vit.to_checkpoint(model, folder / "ours", format="timm")
    again = load_timm(timm, folder / "ours")
    assert_close(theirs(again, images), expected, record, "ours to theirs")
    return model, again


@pytest.mark.parametrize("name", TIMM)
def test_timm(name, timm, folder, record):
    module = timm.create_model(name, **TIMM[name])
    _, again = there_and_back_by_timm(timm, module, folder, record)
    assert_same_state(again.state_dict(), module.state_dict())


@pytest.mark.parametrize("name", TIMM_ARGUMENTS)
def test_timm_arguments(name, timm, folder, record):
    arguments = {**SMALL_TIMM, **TIMM_ARGUMENTS[name]}
    module = timm.create_model("vit_base_patch16_224", **arguments)
    there_and_back_by_timm(timm, module, folder, record)


def test_timm_attention_pooling_of_patches_alone(timm, folder):
    module = timm.create_model("vit_base_patch16_224", **SMALL_TIMM, global_pool="map")
    save_timm(timm, module, folder / "theirs")
    with pytest.raises(CheckpointError, match="timm's the patches alone"):
        keras_vit.from_checkpoint(folder / "theirs")


BORN_FOR_TIMM = {
    "registers": {"num_registers": 3},
    "registers_gap": {"num_registers": 3, "pooling": "gap"},
    "swiglu": {"activation": "swiglu", "num_registers": 2, "layer_scale_init": 0.1},
    "swiglu_odd": {"activation": "swiglu", "hidden_dim": 66, "mlp_dim": 57},
    "quick_gelu": {"activation": "quick_gelu"},
    "google": {"activation": "gelu_tanh"},
    "clip": {"pre_norm": True, "head_bias": False, "norm_epsilon": 1e-5},
    "map": {"pooling": "map"},
    "map_token": {"pooling": "map", "class_token": True},
    "mean": {"pooling": "mean", "class_token": True},
    "gap_norm_after": {"pooling": "gap", "norm_after_pooling": True},
    "gap": {"pooling": "gap"},
    "token_norm_after": {"norm_after_pooling": True},
    "sincos": {"position_embedding": "sincos2d"},
    "two_heads": {"distillation": "head"},
    "features": {"num_classes": None},
    "tokens": {"num_classes": None, "pooling": None, "class_token": True},
    "qk_norm": {"qk_norm": True, "qkv_bias": False},
    "odd_mlp": {"hidden_dim": 98, "mlp_dim": 97},
    "oblong": {"image_shape": (32, 48, 1), "patch_size": (16, 8)},
}  # fmt: skip


def to_timm(timm, model, folder, record):
    randomize_ours(model)
    images = images_for(model.get_config())
    keras_vit.to_checkpoint(model, folder / "ours", format="timm")
    module = load_timm(timm, folder / "ours")
    assert_close(theirs(module, images), ours(model, images), record, "ours to theirs")
    return module


@pytest.mark.parametrize("name", BORN_FOR_TIMM)
def test_born_here_to_timm(name, timm, folder, record):
    arguments = {**PLAIN, **BORN_FOR_TIMM[name]}
    model = keras_vit.VisionTransformer(**arguments, include_rescaling=False)
    to_timm(timm, model, folder, record)


def test_variants_to_timm(timm, folder, record):
    to_timm(timm, keras_vit.ViTTi16(num_classes=7, include_rescaling=False), folder, record)


@pytest.mark.parametrize("variant", ("R26ViTS32", "RViTTi16"))
def test_hybrids_to_timm(variant, timm, folder, record):
    """GroupNorm's epsilon is in timm's code alone; how weights are standardised, too."""
    config = getattr(keras_vit, variant)(num_classes=7, image_shape=(96, 96, 3)).get_config()
    config["stem"] |= {"std_conv_mode": "variance", "std_conv_epsilon": 1e-8}
    model = keras_vit.VisionTransformer.from_config({**config, "include_rescaling": False})
    randomize_ours(model)
    with pytest.warns(UserWarning, match="timm's own code runs this file with stem="):
        keras_vit.to_checkpoint(model, folder / "ours", format="timm")
    module, images = load_timm(timm, folder / "ours"), images_for(model.get_config())
    for part in module.modules():
        if isinstance(part, torch.nn.GroupNorm):
            part.eps = config["stem"]["group_norm_epsilon"]
    assert_close(theirs(module, images), ours(model, images), record, "ours to theirs")


def test_what_timm_runs_otherwise(timm, folder, record):
    """Epsilons are in timm's code alone: a warning, and no difference once they are set."""
    model = keras_vit.VisionTransformer(**PLAIN, norm_epsilon=1e-2, include_rescaling=False)
    randomize_ours(model)
    with pytest.warns(UserWarning, match="timm's own code runs this file with norm_epsilon=1e-06"):
        keras_vit.to_checkpoint(model, folder / "ours", format="timm")
    module, images = load_timm(timm, folder / "ours"), images_for(model.get_config())
    for part in module.modules():
        if isinstance(part, torch.nn.LayerNorm):
            part.eps = 1e-2
    assert_close(theirs(module, images), ours(model, images), record, "ours to theirs")


def test_stem_that_timm_has_not(timm, folder):
    model = keras_vit.VisionTransformer(
        **{**PLAIN, "patch_size": 1, "stem": {"block_counts": (1, 1), "width": 32}}
    )
    with pytest.warns(UserWarning) as caught:
        keras_vit.to_checkpoint(model, folder / "ours", format="timm")
    assert any("no architecture with this ResNet stem" in str(w.message) for w in caught)
    assert [path.name for path in (folder / "ours").iterdir()] == ["model.safetensors"]


def test_norms_behind_attention(timm, folder):
    """The names are those of a plain model."""
    save_timm(timm, timm.create_model("vit_base_patch16_rpn_224", depth=1), folder / "theirs")
    with pytest.raises(CheckpointError, match="rpn_224 normalises behind attention"):
        keras_vit.from_checkpoint(folder / "theirs")


def test_pixels_that_no_patch_reads(timm, folder, record):
    arguments = {**SMALL_TIMM, "img_size": 55}
    module = randomize(timm.create_model("vit_base_patch16_224", **arguments))
    save_timm(timm, module, folder / "theirs")
    model = keras_vit.from_checkpoint(folder / "theirs", include_rescaling=False)
    assert model.get_config()["image_shape"] == (48, 48, 3)
    images = np.random.default_rng(5).normal(size=(2, 55, 55, 3)).astype("float32")
    assert_close(ours(model, images[:, :48, :48]), theirs(module, images), record, "cut")
