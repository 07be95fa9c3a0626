"""What a graph computes of the weights alone, apart from the rest: it may be done once for all.

Such are the copies of weights in the dtype that a policy computes in, and standardised kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any


def split(module: Any, moving: int) -> tuple[Any, list[int | None], Any] | None:
    """Cuts a recorded graph in two.

    Args:
        module: a `torch.fx.GraphModule` that returns a tuple.
        moving: how many arguments come before the weights.

    Returns:
        (a module of the weights, what it makes, a module of the other arguments and of that). For
        each value between the two: the number of a weight that is one as it is, or `None` for the
        next result of the first module. `None` if there is nothing to compute of weights alone,
        or if the graph does more than to compute results.
    """
    nodes = list(module.graph.nodes)
    given = [node for node in nodes if node.op == "placeholder"]
    weights = {node: number for number, node in enumerate(given[moving:])}
    fixed = _fixed(nodes, weights)
    if fixed is None:
        return None
    between = [node for node in nodes if node in fixed and not fixed.issuperset(node.users)]
    made = [node for node in between if node not in weights]
    if not made:
        return None
    first = _module(module, list(weights), made)
    second = _module(module, [*given[:moving], *between], nodes[-1].args[0])
    return first, [weights.get(node) for node in between], second


def _fixed(nodes: Sequence[Any], weights: Any) -> set[Any] | None:
    """The nodes that hang on weights alone, views at the border apart.

    A view costs nothing, and kernels read better through it than from what it would look like as
    a tensor: a broadcast one, say.
    """
    import torch

    fixed, moves = set(weights), {node for node in nodes if node.op == "placeholder"}
    moves -= fixed
    for node in nodes:
        if node.op != "call_function":
            continue
        plain = isinstance(node.target, torch._ops.OpOverload)
        pure = not node.target._schema.is_mutable if plain else node.target is operator.getitem
        if not pure:
            return None  # it may be more than its result
        tags = node.target.tags if plain else ()
        if torch.Tag.nondeterministic_seeded in tags or moves.intersection(node.all_input_nodes):
            moves.add(node)
        elif fixed.intersection(node.all_input_nodes):
            fixed.add(node)
    for node in reversed(nodes):
        if node in fixed and not fixed.issuperset(node.users) and _is_view(node):
            fixed.remove(node)
    return fixed


def _is_view(node) -> bool:
    """Whether a node's result may be its argument's memory."""
    import torch

    schema = getattr(node.target, "_schema", None)
    if schema is None or not any(value.alias_info for value in schema.returns):
        return False
    source, result = node.all_input_nodes[0].meta["val"], node.meta["val"]
    copied = node.target is torch.ops.aten.contiguous.default and source.stride() != result.stride()
    return source.dtype == result.dtype and not copied


def _module(module, arguments, results) -> Any:
    """A module that computes nodes of another one from nodes that it is given."""
    from torch import fx

    graph = fx.Graph()
    copies = {node: graph.placeholder(f"argument_{i}") for i, node in enumerate(arguments)}
    for node in module.graph.nodes:
        if node not in copies and all(source in copies for source in node.all_input_nodes):
            if node.op in ("call_function", "get_attr"):
                copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)
