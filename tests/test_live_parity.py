"""Models of timm, transformers and torchvision themselves, with random weights, there and back.

Each library saves as it does, and loads what we wrote by its own functions. Outputs are of size
one (their standard deviation is checked), and may differ by `TOLERANCE` of the largest.
"""

import contextlib
import json
import tempfile
import warnings
from pathlib import Path

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import CheckpointError

torch = pytest.importorskip("torch")
TOLERANCE = 1e-4

pytestmark = pytest.mark.slow


@pytest.fixture
def folder():
    """Full-size models are not kept for three more runs."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def timm():
    return pytest.importorskip("timm")


@pytest.fixture
def transformers():
    found = pytest.importorskip("transformers")
    found.utils.logging.set_verbosity_error()
    found.utils.logging.disable_progress_bar()
    return found


@contextlib.contextmanager
def their_warnings():
    """What a library warns of inside itself is its own business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def randomize(module):
    """No parameter keeps a zero or a one, and tokens stay of size one."""
    generator = torch.Generator().manual_seed(1)

    def normal(like, scale):
        return scale * torch.randn(like.shape, generator=generator)

    def uniform(like, low, high):
        return low + (high - low) * torch.rand(like.shape, generator=generator)

    with torch.no_grad():
        for name, parameter in module.named_parameters():
            words = name.lower()
            if any(word in words for word in ("token", "class_emb", "pos", "latent", "probe")):
                parameter.copy_(normal(parameter, 0.7))
            elif "gamma" in words or "lambda" in words:
                parameter.copy_(uniform(parameter, 0.2, 0.9))
            elif parameter.ndim > 1:
                parameter.copy_(normal(parameter, parameter[0].numel() ** -0.5))
            elif "norm" in words or ".ln" in words:
                weight = words.endswith("weight")
                parameter.copy_(uniform(parameter, 0.6, 1.4) if weight else normal(parameter, 0.2))
            else:
                parameter.copy_(normal(parameter, 0.2))
    return module.eval()


def randomize_ours(model):
    """The same for a model of ours."""
    generator = np.random.default_rng(2)
    for variable in model.weights:
        if "seed_generator" in variable.path:
            continue
        shape, leaf = variable.shape, variable.path.rsplit("/", 1)[-1]
        value = generator.normal(size=shape)
        if leaf == "gamma":
            value = generator.uniform(0.5, 1.4, shape)
        elif leaf == "kernel":
            value *= np.prod(shape[:-1]) ** -0.5
        else:
            value *= 0.2 if leaf in ("bias", "beta") else 0.7
        variable.assign(value.astype("float32"))
    return model


def images_for(config, count=2):
    shape = (count, *config["image_shape"])
    return np.random.default_rng(3).normal(size=shape).astype("float32")


def ours(model, images):
    return harness.numpy(model.predict_on_batch(images))


def theirs(module, images, output=None):
    with torch.no_grad(), their_warnings():
        result = module.eval()(torch.from_numpy(np.moveaxis(images, -1, 1).copy()))
    return (result if output is None else getattr(result, output)).numpy()


def assert_close(actual, expected, record, name):
    assert actual.shape == expected.shape
    assert 0.2 < expected.std() < 5
    difference = float(np.abs(actual - expected).max() / np.abs(expected).max())
    record(name, difference)
    assert difference <= TOLERANCE


def assert_same_state(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


@pytest.fixture
def record(request, record_property):
    """Keeps the largest difference; `-rA` shows it."""

    def keep(name, difference):
        record_property(name, difference)
        print(f"{request.node.name}: {name} {difference:.1e}")

    return keep


# timm.


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


PLAIN = {
    "image_shape": (48, 48, 3), "patch_size": 16, "hidden_dim": 64, "num_layers": 2, "num_heads": 2,
    "mlp_dim": 128, "num_classes": 7, "activation": "gelu",
}  # fmt: skip
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


# transformers.

SMALL_BERT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 48,
    "patch_size": 16, "num_labels": 7,
}  # fmt: skip
HALF = {"intermediate_size": 96}
# (class, changes of its config, which output)
TRANSFORMERS = {
    "vit": ("ViTForImageClassification", {"num_labels": 1000}, "logits"),
    "vit_tanh": ("ViTForImageClassification", {**SMALL_BERT, "hidden_act": "gelu_new"}, "logits"),
    "vit_model": ("ViTModel", {**SMALL_BERT, **HALF, "qkv_bias": False}, "pooler_output"),
    "vit_oblong": ("ViTForImageClassification", {**SMALL_BERT, "image_size": [32, 48]}, "logits"),
    "deit": (
        "DeiTForImageClassificationWithTeacher",
        {
            "hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768,
            "num_labels": 1000,
        },
        "logits",
    ),
    "deit_plain": ("DeiTForImageClassification", {**SMALL_BERT, **HALF}, "logits"),
    "dinov2_model": ("Dinov2Model", {"image_size": 224}, "pooler_output"),
    "dinov2": ("Dinov2ForImageClassification", {**SMALL_BERT, "mlp_ratio": 3}, "logits"),
    "dinov2_swiglu": (
        "Dinov2ForImageClassification", {**SMALL_BERT, "use_swiglu_ffn": True}, "logits",
    ),
    "dinov2_registers": (
        "Dinov2WithRegistersForImageClassification",
        {"patch_size": 14, "image_size": 224, "num_labels": 1000},
        "logits",
    ),
    "dinov2_registers_model": ("Dinov2WithRegistersModel", SMALL_BERT, "pooler_output"),
    "siglip": ("SiglipVisionModel", {}, "pooler_output"),
    "siglip_rest": (
        "SiglipVisionModel", {**SMALL_BERT, **HALF, "image_size": 47}, "pooler_output",
    ),
    "clip": ("CLIPVisionModelWithProjection", {}, "image_embeds"),
    "clip_gelu": (
        "CLIPVisionModel", {**SMALL_BERT, **HALF, "hidden_act": "gelu"}, "pooler_output",
    ),
}  # fmt: skip


