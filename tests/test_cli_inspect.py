"""`keras-vit inspect` and `keras-vit demo`."""

import contextlib
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
# What no backend has a part in runs once.
anywhere = harness.once("no backend has a part in it")


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
    assert f"wrote {path} (" in said.out
    assert said.out.endswith("open it in a browser; 1 of 3 files are left out\n")
    assert f"{folder / 'bad.png'}: not a picture" in said.err and "2 of 2 pictures" in said.err
    content = content_of(path)
    assert content["title"] == f"{folder.name}/m.keras"
    assert [picture["name"] for picture in content["pictures"]] == ["0.png", "1.png"]
    model = keras_vit.load_model(folder / "m.keras")
    images = np.stack([np.asarray(Image.open(folder / f"{n}.png")) for n in range(2)])
    likely = inspection.probabilities(model, images)
    for picture, found in zip(content["pictures"], likely, strict=True):
        assert picture["classes"][0]["name"] == str(found.argmax())
    assert main(argv) == 1 and "--overwrite" in capsys.readouterr().err
    assert main([*argv, "--overwrite", "--title", "Mine", "--hover", "none"]) == 0
    assert content_of(path)["title"] == "Mine"


@anywhere
def test_at_another_size(folder, tmp_path, capsys):
    path = tmp_path / "report.html"
    argv = ["inspect", str(folder / "m.keras"), str(folder / "0.png"), "--output", str(path)]
    assert main([*argv, "--image-size", "32"]) == 0
    assert content_of(path)["model"]["grid"] == [4, 4]
    assert "resampled" in capsys.readouterr().err
    assert main([*argv, "--overwrite", "--image-size", "30"]) == 1
    assert "--image-size must be a multiple of the patch, 8 pixels, such as 24 or 32" in (
        capsys.readouterr().err
    )
    assert content_of(path)["model"]["grid"] == [4, 4]
    assert main([*argv, "--overwrite", "--image-size", "8x24"]) == 0
    assert content_of(path)["model"]["grid"] == [1, 3]
    for size in ("8x8x8", "x", "8x", "0x8"):
        with pytest.raises(SystemExit):
            main([*argv, "--image-size", size])
        assert "HEIGHTxWIDTH" in capsys.readouterr().err


@anywhere
def test_no_picture_at_all(folder, tmp_path, capsys):
    path = tmp_path / "report.html"
    argv = ["inspect", str(folder / "m.keras"), str(folder / "bad.png"), "--output", str(path)]
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert "not a picture" in error and "no page is written" in error
    assert not list(tmp_path.iterdir())


@anywhere
def test_pictures_of_another_size_are_named(folder, tmp_path, capsys):
    Image.new("RGB", (9, 9)).save(tmp_path / "other.png")
    argv = ["inspect", str(folder / "m.keras"), str(tmp_path / "other.png"), str(folder / "0.png")]
    assert main([*argv, "--output", str(tmp_path / "p.html"), "--crop", "none"]) == 0
    assert f"{tmp_path / 'other.png'}: " in capsys.readouterr().err
    assert [p["name"] for p in content_of(tmp_path / "p.html")["pictures"]] == ["0.png"]


@anywhere
def test_a_page_that_knows_less_says_so(folder, tmp_path, capsys, monkeypatch):
    from keras_vit.inspection.page import file

    monkeypatch.setattr(file, "BUDGET", 200)
    argv = ["inspect", str(folder / "m.keras"), str(folder / "0.png"), "--output"]
    assert main([*argv, str(tmp_path / "p.html")]) == 0
    assert "note: to stay small, of single patches the page knows the mean" in (
        capsys.readouterr().err
    )


@anywhere
def test_a_file_whose_name_is_no_text(folder, tmp_path):
    odd = os.fsencode(tmp_path) + b"/\xff\xfe.png"
    with open(odd, "wb") as file:
        file.write((folder / "0.png").read_bytes())
    path = tmp_path / "p.html"
    argv = ["inspect", str(folder / "m.keras"), os.fsdecode(odd), "--output", str(path)]
    assert main(argv) == 0
    assert content_of(path)["pictures"][0]["name"] == "\ufffd\ufffd.png"


@anywhere
def test_a_model_that_has_diverged(folder, tmp_path, capsys):
    model = keras_vit.load_model(folder / "m.keras")
    head = model.get_layer("head")
    head.set_weights([np.full_like(weights, np.nan) for weights in head.get_weights()])
    model.save(tmp_path / "nan.keras")
    argv = ["inspect", str(tmp_path / "nan.keras"), str(folder / "0.png"), "--output"]
    assert main([*argv, str(tmp_path / "p.html")]) == 1
    assert "outputs for 0.png are not finite: it has diverged" in capsys.readouterr().err
    assert not (tmp_path / "p.html").exists()


@anywhere
def test_a_demo_of_other_channels(tmp_path, capsys):
    model = keras_vit.VisionTransformer(
        **{**VIT, "image_shape": (16, 24, 5), "pixel_range": "inception"}
    )
    model.save(tmp_path / "five.keras")
    assert main(["demo", str(tmp_path / "five.keras"), "--port", "0"]) == 1
    assert "channels" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "demo"])
@anywhere
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
                assert b"m.keras</title>" in answer.read()
            request = urllib.request.Request(
                f"{found[1]}look?name=0.png",
                (folder / "0.png").read_bytes(),
                {"X-Keras-Vit": "look"},
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                picture = json.load(answer)["picture"]
            assert picture["name"] == "0.png" and len(picture["classes"]) == 3
            for _ in range(6):  # as a person would: Python may lose one in a finaliser
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                    break
            assert process.poll() == 130
        finally:
            process.kill()
            _, errors = process.communicate()
    assert "Traceback" not in errors


@anywhere
def test_a_port_that_is_taken(folder, capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["demo", str(folder / "m.keras"), "--port", str(port)]) == 1
    error = capsys.readouterr().err
    assert str(port) in error and "--port" in error
