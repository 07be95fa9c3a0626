"""How a model is run: what decides which tensors a backend keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BACKENDS = ("jax", "torch")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
_CUDNN_MAX_HEAD_DIM = 128  # as in `layers.fused_attention`


@dataclass(frozen=True)
class Way:
    """Backend, precision and place.

    Attributes:
        backend: "jax", whose steps XLA compiles, or "torch", which `models.compiled` compiles on
            GPUs, and which runs eagerly elsewhere.
        precision: dtype policy.
        gpu: whether on a GPU, where JAX has a fused kernel of attention.
    """

    backend: str = "jax"
    precision: str = "mixed_bfloat16"
    gpu: bool = True

    @property
    def eager(self) -> bool:
        """Whether each operation keeps what its own derivative reads."""
        return self.backend == "torch" and not self.gpu

    @property
    def mixed(self) -> bool:
        """Whether layers compute in 16 bits, on weights in float32."""
        return self.precision != "float32"

    @property
    def compute(self) -> int:
        """Bytes of a number in the compute dtype."""
        return 2 if self.mixed else 4

    @property
    def mask(self) -> str:
        """The dtype in which dropout keeps what it drops."""
        # PyTorch's CPU dropout multiplies by a mask in the inputs' dtype.
        return "compute" if self.eager else "bool"

    def fused(self, config: Mapping[str, Any]) -> bool:
        """Whether attention in training is one kernel, as `layers.attention` chooses."""
        if config["attention_dropout_rate"] or config["position_embedding"] == "relative":
            return False
        if self.backend == "torch":
            return True  # on CPUs, too
        if not self.gpu:
            return False
        head = config["hidden_dim"] // config["num_heads"]
        return self.mixed and head <= _CUDNN_MAX_HEAD_DIM and head % 8 == 0
