"""The tables of kept tensors against what PyTorch's autograd keeps, to the byte."""

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras
import pytest

from keras_vit.planning import activations
from keras_vit.planning.devices import DEVICES
from keras_vit.planning.model import complete
from keras_vit.planning.setup import make

TINY = {
    "image_shape": (12, 20, 3),
    "patch_size": 4,
    "hidden_dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "mlp_dim": 56,
    "num_classes": 7,
}
HYBRID = {**TINY, "image_shape": (64, 96, 3), "patch_size": 1}
CASES = [
    {},
    {"num_layers": 3},
    {"activation": "gelu"},
    {"activation": "quick_gelu"},
    {"activation": "swiglu"},
    {"dropout_rate": 0.1},
    {"attention_dropout_rate": 0.1},
    {"layer_scale_init": 0.1},
    {"qk_norm": True},
    {"position_embedding": "relative"},
    {"pre_norm": True},
    {"pooling": "gap"},
    {"pooling": "map"},
    {"pooling": "token_gap"},
    {"representation_size": 10},
    {"norm_after_pooling": True},
    {"distillation": "head"},
    {"patch_dropout_rate": 0.3},
    {"remat": True},
    {"remat": True, "num_layers": 3, "dropout_rate": 0.1},
    {**HYBRID, "stem": {"block_counts": (2, 1), "width": 32}},
]
RESNETS = [
    {"preactivation": True},
    {"preactivation": False},
    {"preactivation": False, "image_shape": (41, 54, 3)},
]
POLICIES = ("float32", "mixed_bfloat16")
IMAGES = 3

only_torch = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="it is PyTorch's autograd that can be asked"
)


def kept_by_autograd(model, images):
    """Bytes of the storages that the backward pass reads, parameters left out."""
    import torch

    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        # Up to 8 bytes: constants, such as the factor of a GELU.
        if storage.data_ptr() not in parameters and storage.nbytes() > 8:
            storages[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    labels = torch.zeros(len(images), dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.compute_loss(images, labels, model(images, training=True))
    assert loss.requires_grad
    return sum(size for size, _ in storages.values())


def planned(config, precision):
    device = DEVICES["H100-80G"]
    setup = make(config, device, batch=IMAGES, precision=precision, backend="torch").on_cpu()
    found = activations.of(setup)
    return found.before + sum(found.kept) + found.behind


def pictures(shape):
    import torch

    return torch.rand(IMAGES, *shape)


@only_torch
@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("precision", POLICIES)
def test_vit(options, precision):
    arguments = {**TINY, **options}
    model = keras_vit.VisionTransformer(**arguments, dtype=precision)
    kept = kept_by_autograd(model, pictures(arguments["image_shape"]))
    assert planned(complete("B/16", **arguments), precision) == kept


@only_torch
@pytest.mark.parametrize("options", RESNETS, ids=str)
@pytest.mark.parametrize("precision", POLICIES)
def test_resnet(options, precision):
    arguments = {
        "image_shape": (32, 32, 3),
        "block_counts": (2, 1),
        "width_factor": 0.5,
        "num_classes": 7,
        **options,
    }
    model = keras_vit.BiTResNet(**arguments, dtype=precision)
    kept = kept_by_autograd(model, pictures(arguments["image_shape"]))
    assert planned(complete("BiT R50x1", **arguments), precision) == kept
