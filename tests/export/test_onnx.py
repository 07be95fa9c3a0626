"""ONNX files: right in onnxruntime for each option of the models, and written in its own words."""

import json
from collections import Counter

import harness
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import _deps
from keras_vit.export.onnx import OPSETS, to_onnx
from keras_vit.export.verify import verify

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("tf2onnx", reason="tf2onnx is not installed")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

pytestmark = [
    pytest.mark.export,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # tf2onnx' own
]
on_tensorflow = pytest.mark.skipif(
    harness.BACKEND != "tensorflow", reason="the same from any backend: run on TensorFlow"
)

BASE = {"image_shape": (24, 32, 3), "patch_size": 8, "hidden_dim": 12, "num_layers": 2}
BASE |= {"num_heads": 3, "mlp_dim": 20, "num_classes": 7}
OPTIONS = {
    "plain": {},
    "erf": {"activation": "gelu", "distillation": "head"},
    "swiglu": {"activation": "swiglu", "layer_scale_init": 0.1, "qk_norm": True, "pooling": "gap"},
    "relative": {"position_embedding": "relative", "representation_size": 5},
    "map": {"position_embedding": "learned_2d", "pooling": "map", "num_registers": 2},
    "clip": {"pre_norm": True, "head_bias": False, "activation": "quick_gelu"},
    "no_head": {"num_classes": None, "pooling": None, "include_rescaling": False},
    "hybrid": {"stem": {"block_counts": (1, 1), "width": 32}, "patch_size": 2},
    "resnet": None,
}
IMAGES = harness.pixels((7, 24, 32, 3))


def make(name="plain", **options):
    if OPTIONS[name] is None:
        model = keras_vit.BiTResNet(image_shape=(24, 32, 3), block_counts=(1, 1), num_classes=7)
    else:
        model = keras_vit.VisionTransformer(**{**BASE, **OPTIONS[name], **options})
    harness.randomize(model)
    return model


def session(path):
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run(path, images=IMAGES):
    found = session(path)
    names = [output.name for output in found.get_outputs()]
    return dict(zip(names, found.run(None, {"images": images}), strict=True))


def operators(path):
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def metadata(path):
    return session(path).get_modelmeta().custom_metadata_map


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def plain():
    return make()


@pytest.fixture(scope="module")
def plain_file(plain, tmp_path_factory):
    return to_onnx(plain, tmp_path_factory.mktemp("onnx") / "plain.onnx")


@on_tensorflow
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name, tmp_path):
    model = make(name)
    path = to_onnx(model, tmp_path / "model.onnx")
    expected = harness.numpy(harness.run(model, IMAGES))
    assert np.ptp(expected) > 0.5  # values that could differ
    main = "features" if name == "no_head" else "logits"
    for batch in (1, 4, 7):
        found = run(path, IMAGES[:batch])
        np.testing.assert_allclose(found[main], expected[:batch], atol=2e-5, rtol=0)
    if main == "logits":
        assert list(found) == ["logits", "probabilities"]
        np.testing.assert_allclose(found["probabilities"], softmax(expected), atol=1e-5)

    # Each normalisation is one operator, and of its arithmetic nothing is left.
    kinds = Counter(type(layer).__name__ for layer in model._flatten_layers())
    assert kinds["LayerNormalization"] + kinds["GroupNormalization"] > 0
    written = operators(path)
    assert written["LayerNormalization"] == kinds["LayerNormalization"]
    assert written["InstanceNormalization"] == kinds["GroupNormalization"]
    assert written["Reciprocal"] == written["Sqrt"] == 0
    if name == "resnet":  # channels come first once and for all
        assert written["Transpose"] <= 2


@on_tensorflow
def test_exact_gelu_is_written_as_onnxruntime_knows_it(tmp_path):
    path = to_onnx(make("erf"), tmp_path / "model.onnx")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert operators(tmp_path / "optimised.onnx")["Gelu"] == BASE["num_layers"]


