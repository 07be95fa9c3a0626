"""What all tests share: seeds, and global settings as they were."""

import keras
import pytest


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
