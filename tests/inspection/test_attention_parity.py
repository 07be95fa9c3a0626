"""Attention maps of transformers and timm, with the weights of the reference checkpoints."""

import importlib.util

import harness
import keras
import numpy as np
import pytest
import reference_attention
from parity_cases import FIXTURES, case, needs_fixtures

from keras_vit import inspection

CASES = [
    f"{project}/{name}"
    for project, (_, names) in reference_attention.PROJECTS.items()
    for name in names
]


@pytest.fixture(scope="module")
def golden():
    with np.load(reference_attention.GOLDEN) as stored:
        return dict(stored)


@needs_fixtures
@pytest.mark.parametrize("name", CASES)
def test_maps(name, golden):
    reference = case(name)
    model = reference.build()
    images = reference.io["inputs"]
    logits = keras.ops.convert_to_numpy(model(images, training=False))
    maps = inspection.attention_maps(model, images)
    expected = golden[name]
    assert len(maps) == len(expected)
    for ours, theirs in zip(maps, expected, strict=True):
        np.testing.assert_allclose(ours[0], theirs, rtol=0, atol=1e-5)
        np.testing.assert_allclose(ours.sum(-1), 1.0, rtol=0, atol=1e-5)
    again = keras.ops.convert_to_numpy(model(images, training=False))
    np.testing.assert_array_equal(again, logits)


@needs_fixtures
@pytest.mark.slow
@harness.once("neither side is ours")
@pytest.mark.parametrize("name", CASES)
def test_golden_maps_are_the_libraries(name, golden):
    project, _, _ = name.partition("/")
    library = {"hf": "transformers"}.get(project, project)
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    measure, _ = reference_attention.PROJECTS[project]
    from live import their_warnings

    with their_warnings():
        found = measure(reference_attention.Path(FIXTURES) / name)
    np.testing.assert_allclose(found, golden[name], rtol=0, atol=1e-5)
