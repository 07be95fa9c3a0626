"""Optimizers, schedules and averages against NumPy, over ten updates, on every backend."""

import keras
import numpy as np
import pytest
from harness import BACKEND, noise, numpy

import keras_vit
from keras_vit.training import SGD, AdamW, WarmupSchedule, layer_decay_multipliers, swap_averages
from keras_vit.training.groups import depth

SHAPES = {"block/kernel": (5, 3), "block/bias": (3,), "head/kernel": (3, 2)}
MULTIPLIERS = {"block/kernel": 0.25, "block/bias": 0.25}
UPDATES = 10


class Named(keras.layers.Layer):
    """Holds variables of the paths of SHAPES."""

    def __init__(self):
        super().__init__(name="top")
        self.parts = []
        for path, shape in SHAPES.items():
            owner, kind = path.split("/")
            with keras.name_scope(owner):
                self.parts.append(
                    keras.Variable(noise(shape, path, 0.5), name=kind, trainable=True)
                )


def rate(step, peak=0.1, warmup=3, total=UPDATES, end=0.01):
    """Cosine after a linear warm-up, written anew."""
    if step < warmup:
        return peak * step / warmup
    share = min((step - warmup) / (total - warmup), 1.0)
    return end + (peak - end) * 0.5 * (1 + np.cos(np.pi * share))


def gradients(call):
    return {path: noise(shape, f"{path} {call}", 2.0) for path, shape in SHAPES.items()}


def reference(kind, *, decay, clip, every, ema):
    """(weights, averages) after UPDATES, in float64."""
    weights = {path: noise(shape, path, 0.5).astype("float64") for path, shape in SHAPES.items()}
    state = {path: [np.zeros(shape), np.zeros(shape)] for path, shape in SHAPES.items()}
    averages = {}
    for update in range(UPDATES):
        total = {path: np.zeros(shape) for path, shape in SHAPES.items()}
        for part in range(every):
            for path, gradient in gradients(update * every + part).items():
                total[path] += gradient.astype("float64") / every
        norm = np.sqrt(sum((g**2).sum() for g in total.values()))
        for path, g in total.items():
            g = g * min(1.0, clip / norm) if clip else g
            m, v = state[path]
            if kind == "sgd":
                m[:] = 0.9 * m + g
                direction = m.copy()
            else:
                m[:] = 0.9 * m + 0.1 * g
                v[:] = 0.99 * v + 0.01 * g * g
                direction = (m / (1 - 0.9 ** (update + 1))) / (
                    np.sqrt(v / (1 - 0.99 ** (update + 1))) + 1e-8
                )
            if path.endswith("kernel"):
                direction = direction + decay * weights[path]
            lr = rate(update) * MULTIPLIERS.get(path, 1.0)
            weights[path] = weights[path] - lr * direction
            keep = 0.0 if update == 0 else min(ema, (1 + update) / (10 + update))
            averages[path] = keep * averages.get(path, 0.0) + (1 - keep) * weights[path]
    return weights, averages


CASES = {
    "plain": {"decay": 0.0, "clip": None, "every": 1, "ema": 0.9},
    "decay": {"decay": 0.3, "clip": None, "every": 1, "ema": 0.25},
    "clip": {"decay": 0.3, "clip": 1.0, "every": 1, "ema": 0.9},
    "accumulate": {"decay": 0.3, "clip": 1.0, "every": 3, "ema": 0.3},
}


def make(kind, case):
    schedule = WarmupSchedule(
        0.1,
        UPDATES,
        warmup_steps=3,
        final_learning_rate=0.01,
        accumulation_steps=case["every"],
    )
    shared = {
        "weight_decay": case["decay"],
        "multipliers": MULTIPLIERS,
        "clip_norm": case["clip"],
        "accumulation_steps": case["every"],
        "ema_decay": case["ema"],
    }
    if kind == "sgd":
        return SGD(schedule, momentum=0.9, **shared)
    return AdamW(schedule, beta_2=0.99, **shared)


def apply_all(optimizer, variables, calls):
    """`calls` batches' gradients, in the way that `fit` applies them: compiled once."""
    optimizer.build(variables)
    step = COMPILED[BACKEND](optimizer, variables)
    for call in range(calls):
        step([keras.ops.convert_to_tensor(gradient) for gradient in gradients(call).values()])


def _jax_step(optimizer, variables):
    import jax

    function = jax.jit(optimizer.stateless_apply)

    def step(found):
        new, state = function(
            [v.value for v in optimizer.variables], found, [v.value for v in variables]
        )
        for target, value in zip([*variables, *optimizer.variables], [*new, *state], strict=True):
            target.assign(value)

    return step


