"""OpenVINO's files: right in OpenVINO, complete or absent, and nothing sent."""

import json
import os

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit import _deps
from keras_vit.export.openvino import to_openvino

pytest.importorskip("openvino", reason="openvino is not installed")
pytest.importorskip("tf2onnx", reason="tf2onnx is not installed")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from keras_vit.export.openvino import without_telemetry  # noqa: E402

pytestmark = [
    pytest.mark.export,
    pytest.mark.skipif(
        harness.BACKEND != "tensorflow", reason="the same from any backend: run on TensorFlow"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # tf2onnx' own
]

BASE = {"image_shape": (24, 32, 3), "patch_size": 8, "hidden_dim": 12, "num_layers": 2}
BASE |= {"num_heads": 3, "mlp_dim": 20, "num_classes": 7}
OPTIONS = {
    "plain": {},
    "map": {"activation": "gelu", "qk_norm": True, "pooling": "map"},
    "no_head": {"num_classes": None},
    "hybrid": {"stem": {"block_counts": (1, 1), "width": 32}, "patch_size": 2},
}
IMAGES = harness.pixels((7, 24, 32, 3))
NAMES = ["ant", "bee", "cat", "dög", "eel", "fox", "gnu"]

# Any process of it ends at an attempt to open a connection or look an address up, and says so; at
# the end it tells whether the telemetry has left its directory.
WATCHED = """
import os, sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        os.write(1, b"sent")
        os._exit(77)
sys.addaudithook(watch)
import keras_vit
from keras_vit.export.openvino import to_openvino
model = keras_vit.VisionTransformer(
    image_shape=(24, 32, 3), patch_size=8, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20,
    num_classes=2,
)
to_openvino(model, sys.argv[1])
import openvino, openvino_telemetry, time
time.sleep(1)  # telemetry sends from a thread
print(openvino_telemetry.Telemetry.__module__, "intel" in os.listdir(os.path.expanduser("~")))
"""


def make(name="plain"):
    model = keras_vit.VisionTransformer(**{**BASE, **OPTIONS[name]})
    harness.randomize(model)
    return model


def read(path):
    """The compiled model and its `rt_info`."""
    openvino = without_telemetry()
    core = openvino.Core()
    model = core.read_model(str(path))
    return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}), model


@pytest.fixture(scope="module")
def plain():
    return make()


@pytest.fixture(scope="module")
def plain_file(plain, tmp_path_factory):
    path = tmp_path_factory.mktemp("openvino") / "plain.xml"
    return to_openvino(plain, path, class_names=NAMES)


@pytest.mark.parametrize("name", ("map", "no_head", "hybrid"))
def test_options(name, tmp_path):
    model = make(name)
    path = to_openvino(model, tmp_path / "model.xml")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.bin", "model.xml"]
    expected = harness.numpy(harness.run(model, IMAGES))
    assert np.ptp(expected) > 0.5
    network, _ = read(path)
    for batch in (1, 4, 7):
        found = network(IMAGES[:batch])[0]
        np.testing.assert_allclose(found, expected[:batch], atol=2e-5, rtol=0)


def test_names_and_metadata(plain_file):
    network, model = read(plain_file)
    assert network.input(0).get_names() == {"images"}
    assert [output.get_names() for output in network.outputs] == [{"logits"}, {"probabilities"}]
    assert network.input(0).partial_shape.to_string() == "[?,24,32,3]"

    def info(key):
        return model.get_rt_info(["model_info", key]).astype(str)

    assert json.loads(info("class_names")) == NAMES
    assert info("producer") == "keras_vit"
    assert info("producer_version") == keras_vit.__version__
    assert json.loads(info("image_size")) == [24, 32]
    assert info("pixel_range") == "0..255"
    outputs = network(IMAGES)
    powers = np.exp(outputs["logits"])
    expected = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)


def test_float16_weights(plain, plain_file, tmp_path):
    path = to_openvino(plain, tmp_path / "half.xml", compress_to_fp16=True)
    sizes = [file.with_suffix(".bin").stat().st_size for file in (path, plain_file)]
    assert sizes[0] < 0.6 * sizes[1]
    expected = harness.numpy(harness.run(plain, IMAGES))
    difference = np.abs(read(path)[0](IMAGES)["logits"] - expected).max()
    assert 1e-5 < difference < 2e-2


def test_one_batch_size(plain, plain_file, tmp_path):
    network, _ = read(to_openvino(plain, tmp_path / "model.xml", batch_size=3))
    assert network.input(0).partial_shape.to_string() == "[3,24,32,3]"
    expected = read(plain_file)[0](IMAGES[:3])["logits"]
    np.testing.assert_allclose(network(IMAGES[:3])["logits"], expected, atol=1e-6)


def test_both_files_or_neither(plain, plain_file, tmp_path, monkeypatch):
    before = {file.name: file.read_bytes() for file in plain_file.parent.iterdir()}
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        to_openvino(plain, plain_file)

    def broken(model, serving, *, path, **arguments):
        with open(path, "w") as file:
            file.write("half")
        raise OSError("no space left")

    monkeypatch.setattr("keras_vit.export.openvino.convert", broken)
    for path in (plain_file, tmp_path / "new.xml"):
        with pytest.raises(OSError, match="no space left"):
            to_openvino(plain, path, overwrite=True)
    assert {file.name: file.read_bytes() for file in plain_file.parent.iterdir()} == before
    assert not list(tmp_path.iterdir())


def test_wrong_arguments(plain, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="`path` must end in .xml"):
        to_openvino(plain, tmp_path / "model.bin")
    with pytest.raises(ValueError, match="`compress_to_fp16` must be True or False"):
        to_openvino(plain, tmp_path / "model.xml", compress_to_fp16="yes")
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
        to_openvino(plain, tmp_path / "model.xml", batch_size=0)
    monkeypatch.setattr(_deps, "_installed", lambda package: package != "openvino")
    with pytest.raises(ImportError, match=r"needs openvino, .*\[openvino\]"):
        to_openvino(plain, tmp_path / "model.xml")


def test_nothing_is_sent(tmp_path, monkeypatch):
    # Without these OpenVINO would send, or find that it runs in a CI and not.
    for name in [name for name in os.environ if name in ("CI", "GITHUB_ACTIONS", "TF_BUILD")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    said = harness.run_python(WATCHED, str(tmp_path / "model.xml"))
    assert "sent" not in said
    # The package can still be imported, by whoever wants it.
    assert said.split("\n")[-2] == "openvino_telemetry.main False"
