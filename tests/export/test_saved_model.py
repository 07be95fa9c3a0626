"""A SavedModel from any backend: its signatures, run by TensorFlow without Keras, and its files."""

import io
import json
import os
import signal
import subprocess
import sys

import harness
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.data import read_images
from keras_vit.export.folders import staged
from keras_vit.export.saved_model import to_saved_model, version_of

pytestmark = pytest.mark.export
on_tensorflow = pytest.mark.skipif(
    harness.BACKEND != "tensorflow", reason="the same from any backend: run on TensorFlow"
)

BASE = {"image_shape": (24, 32, 3), "patch_size": 8, "hidden_dim": 12, "num_layers": 2}
BASE |= {"num_heads": 3, "mlp_dim": 20, "num_classes": 7}
NAMES = ["ant", "bee", "cat", "dög", "eel", "fox", "gnu"]

# Runs signatures of SavedModels where Keras cannot be imported. Standard input: lines of JSON
# {"path", "signature", "inputs": .npz}; standard output: a line each, outputs or the error.
RUNNER = """
import json, sys
sys.modules["keras"] = None
import numpy as np, tensorflow as tf
models = {}
for line in sys.stdin:
    job = json.loads(line)
    path = job["path"]
    models[path] = model = models.get(path) or tf.saved_model.load(path)
    inputs = dict(np.load(job["inputs"]))
    if "lengths" in inputs:  # files, one after the other
        whole, ends = inputs["image_bytes"].tobytes(), np.cumsum(inputs["lengths"])
        files = [whole[end - length : end] for end, length in zip(ends, inputs["lengths"])]
        inputs = {"image_bytes": tf.constant(files, tf.string, (len(files),))}
    try:
        found = model.signatures[job["signature"]](**{k: tf.constant(v) for k, v in inputs.items()})
        found = {k: v.numpy() for k, v in found.items()}
        found = {k: [[c.decode() for c in r] for r in v] if v.dtype == object else v.tolist()
                 for k, v in found.items()}
        print(json.dumps(found), flush=True)
    except tf.errors.OpError as error:
        print(json.dumps({"error": error.message}), flush=True)
"""


class Server:
    """A process that has models loaded and answers, as TF Serving would."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def __call__(self, path, signature, **inputs):
        self.count += 1
        file = self.folder / f"{self.count}.npz"
        np.savez(file, **inputs)
        job = {"path": str(path), "signature": signature, "inputs": str(file)}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def bytes(self, path, files):
        joined = np.frombuffer(b"".join(files), "uint8")
        lengths = np.array([len(file) for file in files])
        return self(path, "serve_bytes", image_bytes=joined, lengths=lengths)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    found = Server(tmp_path_factory.mktemp("server"))
    yield found
    found.process.kill()
    found.process.communicate()


def make(**changes):
    model = keras_vit.VisionTransformer(**{**BASE, **changes})
    harness.randomize(model)
    return model


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return to_saved_model(
        model,
        tmp_path_factory.mktemp("serving") / "vit",
        class_names=NAMES,
        top=3,
        warmup=True,
        max_batch_size=6,
    )


def pictures():
    """Files of a size that is not the model's: JPEG, PNG, grey, turned by EXIF."""
    rng = harness.random_for("pictures")
    coarse = rng.integers(0, 256, (4, 5, 7, 3), dtype="uint8")
    whole = [Image.fromarray(pixels).resize((70, 50)) for pixels in coarse]
    turned = Image.Exif()
    turned[0x0112] = 6
    files = []
    for image, format, options in (
        (whole[0], "JPEG", {}),
        (whole[1], "PNG", {}),
        (whole[2].convert("L"), "JPEG", {}),
        (whole[3], "JPEG", {"exif": turned}),
    ):
        stream = io.BytesIO()
        image.save(stream, format, **options)
        files.append(stream.getvalue())
    return files


def close(found, expected):
    np.testing.assert_allclose(np.array(found, "float32"), expected, atol=1e-4, rtol=0)


def test_every_signature_from_every_backend(model, exported, server):
    assert exported.name == "1"
    for batch in (1, 4, 7):
        images = harness.pixels((batch, 24, 32, 3), f"batch {batch}")
        logits = model.predict(images, verbose=0)
        assert np.ptp(logits) > 0.1  # logits that could differ
        found = server(exported, "serving_default", images=images)
        assert set(found) == {"logits", "probabilities"}
        close(found["logits"], logits)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        close(found["probabilities"], shares / shares.sum(1, keepdims=True))
        whole = images.astype("uint8")
        found = server(exported, "serve_uint8", images=whole)
        close(found["logits"], model.predict(whole.astype("float32"), verbose=0))
        features = server(exported, "features", images=images)["features"]
        kernel, bias = (harness.numpy(v) for v in model.get_layer("head").weights)
        close(np.array(features, "float32") @ kernel + bias, logits)


