"""Low-rank updates: what trains, what comes out, what is merged."""

import warnings

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training.lora import TARGETS, enable_lora, merge_lora

VIT = {"image_shape": (8, 12, 3), "patch_size": 4, "hidden_dim": 10, "num_layers": 1}
VIT |= {"num_heads": 2, "mlp_dim": 13, "num_classes": 5}
IMAGES = harness.pixels((8, 8, 12, 3))
LABELS = np.arange(8) % 5


def build(**changes):
    model = keras_vit.VisionTransformer(**{**VIT, **changes})
    harness.randomize(model)
    return model


def train(model, epochs=2):
    model.fit(IMAGES, LABELS, batch_size=4, epochs=epochs, verbose=0, shuffle=False)


def outputs(model):
    return harness.numpy(model(IMAGES, training=False))


def test_enabling_changes_no_output():
    model = build()
    before = outputs(model)
    enable_lora(model, 3)
    np.testing.assert_allclose(outputs(model), before, atol=1e-6)


def test_parameters_are_counted():
    model = build(num_layers=2)
    total = model.count_params()
    report = enable_lora(model, 3)
    # 10 and 13 are the widths: 3 x (in + out) for each of qkv, out, fc1, fc2.
    updates = 2 * 3 * ((10 + 30) + (10 + 10) + (10 + 13) + (13 + 10))
    head = 10 * 5 + 5
    assert report.trainable == updates + head
    assert report.total == total + updates
    assert report.layers[:2] == (
        "encoder_block_0/attention/qkv",
        "encoder_block_0/attention/out",
    )
    assert len(report.layers) == 8 and report.alpha == 3
    assert report.text() == (
        f"LoRA of rank 3 on 8 layers: {updates + head} of {total + updates:,} parameters train "
        f"({(updates + head) / (total + updates):.2%})"
    )


def test_fit_trains_updates_and_head_alone():
    model = build(dropout_rate=0.1)
    train(model, 1)  # what is compiled and what the optimizer holds is of the plain model
    report = enable_lora(model, 2)
    paths = {v.path for v in model.trainable_weights}
    assert paths == {
        *("head/kernel", "head/bias"),
        *(f"{layer}/lora_kernel_{side}" for layer in report.layers for side in "ab"),
    }
    before = harness.snapshot(model)
    train(model)
    after = harness.snapshot(model)
    for path, value in before.items():
        if path.startswith("random state"):
            continue
        changed = np.abs(after[path] - value).max() > 0
        assert changed == (path in paths), path
    count = len([v for v in model.optimizer.variables if "/" in v.path and "lora" in v.path])
    assert count >= 2 * 2 * len(report.layers), "the optimizer has no moments of the updates"


def test_it_learns():
    model = build()
    model.compile(keras.optimizers.Adam(1e-2), model.loss, metrics=["accuracy"])
    enable_lora(model, 4)
    first = model.evaluate(IMAGES, LABELS, verbose=0)[0]
    train(model, 40)
    assert model.evaluate(IMAGES, LABELS, verbose=0)[0] < 0.5 * first


