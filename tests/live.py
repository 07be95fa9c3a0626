"""Models of timm, transformers and torchvision themselves, with random weights, there and back.

Each library saves as it does, and loads what we wrote by its own functions. Outputs are of size
one (their standard deviation is checked), and may differ by `TOLERANCE` of the largest.
"""

import contextlib
import tempfile
import warnings
from pathlib import Path

import harness
import numpy as np
import pytest

torch = pytest.importorskip("torch")

TOLERANCE = 1e-4
# A model of ours that every library has.
PLAIN = {
    "image_shape": (48, 48, 3), "patch_size": 16, "hidden_dim": 64, "num_layers": 2, "num_heads": 2,
    "mlp_dim": 128, "num_classes": 7, "activation": "gelu",
}  # fmt: skip


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


def keeper(request, record_property):
    """Keeps the largest difference; `-rA` shows it."""

    def keep(name, difference):
        record_property(name, difference)
        print(f"{request.node.name}: {name} {difference:.1e}")

    return keep


@contextlib.contextmanager
def temporary():
    """A folder that is gone at once: full-size models are not kept for three more runs."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)