@on_tensorflow
def test_other_normalisations_stay_right(tmp_path):
    images = keras.Input((24, 32, 3), name="images")
    x = keras.layers.Conv2D(4, 8, strides=8)(images / 64 - 2)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.GroupNormalization(2, scale=False)(x)
    x = keras.layers.GroupNormalization(2, axis=1)(
        keras.ops.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0)))
    )
    x = keras.layers.LayerNormalization(axis=(1, 2))(x)
    x = keras.layers.LayerNormalization(scale=False)(x)
    x = keras.layers.LayerNormalization(center=False)(x)
    x = keras.layers.LayerNormalization(scale=False, center=False, epsilon=0.1)(x)
    model = keras.Model(images, keras.layers.Dense(5)(keras.layers.Flatten()(x)))
    harness.randomize_by_order(model)
    for weight in model.weights:
        if "moving_variance" in weight.path:
            weight.assign(np.linspace(0.5, 2, 4))
    path = to_onnx(model, tmp_path / "model.onnx")
    expected = harness.numpy(harness.run(model, IMAGES))
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(run(path)["logits"], expected, atol=2e-5)


@on_tensorflow
@pytest.mark.parametrize("opset", (OPSETS[0], 16, 17))
def test_older_opsets(opset, tmp_path):
    model = make("hybrid", activation="gelu")
    path = to_onnx(model, tmp_path / "model.onnx", opset=opset)
    written = onnx.load(path)
    assert [(entry.domain, entry.version) for entry in written.opset_import] == [("", opset)]
    assert bool(operators(path)["LayerNormalization"]) == (opset >= 17)
    expected = harness.numpy(harness.run(model, IMAGES))
    np.testing.assert_allclose(run(path)["logits"], expected, atol=2e-5)


@on_tensorflow
@pytest.mark.parametrize("opset", (12, 19, True, "18", None))
def test_an_opset_out_of_range_is_refused(opset, plain, tmp_path):
    with pytest.raises(ValueError, match="`opset` must lie between 13 and 18"):
        to_onnx(plain, tmp_path / "model.onnx", opset=opset)


@on_tensorflow
def test_weights_have_their_variables_names(plain, plain_file):
    values = {tensor.name: tensor for tensor in onnx.load(plain_file).graph.initializer}
    kernels = [w for w in plain.weights if w.path.endswith("kernel")]
    assert len(kernels) == 2 + 4 * BASE["num_layers"]
    for kernel in kernels:
        found = onnx.numpy_helper.to_array(values[kernel.path])
        np.testing.assert_array_equal(found, harness.numpy(kernel.value))


@on_tensorflow
def test_names_and_metadata(plain, tmp_path):
    names = ["ant", "bee", "cat", "dög", "eel", "fox", 'g"nu']
    path = to_onnx(plain, tmp_path / "model.onnx", class_names=names, probabilities="sigmoid")
    found = metadata(path)
    assert json.loads(found.pop("class_names")) == names
    assert found == {
        "producer": "keras_vit",
        "producer_version": keras_vit.__version__,
        "image_size": "[24, 32]",
        "channels": "RGB",
        "layout": "NHWC",
        "pixel_range": "0..255",
        "num_classes": "7",
        "probabilities": "sigmoid",
    }
    written = onnx.load(path)
    assert (written.producer_name, written.producer_version) == ("keras_vit", keras_vit.__version__)
    shapes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in [*written.graph.input, *written.graph.output]
    }
    assert shapes == {
        "images": ["batch", 24, 32, 3],
        "logits": ["batch", 7],
        "probabilities": ["batch", 7],
    }
    outputs = run(path)
    np.testing.assert_allclose(
        outputs["probabilities"], 1 / (1 + np.exp(-outputs["logits"])), atol=1e-6
    )


@on_tensorflow
def test_metadata_of_what_is_not_there(tmp_path):
    model = make("no_head")
    found = metadata(to_onnx(model, tmp_path / "model.onnx"))
    assert found["pixel_range"] == "scaled by the caller"
    assert not {"num_classes", "class_names", "probabilities"} & set(found)
    with pytest.raises(ValueError, match="of a model that has a head"):
        to_onnx(model, tmp_path / "other.onnx", class_names=["a"])


