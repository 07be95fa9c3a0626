"""One switch for everything that is random."""

from __future__ import annotations

import os

import keras


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
