"""What tf2onnx would take as it stands, in the words that ONNX runtimes run fastest.

Keras writes LayerNormalization and GroupNormalization as moments and arithmetic:

    out = x * s + (beta - mean * s),   s = gamma * rsqrt(variance + epsilon)

ONNX has one operator for the whole; onnxruntime knows exact GELU by a division before the erf.
The functions are rewriters for tf2onnx (`custom_rewriter` of `tf2onnx.convert.from_function`):
they get its graph, still of TensorFlow's operators, and the nodes, and return the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LAYER_NORM_OPSET = 17  # the first that has LayerNormalization

_TO_NCHW, _TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
_ADDS = ("AddV2", "Add")


def rewrite_norms(graph, ops) -> list[Any]:
    """Layer and group normalisations become one operator each; all else stays as it is."""
    for node in list(ops):
        norm = _match(graph, node) if node.type == "Rsqrt" else None
        rank = 0 if norm is None else len(graph.get_shape(norm.x) or ())
        if norm is None or rank == 0:
            continue
        axes = [axis % rank for axis in norm.axes]
        if axes == [rank - 1] and graph.opset >= LAYER_NORM_OPSET:
            _layer_norm(graph, norm)
        elif rank == 5 and axes == [1, 2, 4]:
            _group_norm(graph, norm)
    return graph.get_nodes()


def rewrite_gelus(graph, ops) -> list[Any]:
    """`erf(x * 0.7071)` becomes `erf(x / 1.4142)`."""
    for node in list(ops):
        scaled = node.inputs[0] if node.type == "Erf" else node
        x, factor = _constant_apart(scaled, ("Mul",)) if node.type == "Erf" else (None, 0.0)
        if x is None or abs(factor - 0.5**0.5) > 1e-6:
            continue
        root = _constant(graph, np.array(2.0**0.5, "float32"))
        name = next(name for name in scaled.input if graph.get_node_by_output(name) is x)
        made = graph.make_node("Div", [name, root])
        graph.replace_input(node, node.input[0], made.output[0], 0)
    return graph.get_nodes()


REWRITERS = (rewrite_norms, rewrite_gelus)


@dataclass
class _Norm:
    """What was found; tensors by name, `gamma` and `beta` `None` where there is none."""

    x: str
    axes: list[int]
    epsilon: float
    gamma: str | None
    beta: str | None
    out: Any  # the last node


def _match(graph, rsqrt) -> _Norm | None:
    """The normalisation that a Rsqrt belongs to, if it is one of Keras'."""
    variance, epsilon = _constant_apart(rsqrt.inputs[0], _ADDS)
    if variance is None or variance.type != "Mean":
        return None
    squares = variance.inputs[0]
    mean = _past_identity(squares.inputs[1]) if squares.type == "SquaredDifference" else squares
    axes = _values(mean.inputs[1]) if mean.type == "Mean" else None
    x = squares.input[0]
    if axes is None or mean.input[0] != x or axes != _values(variance.inputs[1]):
        return None

    scale, gamma = rsqrt.output[0], None
    users = graph.find_output_consumers(scale)
    if len(users) == 1 and users[0].type == "Mul":
        gamma, scale = _other(users[0], scale), users[0].output[0]
        users = graph.find_output_consumers(scale)
    scaled = [user for user in users if user.type == "Mul" and _other(user, scale) == x]
    moved = [user for user in users if user.type == "Mul" and user not in scaled]
    if len(scaled) != 1 or len(moved) != 1 or not _negates(graph, _other(moved[0], scale), mean):
        return None

    scaled, offset, beta = scaled[0].output[0], moved[0].output[0], None
    (out,) = graph.find_output_consumers(scaled)[:1] or (None,)
    (last,) = graph.find_output_consumers(offset)[:1] or (None,)
    if out is not None and last is not None and out is not last and last.type in _ADDS:
        beta, offset = _other(last, offset), last.output[0]
    if out is None or out.type not in _ADDS or _other(out, scaled) != offset:
        return None
    return _Norm(x, [int(axis) for axis in axes], epsilon, gamma, beta, out)


