"""Which arrays of a file are which variables of a model, both ways.

A dialect is a table of rows `(their module, our module, kind)`. `{i}` stands for a Transformer
block, `{b}` and `{u}` for a ResNet block and unit (from 1; `{b0}` and `{u0}` are one less). A kind
lists the arrays of a module: `(their leaf, our leaf, op)`, a leaf with the separator before it.
Several of their modules in one row stand side by side along our last axis: query, key and value in
one projection. Their names may say which part of an array is meant, along its first axis:
`in_proj[1:3/3]` is the second and third of three equal parts, `encoderblock[2]` entry 2 of a stack.

The model drives: each of its variables must find exactly one row.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from keras_vit.checkpoints.shapes import Config, Shape
from keras_vit.checkpoints.store import Entry, Store

Array = np.ndarray


@dataclass(frozen=True)
class Op:
    """How an array is turned: a transposition, then a reshape. The inverse is exact.

    Attributes:
        shape: shape of their array, from ours and the model's config.
        axes: the transposition on reading; `None` for none.
    """

    shape: Callable[[Shape, Config], Shape]
    axes: tuple[int, ...] | None = None

    def read(self, theirs: Array, shape: Shape) -> Array:
        """Turns their array into one of `shape`."""
        return (theirs if self.axes is None else theirs.transpose(self.axes)).reshape(shape)

    def write(self, ours: Array, shape: Shape) -> Array:
        """Turns our array into theirs, of `shape`."""
        if self.axes is None:
            return ours.reshape(shape)
        return ours.reshape([shape[axis] for axis in self.axes]).transpose(np.argsort(self.axes))


def _heads(shape: Shape, config: Config) -> Shape:
    return (*shape[:-1], config["num_heads"], shape[-1] // config["num_heads"])


def _patch(shape: Shape, config: Config) -> tuple[int, int, int]:
    height, width = config["patch_size"]
    return height, width, shape[0] // (height * width)


SAME = Op(lambda shape, _: shape)
# torch: kernels are (out, in) and OIHW.
TRANSPOSED = Op(lambda shape, _: shape[::-1], (1, 0))
OIHW = Op(lambda shape, _: (shape[3], shape[2], shape[0], shape[1]), (2, 3, 1, 0))
PATCH_OIHW = Op(lambda s, c: (s[1], _patch(s, c)[2], *_patch(s, c)[:2]), (2, 3, 1, 0))
# Flax: kernels are (in, out) and HWIO; attention keeps an axis for the heads.
PATCH_HWIO = Op(lambda shape, config: (*_patch(shape, config), shape[1]))
TO_HEADS = Op(_heads)
FROM_HEADS = Op(lambda s, c: (c["num_heads"], s[0] // c["num_heads"], s[1]))
POINTWISE = Op(lambda shape, _: (1, 1, *shape))
BATCHED = Op(lambda shape, _: (1, *shape))
VECTOR = Op(lambda shape, _: (shape[-1],))

Kind = tuple[tuple[str, str, Op], ...]
Row = tuple[str | tuple[str, ...], str, Kind]

# One array that the row names in full.
LONE: Kind = (("", "", SAME),)
TABLE: Kind = (("", "/embedding", BATCHED),)
FLAT_TABLE: Kind = (("", "/embedding", SAME),)
TOKEN: Kind = (("", "", VECTOR),)

F_NORM: Kind = (("/scale", "/gamma", SAME), ("/bias", "/beta", SAME))
F_DENSE: Kind = (("/kernel", "/kernel", SAME), ("/bias", "/bias", SAME))
F_PATCH: Kind = (("/kernel", "/kernel", PATCH_HWIO), ("/bias", "/bias", SAME))
F_TO_HEADS: Kind = (("/kernel", "/kernel", TO_HEADS), ("/bias", "/bias", TO_HEADS))
F_FROM_HEADS: Kind = (("/kernel", "/kernel", FROM_HEADS), ("/bias", "/bias", SAME))
F_CONV: Kind = (("/kernel", "/kernel", SAME),)

T_NORM: Kind = ((".weight", "/gamma", SAME), (".bias", "/beta", SAME))
T_DENSE: Kind = ((".weight", "/kernel", TRANSPOSED), (".bias", "/bias", SAME))
# A fused projection has no module of its own: `in_proj_weight`, not `in_proj.weight`.
T_FUSED: Kind = (("_weight", "/kernel", TRANSPOSED), ("_bias", "/bias", SAME))
T_PATCH: Kind = ((".weight", "/kernel", PATCH_OIHW), (".bias", "/bias", SAME))
T_CONV: Kind = ((".weight", "/kernel", OIHW),)


def each(prefix: str, *names: str) -> tuple[str, ...]:
    """Names with a common prefix."""
    return tuple(prefix + name for name in names)


def torch_bottlenecks(root: str, unit: str) -> list[Row]:
    """A hybrid's stem with timm's names inside a unit.

    Args:
        root: module of the root's `conv` and `norm`, as `(conv, norm)` joined by a comma.
        unit: module of a unit, with `{b0}` and `{u0}`.
    """
    conv, norm = root.split(",")
    ours = "stem_block{b}_unit{u}"
    return [
        (conv, "stem_root/conv", T_CONV),
        (norm, "stem_root/norm", T_NORM),
        *((f"{unit}.conv{n}", f"{ours}/conv{n}", T_CONV) for n in (1, 2, 3)),
        *((f"{unit}.norm{n}", f"{ours}/norm{n}", T_NORM) for n in (1, 2, 3)),
        (f"{unit}.downsample.conv", f"{ours}/conv_proj", T_CONV),
        (f"{unit}.downsample.norm", f"{ours}/norm_proj", T_NORM),
    ]


@dataclass(frozen=True)
class Ref:
    """An array of a file, or a part of it.

    Attributes:
        name: its name.
        part: `(first, last, count)`: these of `count` equal parts along the first axis.
        index: entry along the first axis, which is then gone.
    """

    name: str
    part: tuple[int, int, int] | None = None
    index: int | None = None

    def cut(self, array: Array) -> Array:
        """The part of the whole array."""
        if self.index is not None:
            return array[self.index]
        if self.part is None:
            return array
        first, last, count = self.part
        size = array.shape[0] // count
        return array[first * size : last * size]


@dataclass(frozen=True)
class Binding:
    """One variable and where it comes from.

    Attributes:
        path: its path.
        shape: its shape.
        refs: the arrays that stand side by side along its last axis; none for zeros.
        op: how each is turned.
        their_shape: shape of each of them, or of the part of it.
    """

    path: str
    shape: Shape
    refs: tuple[Ref, ...]
    op: Op = SAME
    their_shape: Shape = ()


def bind(
    shapes: Mapping[str, Shape], rows: Iterable[Row], config: Config, zeros: str = r"(?!)"
) -> tuple[list[Binding], list[str]]:
    """Finds the row of each variable.

    Args:
        shapes: the variables, see `shapes.weight_shapes`.
        rows: the dialect's.
        config: the model's.
        zeros: pattern of paths that the file leaves out because they are zero.

    Returns:
        The bindings, and the paths that have no row.
    """
    leaves = [
        (_pattern(ours + leaf), theirs, their_leaf, op)
        for theirs, ours, kind in rows
        for their_leaf, leaf, op in kind
    ]
    bindings, homeless = [], []
    for path, shape in shapes.items():
        if re.fullmatch(zeros, path):
            bindings.append(Binding(path, shape, ()))
            continue
        hits = [
            (theirs, their_leaf, op, match)
            for pattern, theirs, their_leaf, op in leaves
            if (match := pattern.fullmatch(path))
        ]
        if len(hits) != 1:
            homeless.append(path)
            continue
        theirs, their_leaf, op, match = hits[0]
        refs = _refs(theirs, their_leaf, match)
        piece = (*shape[:-1], shape[-1] // len(refs))
        bindings.append(Binding(path, shape, refs, op, op.shape(piece, config)))
    return bindings, homeless


def _pattern(path: str) -> re.Pattern:
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(path)))


def _refs(theirs: str | tuple[str, ...], leaf: str, match: re.Match) -> tuple[Ref, ...]:
    index = {key: int(value) for key, value in match.groupdict().items()}
    index |= {f"{key}0": value - 1 for key, value in index.items()}
    modules = (theirs,) if isinstance(theirs, str) else theirs
    return tuple(_parse(module.format(**index) + leaf) for module in modules)


def _parse(name: str) -> Ref:
    if "[" not in name:
        return Ref(name)
    before, _, rest = name.partition("[")
    inner, _, after = rest.partition("]")
    if inner.isdigit():
        return Ref(before + after, index=int(inner))
    first, last, count = map(int, re.split("[:/]", inner))
    return Ref(before + after, part=(first, last, count))


def expected(bindings: Iterable[Binding]) -> dict[str, Shape]:
    """The arrays that a file must have, with their shapes."""
    whole: dict[str, Shape] = {}
    for binding in bindings:
        for ref in binding.refs:
            shape = binding.their_shape
            if ref.index is not None:
                shape = (max(ref.index + 1, whole.get(ref.name, (0,))[0]), *shape)
            elif ref.part is not None:
                first, last, count = ref.part
                shape = (shape[0] * count // (last - first), *shape[1:])
            whole[ref.name] = shape
    return whole


class Reader:
    """Reads variables out of a store, one at a time.

    Args:
        store: the open checkpoint.
        bindings: its variables; read in this order, stacks are read once.
    """

    # Query, key and value.
    _KEPT = 3

    def __init__(self, store: Store, bindings: Iterable[Binding]):
        self._store = store
        # Blocks that share a stack come one after the other.
        ordered = sorted(bindings, key=lambda b: b.refs[0].name if b.refs else "")
        self.bindings = {binding.path: binding for binding in ordered}
        self._stacks: OrderedDict[str, Array] = OrderedDict()

    def read(self, path: str) -> Array:
        """Reads one variable; its dtype is the file's, float32 for bfloat16."""
        binding = self.bindings[path]
        if not binding.refs:
            return np.zeros(binding.shape, "float32")
        piece = (*binding.shape[:-1], binding.shape[-1] // len(binding.refs))
        pieces = [
            binding.op.read(ref.cut(self._whole(ref)).reshape(binding.their_shape), piece)
            for ref in binding.refs
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=-1)

    def _whole(self, ref: Ref) -> Array:
        if ref.index is None and ref.part is None:
            return self._store.read(ref.name)
        if ref.name not in self._stacks:
            while len(self._stacks) >= self._KEPT:
                self._stacks.popitem(last=False)
            self._stacks[ref.name] = self._store.read(ref.name)
        return self._stacks[ref.name]


class Writer:
    """Makes a file's arrays out of variables, one at a time.

    Args:
        bindings: the variables.
        get: gives the value of a variable by its path.
        shapes: shapes that the source file had, where they say the same in another way.
        dtype: dtype of the file's arrays.
    """

    def __init__(
        self,
        bindings: Iterable[Binding],
        get: Callable[[str], Array],
        shapes: Mapping[str, Shape],
        dtype: str = "float32",
    ):
        self._get = get
        self._parts: dict[str, list[tuple[Binding, int]]] = {}
        bindings = list(bindings)
        for binding in bindings:
            for number, ref in enumerate(binding.refs):
                self._parts.setdefault(ref.name, []).append((binding, number))
        self.entries = {}
        for name, shape in expected(bindings).items():
            entry = Entry(shape, dtype)
            same_size = Entry(tuple(shapes.get(name, ())), dtype)
            self.entries[name] = same_size if same_size.size == entry.size else entry

    def produce(self, name: str) -> Array:
        """Makes one array."""
        order = sorted(self._parts[name], key=lambda part: _place(part[0].refs[part[1]]))
        pieces = [self._piece(binding, number) for binding, number in order]
        ref = order[0][0].refs[order[0][1]]
        if ref.index is not None:
            array = np.stack(pieces)
        else:
            array = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return array.reshape(self.entries[name].shape)

    def _piece(self, binding: Binding, number: int) -> Array:
        value = self._get(binding.path)
        width = binding.shape[-1] // len(binding.refs)
        ours = value[..., number * width : (number + 1) * width]
        return binding.op.write(ours, binding.their_shape)


def _place(ref: Ref) -> int:
    return ref.index if ref.index is not None else (ref.part or (0,))[0]
