"""`verify`: its numbers against NumPy's, and that it finds what is wrong."""

import json
import subprocess
import sys

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit import _deps
from keras_vit.export import runtimes
from keras_vit.export.onnx import to_onnx
from keras_vit.export.openvino import to_openvino
from keras_vit.export.saved_model import to_saved_model
from keras_vit.export.synthetic import pictures
from keras_vit.export.tflite import to_tflite
from keras_vit.export.verification import Latency, Run, Verification, VerificationError
from keras_vit.export.verify import verify

for package in ("tensorflow", "onnx", "onnxruntime", "tf2onnx", "openvino", "ai_edge_litert"):
    pytest.importorskip(package, reason=f"{package} is not installed")
ort = pytest.importorskip("onnxruntime")

pytestmark = [
    pytest.mark.export,
    pytest.mark.skipif(
        harness.BACKEND != "tensorflow", reason="the same from any backend: run on TensorFlow"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the converters' own
]

BASE = {"image_shape": (24, 32, 3), "patch_size": 8, "hidden_dim": 12, "num_layers": 2}
BASE |= {"num_heads": 3, "mlp_dim": 20, "num_classes": 7}
IMAGES = pictures(20, (24, 32, 3), seed=5)
LABELS = np.arange(20) % 7
QUICK = {"repeats": 4, "seconds": 0.5}


def make(**options):
    model = keras_vit.VisionTransformer(**{**BASE, **options})
    harness.randomize(model)
    return model


def logits(model):
    return harness.numpy(harness.run(model, IMAGES))


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def onnx_file(model, folder):
    return to_onnx(model, folder / "model.onnx")


@pytest.fixture(scope="module")
def other_file(folder):
    """Of a model whose logits are known: of the images each seventh class is named anew."""
    other = make()
    kernel, bias = (w for w in other.weights if w.path.startswith("head/"))
    bias.assign(bias + np.array([0, 0, 0.75, 0, 0, 0, 0], "float32"))
    return to_onnx(other, folder / "other.onnx"), logits(other)


@pytest.fixture(scope="module")
def saved_model(model, folder):
    return to_saved_model(model, folder / "saved" / "1", class_names=list("abcdefg"))


def test_numbers(model, onnx_file, tmp_path):
    found = verify(onnx_file, model, IMAGES, labels=LABELS, **QUICK)
    (run,) = found.runs
    session = ort.InferenceSession(str(onnx_file), providers=["CPUExecutionProvider"])
    theirs, ours = session.run(["logits"], {"images": IMAGES})[0], logits(model)
    assert run.difference == pytest.approx(np.abs(theirs - ours).max(), abs=2e-6)
    assert run.agreement == 1.0 and run.precision == "float32" and run.bound == 1e-3
    assert run.accuracy == found.accuracy == np.mean(ours.argmax(1) == LABELS)
    assert found.size == onnx_file.stat().st_size
    assert found.weights == 4 * model.count_params()
    assert (found.images, found.source, found.kind) == (20, "given", "onnx")
    assert (found.backend, run.runtime, run.version) == (
        "tensorflow",
        "onnxruntime",
        ort.__version__,
    )
    assert run.latency.runs == 4 and 0 < run.latency.p50 <= run.latency.p95
    assert run.ratio == pytest.approx(run.latency.p50 / found.model_latency.p50)
    assert found.failures == () and found.check() is found
    assert json.loads(found.to_json()) == json.loads(json.dumps(found.to_dict()))
    text = found.text()
    assert f"onnxruntime {ort.__version__}" in text and "20 given images" in text
    assert " ok" in text and "FAILED" not in text and "ynthetic" not in text


def test_the_memory_is_that_of_the_runtime_alone(model, onnx_file):
    (run,) = verify(onnx_file, model, IMAGES[:1], **QUICK).runs
    with open("/proc/self/status") as file:
        (peak,) = [int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:")]
    assert 20e6 < run.peak_memory < peak / 2  # this process holds TensorFlow


def test_other_weights_fail(model, other_file):
    path, theirs = other_file
    found = verify(path, model, IMAGES, labels=LABELS, **QUICK)
    (run,) = found.runs
    ours = logits(model)
    agreement = np.mean(theirs.argmax(1) == ours.argmax(1))
    assert 0 < agreement < 1
    assert run.difference == pytest.approx(0.75, abs=1e-5)
    assert run.agreement == pytest.approx(agreement)
    assert run.accuracy == np.mean(theirs.argmax(1) == LABELS)
    assert found.accuracy == np.mean(ours.argmax(1) == LABELS)
    with pytest.raises(VerificationError, match=r"onnxruntime \(float32\): differs by 7.50e-01"):
        found.check()
    assert "FAILED" in found.text() and found.to_dict()["failures"] == list(found.failures)


def test_bounds_of_the_caller(model, other_file):
    path, theirs = other_file
    agreement = float(np.mean(theirs.argmax(1) == logits(model).argmax(1)))
    found = verify(path, model, IMAGES, tolerance=0.76, agreement=agreement - 0.01, **QUICK)
    assert not found.failures
    found = verify(path, model, IMAGES, tolerance=0.76, agreement=agreement + 0.01, **QUICK)
    (failure,) = found.failures
    assert f"first class for {agreement:.1%} of the images" in failure


def test_openvino_and_float16(model, onnx_file, folder):
    path = to_openvino(model, folder / "half.xml", compress_to_fp16=True)
    found = verify(path, model, IMAGES, **QUICK)
    (run,) = found.runs
    assert run.precision == "float16" and 1e-5 < run.difference
    assert run.bound == pytest.approx(2e-2 * max(1.0, logits(model).std()))
    assert found.size == sum((folder / name).stat().st_size for name in ("half.xml", "half.bin"))
    assert not found.failures
    assert verify(path, model, IMAGES, tolerance=1e-6, **QUICK).failures
    (run,) = verify(onnx_file, model, IMAGES, runtimes="openvino", **QUICK).runs
    assert run.precision == "float32" and run.difference < 1e-5


def test_tflite_in_both_interpreters(model, folder):
    path = to_tflite(model, folder / "dynamic.tflite", quantize="dynamic")
    found = verify(path, model, IMAGES, **QUICK)
    assert [run.runtime for run in found.runs] == ["ai_edge_litert", "tf.lite"]
    for run in found.runs:
        assert run.precision == "int8" and 1e-4 < run.difference < 0.5
        assert (run.bound, run.least_agreement) == (None, 0.98)


@pytest.mark.parametrize(("quantize", "precision"), (("float16", "float16"), (None, "float32")))
def test_the_precision_is_told_by_the_file(quantize, precision, model, folder):
    path = to_tflite(model, folder / f"{precision}.tflite", quantize=quantize)
    (run,) = verify(path, model, IMAGES, runtimes=["ai_edge_litert"], **QUICK).runs
    assert run.precision == precision and not run.failure


def test_one_batch_size(model, folder):
    path = to_onnx(model, folder / "three.onnx", batch_size=3)
    (run,) = verify(path, model, IMAGES[:7], **QUICK).runs
    assert run.batch == 3 and run.difference < 1e-5


def test_saved_model_by_its_files(model, saved_model):
    found = verify(saved_model, model, IMAGES, signature="serve_bytes", **QUICK)
    (run,) = found.runs
    assert run.runtime == "tensorflow" and run.difference < 1e-5
    files = [file for file in saved_model.rglob("*") if file.is_file()]
    assert found.size == sum(file.stat().st_size for file in files)


def test_the_script_runs_without_keras(model, saved_model, tmp_path):
    job = {"kind": "saved_model", "runtime": "tensorflow", "artifact": str(saved_model)}
    job |= {
        "signature": "serving_default",
        "threads": 1,
        "batches": [2, 1],
        "repeats": 1,
        "seconds": 0.1,
    }
    job |= {key: str(tmp_path / key) for key in ("images", "outputs", "result")}
    job |= {"images": str(tmp_path / "images.npy"), "outputs": str(tmp_path / "outputs.npz")}
    np.save(job["images"], IMAGES[:3])
    (tmp_path / "job.json").write_text(json.dumps(job))
    code = f"""
import runpy, sys
sys.argv = ["runtimes.py", {str(tmp_path / "job.json")!r}]
runpy.run_path({runtimes.__file__!r}, run_name="__main__")
print([name for name in ("keras", "keras_vit", "jax", "torch") if sys.modules.get(name)])
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
    assert json.loads((tmp_path / "result").read_text())["keras"] is False
    with np.load(job["outputs"]) as outputs:
        np.testing.assert_allclose(outputs["logits"], logits(model)[:3], atol=1e-5)


def test_png_files_are_exact():
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    import io

    for channels in (1, 3):
        image = IMAGES[0, ..., :channels].astype("uint8")
        with pillow.open(io.BytesIO(runtimes.png(image))) as picture:
            np.testing.assert_array_equal(np.asarray(picture).reshape(image.shape), image)


def test_half_precision_models_are_compared_by_their_weights(folder):
    model = make(dtype="mixed_bfloat16")
    found = verify(to_onnx(model, folder / "bf16.onnx"), model, IMAGES, **QUICK)
    assert found.runs[0].difference < 2e-5 and not found.failures
    assert "computes in bfloat16: compared are its weights in float32" in found.text()


def test_without_a_head(folder):
    model = make(num_classes=None, pooling=None)
    path = to_onnx(model, folder / "tokens.onnx")
    (run,) = verify(path, model, IMAGES, **QUICK).runs
    assert run.agreement is None and run.difference < 2e-5
    with pytest.raises(ValueError, match="`labels` need a model with a head"):
        verify(path, model, IMAGES, labels=LABELS)


def test_synthetic_images(model, onnx_file):
    found = verify(onnx_file, model, **QUICK)
    assert found.source == "synthetic" and "64 synthetic images" in found.text()
    made = pictures(64, (24, 32, 3))
    np.testing.assert_array_equal(made, pictures(64, (24, 32, 3)))
    assert made.min() == 0 and made.max() == 255 and (made == np.round(made)).all()
    assert made.reshape(64, -1).std(1).min() > 1 and len(np.unique(made.mean((1, 2, 3)))) == 64


def test_runtimes_that_are_missing(model, onnx_file, monkeypatch):
    monkeypatch.setattr(_deps, "_installed", lambda package: package != "openvino")
    found = verify(onnx_file, model, IMAGES, runtimes=["onnxruntime", "openvino"], **QUICK)
    assert [run.status for run in found.runs] == ["ran", "missing"] and not found.failures
    assert "not run" in found.text() and 'keras-vision-transformers[openvino]"' in found.text()
    monkeypatch.setattr(_deps, "_installed", lambda package: False)
    with pytest.raises(ImportError, match=r"cannot be verified: .* needs onnxruntime"):
        verify(onnx_file, model, IMAGES)


def test_artifacts_that_are_none(model, onnx_file, saved_model, tmp_path):
    (tmp_path / "model.pt").touch()
    (tmp_path / "lone.xml").touch()
    wrong = {
        tmp_path / "absent.onnx": "does not exist",
        tmp_path / "model.pt": "must be a SavedModel's directory or end in .tflite, .onnx, .xml",
        tmp_path: "has no saved_model.pb, so it is no SavedModel",
        saved_model.parent: "name a version in it: 1",
        tmp_path / "lone.xml": "weights of .* are missing",
        3: "must be a path",
    }
    for artifact, message in wrong.items():
        with pytest.raises(ValueError, match=message):
            verify(artifact, model, IMAGES)
    with pytest.raises(ValueError, match=r"`runtimes` of onnx must be of .*tensorflow"):
        verify(onnx_file, model, IMAGES, runtimes=["tensorflow"])
    with pytest.raises(ValueError, match=r"`images` must have shape \(n, 24, 32, 3\)"):
        verify(onnx_file, model, IMAGES[:, :8])
    for labels in (LABELS[:3], LABELS / 2):
        with pytest.raises(ValueError, match="a class number for each image"):
            verify(onnx_file, model, IMAGES, labels=labels)


def test_broken_files(model, onnx_file, tmp_path):
    content = onnx_file.read_bytes()
    for name in ("half.onnx", "half.tflite", "half.xml"):
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    (tmp_path / "half.bin").write_bytes(b"")
    for name in ("half.onnx", "half.tflite", "half.xml"):
        runtime = {"half.tflite": ["ai_edge_litert"]}.get(name)
        with pytest.raises(ValueError, match=rf"{name} cannot be run as \w+. \w+: \w+"):
            verify(tmp_path / name, model, IMAGES, runtimes=runtime, **QUICK)


def test_another_models_artifact(onnx_file):
    other = make(image_shape=(32, 32, 3))
    with pytest.raises(
        ValueError, match=r"another model's: it takes images of shape \(24, 32, 3\)"
    ):
        verify(onnx_file, other, **QUICK)
    other = make(num_classes=3)
    with pytest.raises(ValueError, match=r"another model's: it gives .*logits \(7,\)"):
        verify(onnx_file, other, **QUICK)


def test_processes_that_end(model, onnx_file, tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    monkeypatch.setattr(runtimes, "__file__", str(script))
    script.write_text("import os; print('last words', flush=True); os.kill(os.getpid(), 9)")
    with pytest.raises(ValueError, match=r"(?s)signal SIGKILL \(as when memory.*last words"):
        verify(onnx_file, model, IMAGES, **QUICK)
    script.write_text("import time; time.sleep(60)")
    with pytest.raises(ValueError, match=r"took longer than 0.3 s"):
        verify(onnx_file, model, IMAGES, timeout=0.3, **QUICK)
    script.write_text("raise SystemExit(3)")
    with pytest.raises(ValueError, match="ended with status 3"):
        verify(onnx_file, model, IMAGES, **QUICK)


def test_failures():
    latency = Latency(0.001, 0.002, 5)

    def failure(**found):
        values = {"status": "ran", "precision": "float32", "difference": 0.0, **found}
        return Run("onnxruntime", **values).failure

    assert failure(bound=1e-3) is None
    assert "differs by 2.00e-03 at most, allowed are 1.00e-03" in failure(
        difference=2e-3, bound=1e-3
    )
    for value in (np.nan, np.inf):
        assert "not finite" in failure(difference=value)
    assert "97.0% of the images, required are 98.0%" in failure(
        agreement=0.97, least_agreement=0.98
    )
    assert failure(agreement=0.98, least_agreement=0.98) is None
    assert failure(status="missing", bound=0.0, difference=1.0) is None
    assert failure(status="failed", message="no.") == "onnxruntime: no."
    runs = (Run("a", "missing", "install a"), Run("b", "failed", "broke"))
    whole = ("x.onnx", "onnx", "serving_default", 10, 5, 1, "given", "jax", latency, None, ())
    found = Verification(*whole, runs)
    assert found.failures == ("b: broke",)
    assert "a: install a" in found.text() and "2.00 of the model's" in found.text()
    with pytest.raises(VerificationError, match="x.onnx is not its model: b: broke"):
        found.check()


def test_integers_of_another_model_fail_where_the_first_class_says_nothing(folder):
    one, other = make(num_classes=1), make(num_classes=1)
    for variable in other.weights:
        variable.assign(-harness.numpy(variable))
    path = to_tflite(one, folder / "one_class.tflite", "dynamic")
    options = {**QUICK, "runtimes": ("ai_edge_litert",)}
    assert not verify(path, one, IMAGES, **options).failures
    (failure,) = verify(path, other, IMAGES, **options).failures
    assert "of what the outputs vary" in failure


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tolerance": float("nan")}, "`tolerance`"),
        ({"tolerance": "a"}, "`tolerance`"),
        ({"tolerance": -1}, "`tolerance`"),
        ({"agreement": 98}, "`agreement`"),
        ({"agreement": float("nan")}, "`agreement`"),
        ({"threads": 10**6}, "`threads`"),
        ({"batch_sizes": ()}, "`batch_sizes`"),
        ({"signature": "features"}, "`signature`"),
        ({"labels": LABELS + 1}, "between 0 and 6"),
        ({"images": IMAGES / 255}, "multiply them by 255"),
    ],
    ids=str,
)
def test_bounds_and_values_out_of_range(arguments, words, model, onnx_file):
    images = arguments.pop("images", IMAGES)
    with pytest.raises(ValueError, match=words):
        verify(onnx_file, model, images, **arguments)


def test_json_has_no_numbers_of_its_own():
    run = Run("x", "ran", difference=float("nan"), precision="float32", bound=1e-3)
    assert run.failure and "not finite" in run.failure
    verification = Verification(
        artifact="a", kind="onnx", signature="s", size=1, weights=1, images=1, source="given",
        backend="jax", model_latency=Latency(1.0, 1.0, 1), accuracy=None, notes=(), runs=(run,),
    )  # fmt: skip
    assert json.loads(verification.to_json())["runs"][0]["difference"] is None


def test_features_are_no_classes_and_probabilities_are_compared_as_such(model, folder):
    headless = make(num_classes=None)
    path = to_onnx(headless, folder / "features.onnx")
    run = verify(path, headless, IMAGES, **QUICK).runs[0]
    assert run.agreement is None and run.failure is None
    path = to_tflite(model, folder / "probabilities.tflite", output="probabilities")
    for run in verify(path, model, IMAGES, labels=LABELS, **QUICK).runs:
        assert run.failure is None and run.agreement == 1
        assert run.difference < 1e-5


def test_an_untrained_head_proves_nothing_and_the_result_says_so(folder):
    fresh = keras_vit.VisionTransformer(**BASE)
    path = to_onnx(fresh, folder / "fresh.onnx")
    assert "untrained head" in " ".join(verify(path, fresh, IMAGES, **QUICK).notes)
