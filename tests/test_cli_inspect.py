"""`keras-vit inspect` and `keras-vit demo`."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.cli.main import main

Image = pytest.importorskip("PIL.Image", reason="keras_vit.data decodes with Pillow")
VIT = {**harness.TINY_VIT, "image_shape": (16, 24, 3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, two pictures and a file that is none."""
    folder = tmp_path_factory.mktemp("inspect")
    model = keras_vit.VisionTransformer(**VIT)
    harness.randomize(model)
    model.save(folder / "m.keras")
    for number in range(2):
        pixels = harness.pixels((16, 24, 3), f"picture {number}").astype("uint8")
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "bad.png").write_text("no picture")
    return folder


def content_of(path):
    text = path.read_text("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(data)


def test_a_page(folder, tmp_path, capsys):
    path = tmp_path / "report.html"
    argv = ["inspect", str(folder / "m.keras"), str(folder / "*.png"), "--output", str(path)]
    assert main(argv) == 0
    said = capsys.readouterr()
    assert f"wrote {path} (" in said.out and "open it in a browser" in said.out
    assert f"{folder / 'bad.png'}: not a picture" in said.err and "2 of 2 pictures" in said.err
    content = content_of(path)
    assert content["title"] == "m.keras"
    assert [picture["name"] for picture in content["pictures"]] == ["0.png", "1.png"]
    model = keras_vit.load_model(folder / "m.keras")
    images = np.stack([np.asarray(Image.open(folder / f"{n}.png")) for n in range(2)])
    likely = inspection.probabilities(model, images)
    for picture, found in zip(content["pictures"], likely, strict=True):
        assert picture["classes"][0]["name"] == str(found.argmax())
    assert main(argv) == 1 and "--overwrite" in capsys.readouterr().err
    assert main([*argv, "--overwrite", "--title", "Mine", "--hover", "none"]) == 0
    assert content_of(path)["title"] == "Mine"


def test_at_another_size(folder, tmp_path, capsys):
    path = tmp_path / "report.html"
    argv = ["inspect", str(folder / "m.keras"), str(folder / "0.png"), "--output", str(path)]
    assert main([*argv, "--image-size", "32"]) == 0
    assert content_of(path)["model"]["grid"] == [4, 4]
    assert "resampled" in capsys.readouterr().err
    assert main([*argv, "--overwrite", "--image-size", "30"]) == 1
    assert "image_shape" in capsys.readouterr().err
    assert content_of(path)["model"]["grid"] == [4, 4]


def test_no_picture_at_all(folder, tmp_path, capsys):
    path = tmp_path / "report.html"
    argv = ["inspect", str(folder / "m.keras"), str(folder / "bad.png"), "--output", str(path)]
    assert main(argv) == 1
    assert "not a picture" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["inspect", "demo"])
def test_models_of_another_kind(folder, tmp_path, capsys, command):
    rest = [str(folder / "0.png"), "--output", str(tmp_path / "p.html")]
    rest = rest if command == "inspect" else ["--port", "0"]
    resnet = keras_vit.BiTResNet(
        image_shape=(32, 32, 3), block_counts=(1,), width_factor=0.125, groups=4
    )
    scaled = keras_vit.VisionTransformer(**VIT, include_rescaling=False)
    for model, words in ((resnet, "VisionTransformer"), (scaled, "include_rescaling=False")):
        model.save(tmp_path / "other.keras")
        assert main([command, str(tmp_path / "other.keras"), *rest]) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "p.html").exists()


def test_demo(folder):
    command = [sys.executable, "-m", "keras_vit", "demo", str(folder / "m.keras"), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.match(r"(http://127\.0\.0\.1:\d+/) shows what .*m\.keras sees", line)
            assert found, line
            with urllib.request.urlopen(found[1], timeout=60) as answer:
                assert b"<title>m.keras</title>" in answer.read()
            request = urllib.request.Request(
                f"{found[1]}look?name=0.png",
                (folder / "0.png").read_bytes(),
                {"X-Keras-Vit": "look"},
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                picture = json.load(answer)["picture"]
            assert picture["name"] == "0.png" and len(picture["classes"]) == 3
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            _, errors = process.communicate()
    assert "Traceback" not in errors


def test_a_port_that_is_taken(folder, capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["demo", str(folder / "m.keras"), "--port", str(port)]) == 1
    error = capsys.readouterr().err
    assert str(port) in error and "--port" in error