@on_tensorflow
def test_one_batch_size(plain, plain_file, tmp_path):
    path = to_onnx(plain, tmp_path / "model.onnx", batch_size=3)
    (images,) = session(path).get_inputs()
    assert images.shape == [3, 24, 32, 3]
    np.testing.assert_allclose(
        run(path, IMAGES[:3])["logits"], run(plain_file, IMAGES[:3])["logits"], atol=1e-6
    )
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        run(path, IMAGES[:4])


@on_tensorflow
def test_large_models_have_their_weights_beside_them(plain, plain_file, tmp_path):
    path = to_onnx(plain, tmp_path / "model.onnx", external_above=1000)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    kept = onnx.load(path, load_external_data=False).graph.initializer
    outside = {tensor.name for tensor in kept if tensor.data_location == onnx.TensorProto.EXTERNAL}
    inside = [tensor for tensor in kept if tensor.name not in outside]
    assert outside and all(len(tensor.raw_data) < 1024 for tensor in inside)
    np.testing.assert_allclose(run(path)["logits"], run(plain_file)["logits"], atol=1e-6)

    # A small model in its place does without, and what would never be read again goes.
    to_onnx(plain, path, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    np.testing.assert_array_equal(run(path)["logits"], run(plain_file)["logits"])


@on_tensorflow
def test_half_precision_and_activation_are_left_out(tmp_path):
    model = make(dtype="mixed_bfloat16", classifier_activation="softmax")
    path = to_onnx(model, tmp_path / "model.onnx")
    same = make()  # the same weights, by their names
    expected = harness.numpy(harness.run(same, IMAGES))
    found = run(path)
    np.testing.assert_allclose(found["logits"], expected, atol=2e-5)
    np.testing.assert_allclose(found["probabilities"], softmax(expected), atol=1e-5)


@on_tensorflow
def test_a_failed_export_changes_nothing(plain, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    to_onnx(plain, path, external_above=1000)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def broken(model, serving, *, path, **arguments):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("keras_vit.export.onnx.convert", broken)
    with pytest.raises(OSError, match="no space left"):
        to_onnx(plain, path, overwrite=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@on_tensorflow
def test_paths(plain, plain_file, tmp_path):
    before = plain_file.read_bytes()
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        to_onnx(plain, plain_file)
    assert plain_file.read_bytes() == before
    for path in (tmp_path / "model.pb", tmp_path, 3):
        with pytest.raises(ValueError, match="`path` must"):
            to_onnx(plain, path)
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ValueError, match="must be a file"):
        to_onnx(plain, tmp_path / "folder.onnx", overwrite=True)


@on_tensorflow
@pytest.mark.parametrize("module", ("onnx", "tf2onnx"))
def test_what_is_missing_is_said_first(module, plain, tmp_path, monkeypatch):
    monkeypatch.setattr(_deps, "_installed", lambda package: package != module)
    with pytest.raises(ImportError, match=rf"needs {module}, .*\[onnx\]"):
        to_onnx(plain, tmp_path / "model.onnx")


@pytest.mark.skipif(harness.BACKEND == "tensorflow", reason="the tests above run on TensorFlow")
def test_from_this_backend(tmp_path):
    model = make("erf")
    path = to_onnx(model, tmp_path / "model.onnx", class_names=list("abcdefg"))
    expected = harness.numpy(harness.run(model, IMAGES))
    np.testing.assert_allclose(run(path)["logits"], expected, atol=5e-5)
    assert json.loads(metadata(path)["class_names"]) == list("abcdefg")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    found = verify(path, model, IMAGES, repeats=3)
    assert found.backend == harness.BACKEND and not found.failures
    assert found.runs[0].difference == pytest.approx(np.abs(run(path)["logits"] - expected).max())


@on_tensorflow
def test_nested_models_whose_weights_share_their_paths(tmp_path):
    one, two = make(), make()
    for variable in two.weights:
        variable.assign(-harness.numpy(variable))
    images = keras.Input((24, 32, 3))
    model = keras.Model(images, keras.layers.Average()([one(images), two(images)]))
    found = run(to_onnx(model, tmp_path / "two.onnx"))["logits"]
    expected = harness.numpy(harness.run(model, IMAGES))
    assert np.abs(expected - harness.numpy(harness.run(one, IMAGES))).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-4)
