"""The serving client and the load test, against a stand-in for TF Serving."""

import http.client
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import harness
import keras
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]
import _serving_stand_in as stand_in  # noqa: E402
import serving_client  # noqa: E402
import serving_load  # noqa: E402

pytestmark = [
    pytest.mark.export,
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow",
        reason="the server runs TensorFlow, whatever the backend: run on TensorFlow",
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = stand_in.export_tiny(tmp_path_factory.mktemp("served") / "vit")
    with stand_in.StandIn(folder, "vit") as running:
        yield running


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return stand_in.write_pictures(tmp_path_factory.mktemp("pictures"), size=(60, 44))


@pytest.fixture(params=["rest", "grpc"])
def address(server, request):
    if request.param == "grpc":
        pytest.importorskip("tensorflow_serving", reason="needs tensorflow-serving-api")
    return f"--{request.param}", getattr(server, request.param)


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["serving_client.py", *map(str, arguments)])
    code = serving_client.main()
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_classes_and_scores(monkeypatch, capsys, server, pictures, address):
    code, printed, _ = run(monkeypatch, capsys, *address, "--model", "vit", *pictures)
    assert code == 0
    lines = printed.splitlines()
    assert [line.split(":")[0] for line in lines] == [str(path) for path in pictures]
    files = [path.read_bytes() for path in pictures]
    import tensorflow as tf

    answer = server.loaded.signatures["serve_bytes"](image_bytes=tf.constant(files))
    for line, names, scores in zip(lines, answer["classes"], answer["scores"], strict=True):
        best = zip(names.numpy(), scores.numpy(), strict=True)
        assert line.split(": ")[1] == ", ".join(f"{n.decode()} {s:.1%}" for n, s in best)


def test_a_bad_picture_is_called_by_its_name(monkeypatch, capsys, pictures, address, tmp_path):
    bad, empty = tmp_path / "bad.jpg", tmp_path / "empty.png"
    bad.write_bytes(b"<html>")
    empty.write_bytes(b"")
    code, _, error = run(monkeypatch, capsys, *address, pictures[0], bad, pictures[1], empty)
    assert code == 1
    assert error == (
        f"error: {bad} is no JPEG or PNG; {empty} is empty. "
        "Expected: the bytes of JPEG or PNG files\n"
    )
    assert run(monkeypatch, capsys, *address, *pictures)[0] == 0  # the server goes on


def test_errors_are_readable(monkeypatch, capsys, pictures, address, tmp_path):
    kind, _ = address
    nowhere = {"--rest": "http://127.0.0.1:9", "--grpc": "127.0.0.1:9"}[kind]
    attempts = {
        "no server at": (kind, nowhere, pictures[0]),
        "the server has no such model or version": (*address, "--model", "other", pictures[0]),
        "request: Specific(9)": (*address, "--version", 9, pictures[0]),
        "cannot read": (*address, tmp_path / "missing.jpg"),
    }
    for message, arguments in attempts.items():
        code, printed, error = run(monkeypatch, capsys, *arguments)
        assert (code, printed) == (1, "")
        assert error.startswith("error: ") and message in error


def test_what_is_no_address(monkeypatch, capsys, pictures):
    code, _, error = run(monkeypatch, capsys, "--rest", "localhost:8501", pictures[0])
    assert code == 1 and "--rest must be like http://localhost:8501" in error
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys)
    assert "name some pictures" in capsys.readouterr().err


def test_versions(server):
    client = serving_client.RestClient(server.rest, "vit")
    assert client.versions() == {"1": "AVAILABLE"}
    client.close()


def test_the_stand_in_takes_rows_and_columns(server):
    """The two formats of TF Serving's REST API."""
    connection = http.client.HTTPConnection(server.rest.removeprefix("http://"))

    def post(body, path="/v1/models/vit:predict"):
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    images = np.zeros((2, 24, 32, 3)).tolist()
    named = [{"images": image} for image in images]
    code, rows = post({"instances": images})
    assert (
        code == 200 and post({"instances": named}, "/v1/models/vit/versions/1:predict")[1] == rows
    )
    code, columns = post({"inputs": images})
    assert code == 200 and set(columns["outputs"]) == {"logits", "probabilities"}
    assert columns["outputs"]["logits"] == [row["logits"] for row in rows["predictions"]]
    code, features = post({"signature_name": "features", "inputs": {"images": images}})
    assert code == 200 and np.shape(features["outputs"]) == (2, 12)
    for body in ({}, {"inputs": images, "instances": images}, {"inputs": {"other": images}}):
        code, answer = post(body)
        assert code == 400 and answer["error"]
    assert post({"inputs": images}, "/v1/models/vit:classify")[0] == 404
    connection.close()


