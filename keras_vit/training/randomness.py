"""Random numbers: one switch for all seeds, and the states outside of any model."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping

import keras
import numpy as np


def set_seed(seed: int, *, deterministic: bool = False) -> None:
    """Seeds Python, NumPy and the backend, so that weights, order and dropout repeat.

    On a CPU the same seed gives the same losses on the same machine. A GPU sums in any order
    unless `deterministic` asks for kernels that do not, which are slower.

    Args:
        seed: non-negative integer.
        deterministic: whether to ask the backend for deterministic kernels, for the rest of the
            process. JAX reads its flag when it starts: set it before anything has run.
    """
    keras.utils.set_random_seed(seed)
    if not deterministic:
        return
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    elif backend == "torch":
        import torch

        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    else:
        flag = "--xla_gpu_deterministic_ops=true"
        flags = os.environ.get("XLA_FLAGS", "")
        if flag not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()


def random_arrays() -> dict[str, np.ndarray]:
    """States of generators outside the model, which PyTorch's dropout and users' code draw from."""
    _, keys, *rest, gauss = np.random.get_state(legacy=True)
    version, internal, python_gauss = random.getstate()
    found = {
        "random/numpy": np.array([*keys, *rest], "uint64"),
        "random/numpy_gauss": np.array([gauss], "float64"),
        "random/python": np.array([version, *internal], "uint64"),
        "random/python_gauss": np.array([np.nan if python_gauss is None else python_gauss]),
    }
    if keras.backend.backend() == "torch":
        import torch

        found["random/torch"] = torch.get_rng_state().numpy()
        for index in range(torch.cuda.device_count()):
            found[f"random/cuda_{index}"] = torch.cuda.get_rng_state(index).cpu().numpy()
    return found


def restore_random(arrays: Mapping[str, np.ndarray]) -> None:
    """Restores what `random_arrays` gave."""
    *keys, position, has_gauss = arrays["random/numpy"].tolist()
    gauss = float(arrays["random/numpy_gauss"][0])
    np.random.set_state(("MT19937", np.array(keys, "uint32"), position, has_gauss, gauss))
    version, *internal = arrays["random/python"].tolist()
    gauss = float(arrays["random/python_gauss"][0])
    random.setstate((version, tuple(internal), None if np.isnan(gauss) else gauss))
    if keras.backend.backend() == "torch":
        import torch

        torch.set_rng_state(torch.from_numpy(arrays["random/torch"].copy()))
        for index in range(torch.cuda.device_count()):
            state = arrays.get(f"random/cuda_{index}")
            if state is not None:  # the file may be of a machine with fewer
                torch.cuda.set_rng_state(torch.from_numpy(state.copy()), index)
