"""Commands that train, evaluate, predict and measure: what they do, write and refuse.

What `inspect` and `demo` do is in `test_cli_inspect`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import harness
import pytest

import keras_vit
from keras_vit.cli import settings
from keras_vit.cli.main import main
from keras_vit.layers.pixel_scaling import PIXEL_RANGES

# Runs each command line of a list in one process that must not import Keras, and prints the
# statuses and what went to stderr.
CHILD = """
import contextlib, io, json, sys

class NoKeras:
    def find_spec(self, name, path=None, target=None):
        if name == "keras":
            raise SystemExit("Keras is imported")

sys.argv = ["keras-vit"]
sys.meta_path.insert(0, NoKeras())
from keras_vit import _deps
from keras_vit.cli.main import main
installed = _deps._installed
_deps._installed = lambda name: name != "jax" and installed(name)
found = []
for argv in json.loads(sys.stdin.read()):
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            status = main(argv)
        except SystemExit as end:
            status = end.code
    found.append([status, errors.getvalue(), [m for m in sys.modules if m.startswith("keras.")]])
print(json.dumps(found))
"""

TRAIN = ("train", "--data", "data", "--output", "out")
TINY = (*TRAIN, "--model", "vit_ti16")
BIT = (*TRAIN, "--model", "BiT R50x1", "--set", "layer_decay=1.0")
EVALUATE = ("evaluate", "--model", "w.keras", "--data", "data")
PREDICT = ("predict", "--model", "w.keras")
INSPECT = ("inspect", "w.keras")
BENCHMARK = ("benchmark", "data", "--data", "data")

# Command line -> status, and words that the message has to have.
WRONG = [
    ((*TINY, "--recipe", "augregg"), 1, ("recipe", "augreg_light2", "'augregg'")),
    ((*TINY, "--set", "epoch=3"), 1, ("--set epoch", "'epochs'")),
    ((*TINY, "--set", "hiden_dim=3"), 1, ("--set hiden_dim", "'hidden_dim'")),
    ((*TINY, "--set", "qqqqqq=3"), 1, ("--set qqqqqq", "'epochs'", "'hidden_dim'")),
    ((*TINY, "--set", "epochs"), 2, ("--set", "NAME=VALUE")),
    ((*TINY, "--set", "epochs=abc"), 1, ("`epochs`", "positive number", "'abc'")),
    ((*TINY, "--set", "epochs=3", "steps=4"), 1, ("either `epochs` or `steps`",)),
    ((*TINY, "--set", "batch_size=0"), 1, ("`batch_size`", "positive integer", "=0")),
    ((*TINY, "--set", "accumulation_steps=7"), 1, ("`accumulation_steps`", "`batch_size`")),
    ((*TINY, "--set", "image_size=(1,2,3)"), 1, ("`image_size`", "pair", "(1, 2, 3)")),
    ((*TINY, "--set", "image_size=30"), 1, ("`image_shape`", "`patch_size`", "(30, 30, 3)")),
    ((*TINY, "--set", "patch_size=5"), 1, ("`image_shape`", "`patch_size`", "=5")),
    ((*TINY, "--set", "patch_size=abc"), 1, ("`patch_size`", "'abc'")),
    ((*TINY, "--set", "hidden_dim=abc"), 1, ("`hidden_dim`", "positive integer", "'abc'")),
    ((*TINY, "--set", "hidden_dim=-4"), 1, ("`hidden_dim`", "positive integer", "=-4")),
    ((*TINY, "--set", "num_heads=0"), 1, ("`num_heads`", "positive integer", "=0")),
    ((*TINY, "--set", "num_heads=5"), 1, ("`num_heads`", "`hidden_dim`", "=5")),
    ((*TINY, "--set", "num_layers=0"), 1, ("`num_layers`", "positive integer", "=0")),
    ((*TINY, "--set", "mlp_dim=x"), 1, ("`mlp_dim`", "positive integer", "'x'")),
    ((*TINY, "--set", "num_registers=-1"), 1, ("`num_registers`", "=-1")),
    ((*TINY, "--set", "norm_epsilon=x"), 1, ("`norm_epsilon`", "'x'")),
    ((*TINY, "--set", "remat=3"), 1, ("`remat`", "True or False", "=3")),
    ((*TINY, "--set", "attention_dropout_rate=3"), 1, ("`attention_dropout_rate`", "[0, 1)")),
    ((*TINY, "--set", "pooling=nope"), 1, ("`pooling`", "'gap'", "'nope'")),
    ((*TINY, "--set", "activation=nope"), 1, ("`activation`", "'gelu'", "'nope'")),
    ((*TINY, "--set", "pixel_range=nope"), 1, ("`pixel_range`", "'imagenet'", "'nope'")),
    ((*TINY, "--set", "dtype=float13"), 1, ("`dtype`", "mixed_bfloat16", "'float13'")),
    ((*TINY, "--set", "stem=3"), 1, ("`stem`", "dict", "=3")),
    ((*TINY, "--set", "num_classes=3"), 1, ("num_classes", "the data say")),
    ((*TINY, "--set", "image_shape=(32,32,3)"), 1, ("image_shape", "set image_size")),
    ((*TINY, "--set", "classifier_activation=softmax"), 1, ("classifier_activation", "logits")),
    ((*TINY, "--set", "train_blocks=13"), 1, ("`train_blocks`", "12 blocks", "=13")),
    ((*TINY, "--set", "lora_rank=2", "train_blocks=1"), 1, ("`lora_rank`", "`train_blocks`")),
    ((*TRAIN, "--model", "BiT R50x1"), 1, ("`layer_decay`", "--set layer_decay=1.0", "0.75")),
    ((*BIT, "lora_rank=4"), 1, ("`lora_rank`", "--set lora_rank=None")),
    ((*BIT, "train_blocks=1"), 1, ("`train_blocks`", "BiT R50x1")),
    ((*BIT, "hidden_dim=8"), 1, ("BiTResNet", "hidden_dim")),
    ((*TINY, "--set", "distillation=hard"), 1, ("--teacher", "distillation=hard")),
    ((*TINY, "--teacher", "w.keras"), 1, ("--teacher", "distillation=hard")),
    ((*TINY, "--teacher", "none", "--set", "distillation=soft"), 1, ("--teacher", "none")),
    (TRAIN, 1, ("--model NAME", "--weights SRC")),
    ((*TRAIN, "--model", "vit_xx"), 1, ("variant", "ViT-S/16", "'vit_xx'")),
    ((*TRAIN, "--weights", "augreg_in21k"), 1, ("--weights", "needs --model", "augreg_in21k")),
    ((*TINY, "--weights", "none.npz"), 1, ("weights", "augreg_in21k", "'none.npz'")),
    ((*TINY, "--weights", "augreg_in21"), 1, ("weights", "augreg_in21k", "'augreg_in21'")),
    (("train", "--data", "none", *TINY[3:]), 1, ("--data", "tfds:NAME", "none")),
    (("train", "--data", "tfds:", *TINY[3:]), 1, ("--data", "behind the colon")),
    (("train", "--data", "tfrecord:no/*", *TINY[3:]), 1, ("--data", "no file", "no/*")),
    ((*TINY, "--validation", "none"), 1, ("--validation", "none")),
    ((*TINY, "--output", "w.keras"), 1, ("--output", "w.keras is a file", "directory")),
    ((*TINY, "--output", "w.keras/below"), 1, ("--output", "w.keras is a file", "directory")),
    ((*TINY, "--output", "data"), 1, ("--output", "no run", "a, b", "new directory")),
    ((*TINY, "--held-out", "1"), 2, ("--held-out", "share in [0, 1)", "'1'")),
    ((*TINY, "--checkpoint-minutes", "nan"), 1, ("--checkpoint-minutes", "positive")),
    ((*TINY, "--backend", "theano"), 2, ("--backend", "theano", "tensorflow")),
    ((*TINY, "--backend", "jax"), 1, ("jax is not installed", "pip install")),
    (("evaluate", "--model", "none", "--data", "data"), 1, ("--model", "none")),
    ((*EVALUATE[:3], "--data", "none"), 1, ("--data", "none")),
    ((*EVALUATE, "--knn-data", "none"), 1, ("--knn-data", "none")),
    ((*EVALUATE, "--batch-size", "0"), 2, ("--batch-size", "positive integer", "'0'")),
    ((*EVALUATE, "--crop", "x"), 2, ("--crop", "squash", "'x'")),
    ((*EVALUATE, "--backend", "jax"), 1, ("jax is not installed", "pip install")),
    (("predict", "--model", "none", "w.keras"), 1, ("--model", "none")),
    ((*PREDICT, "none.png"), 1, ("none.png",)),
    ((*PREDICT, "*.jpg"), 1, ("no file matches", "*.jpg")),
    ((*PREDICT, "data"), 1, ("data is a directory", "data/*.jpg")),
    ((*PREDICT, "w.keras", "--top", "0"), 2, ("--top", "positive integer", "'0'")),
    (PREDICT, 2, ("FILE",)),
    (("inspect", "none", "w.keras", "--output", "p.html"), 1, ("MODEL", "none")),
    ((*INSPECT, "none.png", "--output", "p.html"), 1, ("none.png",)),
    ((*INSPECT, "data", "--output", "p.html"), 1, ("data is a directory", "data/*.jpg")),
    ((*INSPECT, "w.keras", "--output", "p.pdf"), 1, ("--output", "report.html", "p.pdf")),
    ((*INSPECT, "w.keras", "--output", "none/p.html"), 1, ("--output", "no folder none")),
    ((*INSPECT, "w.keras", "--output", "old.html"), 1, ("old.html exists", "--overwrite")),
    ((*INSPECT, "w.keras", "--output", "p.html", "--hover", "x"), 2, ("--hover", "mean", "'x'")),
    ((*INSPECT, "w.keras", "--output", "p.html", "--image-size", "0"), 2, ("--image-size", "'0'")),
    ((*INSPECT, "w.keras", "--output", "dir.html"), 1, ("dir.html is a directory",)),
    ((*INSPECT, "w.keras"), 2, ("--output",)),
    (("demo", "none"), 1, ("MODEL", "none")),
    (("demo", "w.keras", "--port", "70000"), 2, ("--port", "'70000'")),
    (("demo", "w.keras", "--port", "http"), 2, ("--port", "'http'")),
    (("benchmark", "data", "--data", "none"), 1, ("--data", "none")),
    (("benchmark", "x", "--data", "data"), 2, ("'x'", "'data'")),
    ((*BENCHMARK, "--recipe", "x"), 1, ("recipe", "finetune", "'x'")),
    ((*BENCHMARK, "--set", "epoch=3"), 1, ("--set epoch", "'epochs'")),
    ((*BENCHMARK, "--batches", "0"), 2, ("--batches", "positive integer", "'0'")),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What a process without Keras says to all of `WRONG`."""
    folder = tmp_path_factory.mktemp("wrong")
    for name in ("data/a", "data/b"):
        (folder / name).mkdir(parents=True)
    (folder / "w.keras").write_text("no model")
    (folder / "old.html").write_text("old")
    (folder / "dir.html").mkdir()
    before = sorted(folder.rglob("*"))
    process = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([argv for argv, _, _ in WRONG]),
        env={**os.environ, "PYTHONPATH": str(harness.ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert process.returncode == 0, process.stderr
    assert sorted(folder.rglob("*")) == before
    return json.loads(process.stdout)


@pytest.mark.parametrize(
    "number", range(len(WRONG)), ids=[" ".join(argv[-2:]) for argv, _, _ in WRONG]
)
def test_bad_arguments_are_found_without_keras(answers, number):
    _, status, words = WRONG[number]
    found, message, modules = answers[number]
    assert found == status and not modules
    assert "Traceback" not in message and "error: " in message
    for word in words:
        assert word in message


def test_the_pixel_ranges_are_those_of_the_models():
    assert set(settings.PIXEL_RANGES) == set(PIXEL_RANGES)


pytest.importorskip("tensorflow", reason="keras_vit.data reads through tf.data")
Image = pytest.importorskip("PIL.Image", reason="keras_vit.data decodes with Pillow")

# Runs ---------------------------------------------------------------------------------------

CLASSES = ("birnen", "c 3", "äpfel")  # as they are sorted
SETTINGS = (
    *("image_size=16", "patch_size=8", "hidden_dim=16", "num_layers=2", "num_heads=2"),
    *("mlp_dim=32", "batch_size=8", "crop=squash", "flip=False", "warmup_steps=0"),
)


def write_pictures(folder, classes=CLASSES, count=8):
    """Pictures of a class have a colour of their own."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = harness.pixels((18, 16, 3), f"{name} {index}", high=80.0)
            pixels[:, :, CLASSES.index(name)] += 150
            Image.fromarray(pixels.astype("uint8")).save(folder / name / f"ü{index}.png")
    return folder


def run(*argv):
    return main([str(argument) for argument in argv])


def train(pictures, output, *more, settings=("epochs=2",)):
    return run(
        *("train", "--data", pictures, "--model", "vit_ti16", "--output", output, "--no-report"),
        *("--set", *SETTINGS, *settings, *more),
    )


def fails(capsys, *argv, status=1):
    assert run(*argv) == status
    out, err = capsys.readouterr()
    assert "keras-vit: error: " in err and "Traceback" not in err + out
    return err


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("cli") / "pictures")


@pytest.fixture(scope="module")
def finished(pictures, tmp_path_factory):
    """The directory of a run that knows its classes; treat as read-only."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert train(pictures, folder, settings=("epochs=12", "learning_rate=0.01")) == 0
    return folder


def objects(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_finished_run(finished, pictures, capsys):
    names = {path.name for path in finished.iterdir()}
    assert {"config.json", "metrics.csv", "checkpoints", "model.keras"} <= names
    assert not [name for name in names if name.startswith(".")]
    lines = (finished / "metrics.csv").read_text().splitlines()
    assert len(lines) == 13 and "val_accuracy" in lines[0]
    config = json.loads((finished / "config.json").read_text(encoding="utf-8"))
    assert config["data"]["class_names"] == list(CLASSES)
    assert train(pictures, finished, settings=("epochs=12", "learning_rate=0.01")) == 0
    assert "val_accuracy 1.0000" in capsys.readouterr().out
    assert (finished / "metrics.csv").read_text().splitlines() == lines


def test_another_run_in_the_directory(finished, pictures, tmp_path, capsys):
    before = (finished / "model.keras").read_bytes()
    assert train(pictures, finished, settings=("epochs=12", "learning_rate=0.02")) == 1
    err = capsys.readouterr().err
    assert "recipe.learning_rate: 0.01 there, 0.02 now" in err and "another directory" in err
    other = write_pictures(tmp_path / "other", count=4)
    assert train(other, finished, settings=("epochs=12", "learning_rate=0.01")) == 1
    assert "data.examples" in capsys.readouterr().err
    assert (finished / "model.keras").read_bytes() == before


@pytest.mark.parametrize("name", ["run", "model.keras"])
def test_predictions(finished, pictures, capsys, name):
    model = finished if name == "run" else finished / name
    assert run("predict", "--model", model, f"{pictures}/**/*.png", "--json", "--top", 2) == 0
    found = objects(capsys)
    assert [line["file"] for line in found] == sorted(map(str, pictures.rglob("*.png")))
    for line in found:
        assert line["classes"][0]["class"] == os.path.basename(os.path.dirname(line["file"]))
        one, two = (entry["probability"] for entry in line["classes"])
        assert 1 / 3 < one <= 1 and 0 <= two <= 1 - one + 1e-6


def test_predictions_as_a_table(finished, pictures, tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    good = tmp_path / "[ü] 1.png"  # a pattern, were it not a file
    good.write_bytes((pictures / "äpfel" / "ü0.png").read_bytes())
    argv = ("predict", "--model", finished, "--top", 9, "--batch-size", 1)
    assert run(*argv, tmp_path / "bad.png", good, good) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and out.startswith(str(good)) and out.count("%") == 3
    assert out.split("  ")[1].startswith("äpfel ")
    assert f"{tmp_path / 'bad.png'}: not a picture" in err
    assert run(*argv, tmp_path / "bad.png") == 1
    assert capsys.readouterr().out == ""


def test_evaluation(finished, pictures, tmp_path, capsys):
    argv = ("evaluate", "--model", finished, "--batch-size", 5)
    assert run(*argv, "--data", pictures) == 0
    assert "top-1 100.00%" in capsys.readouterr().out
    # Other pictures: a class fewer, an unreadable file, and a picture in a wrong folder.
    part = write_pictures(tmp_path / "part", ("birnen", "äpfel"), count=3)
    (part / "birnen" / "bad.png").write_bytes(b"no picture")
    wrong = (pictures / "c 3" / "ü7.png").read_bytes()
    (part / "äpfel" / "wrong.png").write_bytes(wrong)
    assert run(*argv, "--data", part, "--json", "--knn-data", pictures) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["confusion"] == [[3, 0, 0], [0, 0, 0], [0, 1, 3]]
    assert found["unreadable"] == [str(part / "birnen" / "bad.png")]
    assert found["knn"] == pytest.approx(6 / 7)
    assert run(*argv, "--data", part) == 0
    assert "bad.png" in capsys.readouterr().out
    strange = write_pictures(tmp_path / "strange", ("birnen",), count=1)
    (strange / "birnen").rename(strange / "nashi")
    message = fails(capsys, *argv, "--data", strange)
    assert "nashi" in message and "äpfel" in message


def test_runs_that_cannot_be_read(finished, pictures, tmp_path, capsys):
    broken = tmp_path / "run"
    shutil.copytree(finished, broken)
    argv = ("evaluate", "--model", broken, "--data", pictures)
    for text in ("[]", '{"recipe": 3}', '{"recipe": {}, "data": null}', "{"):
        (broken / "config.json").write_text(text)
        message = fails(capsys, *argv)
        assert "config.json is damaged or missing" in message and "model.keras" in message
    shutil.copy(finished / "config.json", broken)
    (broken / "model.keras").unlink()
    assert "not through" in fails(capsys, *argv)
    assert "not through" in fails(capsys, "predict", "--model", broken, pictures / "c 3" / "ü0.png")
    (broken / "model.keras").write_bytes(b"no model")
    assert "model.keras" in fails(capsys, *argv)


def test_models_without_a_head(pictures, tmp_path, capsys):
    model = keras_vit.VisionTransformer(
        **{"image_shape": (16, 16, 3), "patch_size": 8, "hidden_dim": 16, "num_layers": 1},
        **{"num_heads": 2, "mlp_dim": 32, "num_classes": None},
    )
    harness.randomize(model)
    model.save(tmp_path / "features.keras")
    argv = ("evaluate", "--model", tmp_path / "features.keras", "--data", pictures)
    assert "--knn-data" in fails(capsys, *argv)
    file = pictures / "c 3" / "ü0.png"
    assert "no head" in fails(capsys, "predict", "--model", tmp_path / "features.keras", file)
    assert run(*argv, "--knn-data", pictures, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"knn", "linear_probe"} and found["knn"] == 1.0


def test_records_and_other_projects_checkpoints(finished, pictures, tmp_path, capsys):
    from keras_vit.data import open_source, write_tfrecords

    write_tfrecords(open_source(pictures), tmp_path / "records")
    data = f"tfrecord:{tmp_path / 'records'}/*.tfrecord"
    keras_vit.to_checkpoint(
        keras_vit.load_model(finished / "model.keras"), tmp_path / "hf", format="huggingface"
    )
    assert run("evaluate", "--model", tmp_path / "hf", "--data", data, "--json") == 0
    assert json.loads(capsys.readouterr().out)["confusion"] == [[8, 0, 0], [0, 8, 0], [0, 0, 8]]
    # Trained on from there, at a rate that changes next to nothing.
    status = train(data, tmp_path / "run", "learning_rate=1e-9", "--weights", tmp_path / "hf")
    assert status == 0 and "val_accuracy 1.0000" in capsys.readouterr().out


def test_learning_from_a_teacher(finished, pictures, tmp_path, capsys):
    argv = ("--teacher", finished, "--held-out", "0")
    status = train(pictures, tmp_path / "run", *argv, settings=("epochs=1", "distillation=hard"))
    out = capsys.readouterr().out
    assert status == 0 and "val_" not in out and "24 pictures of 3 classes" in out
    status = train(
        pictures, tmp_path / "b", "--teacher", pictures, settings=("epochs=1", "distillation=soft")
    )
    err = capsys.readouterr().err
    assert status == 1 and str(pictures) in err and not (tmp_path / "b").exists()


@pytest.mark.parametrize("classes, share", [(("c 3",), 0.1), (("c 3", "birnen"), 0.9)])
def test_few_pictures(tmp_path, capsys, classes, share):
    """One class; an empty one; a single picture of a class."""
    data = write_pictures(tmp_path / "few", classes, count=2)
    (data / "leer").mkdir()
    (data / classes[0] / "ü1.png").unlink()
    assert train(data, tmp_path / "run", "--held-out", share) == (1 if len(classes) == 1 else 0)
    out, err = capsys.readouterr()
    assert "leer" in err and "Traceback" not in err


def test_unreadable_pictures(tmp_path, capsys):
    data = write_pictures(tmp_path / "data")
    bad = data / "c 3" / "bad.png"
    bad.write_bytes(b"no picture")
    assert train(data, tmp_path / "run", "--held-out", "0") == 0
    assert str(bad) in capsys.readouterr().out
    assert str(bad) in (tmp_path / "run" / "unreadable.txt").read_text(encoding="utf-8")
    assert train(data, tmp_path / "b", "--on-bad", "raise", "--held-out", "0") == 1
    err = capsys.readouterr().err
    assert f"error: {bad} cannot be read" in err and "--on-bad skip" in err
    assert err.count("\n") < 5
    for path in data.rglob("*.png"):
        path.write_bytes(b"no picture")
    assert train(data, tmp_path / "c") == 1
    err = capsys.readouterr().err
    assert "keras-vit: error: " in err and err.count("\n") < 5
    assert not (tmp_path / "c").exists()


def test_pictures_of_other_sizes(pictures, tmp_path, capsys):
    assert train(pictures, tmp_path / "run", settings=("epochs=1", "crop=none")) == 1
    err = capsys.readouterr().err
    assert "choose another crop" in err and "(16, 16)" in err and err.count("\n") < 5
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_no_number(pictures, tmp_path, capsys):
    settings = ("epochs=3", "learning_rate=1e38", "clip_norm=None", "optimizer=sgd")
    assert train(pictures, tmp_path / "run", settings=settings) == 1
    err = capsys.readouterr().err
    assert "not finite" in err or ("step" in err and ".png" in err)
    assert "learning rate" in err and not (tmp_path / "run" / "model.keras").exists()


def test_a_directory_that_cannot_be_made(pictures, capsys):
    assert train(pictures, "/proc/keras-vit") == 1
    assert "/proc/keras-vit" in capsys.readouterr().err


def test_benchmark(pictures, capsys):
    argv = ("benchmark", "data", "--data", pictures, "--set", "image_size=16", "batch_size=4")
    assert run(*argv, "--batches", 2) == 0
    out = capsys.readouterr().out
    assert float(out.split(" images/s")[0].replace(",", "")) > 0 and "16 x 16 px" in out


def test_ctrl_c(pictures, tmp_path):
    """Status 130 and no traceback; the run goes on afterwards."""
    output = tmp_path / "run"
    argv = ["train", "--data", pictures, "--model", "vit_ti16", "--output", output, "--no-report"]
    # What a shell starts in the background ignores the signal, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_vit", *map(str, argv), "--set", *SETTINGS, "epochs=9999"],
        env={**os.environ, "PYTHONPATH": str(harness.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 200
        while not list(output.glob("checkpoints/step-*")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in printed, printed
    assert not list(output.glob(".*")) and not list(output.glob("checkpoints/.*"))
