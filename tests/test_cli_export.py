"""`keras-vit export`: writes, verifies, refuses, and leaves nothing that failed."""

import json

import harness
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.cli.main import main

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:builtin type Swig")]
on_tensorflow = pytest.mark.skipif(
    harness.BACKEND != "tensorflow", reason="the same from any backend: run on TensorFlow"
)
# A format from each backend, as one child process costs ten seconds.
FORMATS = {
    "tensorflow": ("saved_model", "serving/vit", "serving/vit/1"),
    "jax": ("onnx", "vit.onnx", "vit.onnx"),
    "torch": ("openvino", "vit.xml", "vit.xml"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.keras"
    model = keras_vit.VisionTransformer(
        image_shape=(16, 16, 3), patch_size=8, hidden_dim=12, num_layers=2, num_heads=3,
        mlp_dim=20, num_classes=3,
    )  # fmt: skip
    harness.randomize(model)
    model.save(path)
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        (folder / name).mkdir()
        for number in range(4):
            pixels = rng.integers(0, 256, (20, 24, 3), dtype="uint8")
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_writes_and_verifies(model, pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    format, output, written = FORMATS[harness.BACKEND]
    arguments = ["export", "--model", str(model), "--to", format, "--output", output, "--json"]
    assert main([*arguments, "--images", str(pictures), "--examples", "6"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == written and (tmp_path / written).exists()
    result = found["verification"]
    assert result["artifact"] == written and result["backend"] == harness.BACKEND
    assert result["images"] == 6 and result["source"] == "given"
    for run in result["runs"]:
        assert run["status"] == "ran" and run["difference"] < 1e-4
        assert run["agreement"] == 1 and 0 <= run["accuracy"] <= 1
    assert not [entry for entry in (tmp_path / written).parent.iterdir() if entry.name[0] == "."]


@on_tensorflow
def test_what_fails_leaves_nothing(model, tmp_path, capsys):
    path = tmp_path / "vit.tflite"
    path.write_text("older")
    arguments = ["export", "--model", str(model), "--to", "tflite", "--output", str(path)]
    assert main(arguments) == 1
    assert "pass --overwrite" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--tolerance", "0"]) == 1
    said = capsys.readouterr()
    assert "FAILED" in said.out and "was not written" in said.err and "ai_edge_litert" in said.err
    assert path.read_text() == "older"
    assert main([*arguments, "--overwrite", "--no-verify"]) == 0
    assert path.read_bytes()[4:8] == b"TFL3"
    assert [entry.name for entry in tmp_path.iterdir()] == ["vit.tflite"]


@on_tensorflow
def test_int8_is_calibrated_on_other_pictures_than_it_is_judged_by(
    model, pictures, tmp_path, capsys
):
    path = tmp_path / "vit.tflite"
    arguments = ["export", "--model", str(model), "--to", "tflite", "--output", str(path)]
    arguments += ["--quantize", "int8", "--images", str(pictures), "--agreement", "0", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)["verification"]
    assert found["images"] == 6  # of 12
    assert {run["precision"] for run in found["runs"]} == {"int8"}


@on_tensorflow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "onnx", "--quantize", "int8"], "--quantize is of tflite"),
        (["--to", "tflite", "--gpu-batching"], "--gpu-batching is of saved_model"),
        (["--to", "saved_model", "--opset", "17"], "--opset is of onnx"),
        (["--to", "tflite", "--quantize", "int8"], "--calibration or --images"),
        (["--to", "tflite", "--calibration", "."], "--quantize int8 and int16x8"),
        (["--to", "onnx", "--images", "missing/"], "--images: no such folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments(arguments, words, model, capsys):
    assert main(["export", "--model", str(model), "--output", "x.y", *arguments]) == 1
    assert words in capsys.readouterr().err


@on_tensorflow
def test_a_wrong_ending(model, tmp_path, capsys):
    arguments = ["export", "--model", str(model), "--to", "onnx", "--output"]
    assert main([*arguments, str(tmp_path / "vit.tflite")]) == 1
    assert "must end in .onnx" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
