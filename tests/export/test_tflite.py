"""TFLite files: builtin operators alone, right in both interpreters, whatever the model."""

import harness
import keras
import numpy as np
import pytest

import keras_vit

if keras.backend.backend() != "tensorflow":
    pytest.skip("other backends convert in a child process", allow_module_level=True)
tf = pytest.importorskip("tensorflow")
litert = pytest.importorskip("ai_edge_litert.interpreter")
pytest.importorskip("ai_edge_quantizer")

from keras_vit.export import quantization, tflite, tflite_graph  # noqa: E402
from keras_vit.export.verify import verify  # noqa: E402

pytestmark = [
    pytest.mark.export,
    # TensorFlow's interpreter says that it will move to LiteRT.
    pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated"),
]

BASE = {"image_shape": (24, 32, 3), "patch_size": 8, "hidden_dim": 12, "num_layers": 2}
BASE |= {"num_heads": 3, "mlp_dim": 20, "num_classes": 5}
MODELS = {
    "plain": {},
    "erf": {"activation": "gelu", "distillation": "head"},
    "swiglu_scaled": {
        "activation": "swiglu",
        "layer_scale_init": 0.1,
        "qk_norm": True,
        "pooling": "gap",
        "position_embedding": "sincos2d",
    },
    "relative": {"position_embedding": "relative", "representation_size": 7},
    "map_registers_2d": {
        "position_embedding": "learned_2d",
        "pooling": "map",
        "num_registers": 2,
    },
    "hybrid": {"stem": {"block_counts": (1, 1), "width": 32}, "patch_size": 2},
    "resnet": None,
}
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (7, 24, 32, 3)).astype("float32")
# The bounds are shares of the logits' spread: with random weights the margins between classes
# mean nothing.
BOUNDS = {"float16": 0.002, "dynamic": 0.05, "int8": 0.1, "int16x8": 0.05}


def make(name):
    if MODELS[name] is None:
        model = keras_vit.BiTResNet(image_shape=(24, 32, 3), block_counts=(1, 1), num_classes=5)
    else:
        model = keras_vit.VisionTransformer(**{**BASE, **MODELS[name]})
    rng = np.random.default_rng(1)
    for weight in model.trainable_variables:
        if weight.path.startswith("head"):
            weight.assign(rng.normal(size=weight.shape))
        elif weight.path.endswith(("bias", "beta")):
            weight.assign(0.1 * rng.normal(size=weight.shape))
    return model


@pytest.fixture(scope="module", params=MODELS)
def case(request, tmp_path_factory):
    """A model, its logits, and its float32 file."""
    model = make(request.param)
    path = tmp_path_factory.mktemp(request.param) / "model.tflite"
    tflite.to_tflite(model, path)
    return request.param, model.predict(IMAGES, verbose=0), path.read_bytes()


def run(content, images, interpreter=litert.Interpreter):
    """What a file gives for a batch, as float32 whatever its output's dtype."""
    made = interpreter(model_content=content)
    (source,), (target,) = made.get_input_details(), made.get_output_details()
    made.resize_tensor_input(source["index"], images.shape)
    made.allocate_tensors()
    if source["dtype"] != np.float32:
        scale, zero = source["quantization"]
        images = np.rint(images / scale) + zero
    made.set_tensor(source["index"], images.astype(source["dtype"]))
    made.invoke()
    found = made.get_tensor(target["index"])
    if target["dtype"] != np.float32:
        scale, zero = target["quantization"]
        found = (found.astype("float32") - zero) * np.float32(scale)
    return found


def operators(content):
    return tflite_graph.operators(tflite_graph.parse(content))


def quantised(content, quantize, float_ops):
    groups = quantization.check(quantize, float_ops, "float32")
    ranges = None
    if quantization.QUANTIZATIONS[quantize].is_static:
        content, ranges = tflite.prepared(content, quantize, IMAGES, groups, (0.0, 255.0))
    return quantization.quantised(content, quantize, ranges, groups)


def test_float32_is_equal_for_any_batch(case):
    _, expected, content = case
    assert np.ptp(expected) > 0.1  # logits that could differ
    assert all(each.builtin for each in operators(content))
    for interpreter in (litert.Interpreter, tf.lite.Interpreter):
        for batch in (1, 4, 7):
            found = run(content, IMAGES[:batch], interpreter)
            np.testing.assert_allclose(found, expected[:batch], atol=1e-4)


@pytest.mark.parametrize("quantize", BOUNDS)
def test_quantised(case, quantize):
    _, expected, content = case
    made = quantised(content, quantize, None)
    assert all(each.builtin for each in operators(made))
    found = run(made, IMAGES)
    assert np.abs(found - expected).max() < BOUNDS[quantize] * np.ptp(expected)
    np.testing.assert_allclose(run(made, IMAGES, tf.lite.Interpreter), found, atol=1e-4)
    np.testing.assert_allclose(run(made, IMAGES[:1]), found[:1], atol=1e-4)


