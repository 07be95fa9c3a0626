"""`keras-vit train`, `evaluate`, `predict` and `benchmark`: what they do, write and refuse."""

import json
import os
import subprocess
import sys

import harness
import pytest

from keras_vit.cli import settings
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