def _layer_norm(graph, norm: _Norm) -> None:
    shape, dtype = graph.get_shape(norm.x), graph.get_dtype(norm.x)
    gamma = _parameter(graph, norm.gamma, [shape[-1]], 1.0)
    beta = _parameter(graph, norm.beta, [shape[-1]], 0.0)
    made = graph.make_node(
        "LayerNormalization",
        [norm.x, gamma, beta],
        attr={"axis": -1, "epsilon": norm.epsilon},
        op_name_scope=norm.out.name,
        shapes=[shape],
        dtypes=[dtype],
    )
    graph.replace_all_inputs(norm.out.output[0], made.output[0])


def _group_norm(graph, norm: _Norm) -> None:
    """Channels first, as convolutions are in ONNX: tf2onnx drops the transpositions between."""
    grouped = graph.get_node_by_output(norm.x)
    users = graph.find_output_consumers(norm.out.output[0])
    if grouped.type != "Reshape" or len(users) != 1 or users[0].type != "Reshape":
        return
    images, dtype = grouped.input[0], graph.get_dtype(norm.x)
    _, height, width, groups, depth = graph.get_shape(norm.x)
    channels = groups * depth
    if list(graph.get_shape(images) or ())[1:] != [height, width, channels]:
        return

    def node(kind, inputs, shape, **attributes):
        options = {"op_name_scope": norm.out.name, "shapes": [shape], "dtypes": [dtype]}
        return graph.make_node(kind, inputs, attr=attributes, **options).output[0]

    def reshape(x, to):
        return node("Reshape", [x, _constant(graph, np.array(to, "int64"))], [-1, *to[1:]])

    first = [-1, channels, height, width]
    x = node("Transpose", [images], first, perm=_TO_NCHW)
    x = reshape(x, [0, groups, -1])
    ones, zeros = (_constant(graph, np.full(groups, n, "float32")) for n in (1, 0))
    x = node("InstanceNormalization", [x, ones, zeros], [-1, groups, -1], epsilon=norm.epsilon)
    x = reshape(x, first)
    if norm.gamma is not None:
        x = node("Mul", [x, _parameter(graph, norm.gamma, [channels, 1, 1], 1.0)], first)
    if norm.beta is not None:
        x = node("Add", [x, _parameter(graph, norm.beta, [channels, 1, 1], 0.0)], first)
    x = node("Transpose", [x], [-1, height, width, channels], perm=_TO_NHWC)
    graph.replace_all_inputs(users[0].output[0], x)


def _parameter(graph, name: str | None, shape: list[int], default: float) -> str:
    """A weight in another shape; tf2onnx folds what is constant."""
    if name is None:
        return _constant(graph, np.full(shape, default, "float32"))
    options = {"shapes": [shape], "dtypes": [graph.get_dtype(name)]}
    target = _constant(graph, np.array(shape, "int64"))
    return graph.make_node("Reshape", [name, target], **options).output[0]


def _constant(graph, values: np.ndarray) -> str:
    from tf2onnx.utils import make_name

    return graph.make_const(make_name("constant"), values).output[0]


def _constant_apart(node, kinds) -> tuple[Any, float]:
    """The node's variable input and the number that is its constant one; `None` without."""
    if node.type in kinds:
        for variable, constant in (node.inputs, node.inputs[::-1]):
            values = _values(constant)
            if values is not None and len(values) == 1:
                return variable, float(values[0])
    return None, 0.0


def _values(node) -> list[Any] | None:
    return np.ravel(node.get_tensor_value(as_list=False)).tolist() if node.is_const() else None


def _other(node, name: str) -> str:
    """The input, of a node of two, that is not `name`."""
    return node.input[1] if node.input[0] == name else node.input[0]


def _past_identity(node):
    while node.type in ("StopGradient", "Identity"):
        node = node.inputs[0]
    return node


def _negates(graph, name: str, node) -> bool:
    negative = graph.get_node_by_output(name)
    return negative.type == "Neg" and _past_identity(negative.inputs[0]) is node