def test_encoded_pictures_are_read_as_python_reads_them(model, exported, server, tmp_path):
    files = pictures()
    paths = [tmp_path / str(position) for position in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    images, read, _ = read_images(paths, image_size=(24, 32))
    assert read == [0, 1, 2, 3]
    logits = model.predict(images.astype("float32"), verbose=0)
    found = server.bytes(exported, files)
    close(found["logits"], logits)
    order = np.argsort(-logits, axis=1)[:, :3]
    assert found["classes"] == [[NAMES[i] for i in row] for row in order]
    best = np.take_along_axis(np.array(found["probabilities"]), order, axis=1)
    close(found["scores"], best)


def test_a_corrupt_picture_is_named_and_the_server_goes_on(exported, server):
    files = pictures()
    expected = server.bytes(exported, files)["logits"]
    broken = [files[0], files[1][:60], files[2], b"no picture"]
    message = server.bytes(exported, broken)["error"]
    named = [f"image_bytes[{index}]" in message for index in range(4)]
    assert named == [False, True, False, True], message
    assert server.bytes(exported, files)["logits"] == expected


def test_files_beside_the_graph(exported):
    assert (exported / "assets" / "labels.txt").read_text("utf-8").split() == NAMES
    settings = json.loads((exported / "assets.extra" / "keras_vit.json").read_text())
    assert settings["producer"] == "keras_vit" and settings["class_names"] == NAMES
    text = (exported.parent / "batching_parameters.txt").read_text().splitlines()
    assert "max_batch_size { value: 6 }" in text
    sizes = [line.split()[-1] for line in text if line.startswith("allowed_batch_sizes")]
    assert sizes == ["1", "2", "4", "6"]
    assert not [entry for entry in exported.parent.iterdir() if entry.name.startswith(".")]


@on_tensorflow
def test_warm_up_requests_are_ones_that_the_model_answers(exported):
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    served = tf.saved_model.load(str(exported))
    seen = set()
    file = str(exported / "assets.extra" / "tf_serving_warmup_requests")
    for record in tf.data.TFRecordDataset(file):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log
        name = log.request.model_spec.signature_name
        inputs = {key: tf.make_ndarray(value) for key, value in log.request.inputs.items()}
        inputs = {key: tf.constant(value) for key, value in inputs.items()}
        assert served.signatures[name](**inputs)
        assert log.request.model_spec.name == "vit"
        seen.add(name)
    assert seen == set(served.signatures) == {
        "serving_default", "serve_uint8", "serve_bytes", "features"
    }  # fmt: skip


@on_tensorflow
def test_twice_from_one_process(model, exported):
    import tensorflow as tf

    again = to_saved_model(model, exported.parent, class_names=NAMES, top=3)
    assert again.name == "2"
    inputs = [
        {
            name: [(spec.name, spec.shape, spec.dtype) for spec in signature.inputs[:1]]
            + sorted(signature.structured_outputs)
            for name, signature in tf.saved_model.load(str(path)).signatures.items()
        }
        for path in (exported, again)
    ]
    assert inputs[0] == inputs[1]
    assert inputs[0]["serving_default"][0][0].startswith("images")


@on_tensorflow
@pytest.mark.parametrize(
    ("changes", "signatures", "outputs"),
    [
        ({"num_classes": None}, {"serve_bytes", "serve_uint8", "features"}, {"features"}),
        ({"include_rescaling": False}, {"features"}, {"logits", "probabilities"}),
        ({"image_shape": (24, 32, 5), "pixel_range": "unit"}, {"serve_uint8", "features"},
         {"logits", "probabilities"}),
    ],
    ids=["no head", "no rescaling", "five channels"],
)  # fmt: skip
def test_models_that_lack_something(changes, signatures, outputs, tmp_path, recwarn):
    import tensorflow as tf

    served = tf.saved_model.load(str(to_saved_model(make(**changes), tmp_path / "vit")))
    assert set(served.signatures) == signatures | {"serving_default"}
    assert set(served.signatures["serving_default"].structured_outputs) == outputs
    warned = " ".join(str(warning.message) for warning in recwarn)
    for left_out in {"serve_bytes", "serve_uint8"} - signatures:
        assert f"signature {left_out} is left out" in warned


@on_tensorflow
def test_sigmoid(tmp_path):
    import tensorflow as tf

    model = make(classifier_activation="sigmoid")
    images = harness.pixels((2, 24, 32, 3))
    served = tf.saved_model.load(str(to_saved_model(model, tmp_path / "vit")))
    found = served.signatures["serving_default"](images=tf.constant(images))
    close(found["probabilities"], model.predict(images, verbose=0))


@on_tensorflow
def test_under_a_strategy_a_child_exports(tmp_path):
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
        model = make()
        path = to_saved_model(model, tmp_path / "vit")
    images = harness.pixels((2, 24, 32, 3))
    found = tf.saved_model.load(str(path)).signatures["serving_default"](tf.constant(images))
    close(found["logits"], model.predict(images, verbose=0))


@on_tensorflow
def test_an_existing_version_is_refused_unless_told(model, exported):
    before = (exported / "saved_model.pb").stat().st_mtime_ns
    with pytest.raises(FileExistsError, match="overwrite=True"):
        to_saved_model(model, exported)
    assert (exported / "saved_model.pb").stat().st_mtime_ns == before
    with pytest.raises(FileExistsError, match="SavedModel itself"):
        version_of(exported.rename(exported.with_name("plain")))
    exported.with_name("plain").rename(exported)
    to_saved_model(model, exported, overwrite=True, class_names=NAMES, top=3, warmup=True)
    assert (exported / "saved_model.pb").stat().st_mtime_ns > before
    assert not [entry for entry in exported.parent.iterdir() if entry.name.startswith(".")]


@on_tensorflow
def test_versions_count_on(tmp_path):
    assert version_of(tmp_path / "vit") == tmp_path / "vit" / "1"
    (tmp_path / "vit" / "9").mkdir(parents=True)
    (tmp_path / "vit" / "10").mkdir()
    (tmp_path / "vit" / ".11-x.partial").mkdir()
    assert version_of(tmp_path / "vit") == tmp_path / "vit" / "11"
    assert version_of(tmp_path / "vit" / "3") == tmp_path / "vit" / "3"


@on_tensorflow
def test_a_failed_export_leaves_nothing(model, tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError("no more")

    monkeypatch.setattr("keras_vit.export.warm_up.write_requests", fail)
    with pytest.raises(RuntimeError, match="no more"):
        to_saved_model(model, tmp_path / "vit", warmup=True)
    assert not list(tmp_path.iterdir())


KILLED = """
import sys, keras_vit
from keras_vit.export import warm_up
from keras_vit.export.saved_model import to_saved_model
def wait(*args):
    print("writing", flush=True)
    sys.stdin.read()
warm_up.write_requests = wait
model = keras_vit.VisionTransformer(image_shape=(8, 8, 3), patch_size=8, hidden_dim=4,
    num_layers=1, num_heads=1, mlp_dim=4, num_classes=2)
to_saved_model(model, sys.argv[1], warmup=True)
"""


@on_tensorflow
def test_a_killed_export_leaves_no_version(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "vit")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not [entry for entry in (tmp_path / "vit").iterdir() if entry.name.isdecimal()]
    assert version_of(tmp_path / "vit").name == "1"


@on_tensorflow
@pytest.mark.parametrize("name", ["03", "99999999999999999999", "٣", "a[1]", "vit*"])
def test_versions_and_paths_that_tensorflow_cannot_have(name, tmp_path):
    with pytest.raises(ValueError, match="version is a number|takes for a pattern"):
        version_of(tmp_path / name)


@on_tensorflow
def test_an_export_that_came_first_is_not_replaced(tmp_path):
    with pytest.raises(FileExistsError, match="overwrite=True"):
        with staged(tmp_path / "vit" / "1", overwrite=False) as path:
            path.mkdir()
            (tmp_path / "vit" / "1").mkdir()
            (tmp_path / "vit" / "1" / "theirs").touch()
    assert [entry.name for entry in (tmp_path / "vit").iterdir()] == ["1"]
    assert (tmp_path / "vit" / "1" / "theirs").exists()


@on_tensorflow
def test_companions_of_an_older_artifact_go(tmp_path):
    for name in ("a.onnx", "a.onnx.data", "b.onnx"):
        (tmp_path / name).write_text("older")
    with staged(tmp_path / "a.onnx", True, ("a.onnx.data",)) as path:
        path.write_text("newer")
    found = {entry.name: entry.read_text() for entry in tmp_path.iterdir()}
    assert found == {"a.onnx": "newer", "b.onnx": "older"}


@on_tensorflow
def test_wrong_kinds_of_arguments(model, tmp_path):
    for arguments in ({"overwrite": "no"}, {"warmup": "x"}):
        with pytest.raises(ValueError, match="must be"):
            to_saved_model(model, tmp_path / "vit", **arguments)
    with pytest.raises(ValueError, match="must be a path"):
        to_saved_model(model, None)


@on_tensorflow
def test_a_command_told_to_end_takes_away_what_it_began(model, tmp_path):
    model.save(tmp_path / "model.keras")
    code = KILLED.replace("to_saved_model(model, sys.argv[1], warmup=True)", "").replace(
        "import sys, keras_vit", "import sys, keras_vit.cli.main"
    )
    arguments = ["export", "--model", str(tmp_path / "model.keras"), "--to", "saved_model"]
    arguments += ["--output", str(tmp_path / "vit")]
    code += f"\nkeras_vit.cli.main.main({arguments!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "writing\n"
    process.terminate()
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.keras"]