def load_transformers(build, path, **arguments):
    """A model of theirs from our directory: every name found, and none left over."""
    with their_warnings():
        module, info = build.from_pretrained(path, output_loading_info=True, **arguments)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    return module.eval()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name, transformers, folder, record):
    class_name, changes, output = TRANSFORMERS[name]
    build = getattr(transformers, class_name)
    module = randomize(build(build.config_class(**changes)))
    with their_warnings():
        module.save_pretrained(folder / "theirs")
    model = keras_vit.from_checkpoint(folder / "theirs", include_rescaling=False)
    images = images_for(model.get_config())
    expected = theirs(module, images, output)
    assert_close(ours(model, images), expected, record, "theirs to ours")
    keras_vit.to_checkpoint(model, folder / "ours", format="huggingface")
    document = json.loads((folder / "ours" / "config.json").read_text("utf-8"))
    assert document["architectures"] == [class_name]
    again = load_transformers(build, folder / "ours")
    assert_close(theirs(again, images, output), expected, record, "ours to theirs")
    # A mask token serves pre-training alone, and the projection is asked for by its class.
    assert_same_state(again.state_dict(), module.state_dict())


BORN_FOR_TRANSFORMERS = {
    "vit": ({}, "ViTForImageClassification"),
    "google": ({"activation": "gelu_tanh", "norm_epsilon": 1e-6}, "ViTForImageClassification"),
    "oblong": ({"image_shape": (32, 48, 3)}, "ViTForImageClassification"),
    "sincos": ({"position_embedding": "sincos2d"}, "ViTForImageClassification"),
    "two_heads": ({"distillation": "head"}, "DeiTForImageClassificationWithTeacher"),
    "distilled": ({"distillation": "token"}, "DeiTForImageClassification"),
    "layer_scale": ({"layer_scale_init": 0.1}, "Dinov2ForImageClassification"),
    "registers": ({"num_registers": 3}, "Dinov2WithRegistersForImageClassification"),
    "swiglu": (
        {"activation": "swiglu", "mlp_dim": 176, "num_registers": 2, "class_token_position": False},
        "Dinov2WithRegistersForImageClassification",
    ),
    "clip": (
        {"pre_norm": True, "head_bias": False, "activation": "quick_gelu", "norm_epsilon": 1e-5},
        "CLIPVisionModelWithProjection",
    ),
}
BORN_FEATURES = {
    "vit": ({}, "ViTModel"),
    "pooler": ({"representation_size": 64}, "ViTModel"),
    "dinov2": ({"layer_scale_init": 0.1}, "Dinov2Model"),
    "map": ({"pooling": "map"}, "SiglipVisionModel"),
    "clip": ({"pre_norm": True, "norm_after_pooling": True}, "CLIPVisionModel"),
}


@pytest.mark.parametrize("name", BORN_FOR_TRANSFORMERS)
def test_born_here_to_transformers(name, transformers, folder, record):
    arguments, class_name = BORN_FOR_TRANSFORMERS[name]
    model = keras_vit.VisionTransformer(**{**PLAIN, **arguments}, include_rescaling=False)
    images = images_for(randomize_ours(model).get_config())
    keras_vit.to_checkpoint(model, folder / "ours", format="huggingface")
    clip = name == "clip"
    build = getattr(transformers, class_name if clip else "AutoModelForImageClassification")
    module = load_transformers(build, folder / "ours")
    assert type(module).__name__ == class_name
    output = theirs(module, images, "image_embeds" if clip else "logits")
    assert_close(output, ours(model, images), record, "ours to theirs")


