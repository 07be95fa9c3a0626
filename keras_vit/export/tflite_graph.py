"""TFLite files as objects: their operators, and the changes that quantisation needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
    model = _tools().read_model_from_bytearray(memoryview(content))
    for buffer in model.buffers:
        # Anything but an array would be written byte by byte.
        if buffer.data is not None and not isinstance(buffer.data, np.ndarray):
            buffer.data = np.frombuffer(buffer.data, np.uint8)
    return model


def serialise(model: Any) -> bytes:
    """The bytes of a `ModelT`, with the buffers inside the flatbuffer, as old runtimes need it.

    Raises:
        ValueError: if it does not fit into one.
    """
    import flatbuffers

    size = sum(len(buffer.data) for buffer in model.buffers if buffer.data is not None)
    if size >= FLATBUFFER_LIMIT:
        raise too_large(size)
    # Grown from small it would be copied each time that it doubles.
    builder = flatbuffers.Builder(min(size + 2**20, FLATBUFFER_LIMIT))
    try:
        builder.Finish(model.Pack(builder), file_identifier=_IDENTIFIER)
    except flatbuffers.builder.BuilderSizeError as error:
        raise too_large(size) from error
    return bytes(builder.Output())


def too_large(size: int) -> ValueError:
    """The error for a file above the limit."""
    return ValueError(
        "A .tflite file that every runtime reads holds at most 2 GiB, and this one would have "
        f"{size / 2**30:.1f} GiB: "
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
        raise not_builtin(foreign)


def not_builtin(names: Iterable[str]) -> ValueError:
    """The error for a model that needs other operators, of these names."""
    return ValueError(
        "The model does not convert to TFLite's builtin operators, the only ones that all runtimes "
        f"have: replace the layers that make {', '.join(names)}."
    )


def variables(model: Any) -> dict[int, str]:
    """The float32 tensors of the first subgraph that are no constants: their names by index."""
    subgraph, float32 = model.subgraphs[0], schema().TensorType.FLOAT32
    return {
        index: _text(tensor.name)
        for index, tensor in enumerate(subgraph.tensors)
        if tensor.type == float32 and not _is_constant(model, subgraph, index)
    }


def heads(model: Any) -> list[Operator]:
    """The last products with weights on the way to each output: the classifier's."""
    graph, every = model.subgraphs[0], operators(model)
    source = {index: each for each in every for index in each.outputs}
    return _nearest_products(graph.outputs, lambda index: [source[index]], lambda op: op.inputs)


def stems(model: Any) -> list[Operator]:
    """The first products with weights on the way from each input: what embeds the patches."""
    readers: dict[int, list[Operator]] = {}
    for each in operators(model):
        for index in each.inputs:
            readers.setdefault(index, []).append(each)
    return _nearest_products(
        model.subgraphs[0].inputs, lambda index: readers[index], lambda op: op.outputs
    )


def _nearest_products(start: Iterable[int], neighbours: Any, onward: Any) -> list[Operator]:
    """The first of `WEIGHTED` that are met on each way through the graph."""
    found, waiting, seen = [], [int(index) for index in start], set()
    while waiting:
        try:
            reached = neighbours(waiting.pop())
        except KeyError:  # a constant, or an end of the graph
            continue
        for each in reached:
            if each.scope in seen:
                continue
            seen.add(each.scope)
            if each.kind in WEIGHTED:
                found.append(each)
            else:
                waiting.extend(onward(each))
    return found


def of_constants(model: Any) -> list[str]:
    """Scopes of products of two activations of which the first is a constant after all.

    It would become a weight, and no kernel takes weights first.
    """
    graph = model.subgraphs[0]
    return [
        each.scope
        for each in operators(model)
        if each.kind == "BATCH_MATMUL" and _is_constant(model, graph, each.inputs[0])
    ]


def idle(model: Any, working: Collection[str], floats: Collection[str]) -> list[str]:
    """Scopes of operators that only move values, between others that compute in float32.

    To quantise those would cost accuracy and gain nothing.

    Args:
        model: a float32 `ModelT`.
        working: kinds of operators that compute.
        floats: scopes of those that stay float32.
    """
    every = operators(model)
    movers = [each for each in every if each.kind not in working]
    groups = {each.scope: {each.scope} for each in movers}  # those that are connected
    busy = set()
    ends = {index: each for each in every for index in each.outputs}
    for each in every:
        for other in (ends[index] for index in each.inputs if index in ends):
            pair = [one for one in (each, other) if one.scope in groups]
            if len(pair) == 2 and groups[each.scope] is not groups[other.scope]:
                groups[each.scope] |= groups[other.scope]
                for scope in groups[other.scope]:
                    groups[scope] = groups[each.scope]
            elif len(pair) == 1 and (other if pair[0] is each else each).scope not in floats:
                busy.add(pair[0].scope)
    return [each.scope for each in movers if not groups[each.scope] & busy]


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


