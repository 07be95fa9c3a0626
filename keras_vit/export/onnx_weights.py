"""Weights of an ONNX graph, which has them as inputs, become part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def insert_weights(proto: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Gives a graph its weights, and works out what depends on nothing else.

    Such are transposed kernels and standardised ones: once here rather than at every start of a
    runtime.

    Args:
        proto: an ONNX model, changed in place.
        weights: values by the names of inputs. Those that nothing reads are left out.
    """
    from onnx import numpy_helper

    graph = proto.graph
    constant = {tensor.name for tensor in graph.initializer} | set(weights)
    folded, kept = [], []
    for node in graph.node:  # in an order in which they can run
        foldable = bool(node.input) and all(name in constant for name in node.input if name)
        (folded if foldable else kept).append(node)
        if foldable:
            constant.update(node.output)
    needed = {name for node in kept for name in node.input}
    results = _evaluate(proto, folded, weights, needed)
    del graph.node[:]
    graph.node.extend(kept)
    values = {name: value for name, value in {**weights, **results}.items() if name in needed}
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    inputs = [value for value in graph.input if value.name not in weights]
    del graph.initializer[:], graph.input[:]
    graph.input.extend(inputs)
    graph.initializer.extend(tensors)
    for name, value in values.items():
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))


def _evaluate(
    proto: Any, nodes: list[Any], weights: Mapping[str, np.ndarray], wanted: Iterable[str]
) -> dict[Any, np.ndarray]:
    """What nodes that depend on constants alone come to, by ONNX' own reference."""
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    made = {name for node in nodes for name in node.output}
    outputs = sorted(made & set(wanted))
    if not outputs:
        return {}

    def value(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    read = {name for node in nodes for name in node.input}
    inputs = [value(name) for name in sorted(read & set(weights))]
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in read]
    graph = helper.make_graph(nodes, "constants", inputs, [value(n) for n in outputs], kept)
    model = helper.make_model(graph, opset_imports=proto.opset_import)
    feeds = {entry.name: weights[entry.name] for entry in inputs}
    values = map(np.asarray, ReferenceEvaluator(model).run(None, feeds))
    return dict(zip(outputs, values, strict=True))
