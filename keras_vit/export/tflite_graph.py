"""TFLite files as objects: their operators, and the changes that quantisation needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from keras_vit import _deps

FLATBUFFER_LIMIT = 2**31  # bytes: offsets inside a flatbuffer are signed 32-bit numbers
_IDENTIFIER = b"TFL3"
# What makes a dot product with weights: everything else only moves or reshapes values.
WEIGHTED = ("FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D")
CUSTOM = ("CUSTOM", "DELEGATE")
_FLOATS = ("FLOAT32", "FLOAT16")
_CASTS = ("QUANTIZE", "DEQUANTIZE", "CAST")


@dataclass(frozen=True)
class Operator:
    """An operator of the file's graph.

    Attributes:
        kind: its name in TFLite's schema, such as `"FULLY_CONNECTED"`; a custom one's own name,
            such as `"FlexErf"`.
        scope: names of its outputs, each with a semicolon after it; they hold the names of the
            Keras layers that it came from.
        inputs: indices of tensors; -1 for one that is left out.
        outputs: indices of tensors.
        builtin: whether every TFLite runtime has it.
        is_float: whether it computes in floating point.
    """

    kind: str
    scope: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    builtin: bool
    is_float: bool


def parse(content: bytes) -> Any:
    """The `ModelT` of a file's bytes, all buffers inside it."""
    return _tools().read_model_from_bytearray(memoryview(content))


def serialise(model: Any) -> bytes:
    """The bytes of a `ModelT`, with the buffers inside the flatbuffer, as old runtimes need it.

    Raises:
        ValueError: if it does not fit into one.
    """
    import flatbuffers

    size = sum(len(buffer.data) for buffer in model.buffers if buffer.data is not None)
    if size >= FLATBUFFER_LIMIT:
        raise too_large(size)
    builder = flatbuffers.Builder(1024 * 1024)
    try:
        builder.Finish(model.Pack(builder), file_identifier=_IDENTIFIER)
    except flatbuffers.builder.BuilderSizeError as error:
        raise too_large(size) from error
    return bytes(builder.Output())


def too_large(size: int) -> ValueError:
    """The error for a file above the limit."""
    return ValueError(
        f"A .tflite file holds at most 2 GiB, and this one would have {size / 2**30:.1f} GiB: "
        'export it with quantize="float16" (half the size) or quantize="dynamic" (a quarter).'
    )


def operators(model: Any) -> list[Operator]:
    """The operators of all subgraphs of a `ModelT`, in their order."""
    return [
        _operator(model, subgraph, operator)
        for subgraph in model.subgraphs
        for operator in subgraph.operators
    ]


def _operator(model: Any, subgraph: Any, operator: Any) -> Operator:
    code = model.operatorCodes[operator.opcodeIndex]
    kind = kinds()[max(code.builtinCode, code.deprecatedBuiltinCode)]
    builtin = kind not in CUSTOM
    if not builtin and code.customCode:
        kind = _text(code.customCode)
    inputs, outputs = (
        tuple(int(index) for index in found) for found in (operator.inputs, operator.outputs)
    )
    names = (_text(subgraph.tensors[index].name) for index in outputs)
    types = {_types()[subgraph.tensors[index].type] for index in outputs}
    is_float = kind not in _CASTS and bool(types.intersection(_FLOATS))
    scope = "".join(f"{name};" for name in names)
    return Operator(kind, scope, inputs, outputs, builtin, is_float)


def check_builtin(model: Any) -> None:
    """Raises a ValueError that names the operators which plain TFLite runtimes do not have."""
    foreign = sorted({found.kind for found in operators(model) if not found.builtin})
    if foreign:
        raise ValueError(
            "The model does not convert to TFLite's builtin operators: "
            f"{', '.join(foreign)} would need another runtime. Replace the layers that make them."
        )


def heads(model: Any) -> list[Operator]:
    """The last products with weights on the way to each output: the classifier's."""
    found, graph = [], model.subgraphs[0]
    source = {index: each for each in operators(model) for index in each.outputs}
    waiting, seen = list(graph.outputs), set()
    while waiting:
        each = source.get(int(waiting.pop()))
        if each is None or each.scope in seen:
            continue
        seen.add(each.scope)
        if each.kind in WEIGHTED:
            found.append(each)
        else:
            waiting.extend(each.inputs)
    return found