@pytest.mark.parametrize("name", BORN_FEATURES)
def test_born_here_to_transformers_features(name, transformers, folder, record):
    arguments, class_name = BORN_FEATURES[name]
    arguments = {**PLAIN, "num_classes": None, **arguments}
    model = keras_vit.VisionTransformer(**arguments, include_rescaling=False)
    images = images_for(randomize_ours(model).get_config())
    keras_vit.to_checkpoint(model, folder / "ours", format="huggingface")
    # A ViTModel has a pooler unless told otherwise.
    options = {"add_pooling_layer": False} if name == "vit" else {}
    module = load_transformers(transformers.AutoModel, folder / "ours", **options)
    assert type(module).__name__ == class_name
    output = theirs(module, images, "last_hidden_state" if name == "vit" else "pooler_output")
    output = output[:, 0] if name == "vit" else output
    assert_close(output, ours(model, images), record, "ours to theirs")


def test_variants_to_transformers(transformers, folder, record):
    model = randomize_ours(keras_vit.ViTTi16(num_classes=7, include_rescaling=False))
    images = images_for(model.get_config())
    names = [f"kind {index}" for index in range(7)]
    keras_vit.to_checkpoint(model, folder / "ours", format="huggingface", class_names=names)
    module = load_transformers(transformers.AutoModelForImageClassification, folder / "ours")
    assert module.config.id2label == dict(enumerate(names))
    assert_close(theirs(module, images, "logits"), ours(model, images), record, "ours to theirs")


@pytest.mark.parametrize(
    "changes",
    (
        {},
        {"pixel_range": "imagenet", "layer_scale_init": 0.5},
        {"pixel_range": "clip", "pre_norm": True, "head_bias": False},
        {"pooling": "map", "num_classes": None},
    ),
    ids=("vit", "dinov2", "clip", "siglip"),
)
def test_preprocessing_of_transformers(changes, transformers, folder, record):
    """Their processor and model on a picture, our model on its pixels."""
    image = pytest.importorskip("PIL.Image")
    model = randomize_ours(
        keras_vit.VisionTransformer(**{**PLAIN, "image_shape": (64, 64, 3), **changes})
    )
    pixels = np.random.default_rng(4).integers(0, 256, (64, 64, 3), "uint8")
    keras_vit.to_checkpoint(model, folder / "ours", format="huggingface")
    with their_warnings():
        processor = transformers.AutoImageProcessor.from_pretrained(folder / "ours")
        inputs = processor(image.fromarray(pixels), return_tensors="pt")["pixel_values"]
    plain = keras_vit.from_checkpoint(folder / "ours", include_rescaling=False)
    actual = ours(plain, np.moveaxis(inputs.numpy(), 1, -1))
    assert_close(actual, ours(model, pixels[None]), record, "pixels")


# torchvision.


def torchvision_model(vision, config):
    height, _, _ = config["image_shape"]
    return vision.models.VisionTransformer(
        height, config["patch_size"][0], config["num_layers"], config["num_heads"],
        config["hidden_dim"], config["mlp_dim"], num_classes=config["num_classes"],
        representation_size=config["representation_size"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes", ({}, {"representation_size": 24}, {"layer_scale_init": 0.3}, {"qkv_bias": False})
)
def test_born_here_to_torchvision(changes, folder, record):
    vision = pytest.importorskip("torchvision")
    load = pytest.importorskip("safetensors.torch").load_file
    model = keras_vit.VisionTransformer(
        **{**PLAIN, **changes}, include_rescaling=False, pixel_range="imagenet"
    )
    images = images_for(randomize_ours(model).get_config())
    keras_vit.to_checkpoint(model, folder / "a.safetensors", format="torchvision")
    module = torchvision_model(vision, model.get_config())
    module.load_state_dict(load(folder / "a.safetensors"), strict=True)
    assert_close(theirs(module, images), ours(model, images), record, "ours to theirs")


def test_torchvision(folder, record):
    vision = pytest.importorskip("torchvision")
    files = pytest.importorskip("safetensors.torch")
    module = randomize(vision.models.vit_b_16())
    files.save_file(module.state_dict(), folder / "theirs.safetensors")
    model = keras_vit.from_checkpoint(folder / "theirs.safetensors", include_rescaling=False)
    images = images_for(model.get_config())
    assert_close(ours(model, images), theirs(module, images), record, "theirs to ours")
    keras_vit.to_checkpoint(model, folder / "ours.safetensors", format="torchvision")
    assert_same_state(files.load_file(folder / "ours.safetensors"), module.state_dict())