def _torch_step(optimizer, variables):
    import torch

    return torch.no_grad()(lambda found: optimizer.apply(found, variables))


def _tensorflow_step(optimizer, variables):
    import tensorflow as tf

    return tf.function(lambda found: optimizer.apply(found, variables))


COMPILED = {"jax": _jax_step, "torch": _torch_step, "tensorflow": _tensorflow_step}


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("name", CASES)
def test_equals_numpy(kind, name):
    case = CASES[name]
    variables = Named().parts
    assert [v.path for v in variables] == list(SHAPES)
    optimizer = make(kind, case)
    apply_all(optimizer, variables, UPDATES * case["every"])
    weights, averages = reference(kind, **case)
    for variable, average in zip(variables, optimizer.averages, strict=True):
        path = variable.path
        np.testing.assert_allclose(numpy(variable), weights[path], rtol=0, atol=1e-6)
        np.testing.assert_allclose(numpy(average), averages[path], rtol=0, atol=1e-6)
    assert int(optimizer.iterations) == UPDATES


def test_nothing_changes_before_an_update_is_due():
    variables = Named().parts
    optimizer = make("adamw", CASES["accumulate"])
    apply_all(optimizer, variables, 2)
    for variable in variables:
        np.testing.assert_array_equal(
            numpy(variable), noise(SHAPES[variable.path], variable.path, 0.5)
        )


def test_a_broken_gradient_is_not_clipped_away():
    variables = Named().parts
    optimizer = SGD(0.1, clip_norm=1.0)
    optimizer.build(variables)
    broken = [keras.ops.full(shape, np.nan) for shape in SHAPES.values()]
    COMPILED[BACKEND](optimizer, variables)(broken)
    assert np.isnan(numpy(variables[0])).all()


