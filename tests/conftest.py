"""Fixtures that all tests share: seeds, and small models built once a session."""

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras
import pytest

TINY = {
    "image_shape": (14, 21, 3),
    "patch_size": 7,
    "hidden_dim": 10,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 13,
    "num_classes": 5,
}
TINY_STEM = {"block_counts": (1, 2), "width": 8, "groups": 4}
TINY_HYBRID = {**TINY, "image_shape": (24, 40, 3), "patch_size": 1, "stem": TINY_STEM}
TINY_BIT = {
    "image_shape": (23, 31, 3),
    "block_counts": (1, 2),
    "width_factor": 0.125,
    "groups": 4,
    "num_classes": 5,
}


def pytest_report_header():
    return f"keras {keras.__version__} on {keras.backend.backend()}"


@pytest.fixture(autouse=True)
def _clean_state():
    """The same random numbers for every test; global settings as they were."""
    policy, data_format = keras.config.dtype_policy(), keras.config.image_data_format()
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy(policy)
    keras.config.set_image_data_format(data_format)


@pytest.fixture(scope="session")
def tiny():
    """Arguments of a small `VisionTransformer` on rectangular images."""
    return dict(TINY)


@pytest.fixture(scope="session")
def tiny_hybrid():
    """Arguments of a small hybrid."""
    return dict(TINY_HYBRID)


@pytest.fixture(scope="session")
def tiny_bit():
    """Arguments of a small `BiTResNet`."""
    return dict(TINY_BIT)


@pytest.fixture(scope="session")
def vit():
    """A small `VisionTransformer` with random weights, to look at only."""
    import harness

    model = keras_vit.VisionTransformer(**TINY)
    harness.randomize(model)
    return model