@pytest.mark.parametrize("quantize", ["int8", "int16x8"])
def test_integers_everywhere(case, quantize):
    name, expected, content = case
    made = quantised(content, quantize, ())
    computing = [each for each in operators(made) if each.kind not in ("QUANTIZE", "DEQUANTIZE")]
    assert len(computing) > 10 and not [each.kind for each in computing if each.is_float]
    found = run(made, IMAGES)
    np.testing.assert_allclose(run(made, IMAGES, tf.lite.Interpreter), found, atol=1e-4)
    if quantize == "int16x8":  # 8 bits lose too much of a LayerNorm for a bound
        assert np.abs(found - expected).max() < 0.3 * np.ptp(expected), name


def test_a_model_as_wide_as_b32_converts(tmp_path):
    # One block of ViT-B/32 at 224.
    model = keras_vit.ViTB32(num_layers=1, num_classes=6)
    for weight in model.trainable_variables:
        if weight.path.startswith("head/"):
            weight.assign(0.05 * RANDOM.normal(size=weight.shape))
    images = RANDOM.integers(0, 256, (4, 224, 224, 3)).astype("float32")
    expected = model.predict(images, verbose=0)
    assert np.ptp(expected) > 0.1
    content = tflite.to_tflite(model, tmp_path / "b32.tflite").read_bytes()
    assert all(each.builtin for each in operators(content))
    for batch in (1, 4):
        np.testing.assert_allclose(run(content, images[:batch]), expected[:batch], atol=1e-4)
    # The quantizer puts buffers of this size behind the flatbuffer, where old runtimes see none.
    made = quantised(content, "dynamic", None)
    stored = tflite_graph.schema().Model.GetRootAs(made, 0)
    buffers = [stored.Buffers(index) for index in range(stored.BuffersLength())]
    assert not any(buffer.Offset() for buffer in buffers)
    assert max(buffer.DataLength() for buffer in buffers) == 768 * 3072  # a weight, 8 bits each
    assert np.abs(run(made, images) - expected).max() < 0.05 * np.ptp(expected)


# The function's arguments -------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return make("plain")


def names(path):
    made = litert.Interpreter(model_path=str(path))
    return {
        key: (each["inputs"], each["outputs"]) for key, each in made.get_signature_list().items()
    }


def test_names_batch_and_output(model, tmp_path):
    path = tflite.to_tflite(model, tmp_path / "a" / "m.tflite", batch_size=2, output="logits")
    assert names(path) == {"serving_default": (["images"], ["logits"])}
    made = litert.Interpreter(model_path=str(path))
    assert made.get_input_details()[0]["shape_signature"].tolist() == [2, 24, 32, 3]
    path = tflite.to_tflite(model, tmp_path / "p.tflite", "dynamic", output="probabilities")
    assert names(path) == {"serving_default": (["images"], ["probabilities"])}
    np.testing.assert_allclose(run(path.read_bytes(), IMAGES).sum(1), 1, atol=1e-5)


def test_a_model_without_a_head_gives_features(tmp_path):
    model = keras_vit.VisionTransformer(**{**BASE, "num_classes": None})
    path = tflite.to_tflite(model, tmp_path / "f.tflite", "int8", IMAGES)
    assert names(path) == {"serving_default": (["images"], ["features"])}
    expected = model.predict(IMAGES, verbose=0)
    found = run(path.read_bytes(), IMAGES)
    assert found.shape == (7, 12) and np.abs(found - expected).max() < 0.1 * np.ptp(expected)


def test_mixed_precision_is_rebuilt_in_float32(tmp_path):
    half = keras_vit.VisionTransformer(**BASE, dtype="mixed_bfloat16")
    whole = keras_vit.VisionTransformer(**BASE)
    for weight, other in zip(half.weights, whole.weights, strict=True):
        if weight.path.startswith("head/"):
            weight.assign(RANDOM.normal(size=weight.shape))
        other.assign(weight)
    content = tflite.to_tflite(half, tmp_path / "h.tflite").read_bytes()
    np.testing.assert_allclose(run(content, IMAGES), whole.predict(IMAGES, verbose=0), atol=1e-4)