def load(address, **changed):
    kind, where = address
    where = {"rest": None, "grpc": None, kind.removeprefix("--"): where}
    options = {"model": "vit", "version": None, "timeout": 60.0, "seconds": 60.0}
    options |= {"requests": 7, "concurrency": 2, "batch": 2, **where, **changed}
    return SimpleNamespace(**options)


def test_the_load_test_counts_what_it_sends(pictures, address):
    files = [path.read_bytes() for path in pictures]
    figures = serving_load.measure(load(address), files)
    assert (figures["answered"], figures["failed"], figures["errors"]) == (7, 0, {})
    assert 0 < figures["p50_ms"] <= figures["p95_ms"] <= figures["p99_ms"]
    ratio = figures["pictures_per_second"] / figures["requests_per_second"]
    assert ratio == pytest.approx(2, rel=1e-2)
    figures = serving_load.measure(load(address, seconds=1e-9), files)
    assert figures["answered"] == 0


def test_the_load_test_counts_failures(pictures, address):
    figures = serving_load.measure(load(address, model="other"), [b""])
    assert figures["answered"] == 0 and figures["failed"] >= 1 and figures["p50_ms"] is None
    assert "no such model" in next(iter(figures["errors"]))


def test_the_load_test_keeps_to_this_machine(monkeypatch, capsys):
    local = serving_load.is_local
    for rest in (None, "http://localhost:8501", "http://127.0.0.1:1", "http://[::1]:8501/x"):
        assert local(SimpleNamespace(rest=rest, grpc=None))
    assert local(SimpleNamespace(rest=None, grpc="localhost:8500"))
    for host in ("example.com:8500", "10.0.0.1:8500", "localhost.example.com:1"):
        assert not local(SimpleNamespace(rest=None, grpc=host))
        assert not local(SimpleNamespace(rest=f"http://{host}", grpc=None))
    monkeypatch.setattr(sys, "argv", ["serving_load.py", "--rest", "http://example.com:8501"])
    with pytest.raises(SystemExit):
        serving_load.main()
    assert "not on this machine" in capsys.readouterr().err


def test_percentiles():
    values = list(range(1, 101))
    assert [serving_load.percentile(values, p) for p in (50, 95, 99)] == [50, 95, 99]
    assert serving_load.percentile([3.0], 99) == 3.0


def test_the_load_test_reports(monkeypatch, capsys, server, tmp_path):
    """Its --smoke, on the model that is exported already."""
    monkeypatch.setattr(serving_load, "export_tiny", lambda folder: server.folder)
    file = tmp_path / "load.json"
    monkeypatch.setattr(sys, "argv", ["serving_load.py", "--smoke", "--json", str(file)])
    assert serving_load.main() == 0
    found = json.loads(file.read_text())
    assert {figures["answered"] for figures in found} == {12}
    printed = capsys.readouterr().out
    for figures in found:
        assert f"| {figures['protocol']} | 3 | 1 | {figures['requests_per_second']} |" in printed


def test_the_example_runs(monkeypatch, capsys, server):
    """Its --smoke, on the model that is exported already."""
    monkeypatch.setattr(stand_in, "export_tiny", lambda folder: server.folder)
    code, printed, error = run(monkeypatch, capsys, "--smoke")
    assert code == 0
    assert "a stand-in for TF Serving, --rest" in printed and "picture_2.jpg: " in printed
    assert "no_picture.jpg is no JPEG or PNG" in error


@pytest.mark.slow
def test_tensorflows_own_tool_runs_it(server, pictures, tmp_path):
    """`saved_model_cli run`, on files as bytes."""
    files = [path.read_bytes() for path in pictures]
    np.save(tmp_path / "files.npy", np.array(files))
    printed = harness.run_interpreter(
        *("-m", "tensorflow.python.tools.saved_model_cli", "run", "--tag_set", "serve"),
        *("--dir", Path(server.folder, "1"), "--signature_def", "serve_bytes"),
        *("--inputs", f"image_bytes={tmp_path / 'files.npy'}", "--outdir", tmp_path),
    )
    assert "Result for output key classes" in printed
    import tensorflow as tf

    answer = server.loaded.signatures["serve_bytes"](image_bytes=tf.constant(files))
    logits = np.load(tmp_path / "logits.npy")
    np.testing.assert_allclose(logits, answer["logits"], rtol=1e-5, atol=1e-5)