def test_some_targets_and_alpha():
    model = build(num_layers=2)
    report = enable_lora(model, 2, alpha=6.0, targets="qkv")
    assert report.layers == tuple(f"encoder_block_{i}/attention/qkv" for i in range(2))
    layer = model.encoder_blocks[0].attention.qkv
    kernel = harness.parameters(model)["encoder_block_0/attention/qkv/kernel"]
    a, b = harness.noise((10, 2), "a"), harness.noise((2, 30), "b")
    layer.lora_kernel_a.assign(a)
    layer.lora_kernel_b.assign(b)
    expected = harness.numpy(kernel) + 3 * a @ b
    np.testing.assert_allclose(harness.numpy(layer.kernel), expected, atol=1e-5)
    merged = harness.parameters(merge_lora(model))["encoder_block_0/attention/qkv/kernel"]
    np.testing.assert_allclose(harness.numpy(merged), expected, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{}, {"remat": True, "qk_norm": True, "layer_scale_init": 0.1, "distillation": "head"}],
    ids=["plain", "options"],
)
def test_merging(changes, tmp_path):
    model = build(**changes)
    enable_lora(model, 3, alpha=5)
    train(model)
    before, expected = harness.snapshot(model), outputs(model)
    merged = merge_lora(model)
    harness.assert_same(harness.snapshot(model), before, "merging changed the model")
    assert type(merged) is keras_vit.VisionTransformer
    assert [v.path for v in merged.weights] == [v.path for v in build(**changes).weights]
    assert len(merged.trainable_weights) == len(merged.weights)
    np.testing.assert_allclose(outputs(merged), expected, atol=1e-5)
    # A plain model in all that follows.
    if not changes:
        path = tmp_path / "merged.npz"
        keras_vit.to_checkpoint(merged, path, format="google")
        again = build()
        again.load_checkpoint(path)
        np.testing.assert_allclose(outputs(again), expected, atol=1e-5)
        train(merged, 1)
        np.testing.assert_allclose(outputs(model), expected, atol=1e-6)


def test_a_saved_model_gives_the_same(tmp_path):
    model = build()
    enable_lora(model, 3)
    train(model)
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        # The file holds merged kernels; the optimizer's state belongs to the updates.
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        loaded = keras_vit.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(build().weights)
    np.testing.assert_allclose(outputs(loaded), outputs(model), atol=1e-5)
    merge_lora(model).save(tmp_path / "merged.keras")
    loaded = keras_vit.load_model(tmp_path / "merged.keras")
    np.testing.assert_allclose(outputs(loaded), outputs(model), atol=1e-5)


def test_mixed_precision_keeps_the_kernels():
    model = build(dtype="mixed_bfloat16")
    enable_lora(model, 3)
    train(model)
    kernels = harness.parameters(merge_lora(model))
    for path, value in harness.parameters(model).items():
        if path.endswith("fc1/kernel"):
            layer = model.encoder_blocks[int(path[14])].mlp.fc1
            a, b = harness.numpy(layer.lora_kernel_a), harness.numpy(layer.lora_kernel_b)
            found = harness.numpy(kernels[path])
            assert found.dtype == "float32"
            np.testing.assert_allclose(found, harness.numpy(value) + a @ b, atol=1e-6)


def test_layers_frozen_before_do_not_stop_it():
    model = build()
    for layer in model.layers:
        layer.trainable = layer.name == "head"
    enable_lora(model, 2, targets=("fc1",))
    assert len(model.trainable_weights) == 2 + 2


def test_without_a_head():
    model = build(num_classes=None)
    report = enable_lora(model, 2)
    assert report.trainable == sum(int(np.prod(v.shape)) for v in model.weights if "lora" in v.path)


def test_what_cannot_be():
    model = build()
    resnet = keras_vit.BiTResNet(
        image_shape=(14, 21, 3), block_counts=(1,), width_factor=0.125, groups=4
    )
    cases = [
        (lambda: enable_lora(model, 0), "`rank`.*rank=0"),
        (lambda: enable_lora(model, 2.5), "`rank`"),
        (lambda: enable_lora(model, 2, alpha=0), "`alpha`"),
        (lambda: enable_lora(model, 2, targets=("qkv", "query")), "`targets`.*'query'"),
        (lambda: enable_lora(model, 2, targets=()), "`targets`.*none"),
        (lambda: enable_lora(resnet, 2), "BiTResNet"),
        (lambda: merge_lora(model), "`enable_lora` first"),
        (lambda: merge_lora(resnet), "`enable_lora` first"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    assert len(model.trainable_weights) == len(model.weights), "a refused call froze weights"
    enable_lora(model, 2, targets=TARGETS[:1])
    before = harness.snapshot(model)
    with pytest.raises(ValueError, match="already"):
        enable_lora(model, 2, targets=TARGETS[1:])
    harness.assert_same(harness.snapshot(model), before)
