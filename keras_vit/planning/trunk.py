"""What a Vision Transformer keeps outside of its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_vit.planning.block import norm
from keras_vit.planning.tensors import Kept
from keras_vit.planning.way import Way

Config = Mapping[str, Any]


def before(config: Config, way: Way) -> list[Kept]:
    """From the patches to the first block."""
    # Patches of one cell are a view of the stem's map.
    viewed = way.backend == "torch" and tuple(config["patch_size"]) == (1, 1)
    found = [] if viewed else [Kept("patches", "B N P")]
    if config["dropout_rate"]:
        found.append(Kept("mask of the embedding's dropout", "B A D", way.mask))
    if config["patch_dropout_rate"]:
        index = "int64" if way.backend == "torch" else "int32"
        found += [Kept("patches that stay", "B K D" if way.backend == "torch" else "B K", index)]
        if way.backend == "torch":
            found.append(Kept("tokens to choose from", "B A D"))
    if config["pre_norm"]:
        dtype = "float32" if way.eager else "compute"
        found += [
            Kept("input of the first norm", "B T D", dtype),
            Kept("mean and deviation of the first norm", "B T 2", "float32"),
        ]
    return found


def behind(config: Config, way: Way) -> list[Kept]:
    """From the last block to the loss."""
    final = norm("final norm", way)
    pooling, torch = config["pooling"], way.eager
    found = []
    if config["norm_after_pooling"]:
        # The class token is a view of all tokens.
        rows = "B T D" if torch and pooling == "token" and not way.mixed else "B D"
        found += [
            Kept("input of the final norm", rows, "float32"),
            Kept("mean and deviation of the final norm", "2B", "float32"),
        ]
    else:
        # Its output is kept where a product reads it: in attention pooling, or as a view.
        views = torch and pooling == "token" and (not way.mixed or config["representation_size"])
        reads = pooling == "map" or views
        found += final if reads else final[:2]
    if pooling == "map":
        found += _attention_pooling(config, way)
    return [*found, *_head(config, way)]


def held(config: Config, way: Way) -> list[Kept]:
    """What eager PyTorch has at the end of the forward pass beside what autograd keeps.

    A functional Keras model holds the output of each of its layers until it is through. In 16 bits
    autograd keeps blocks' inputs in float32, as norms read them, so that these are further tensors.
    Two more tokens' worth is the final norm at work.
    """
    if not way.eager:
        return []
    outputs = config["num_layers"] + 2 if way.mixed and not config["remat"] else 0
    height, width, channels = config["image_shape"]
    return [
        Kept("outputs of layers", f"{outputs + 2}B T D"),
        Kept("scaled images", f"B {height * width * channels}"),
    ]


def _attention_pooling(config: Config, way: Way) -> list[Kept]:
    """`layers.pooling.AttentionPooling`: one query an image."""
    found = []
    if config["norm_after_pooling"]:
        found.append(Kept("tokens that the pooling reads", "B T D"))
    found += [
        Kept("keys and values of the pooling", "B T 2D"),
        Kept("its query", "B D"),
        Kept("its probabilities", "B H T", "float32"),
    ]
    if way.mixed:
        found.append(Kept("probabilities as the product reads them", "B H T"))
    found += [
        Kept("input of its output projection", "B D"),
        Kept("input of its norm", "B D", "float32"),
        Kept("mean and deviation of its norm", "2B", "float32"),
        Kept("input of its MLP", "B D"),
    ]
    factor = {"gelu_tanh": 2, "gelu": 4, "quick_gelu": 3, "swiglu": 4}[config["activation"]]
    return [*found, Kept("inside of its MLP", f"{factor}B M")]


def _head(config: Config, way: Way) -> list[Kept]:
    found, features = [], "B F"
    # PyTorch's class token is a view of the final norm's output.
    viewed = way.eager and config["pooling"] == "token"
    viewed = viewed and not config["norm_after_pooling"]
    if config["representation_size"]:
        if not viewed:
            found.append(Kept("input of the layer before the head", "B F"))
        found.append(Kept("output of the layer before the head", "B R"))
        features = "B R"
    if config["num_classes"] is None:
        return found
    heads = "2" if config["distillation"] == "head" else ""
    if way.mixed or not (config["representation_size"] or viewed):
        found.append(Kept("input of the head", f"{heads}{features}", "float32"))
    found += [
        Kept("log-probabilities", "B C", "float32"),
        Kept("labels", "B", "int64" if way.backend == "torch" else "int32"),
    ]
    return found
