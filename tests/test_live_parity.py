"""Models of transformers and torchvision themselves, there and back; see `live`."""

import json

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
)

import keras_vit

pytestmark = pytest.mark.slow


@pytest.fixture
def folder():
    with temporary() as path:
        yield path


@pytest.fixture
def record(request, record_property):
    return keeper(request, record_property)


@pytest.fixture
def transformers():
    found = pytest.importorskip("transformers")
    found.utils.logging.set_verbosity_error()
    found.utils.logging.disable_progress_bar()
    return found


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