def make_integer_ready(model: Any, bits: int) -> None:
    """Writes operators that have no integer form as ones that have, in place.

    Args:
        model: a float32 `ModelT`.
        bits: of activations. There are no 16-bit squared differences, and a constant first
            operand would get 8 bits beside a second one of 16.
    """
    for subgraph in model.subgraphs:
        rewritten = []
        for operator in subgraph.operators:
            kind, inputs = _operator(model, subgraph, operator).kind, list(operator.inputs)
            if kind == "NEG":
                _become(model, operator, "MUL", [inputs[0], _number(model, subgraph, -1.0)])
            elif kind == "SQUARE":
                _become(model, operator, "MUL", [inputs[0], inputs[0]])
            elif kind == "EXPAND_DIMS":
                shape = _shape(subgraph.tensors[operator.outputs[0]])
                wanted = _constant(model, subgraph, np.asarray(shape, "int32"))
                _become(model, operator, "RESHAPE", [inputs[0], wanted])
            elif kind == "SQUARED_DIFFERENCE" and bits == 16:
                between = _like(subgraph, operator.outputs[0])
                rewritten.append(_made(model, "SUB", inputs, between))
                _become(model, operator, "MUL", [between, between])
            elif kind == "BATCH_MATMUL" and bits == 16 and _is_constant(model, subgraph, inputs[0]):
                moving = _like(subgraph, inputs[0])
                factors = [inputs[0], _number(model, subgraph, 1.0)]
                rewritten.append(_made(model, "MUL", factors, moving))
                operator.inputs = [moving, inputs[1]]
            rewritten.append(operator)
        subgraph.operators = rewritten


def _made(model: Any, kind: str, inputs: list[int], output: int) -> Any:
    """A new operator, that no subgraph has yet."""
    operator = schema().OperatorT()
    operator.outputs = [output]
    _become(model, operator, kind, inputs)
    return operator


def _become(model: Any, operator: Any, kind: str, inputs: list[int]) -> None:
    types = schema()
    options = {"MUL": "MulOptions", "SUB": "SubOptions", "RESHAPE": "ReshapeOptions"}[kind]
    operator.opcodeIndex = _code(model, kind)
    operator.builtinOptionsType = getattr(types.BuiltinOptions, options)
    operator.builtinOptions = getattr(types, f"{options}T")()
    operator.inputs = inputs


def _like(subgraph: Any, index: int) -> int:
    """The index of a new tensor like another one, with a name of its own and no values."""
    new, count = schema().TensorT(), len(subgraph.tensors)
    for field, value in vars(subgraph.tensors[index]).items():
        setattr(new, field, value)
    new.name, new.buffer = new.name + f"_made_{count}".encode(), 0
    subgraph.tensors.append(new)
    return count


def _number(model: Any, subgraph: Any, value: float) -> int:
    return _constant(model, subgraph, np.asarray([value], "float32"))


def _constant(model: Any, subgraph: Any, values: np.ndarray) -> int:
    """The index of a new tensor with these values."""
    buffer, tensor = schema().BufferT(), schema().TensorT()
    buffer.data = np.frombuffer(values.tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor.name, tensor.buffer = (
        f"constant_made_{len(subgraph.tensors)}".encode(),
        len(model.buffers) - 1,
    )
    tensor.shape = list(values.shape)
    tensor.type = getattr(schema().TensorType, values.dtype.name.upper())
    subgraph.tensors.append(tensor)
    return len(subgraph.tensors) - 1


def _is_constant(model: Any, subgraph: Any, index: int) -> bool:
    return model.buffers[subgraph.tensors[index].buffer].data is not None


def _shape(tensor: Any) -> list[int]:
    """A tensor's shape, -1 where it depends on the batch."""
    known = tensor.shapeSignature
    return [int(side) for side in (tensor.shape if known is None else known)]


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
