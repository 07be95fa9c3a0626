"""The table of variants and the names they go by."""

import pytest

import keras_vit
from keras_vit import variants

SPELLINGS = {
    "ViT-Ti/16": ["ViT-Ti/16", "Ti/16", "ti16", "vit_ti_16", "ViTTi16", "TI/16"],
    "ViT-B/16": ["ViT-B/16", "B/16", "b16", "B_16", "vit_b16", "vit-b-16", "ViTB16", "VIT-B/16"],
    "ViT-L/14": ["ViT-L/14", "L/14", "vitl14"],
    "ViT-g/14": ["ViT-g/14", "g/14", "vit_g_14", "ViTg14", "VIT-g/14"],
    "ViT-G/14": ["ViT-G/14", "G/14", "vit_G_14", "ViTG14", "VIT-G/14"],
    "R+ViT-Ti/16": ["R+ViT-Ti/16", "R+Ti/16", "R_Ti_16", "RViTTi16"],
    "R26+ViT-S/32": ["R26+ViT-S/32", "R26+S/32", "r26_s_32"],
    "R50+ViT-B/16": ["R50+ViT-B/16", "R50+B/16", "R50x1+ViT-B/16", "R50ViTB16", "r50_b_16"],
    "BiT R50x1": ["BiT R50x1", "R50x1", "BiT-R50x1", "BiTR50x1", "bit_r50x1"],
    "BiT R200x3": ["BiT R200x3", "r200x3", "BiTR200x3"],
}


@pytest.mark.parametrize(
    ("spelling", "name"), [(text, name) for name, texts in SPELLINGS.items() for text in texts]
)
def test_spellings(spelling, name):
    assert variants.parse(spelling).name == name


@pytest.mark.parametrize("name", variants.list_variants())
def test_names_and_function_names_parse(name):
    variant = variants.parse(name)
    assert variant.name == name
    assert variants.parse(variant.function) is variant
    assert variants.parse(name.replace("ViT-", "").removeprefix("BiT ")) is variant


def test_no_spelling_means_two_variants():
    aliases = [
        alias for name in variants.VARIANTS for alias in variants._aliases(variants.parse(name))
    ]
    assert len(aliases) == len(set(aliases))


@pytest.mark.parametrize(
    "name",
    [
        *("B/17", "ViT-X/16", "R50+ViT-B/8", "R50x3+ViT-B/16", "BiT R50x5", "", "ViT", "16"),
        *(None, 16, ["B/16"]),
    ],
)
def test_unknown_names_list_the_known_ones(name):
    with pytest.raises(ValueError, match="ViT-B/16.*Received: ") as error:
        variants.parse(name)
    assert repr(name) in str(error.value)


def test_list_variants():
    names = variants.list_variants()
    assert names[0] == "ViT-Ti/16"
    assert names[-1] == "BiT R200x3"
    assert len(names) == len(set(names)) == 28
    names.clear()
    assert len(variants.list_variants()) == 28


def test_config_of_a_plain_variant():
    assert variants.parse("L/14").config() == {
        "patch_size": 14,
        "hidden_dim": 1024,
        "num_layers": 24,
        "num_heads": 16,
        "mlp_dim": 4096,
    }


@pytest.mark.parametrize(
    ("name", "patch_size", "block_counts"),
    [
        ("R+Ti/16", 8, ()),
        ("R26+B/32", 1, (2, 2, 2, 2)),
        ("R50+L/32", 1, (3, 4, 6, 3)),
        ("R50+L/16", 1, (3, 4, 9)),
    ],
)
def test_config_of_a_hybrid(name, patch_size, block_counts):
    config = variants.parse(name).config()
    assert config["patch_size"] == patch_size
    assert config["stem"] == {"block_counts": block_counts, "width": 64}


def test_config_of_a_bit_resnet():
    assert variants.parse("BiT R152x4").config() == {
        "block_counts": (3, 8, 36, 3),
        "width_factor": 4,
    }


def test_configs_are_not_shared():
    variants.parse("R50+B/16").config()["stem"]["width"] = 1
    assert variants.parse("R50+B/16").config()["stem"]["width"] == 64


def test_width_is_divisible_by_heads():
    for hidden_dim, _, _, num_heads in variants.SIZES.values():
        assert hidden_dim % num_heads == 0


@pytest.mark.parametrize("variant", variants.VARIANTS.values(), ids=lambda variant: variant.name)
def test_each_variant_has_its_function(variant):
    assert callable(getattr(keras_vit, variant.function))
    assert variant.function in keras_vit.__all__


def test_list_variants_is_public():
    assert keras_vit.list_variants() == variants.list_variants()
