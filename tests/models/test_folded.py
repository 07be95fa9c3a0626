"""Graphs in two parts: of the weights alone, and of the rest."""

import harness
import numpy as np
import pytest

from keras_vit.models import folded

if harness.BACKEND != "torch":
    pytest.skip("they are PyTorch's graphs", allow_module_level=True)

import torch
from torch.fx.experimental.proxy_tensor import make_fx

X, W, B = (torch.as_tensor(harness.noise(s, str(s))) for s in ((4, 3), (3, 5), (5,)))


def cut(function, *arguments, moving=1):
    with torch.no_grad():
        return folded.split(make_fx(function, pre_dispatch=True)(*arguments), moving)


def run(parts, moving, weights):
    first, sources, second = parts
    made = iter(first(*weights))
    between = [next(made) if number is None else weights[number] for number in sources]
    assert next(made, None) is None
    return between, second(*moving, *between)


def test_copies_in_another_dtype():
    def function(x, w, b):
        return (x.bfloat16() @ w.to(torch.bfloat16) + b,)

    parts = cut(function, X, W, B)
    between, (found,) = run(parts, [X], [W, B])
    assert [t.dtype for t in between] == [torch.bfloat16, torch.float32] or [
        t.dtype for t in between
    ] == [torch.float32, torch.bfloat16]
    assert any(t is B for t in between)
    np.testing.assert_array_equal(found, function(X, W, B)[0])


def test_views_stay_with_what_reads_them():
    def function(x, w, b):
        wide = (b * 2.0).expand(4, 5)
        return (x @ w.t().contiguous().t() + wide,)

    parts = cut(function, X, W, B)
    between, (found,) = run(parts, [X], [W, B])
    assert sorted(tuple(t.shape) for t in between) == [(5,), (5, 3)]
    np.testing.assert_allclose(found, function(X, W, B)[0], rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: (x @ w + b,),
        lambda x, w, b: (x @ w.t().t() + b.reshape(1, 5),),
        lambda x, w, b: (x @ w + torch.rand_like(b),),
    ],
    ids=["weights as they are", "views alone", "random numbers"],
)
def test_nothing_to_do(function):
    assert cut(function, X, W, B) is None


def test_constants_and_results_without_images():
    half = torch.tensor(0.5)

    def function(x, w, b):
        return x + 1.0, (w * half + torch.arange(5.0)).sum(0), b

    parts = cut(function, X, W, B)
    _, found = run(parts, [X], [W, B])
    for value, expected in zip(found, function(X, W, B), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_several_arguments_before_the_weights():
    def function(x, factor, w):
        return (x * factor[:, None] @ w.double().float(),)

    factor = torch.ones(4)
    parts = cut(function, X, factor, W, moving=2)
    _, (found,) = run(parts, [X, factor], [W])
    np.testing.assert_allclose(found, X @ W, rtol=1e-5)


def test_lists_of_views():
    def function(x, w):
        first, second = (w * 2.0).split([1, 2], 0)
        return (x[:, :1] @ first + x[:, 1:] @ second,)

    parts = cut(function, X, W)
    _, (found,) = run(parts, [X], [W])
    np.testing.assert_allclose(found, X @ W * 2.0, rtol=1e-5, atol=1e-6)


def test_what_changes_in_place_stays_whole():
    def function(x, w, b):
        doubled = b * 2.0
        doubled.add_(1.0)
        return (x @ w + doubled,)

    assert cut(function, X, W, B) is None


def test_other_than_operators():
    def function(x, w):
        with torch.enable_grad():
            return (x @ (w * 2.0),)

    parts = cut(function, X, W)
    if parts is not None:  # PyTorch may leave the context out of the graph
        np.testing.assert_allclose(run(parts, [X], [W])[1][0], X @ W * 2.0, rtol=1e-6)