@pytest.mark.parametrize(
    ("course", "expected"),
    [
        ("cosine", [0.0, 0.5, 1.0, 0.8535534, 0.5, 0.1464466, 0.0, 0.0]),
        ("linear", [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("rsqrt", [0.0, 0.5, 1.0, 0.8164966, 0.7071068, 0.6324555, 0.5773503, 0.5345225]),
        ("constant", [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_schedules(course, expected):
    schedule = WarmupSchedule(2.0, 6, warmup_steps=2, course=course)
    found = [float(schedule(step)) / 2.0 for step in range(8)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    rebuilt = WarmupSchedule.from_config(schedule.get_config())
    assert [float(rebuilt(step)) for step in range(8)] == [float(schedule(s)) for s in range(8)]


def test_schedules_count_updates_and_not_batches():
    schedule = WarmupSchedule(1.0, 4, course="linear", accumulation_steps=3)
    assert [float(schedule(call)) for call in range(7)] == [1, 1, 1, 0.75, 0.75, 0.75, 0.5]


def tiny(**arguments):
    return keras_vit.VisionTransformer(
        **{
            "image_shape": (8, 8, 3),
            "patch_size": 4,
            "hidden_dim": 8,
            "num_layers": 2,
            "num_heads": 2,
            "mlp_dim": 12,
            "num_classes": 3,
            **arguments,
        }
    )


def test_layers_below_learn_slower():
    model = tiny(num_registers=1, representation_size=7, layer_scale_init=0.1)
    found = layer_decay_multipliers(model, 0.5)
    assert found.keys() == {v.path for v in model.trainable_variables}
    expected = {"patch_encoder": 1 / 8, "encoder_block_0": 1 / 4, "encoder_block_1": 1 / 2}
    expected |= {"encoder_norm": 1.0, "pre_logits": 1.0, "head": 1.0}
    for path, value in found.items():
        assert value == expected[path.split("/")[0]], path


def test_depth_of_a_hybrid_and_of_blocks_above_nine():
    assert depth("stem_root/kernel", 12) == 0
    assert depth("encoder_block_11/mlp/fc1/kernel", 12) == 12
    assert depth("position_embedding_3/embedding", 12) == 0
    assert depth("pooling/probe", 12) == 13


def test_only_kernels_decay():
    model = tiny(num_registers=1, layer_scale_init=0.1, pooling="map", qk_norm=True)
    optimizer = AdamW(1.0, weight_decay=0.5, beta_1=0.0)
    before = {v.path: numpy(v) for v in model.trainable_variables}
    optimizer.build(model.trainable_variables)
    zeros = [keras.ops.zeros(v.shape) for v in model.trainable_variables]
    COMPILED[BACKEND](optimizer, model.trainable_variables)(zeros)
    for variable in model.trainable_variables:
        factor = 0.5 if variable.path.endswith("/kernel") else 1.0
        np.testing.assert_allclose(numpy(variable), factor * before[variable.path], atol=1e-7)


def test_fit_and_load(tmp_path):
    """In `fit`; and a `.keras` file brings optimizer, schedule and state back."""
    model = tiny()
    optimizer = make("adamw", CASES["accumulate"])
    optimizer.multipliers.update(layer_decay_multipliers(model, 0.75))
    model.compile(optimizer, keras_vit.training.Crossentropy(), metrics=["accuracy"])
    images, labels = noise((12, 8, 8, 3), "images", 50), np.arange(12) % 3
    history = model.fit(images, labels, batch_size=2, epochs=3, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"]).all() and history["loss"][0] != history["loss"][-1]
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for one, other in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))
    again = [m.fit(images, labels, batch_size=2, shuffle=False, verbose=0) for m in (model, loaded)]
    np.testing.assert_allclose(again[0].history["loss"], again[1].history["loss"], rtol=1e-6)


def test_averages_swap_and_swap_back():
    model = tiny()
    model.compile(AdamW(0.01, ema_decay=0.5), keras_vit.training.Crossentropy())
    swap_averages(model)  # nothing yet
    images, labels = noise((6, 8, 8, 3), "images", 50), np.arange(6) % 3
    model.fit(images, labels, batch_size=2, verbose=0)
    weights = [numpy(v) for v in model.trainable_variables]
    averages = [numpy(v) for v in model.optimizer.averages]
    assert not np.array_equal(weights[0], averages[0])
    swap_averages(model)
    for variable, average in zip(model.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(numpy(variable), average)
    swap_averages(model)
    for variable, weight in zip(model.trainable_variables, weights, strict=True):
        np.testing.assert_array_equal(numpy(variable), weight)


def test_evaluation_runs_on_the_averages():
    model = tiny()
    model.compile(AdamW(0.05, ema_decay=0.5), keras_vit.training.Crossentropy())
    images, labels = noise((6, 8, 8, 3), "images", 50), np.arange(6) % 3
    watch = keras_vit.training.EvaluateAverages()
    fitted = model.fit(
        images,
        labels,
        batch_size=2,
        validation_data=(images, labels),
        callbacks=[watch],
        verbose=0,
    )
    plain = model.evaluate(images, labels, verbose=0, return_dict=True)["loss"]
    swap_averages(model)
    averaged = model.evaluate(images, labels, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(fitted.history["val_loss"][0], averaged, rtol=1e-6)
    assert abs(plain - averaged) > 1e-6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clip_norm": 0}, "`clip_norm` must be a positive number"),
        ({"accumulation_steps": 0}, "`accumulation_steps` must be a positive integer"),
        ({"ema_decay": 1.0}, "`ema_decay` must be a number in"),
        ({"decayed": "("}, "`decayed` must be a regular expression"),
        ({"multipliers": {"a": -1}}, "`multipliers` must not be negative"),
        ({"weight_decay": "x"}, "`weight_decay` must be a number"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        AdamW(0.1, **arguments)


def test_an_unknown_variable_is_named():
    """As after layers were unfrozen without `compile`."""
    known = keras.Variable(noise((3,)), name="known")
    optimizer = AdamW(0.1)
    optimizer.build([known])
    new = keras.Variable(noise((3,)), name="new")
    with pytest.raises(ValueError, match="built without variable '.*new'.*`compile` again"):
        optimizer.apply([keras.ops.ones(3)], [new])


def test_averages_need_an_optimizer_that_has_them():
    with pytest.raises(ValueError, match="keeps no averages"):
        swap_averages(tiny())


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute is TensorFlow's")
@pytest.mark.multi_device
def test_two_replicas_equal_one_device():
    """Clipping, accumulation and averages under MirroredStrategy, where Keras' own are wrong."""
    import harness

    code = """
import keras_vit, keras, numpy as np, tensorflow as tf
from keras_vit.training import AdamW, Crossentropy
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(0)
images, labels = rng.uniform(0, 255, (24, 8, 8, 3)).astype("float32"), np.arange(24) % 3

def fit():
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(image_shape=(8, 8, 3), patch_size=4, hidden_dim=8,
        num_layers=1, num_heads=2, mlp_dim=12, num_classes=3, qkv_bias=False)
    optimizer = AdamW(0.01, weight_decay=0.1, clip_norm=0.5, accumulation_steps=3, ema_decay=0.9)
    model.compile(optimizer, Crossentropy())
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    return losses, [v.numpy() for v in (*model.trainable_variables, *optimizer.averages)]

one = fit()
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    two = fit()
np.testing.assert_allclose(two[0], one[0], atol=1e-5)
for a, b in zip(two[1], one[1], strict=True):
    np.testing.assert_allclose(a, b, atol=1e-4)
print("equal")
"""
    assert harness.run_python(code).strip().endswith("equal")
