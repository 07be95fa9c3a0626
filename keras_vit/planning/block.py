"""What one Transformer block keeps for the backward pass: a table of tensors.

Read off `layers.transformer_block`, `attention`, `mlp` and `fused_attention`.

Where PyTorch runs eagerly, on CPUs, what autograd keeps follows from each operation: LayerNorm
keeps its input in float32, a product both factors, GELU its argument, softmax its result. These
rows are what `torch.autograd.graph.saved_tensors_hooks` sees, to the byte.

XLA, and PyTorch's compiler on GPUs, keep what a product or a kernel reads or writes; arithmetic
between those is fused into its users and done again in the backward pass. So LayerNorm keeps no
float32 copy of its input. On a CPU, XLA keeps GELU's tanh (or erf) beside argument and result; on
GPUs `layers.dense` has it done again. These rows are inferred from how compilers fuse, and
compared with measured peaks; no list of a GPU's buffers was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_vit.planning.tensors import Kept
from keras_vit.planning.way import Way

Config = Mapping[str, Any]

# How it is run -> activation -> what is kept of it beside the result, which the second Dense reads:
# (name, width in MLP widths). As `layers.mlp` writes them.
_ACTIVATIONS: dict[str, dict[str, tuple[tuple[str, int], ...]]] = {
    "a GPU": {
        "gelu_tanh": (("argument", 1),),
        "gelu": (("argument", 1),),
        "quick_gelu": (("argument", 1),),
        "swiglu": (("gate and values", 2),),
    },
    "torch": {
        "gelu_tanh": (("argument", 1),),
        "gelu": (("argument", 1),),
        "quick_gelu": (("argument", 1), ("sigmoid", 1)),
        "swiglu": (("gate and values", 2), ("silu of the gate", 1)),
    },
    "jax": {
        "gelu_tanh": (("argument", 1), ("tanh", 1)),
        "gelu": (("argument", 1), ("erf", 1)),
        "quick_gelu": (("argument", 1), ("sigmoid", 1)),
        "swiglu": (("gate and values", 2), ("sigmoid of the gate", 1)),
    },
}


def block(config: Config, way: Way, *, drops_path: bool = False) -> list[Kept]:
    """The tensors that one block keeps, without `remat`.

    Args:
        config: of `planning.model.complete`.
        way: how it is run.
        drops_path: whether this block has a DropPath rate above 0.
    """
    found = [*norm("attention norm", way, _tokens(config, way)), *_attention(config, way)]
    if config["dropout_rate"]:
        found.append(Kept("mask of the attention's dropout", "B T D", way.mask))
    if config["layer_scale_init"] is not None:
        found.append(Kept("input of the attention's LayerScale", "B T D"))
    found += [*norm("MLP norm", way), *_mlp(config, way)]
    if config["layer_scale_init"] is not None:
        found.append(Kept("input of the MLP's LayerScale", "B T D"))
    if drops_path:
        found.append(Kept("DropPath's factors", "2B"))
    return found


def rematerialised() -> list[Kept]:
    """What a block keeps with `remat`; its inside comes back for its own backward pass."""
    return [Kept("input of the block", "B T D")]


def norm(name: str, way: Way, read: str = "T") -> list[Kept]:
    """A LayerNorm over tokens, and the product behind it, which reads so many."""
    # Compilers keep the input as it came, which the residual sum needs too.
    dtype = "float32" if way.eager else "compute"
    return [
        Kept(f"input of the {name}", "B T D", dtype),
        Kept(f"mean and deviation of the {name}", "B T 2", "float32"),
        Kept(f"output of the {name}", f"B {read} D"),
    ]


def _tokens(config: Config, way: Way) -> str:
    """Those inside of the attention: cuDNN, by JAX, trains on even counts, so odd ones get one."""
    return "E" if way.fused(config) and way.backend == "jax" else "T"


def _attention(config: Config, way: Way) -> list[Kept]:
    tokens, fused = _tokens(config, way), way.fused(config)
    found = _head_norms(config, way, fused)
    if not (fused and way.eager and config["qk_norm"]):
        found.append(Kept("queries, keys and values", f"B {tokens} 3D", cut=True))
    if fused:
        found.append(Kept("log-sum-exp of the scores", f"B H {tokens}", "float32", cut=True))
    else:
        found += _scores(config, way)
    # The kernel's output is what the projection reads, padding included.
    return [*found, Kept("input of the output projection", f"B {tokens} D", cut=True)]


def _head_norms(config: Config, way: Way, fused: bool) -> list[Kept]:
    """LayerNorms of queries and keys."""
    if not config["qk_norm"]:
        return []
    tokens = _tokens(config, way)
    means, parts = f"4B {tokens} H", f"B {tokens} 3D"
    found = [Kept("means and deviations of queries and keys", means, "float32", cut=True)]
    if not (way.eager and way.mixed):
        found.append(Kept("queries, keys and values before their norms", parts, cut=True))
    else:
        found.append(Kept("queries and keys before their norms", "2B T D", "float32", cut=True))
    if way.eager and fused:
        # The values lie in the fused projection's output, which stays with them.
        found.append(Kept("queries and keys", "2B T D", cut=True))
        if way.mixed:
            found.append(Kept("queries, keys and values as projected", "B T 3D", cut=True))
    return found


def _scores(config: Config, way: Way) -> list[Kept]:
    """Attention by a product, softmax in float32, and a product."""
    found = [Kept("attention probabilities", "B H T T", "float32", cut=True)]
    if way.mixed or config["attention_dropout_rate"]:
        found.append(Kept("probabilities as the product reads them", "B H T T", cut=True))
    if config["attention_dropout_rate"]:
        found.append(Kept("mask of the probabilities' dropout", "B H T T", way.mask, cut=True))
    if config["position_embedding"] == "relative":
        found.append(Kept("queries for relative positions", "B N D", cut=True))
    return found


def _mlp(config: Config, way: Way) -> list[Kept]:
    found = [
        Kept(f"{name} ({config['activation']})", f"B T {factor}M", cut=True)
        for name, factor in _ACTIVATIONS["a GPU" if way.gpu else way.backend][config["activation"]]
    ]
    found.append(Kept("input of the MLP's second product", "B T M", cut=True))
    if config["dropout_rate"]:
        found += [
            Kept("mask of the MLP's first dropout", "B T M", way.mask, cut=True),
            Kept("mask of the MLP's second dropout", "B T D", way.mask),
        ]
    return found


def in_backward(config: Config) -> list[Kept]:
    """What a block's backward pass needs at its highest, while all that is kept is still there.

    That is at its beginning, in the second product of the MLP. Its attention comes when what the
    MLP kept is gone; only plain attention over many tokens may need more then, in float32.
    """
    found = [Kept("gradient of the block's output", "B T D")]
    found.append(Kept("gradient inside of the MLP", "B T M", cut=True))
    return found