@pytest.mark.parametrize(
    ("quantize", "io_dtype", "scale"),
    [("int8", "uint8", 1.0), ("int8", "int8", 1.0), ("int16x8", "int16", 255 / 32767)],
)
def test_integer_inputs_and_outputs(model, tmp_path, quantize, io_dtype, scale):
    expected = model.predict(IMAGES, verbose=0)
    for name, groups in (("mixed", None), ("strict", ())):
        path = tflite.to_tflite(
            model,
            tmp_path / f"{name}.tflite",
            quantize,
            IMAGES,
            io_dtype=io_dtype,
            float_ops=groups,
        )
        made = litert.Interpreter(model_path=str(path))
        (source,), (target,) = made.get_input_details(), made.get_output_details()
        assert {source["dtype"], target["dtype"]} == {np.dtype(io_dtype).type}
        # Pixels 0..255 whatever the calibration images had: a uint8 picture goes in as it is.
        assert source["quantization"][0] == pytest.approx(scale)
        assert source["quantization"][1] == {"uint8": 0, "int8": -128, "int16": 0}[io_dtype]
        found = run(path.read_bytes(), IMAGES)
        np.testing.assert_allclose(
            run(path.read_bytes(), IMAGES, tf.lite.Interpreter), found, atol=1e-4
        )
        bound = 0.1 if groups is None else 0.3
        assert np.abs(found - expected).max() < bound * np.ptp(expected)


def test_weights_have_eight_bits_each_channel_its_scale(model, tmp_path):
    path = tflite.to_tflite(model, tmp_path / "q.tflite", "int8", IMAGES)
    made = litert.Interpreter(model_path=str(path))
    details = {each["index"]: each for each in made.get_tensor_details()}
    products = [each for each in operators(path.read_bytes()) if each.kind == "FULLY_CONNECTED"]
    assert len(products) == 2 + 4 * BASE["num_layers"]  # also the stem and the head
    for product in products:
        weight = details[product.inputs[1]]
        assert weight["dtype"] == np.int8
        assert len(weight["quantization_parameters"]["scales"]) == weight["shape"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantize": "int4"}, "`quantize` must be one of"),
        ({"quantize": "int8"}, "needs `calibration`: some 100 typical images"),
        ({"quantize": "dynamic", "calibration": IMAGES}, "`calibration` is for"),
        ({"quantize": "dynamic", "io_dtype": "uint8"}, "`io_dtype` .*must be one of .*float32"),
        ({"quantize": "dynamic", "float_ops": ()}, "`float_ops` is for quantize="),
        ({"quantize": "int8", "float_ops": ("gelu",)}, "`float_ops` must be one of .*softmax"),
        ({"quantize": "int8", "float_ops": "head"}, "`float_ops` must be a sequence"),
        ({"output": "features"}, "`output` must be one of"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"class_names": ["a"]}, "`class_names` must name the model's 5 classes"),
        ({"about": {"licence": "MIT"}}, "`about` must be one of"),
        ({"path": "m.tf"}, "`path` must end in .tflite"),
    ],
)
def test_wrong_arguments(model, tmp_path, arguments, message):
    arguments = {"path": "m.tflite", **arguments}
    path = tmp_path / arguments.pop("path")
    with pytest.raises(ValueError, match=message):
        tflite.to_tflite(model, path, **arguments)
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_kept(model, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        tflite.to_tflite(model, path)
    assert path.read_bytes() == b"old"
    tflite.to_tflite(model, path, overwrite=True)
    assert len(run(path.read_bytes(), IMAGES)) == 7
    assert [each.name for each in tmp_path.iterdir()] == ["m.tflite"]


def test_foreign_operators_are_named(tmp_path):
    @keras.saving.register_keras_serializable(package="test")
    class Erfinv(keras.layers.Layer):
        def call(self, inputs):
            return keras.ops.erfinv(inputs / 512)

    images = keras.Input((8, 8, 3), name="images")
    outputs = keras.layers.Dense(2)(keras.layers.Flatten()(Erfinv()(images)))
    with pytest.raises(ValueError, match="builtin operators.*Erfinv"):
        tflite.to_tflite(keras.Model(images, outputs), tmp_path / "m.tflite")
    assert not list(tmp_path.iterdir())


def test_a_file_above_the_limit_says_what_to_do(monkeypatch, model, tmp_path):
    monkeypatch.setattr(tflite_graph, "FLATBUFFER_LIMIT", 1000)
    with pytest.raises(ValueError, match='at most 2 GiB.*quantize="float16".*"dynamic"'):
        tflite.to_tflite(model, tmp_path / "m.tflite")
    assert not list(tmp_path.iterdir())


def test_a_constant_query_in_integers(tmp_path):
    """Attention pooling's query has no channels: with a scale for each it was far off."""
    model = keras_vit.VisionTransformer(
        image_shape=(16, 24, 3), patch_size=8, hidden_dim=16, num_layers=1, num_heads=4,
        mlp_dim=32, num_classes=5, pooling="map",
    )  # fmt: skip
    harness.randomize(model)
    images = harness.pixels((32, 16, 24, 3))
    path = tflite.to_tflite(model, tmp_path / "map.tflite", "int8", images, float_ops=())
    found = verify(path, model, images, repeats=3, agreement=0.0, runtimes=("ai_edge_litert",))
    assert found.runs[0].relative < 0.2
