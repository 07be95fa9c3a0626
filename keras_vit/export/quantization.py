"""What may be made of a float32 .tflite file: half precision, or integers of 8 and 16 bits."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from keras_vit import _checks, _deps
from keras_vit.export import tflite_graph

SIGNATURE = "serving_default"
# The quantizer's algorithms.
_ROUNDING, _CASTING, _NOTHING = "min_max_uniform_quantize", "float_casting", "no_quantize"
# What may stay float32 in a file of integers, by the operators that it is made of. The products
# that embed patches, and those of the classifier, have no kind of their own.
GROUPS = {
    "softmax": ("SOFTMAX",),
    "activation": ("GELU", "LOGISTIC", "TANH", "HARD_SWISH"),
    # LayerNorm, the residual stream, scales and the pixels' own.
    "arithmetic": (
        *("ADD", "SUB", "MUL", "DIV", "NEG", "MEAN", "SUM", "SQUARED_DIFFERENCE"),
        *("RSQRT", "SQRT", "MAXIMUM", "BROADCAST_TO"),
    ),
    "attention": ("BATCH_MATMUL",),
    "stem": (),
    "head": (),
}
# What computes; other operators move values, whatever their type.
_WORKING = (*tflite_graph.WEIGHTED, *(kind for kinds in GROUPS.values() for kind in kinds))


@dataclass(frozen=True)
class Quantization:
    """One way to write a .tflite file.

    Attributes:
        weights: bits of the weights.
        activations: bits of activations that are fixed beforehand; `None`: float32, or rounded
            as they come.
        algorithm: the quantizer's.
        float_ops: groups whose activations stay float32 by default.
        io: dtypes that inputs and outputs may have, the first by default.
    """

    weights: int
    activations: int | None = None
    algorithm: str = _ROUNDING
    float_ops: tuple[str, ...] = ()
    io: tuple[str, ...] = ("float32",)

    @property
    def is_static(self) -> bool:
        """Whether it needs to see images first."""
        return self.activations is not None


# What stays float32 by default is what lost accuracy on trained models: above all the products of
# attention, whose many small probabilities 8 bits round to nothing.
QUANTIZATIONS = {
    "float16": Quantization(16, algorithm=_CASTING),
    "dynamic": Quantization(8),
    "int8": Quantization(
        8,
        8,
        float_ops=("softmax", "activation", "arithmetic", "attention", "stem", "head"),
        io=("float32", "int8", "uint8"),
    ),
    "int16x8": Quantization(
        8, 16, float_ops=("softmax", "activation", "arithmetic"), io=("float32", "int16")
    ),
}


def check(quantize: Any, float_ops: Any, io_dtype: Any) -> tuple[str, ...]:
    """Checks what `to_tflite` was given.

    Args:
        quantize: `None` or a key of `QUANTIZATIONS`.
        float_ops: `None` or names out of `GROUPS`.
        io_dtype: name of a dtype.

    Returns:
        The groups that stay float32.

    Raises:
        ValueError: on anything else.
    """
    _checks.choice("quantize", quantize, (None, *QUANTIZATIONS))
    way = QUANTIZATIONS.get(quantize, Quantization(32))
    if io_dtype not in way.io:
        takers = [name for name, each in QUANTIZATIONS.items() if io_dtype in each.io]
        raise ValueError(
            f"`io_dtype` {io_dtype!r} is of quantize={' or '.join(takers) or 'nothing'}; here it "
            f"must be one of {way.io}. Received: quantize={quantize!r}"
        )
    if float_ops is None:
        return way.float_ops
    if not way.is_static:
        static = [name for name, each in QUANTIZATIONS.items() if each.is_static]
        raise ValueError(
            f"`float_ops` is for quantize={' and '.join(map(repr, static))}. "
            f"Received: quantize={quantize!r}, float_ops={float_ops!r}"
        )
    if isinstance(float_ops, str) or not isinstance(float_ops, Collection):
        raise ValueError(
            f"`float_ops` must be a sequence out of {tuple(GROUPS)}. Received: {float_ops!r}"
        )
    for name in float_ops:
        _checks.choice("float_ops", name, tuple(GROUPS))
    return tuple(float_ops)


def float_scopes(model: Any, float_ops: Iterable[str]) -> tuple[list[str], list[str]]:
    """Scopes of the operators of a float32 `ModelT` whose activations stay float32.

    Args:
        model: not touched.
        float_ops: groups out of `GROUPS`.

    Returns:
        Those that have weights, and the others.
    """
    every = tflite_graph.operators(model)
    kept = {kind for group in float_ops for kind in GROUPS[group]}
    weighted = set()
    if "stem" in float_ops:
        weighted |= {each.scope for each in tflite_graph.stems(model)}
    names = {name for names in tflite_graph.output_positions(model) for name, _ in names}
    if "head" in float_ops and names != {"features"}:
        weighted |= {each.scope for each in tflite_graph.heads(model)}
    others = {each.scope for each in every if each.kind in kept}
    others.update(tflite_graph.idle(model, _WORKING, others | weighted))
    return sorted(weighted), sorted(others)


def recipe(
    quantize: str,
    floats: tuple[Sequence[str], Sequence[str]] = ((), ()),
    io_dtype: str = "float32",
    only: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """The quantizer's recipe: rules of which the last that fits an operator counts.

    Args:
        quantize: a key of `QUANTIZATIONS`.
        floats: of `float_scopes`. The weights of those that have some get 8 bits nevertheless.
        io_dtype: dtype of inputs and outputs.
        only: scopes of the operators to quantise; `None` for all.
    """
    way = QUANTIZATIONS[quantize]
    everywhere = ".*" if only is None else _any_of(only)
    rules = [_rule(way, everywhere)]
    if way.activations == 8:
        # TensorFlow 2.21's XNNPACK computed 8-bit products of two activations otherwise than its
        # other kernels and LiteRT do; with zero points of 0 all agree.
        rules.append(_rule(way, everywhere, "BATCH_MATMUL", symmetric=True))
    weighted, others = floats
    if others:
        rules.append(_float(_any_of(others)))
    weighted = [scope for scope in weighted if only is None or scope in only]
    if weighted:
        rules.append(_rule(QUANTIZATIONS["dynamic"], _any_of(weighted)))
    for operation in ("INPUT", "OUTPUT") if way.is_static else ():
        # The quantizer sorts rules by the first of their expression: this one is new.
        if io_dtype == "float32":
            rules.append(_float("", operation))
        else:
            rules.append(_rule(way, "", operation, unsigned=io_dtype == "uint8"))
    return rules


def _any_of(scopes: Sequence[str]) -> str:
    return "^(?:" + "|".join(re.escape(scope) for scope in scopes) + ")$"


def _float(regex: str, operation: str = "*") -> dict[str, Any]:
    return {"regex": regex, "operation": operation, "algorithm_key": _NOTHING}


def _rule(
    way: Quantization,
    regex: str,
    operation: str = "*",
    symmetric: bool = False,
    unsigned: bool = False,
) -> dict[str, Any]:
    casts = way.algorithm == _CASTING
    weights = {
        "num_bits": way.weights,
        "symmetric": True,
        # A constant factor of a product of activations, such as a pooling's query, has no channels.
        "granularity": "TENSORWISE" if casts or operation == "BATCH_MATMUL" else "CHANNELWISE",
        "dtype": "FLOAT" if casts else "INT",
    }
    config: dict[str, Any] = {
        "weight_tensor_config": weights,
        "compute_precision": "FLOAT" if casts else "INTEGER",
        "explicit_dequantize": casts,
    }
    if way.activations is not None:
        config["activation_tensor_config"] = {
            "num_bits": way.activations,
            "symmetric": symmetric or way.activations == 16,  # all that 16-bit kernels have
            "granularity": "TENSORWISE",
            "dtype": "UINT" if unsigned else "INT",
        }
    return {
        "regex": regex,
        "operation": operation,
        "algorithm_key": way.algorithm,
        "op_config": config,
    }


def quantised(
    content: bytes,
    quantize: str,
    ranges: dict[str, dict] | None = None,
    float_ops: Iterable[str] = (),
    io_dtype: str = "float32",
    only: Sequence[str] | None = None,
) -> bytes:
    """A float32 .tflite file's bytes, quantised.

    Args:
        content: the float32 file's.
        quantize: a key of `QUANTIZATIONS`.
        ranges: of `calibration.activation_ranges`, where the quantisation is static.
        float_ops: groups that stay float32.
        io_dtype: dtype of inputs and outputs.
        only: scopes of the operators to quantise; `None` for all.

    Returns:
        The new file's bytes.
    """
    module = _deps.optional("ai_edge_quantizer.quantizer", "export", "Quantising TFLite models")
    model = tflite_graph.parse(content)
    positions = tflite_graph.output_positions(model)
    weighted, others = float_scopes(model, float_ops)
    if QUANTIZATIONS[quantize].activations != 8:
        others = sorted({*others, *tflite_graph.of_constants(model)})
    rules = recipe(quantize, (weighted, others), io_dtype, only)
    # It has a progress bar for each stage, and not all of them can be switched off.
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantizer = module.Quantizer(content, rules)
        found = quantizer.quantize(ranges if QUANTIZATIONS[quantize].is_static else None)
    made = tflite_graph.parse(found.quantized_model)
    tflite_graph.mend_signatures(made, positions)
    if not float_ops and QUANTIZATIONS[quantize].is_static and only is None:
        _check_integers(made)
    return tflite_graph.serialise(made)


def _check_integers(model: Any) -> None:
    left = sorted({each.kind for each in tflite_graph.operators(model) if each.is_float})
    if left:
        raise ValueError(
            "`float_ops=()` asks for integers everywhere, and the model has operators without an "
            f"integer form: {', '.join(left)}. Leave `float_ops` None."
        )
