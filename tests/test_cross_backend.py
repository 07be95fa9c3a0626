"""A `.keras` file of one backend, loaded by each installed backend in a fresh process.

The child imports nothing but `keras_vit`, in safe mode, and finds logits and optimizer state as
they were; then it trains on.
"""

import importlib.util
import warnings

import harness
import keras
import numpy as np
import pytest

import keras_vit

CHILD = """
import sys

import keras_vit
import numpy as np

for name in sys.argv[1:]:
    model = keras_vit.load_model(f"{name}.keras")
    with np.load(f"{name}.npz") as data:
        images, labels = data["images"], data["labels"]
    results = {"logits": model.predict(images, verbose=0)}
    optimizer = model.optimizer
    results |= {f"optimizer {i}": np.array(v.numpy()) for i, v in enumerate(optimizer.variables)}
    history = model.fit(images, labels, batch_size=len(images), verbose=0).history
    results |= {"loss": history["loss"][0], "iterations": int(optimizer.iterations)}
    results |= {"compiled": bool(model.jit_compile)}
    results |= {"after": model.predict(images, verbose=0)}
    np.savez(f"{name}-results.npz", **results)
print(sys.modules["keras"].backend.backend())
"""

MODELS = {
    "vit": (
        keras_vit.VisionTransformer,
        {
            "image_shape": (14, 21, 3),
            "patch_size": 7,
            "hidden_dim": 8,
            "num_layers": 1,
            "num_heads": 2,
            "mlp_dim": 13,
            "num_classes": 5,
            "pooling": "map",
            "class_token": True,
            "num_registers": 2,
            "representation_size": 6,
            "layer_scale_init": 0.5,
            "dropout_rate": 0.1,
        },
    ),
    "hybrid": (
        keras_vit.VisionTransformer,
        {
            "image_shape": (24, 40, 3),
            "patch_size": (3, 5),
            "hidden_dim": 8,
            "num_layers": 1,
            "num_heads": 2,
            "mlp_dim": 13,
            "num_classes": 5,
            "stem": {"block_counts": (1,), "width": 8, "groups": 4},
        },
    ),
}


def state(optimizer):
    return [keras.ops.convert_to_numpy(v) for v in optimizer.variables]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with models that made two steps, and name -> (logits, optimizer state)."""
    folder, expected = tmp_path_factory.mktemp("saved"), {}
    for name, (cls, kwargs) in MODELS.items():
        keras.utils.set_random_seed(0)
        model = cls(**kwargs)
        harness.randomize(model)
        images = harness.pixels((4, *kwargs["image_shape"]))
        labels = np.arange(4) % 5
        model.fit(images, labels, batch_size=2, verbose=0)
        assert int(model.optimizer.iterations) == 2
        model.save(folder / f"{name}.keras")
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
        expected[name] = model.predict(images, verbose=0), state(model.optimizer)
    return folder, expected


@pytest.mark.slow
@pytest.mark.parametrize("backend", harness.BACKENDS)
def test_loads_under(backend, saved):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    folder, models = saved
    out = harness.run_python(CHILD, *models, backend=backend, folder=folder)
    assert out.split()[-1] == backend
    tolerance = 0 if backend == harness.BACKEND else 1e-5
    for name, (logits, optimizer) in models.items():
        with np.load(folder / f"{name}-results.npz") as file:
            results = dict(file)
        np.testing.assert_allclose(results["logits"], logits, rtol=0, atol=tolerance)
        found = [results[f"optimizer {i}"] for i in range(len(optimizer))]
        assert f"optimizer {len(optimizer)}" not in results
        assert int(found[0]) == 2
        for actual, expected in zip(found, optimizer, strict=True):
            np.testing.assert_array_equal(actual, expected)
            assert expected.any(), "a moment is zero after two steps"
        assert int(results["iterations"]) == 3
        # Whoever wrote the file, JAX compiles and PyTorch, which takes minutes for it, does not.
        if backend != "tensorflow":
            assert bool(results["compiled"]) is (backend == "jax")
        assert np.isfinite(results["loss"])
        assert np.abs(results["after"] - results["logits"]).max() > 1e-6


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "lion", "adagrad"])
def test_every_optimizer_is_restored(name, tmp_path):
    """PyTorch writes classes of its own into the file; here it is read where it was written."""
    _, kwargs = MODELS["vit"]
    model = keras_vit.VisionTransformer(**kwargs)
    model.compile(name, model.loss)
    model.optimizer.build(model.trainable_variables)
    for variable in model.optimizer.variables[2:]:
        variable.assign(harness.noise(tuple(variable.shape), variable.path))
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = keras_vit.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer).__name__ == type(model.optimizer).__name__
    for actual, expected in zip(state(loaded.optimizer), state(model.optimizer), strict=True):
        np.testing.assert_array_equal(actual, expected)
