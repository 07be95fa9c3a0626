"""What root and bottleneck units keep: of BiT ResNets, and of the hybrids' stems.

Read off `layers.bottleneck` and `layers.std_conv`, as `planning.block` is. On PyTorch a GroupNorm
keeps its centred input in float32, ReLU its result, a convolution its input (one of its own where
it was padded unevenly) and its standardised kernel. XLA keeps what convolutions read and write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_vit.checkpoints.shapes import is_bit
from keras_vit.planning.tensors import Kept
from keras_vit.planning.way import Way

_GROUPS = 32
Size = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """Root, unit, or what follows them.

    Attributes:
        name: of the layer.
        tensors: what it keeps for each image.
        weights: what it keeps of its kernels, whatever the batch.
        backward: what its backward pass needs beside that.
    """

    name: str
    tensors: list[Kept]
    weights: list[Kept]
    backward: list[Kept]


def parts(config: Mapping[str, Any], way: Way) -> list[Part]:
    """Root and units of a BiT ResNet, or of a hybrid's stem, in the forward pass' order."""
    prefix, before = "stem_", False
    if is_bit(config):
        prefix, before = "", config["preactivation"]
        counts, width = config["block_counts"], int(64 * config["width_factor"])
        groups, mode = config.get("groups", _GROUPS), config.get("std_conv_mode")
    else:
        stem = config["stem"]
        counts, width = stem["block_counts"], stem["width"]
        groups, mode = stem.get("groups", _GROUPS), stem.get("std_conv_mode")
    mode = mode or ("variance" if before else "std")
    layers = _Layers(way, before, groups, 2 if mode == "std" else 1)
    height, rest, channels = config["image_shape"]
    size = (height, rest)
    half = _halved(size)
    found = [layers.root(f"{prefix}root", size, half, channels, width)]
    size, channels = _halved(half), width
    for block, units in enumerate(counts):
        for unit in range(units):
            stride = 2 if block and not unit else 1
            name = f"{prefix}block{block + 1}_unit{unit + 1}"
            inner = width * 2**block
            found.append(layers.unit(name, size, channels, inner, stride, project=not unit))
            size = _halved(size) if stride == 2 else size
            channels = 4 * inner
    if before:
        found.append(layers.last(size, channels))
    return found


def _halved(size: Size) -> Size:
    return -(-size[0] // 2), -(-size[1] // 2)


def _map(size: Size, channels: int) -> str:
    return f"B {size[0]} {size[1]} {channels}"


@dataclass(frozen=True)
class _Layers:
    """What the parts of one network share.

    Attributes:
        way: how it is run.
        before: whether norms stand before convolutions (V2).
        groups: of the GroupNorms.
        statistics: figures that a standardised kernel keeps for each output channel.
    """

    way: Way
    before: bool
    groups: int
    statistics: int

    @property
    def torch(self) -> bool:
        return self.way.backend == "torch"

    def norm(self, name: str, size: Size, channels: int) -> list[Kept]:
        """A GroupNorm and the ReLU behind it."""
        if not self.torch:
            return [Kept(f"statistics of {name}", f"2B {self.groups}", "float32")]
        return [
            Kept(f"centred input of {name}", _map(size, channels), "float32"),
            Kept(f"statistics of {name}", f"3B {self.groups}", "float32"),
            Kept(f"scale of {name}", f"B {channels}", "float32"),
        ]

    def relu(self, name: str, size: Size, channels: int) -> list[Kept]:
        return [Kept(f"result of {name}", _map(size, channels))]

    def conv_input(self, name: str, size: Size, channels: int, kernel: int, stride: int):
        """What a convolution keeps of its input beside the ReLU's result."""
        padded = self._padded(size, kernel, stride)
        if not self.torch or padded == size:
            return []
        return [Kept(f"input of {name}", _map(padded, channels))]

    def _padded(self, size: Size, kernel: int, stride: int) -> Size:
        """The size of the input as the convolution gets it."""
        return size if self.before or stride == 1 else _same(size, kernel)

    def conv_output(self, name: str, size: Size, channels: int) -> list[Kept]:
        return [] if self.torch else [Kept(f"result of {name}", _map(size, channels))]

    def kernel(self, name: str, side: int, inputs: int, outputs: int) -> list[Kept]:
        """A standardised kernel."""
        numbers = f"{side} {side} {inputs} {outputs}"
        found = [Kept(f"standardised kernel of {name}", numbers)]
        if self.torch:
            found.append(Kept(f"centred kernel of {name}", numbers, "float32"))
        return [
            *found,
            Kept(f"deviations of {name}", f"{self.statistics} {outputs}", "float32"),
        ]

    def root(self, name: str, size: Size, half: Size, inputs: int, width: int) -> Part:
        """The first convolution and the max-pool."""
        padded = self.conv_input("the root", size, inputs, 7, 2)
        found = padded or [Kept("images", _map(size, inputs))]
        found += self.conv_output("the root", half, width)
        if not self.before:
            found += self.norm("the root's norm", half, width)
            found += self.relu("the root's ReLU", half, width)
        if self.torch:
            pooled = _halved(half)
            if self.before:
                found.append(Kept("input of the max-pool", _map(half, width)))
            else:
                found.append(Kept("result of the max-pool", _map(pooled, width)))
            found.append(Kept("places of the maxima", _map(pooled, width), "int64"))
        gradients = [Kept("gradients of the root", f"2B {half[0]} {half[1]} {width}")]
        return Part(name, found, self.kernel("the root", 7, inputs, width), gradients)

    def unit(
        self, name: str, size: Size, channels: int, inner: int, stride: int, *, project: bool
    ) -> Part:
        """One bottleneck unit."""
        out = _halved(size) if stride == 2 else size
        wide = 4 * inner
        found: list[Kept] = [] if self.torch else [Kept("input", _map(size, channels))]
        weights = self.kernel("conv1", 1, channels, inner) + self.kernel("conv2", 3, inner, inner)
        weights += self.kernel("conv3", 1, inner, wide)
        if self.before:
            found += self.norm("norm1", size, channels) + self.relu("ReLU 1", size, channels)
        if project:
            weights += self.kernel("conv_proj", 1, channels, wide)
            found += self.conv_input("conv_proj", size, channels, 1, 1)
            if not self.before:
                found += self.conv_output("conv_proj", out, wide)
                found += self.norm("norm_proj", out, wide)
        found += self.conv_input("conv1", size, channels, 1, 1)
        found += self.conv_output("conv1", size, inner)
        found += self.norm("norm behind conv1", size, inner) + self.relu("ReLU 2", size, inner)
        found += self.conv_input("conv2", size, inner, 3, stride)
        found += self.conv_output("conv2", out, inner)
        found += self.norm("norm behind conv2", out, inner) + self.relu("ReLU 3", out, inner)
        found += self.conv_input("conv3", out, inner, 1, 1)
        if not self.before:
            found += self.conv_output("conv3", out, wide) + self.norm("norm3", out, wide)
            # XLA's is the next unit's input.
            found += self.relu("the last ReLU", out, wide) if self.torch else []
        item = "float32" if self.torch else "compute"  # a GroupNorm's gradient
        gradients = [Kept("gradients of the unit", f"2B {out[0]} {out[1]} {wide}", item)]
        return Part(name, found, weights, gradients)

    def last(self, size: Size, channels: int) -> Part:
        """The norm and ReLU behind the units of a V2 network."""
        found = [] if self.torch else [Kept("input of the last norm", _map(size, channels))]
        found += self.norm("the last norm", size, channels)
        found += self.relu("the last ReLU", size, channels) if self.torch else []
        gradients = [Kept("gradient of the map", _map(size, channels), "float32")]
        return Part("final_norm", found, [], gradients)


def _same(size: Size, kernel: int) -> Size:
    """A map with SAME padding at stride 2; as it was where both sides of it are padded alike."""
    padded = tuple(max(side, (-(-side // 2) - 1) * 2 + kernel) for side in size)
    if all((wide - side) % 2 == 0 for wide, side in zip(padded, size, strict=True)):
        return size  # padded inside
    return padded[0], padded[1]