def output_positions(model: Any) -> list[list[tuple[str, int]]]:
    """For each signature its outputs' names, and their places among the subgraph's outputs."""
    return [
        [
            (_text(item.name), _outputs(model, signature).index(item.tensorIndex))
            for item in signature.outputs
        ]
        for signature in model.signatureDefs
    ]


def mend_signatures(model: Any, positions: list[list[tuple[str, int]]]) -> None:
    """Has the signatures of a quantised `ModelT` name the subgraph's outputs again.

    The quantizer leaves the name with the tensor from before its conversion to float32, if
    something else reads that too.

    Args:
        model: changed in place.
        positions: `output_positions` of the model before.
    """
    for signature, names in zip(model.signatureDefs, positions, strict=True):
        for item, (_, position) in zip(signature.outputs, names, strict=True):
            item.tensorIndex = _outputs(model, signature)[position]


def _outputs(model: Any, signature: Any) -> list[int]:
    return [int(index) for index in model.subgraphs[signature.subgraphIndex].outputs]


def make_integer_ready(model: Any, squares: bool) -> None:
    """Writes operators that have no integer form as ones that have, in place.

    Keras' LayerNormalization has a NEG, which becomes a product with -1. Where there are no
    16-bit squared differences, those become a difference and its square.

    Args:
        model: a float32 `ModelT`.
        squares: whether to rewrite squared differences too.
    """
    for subgraph in model.subgraphs:
        rewritten = []
        for operator in subgraph.operators:
            kind = _operator(model, subgraph, operator).kind
            if kind == "NEG":
                minus = _constant(model, subgraph, f"minus_one_{operator.outputs[0]}", -1.0)
                _become(model, operator, "MUL", [operator.inputs[0], minus])
            elif kind == "SQUARED_DIFFERENCE" and squares:
                rewritten.append(_difference(model, subgraph, operator))
                between = rewritten[-1].outputs[0]
                _become(model, operator, "MUL", [between, between])
            rewritten.append(operator)
        subgraph.operators = rewritten


def _difference(model: Any, subgraph: Any, operator: Any) -> Any:
    """A SUB of the operator's inputs, into a new tensor like its output."""
    types = schema()
    old = subgraph.tensors[operator.outputs[0]]
    new = types.TensorT()
    for field, value in vars(old).items():
        setattr(new, field, value)
    new.name, new.buffer = old.name + b"_difference", 0
    subgraph.tensors.append(new)
    made = types.OperatorT()
    made.outputs = [len(subgraph.tensors) - 1]
    _become(model, made, "SUB", list(operator.inputs))
    return made


def _become(model: Any, operator: Any, kind: str, inputs: list[int]) -> None:
    types = schema()
    options = {"MUL": ("MulOptions", types.MulOptionsT), "SUB": ("SubOptions", types.SubOptionsT)}
    name, make = options[kind]
    operator.opcodeIndex = _code(model, kind)
    operator.builtinOptionsType = getattr(types.BuiltinOptions, name)
    operator.builtinOptions, operator.inputs = make(), inputs


def _code(model: Any, kind: str) -> int:
    """The number of an operator's code in the model, which gets one if it has none."""
    types = schema()
    number = getattr(types.BuiltinOperator, kind)
    for index, code in enumerate(model.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == number:
            return index
    code = types.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = number
    code.version = 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def _constant(model: Any, subgraph: Any, name: str, value: float) -> int:
    types = schema()
    buffer, tensor = types.BufferT(), types.TensorT()
    buffer.data = np.frombuffer(np.float32(value).tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor.name, tensor.buffer = name.encode(), len(model.buffers) - 1
    tensor.shape, tensor.type = [1], types.TensorType.FLOAT32
    subgraph.tensors.append(tensor)
    return len(subgraph.tensors) - 1


def float_kinds(found: Iterable[Operator]) -> Iterator[str]:
    """The kinds of those operators that compute in floating point, each once, sorted."""
    yield from sorted({each.kind for each in found if each.is_float})


@cache
def kinds() -> dict[int, str]:
    """Names of TFLite's operators by their numbers."""
    return _names("BuiltinOperator")


@cache
def _types() -> dict[int, str]:
    return _names("TensorType")


def _names(enumeration: str) -> dict[int, str]:
    values = vars(getattr(_tools().schema_fb, enumeration))
    return {value: name for name, value in values.items() if isinstance(value, int)}


def schema() -> Any:
    """The module of TFLite's own schema, as Python classes."""
    return _tools().schema_fb


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _tools() -> Any:
    return _deps.optional("ai_edge_litert.tools.flatbuffer_utils", "export", "Exporting to TFLite")
