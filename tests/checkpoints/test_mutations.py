"""Damaged checkpoints of every dialect: whatever is wrong, only our own error comes out."""

import copy
import functools
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parity_cases import CASES, needs_fixtures

from keras_vit.checkpoints import CheckpointError, formats
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.reading import Weights
from keras_vit.checkpoints.store import Entry, Store
from keras_vit.models.file_config import config_of

pytestmark = needs_fixtures

# One file of each set of names, all small.
LABELS = (
    *("google/vit_token", "google/bv_map", "google/bv_gap_scan", "google/hybrid_tiny_odd"),
    *("google/bit_v2_paper", "timm/deit_distilled", "timm/hybrid_stem_only", "torchvision/vit"),
    *("hf/vit_classification", "hf/dinov2_swiglu", "hf/siglip_vision", "hf/clip_vision"),
    *("hf/vit_hybrid_small_groups", "timm/clip_quickgelu/openai_clip"),
    *("keras_hub/vit_classifier",),
)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-2, 100), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@functools.cache
def whole(label):
    """Arrays' headers, metadata and documents of a case, and what has to be said beside them."""
    reference = next(c for c in CASES if str(c) == label)
    with open_checkpoint(reference.path) as store:
        return store.path, dict(store.entries), dict(store.documents), reference.arguments


def load(path, entries, documents, arguments, metadata):
    """All of `from_checkpoint` but the model: detection, config, names, reading."""
    store = Store(
        path,
        entries,
        lambda name: np.zeros(entries[name].shape, "float32"),
        metadata,
        documents,
    )
    hints = formats.Hints.of(arguments)
    found = formats.detect(store, hints)
    weights = Weights(store, found, config_of(found, {}, store))
    weights.report.raise_unless_clean(path)
    for name in weights.paths:
        weights.read(name)
    return weights


@pytest.mark.parametrize("label", LABELS)
def test_undamaged(label):
    path, entries, documents, arguments = whole(label)
    assert load(path, entries, documents, arguments, {}).paths


@pytest.mark.parametrize("label", LABELS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_mutated(label, data):
    path, entries, documents, arguments = whole(label)
    entries, documents = dict(entries), copy.deepcopy(documents)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(entries)))
        entry = entries[name]
        kind = data.draw(st.sampled_from(["drop", "rename", "shape", "dtype", "document", "note"]))
        if kind == "drop":
            del entries[name]
        elif kind == "rename":
            other = data.draw(st.sampled_from(["x", "0", ".1", "/2", "9999.", "blocks.7."]))
            entries[name + other] = entries.pop(name)
        elif kind == "shape":
            shape = data.draw(
                st.one_of(
                    st.lists(st.integers(0, 40), max_size=5).map(tuple),
                    st.just(entry.shape[::-1]),
                    st.just((1, *entry.shape)),
                    st.just(entry.shape[:-1]),
                )
            )
            entries[name] = Entry(shape, entry.dtype)
        elif kind == "dtype":
            entries[name] = Entry(entry.shape, data.draw(st.sampled_from(["int64", "bool"])))
        elif kind == "document" and documents:
            spoil(documents, data)
    note = data.draw(st.one_of(st.just({}), st.dictionaries(st.just("keras_vit"), NOTES)))
    try:
        load(path, entries, documents, arguments, note)
    except CheckpointError as error:
        assert len(str(error)) > 20


NOTES = st.one_of(
    st.text(max_size=10),
    st.dictionaries(
        st.sampled_from(["hidden_dim", "num_heads", "stem", "image_shape", "block_counts", "x"]),
        JUNK,
    ).map(json.dumps),
)


def spoil(documents, data):
    """Replaces one value, at any depth, of one document."""
    node = documents[data.draw(st.sampled_from(sorted(documents)))]
    while True:
        if not node:
            return
        key = data.draw(st.sampled_from(sorted(node)))
        if isinstance(node[key], dict) and data.draw(st.booleans()):
            node = node[key]
            continue
        node[key] = data.draw(JUNK)
        return
