"""The command line: what it prints, writes and refuses, and its exit status."""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tomllib

import harness
import numpy as np
import parity_cases
import pytest

import keras_vit
from keras_vit.checkpoints import formats
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.checkpoints.npz import write_npz
from keras_vit.checkpoints.safetensors import write_safetensors
from keras_vit.checkpoints.store import Entry, Store
from keras_vit.cli import convert, options
from keras_vit.cli.describe import CLEAN, variant_of
from keras_vit.cli.main import COMMANDS, in_options, main
from keras_vit.counts import VIT_DEFAULTS
from keras_vit.models import base, download
from keras_vit.variants import VARIANTS

CONFIG = {
    "image_shape": (32, 56, 3),
    "patch_size": 8,
    "hidden_dim": 20,
    "num_layers": 2,
    "num_heads": 5,
    "mlp_dim": 44,
    "num_classes": 7,
}
ENDINGS = {"google": ".npz", "big_vision": ".npz"}  # others are directories


@pytest.fixture(scope="module")
def model():
    built = keras_vit.VisionTransformer(**CONFIG)
    harness.randomize(built)
    return built


@pytest.fixture(scope="module")
def timm(model, tmp_path_factory):
    """A file in timm's names; treat as read-only."""
    path = tmp_path_factory.mktemp("cli") / "timm.safetensors"
    keras_vit.to_checkpoint(model, path, format="timm")
    return path


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "model.keras"
    model.save(path)
    return path


@pytest.fixture
def no_model(monkeypatch):
    """Fails where a model is built."""

    def build(*args, **kwargs):
        raise AssertionError("a model is built")

    monkeypatch.setattr(base.FlatModel, "__init__", build)


def arrays(path):
    with open_checkpoint(path) as store:
        return {name: store.read(name) for name in store.entries}


def dtypes(path):
    with open_checkpoint(path) as store:
        return {entry.dtype for entry in store.entries.values()}


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, name)


def plain(path, target, change=lambda arrays: None):
    """The file's arrays without the notes that our writer leaves, `change`d."""
    found = arrays(path)
    change(found)
    entries = {name: Entry(value.shape, value.dtype.name) for name, value in found.items()}
    write = write_npz if target.suffix == ".npz" else write_safetensors
    write(target, entries, found.__getitem__)
    return target


def run(*argv):
    return main([str(argument) for argument in argv])


def fails(capsys, *argv):
    """The message of a command that fails."""
    assert run(*argv) == 1
    out, err = capsys.readouterr()
    assert err.startswith("keras-vit: error: ") and "Traceback" not in err + out
    return err


# describe ----------------------------------------------------------------------------------


def test_describe(timm, capsys, no_model):
    assert run("describe", timm) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["project"] == "timm"
    assert lines["architecture"] == "2 layers of width 20, 5 heads, MLP of 44"
    assert lines["image"] == "size     32 x 56, 3 channels"
    assert lines["patch"] == "8 x 8 pixels; a grid of 4 x 7"
    assert lines["tokens"] == "29 (28 patches, 1 class token)"
    assert lines["heads"] == "5"
    assert lines["activation"] == "GELU, by tanh"
    assert lines["epsilon"] == "1e-06"
    assert lines["pooling"] == "class token"
    assert lines["classes"] == "7"
    assert lines["pixels"] == "inception"
    assert lines["parameters"] == f"{keras_vit.count_params(CONFIG):,}"
    assert lines["arrays"].startswith("32 of float32; ")
    assert lines["on"] == f"disk        {timm.stat().st_size:,} bytes"
    assert lines["assumed"] == "no config.json: GELU by erf unless it is gated"
    assert lines["strict"] == f"load    {CLEAN}"


def test_describe_as_json(timm, capsys):
    assert run("describe", timm, "--json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert found["loads"] and found["problems"] == [] and found["variant"] is None
    assert (found["format"], found["tokens"], found["heads"]) == ("timm", 29, 5)
    assert found["arrays"] == {"float32": 32}
    assert found["bytes_on_disk"] == timm.stat().st_size > found["array_bytes"]
    assert found["parameters"] * 4 == found["array_bytes"]
    assert found["config"]["mlp_dim"] == 44


def test_progress_of_a_download_stays_out_of_the_json(timm, capsys, monkeypatch):
    def resolve(source):
        print("Downloading")
        return timm

    monkeypatch.setattr(download, "resolve_source", resolve)
    assert run("describe", "https://example.org/timm.safetensors", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["loads"] and "Downloading" in err


@parity_cases.needs_fixtures
@pytest.mark.parametrize("case", parity_cases.CASES, ids=str)
def test_describe_reference(case, capsys, monkeypatch, no_model):
    monkeypatch.setattr(Store, "read", lambda store, name: pytest.fail("data are read"))
    status = run("describe", case.path)
    out, err = capsys.readouterr()
    if status == 1:
        assert ("--num-heads" in err and case.heads) or ("--image-size" in err and case.shape)
    else:
        assert status == 0 and CLEAN in out and not err
    given = case.arguments
    argv = ["--num-heads", given["num_heads"]] if case.heads else []
    argv += ["--image-size", *given["image_shape"][:2]] if case.shape else []
    assert run("describe", case.path, "--json", *argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == keras_vit.count_params(found["config"])
    stated = case.description.get("config", {}).get("num_heads")
    assert stated is None or found["heads"] == stated


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_describe_reads_no_data(ending, timm, tmp_path, capsys, monkeypatch):
    path = timm
    if ending == ".npz":
        path = tmp_path / "google.npz"
        assert run("convert", timm, path, "--to", "google") == 0
    data, spoilt = path.read_bytes(), tmp_path / f"spoilt{ending}"
    kernel = max(arrays(path).values(), key=lambda array: array.size).tobytes()
    assert data.count(kernel) == 1
    spoilt.write_bytes(data.replace(kernel, bytes(reversed(kernel))))
    monkeypatch.setattr(Store, "read", lambda store, name: pytest.fail("data are read"))
    assert run("describe", spoilt) == 0
    assert CLEAN in capsys.readouterr().out


def test_describe_of_what_would_not_load(timm, tmp_path, capsys):
    def change(found):
        found["rope.freqs"] = np.zeros(3, "float32")
        found["blocks.1.mlp.fc1.bias"] = np.zeros(45, "float32")
        del found["blocks.0.norm2.weight"]

    path = plain(timm, tmp_path / "odd.safetensors", change)
    arguments = (path, "--num-heads", 5, "--image-size", 32, 56)
    assert run("describe", *arguments) == 1
    out = capsys.readouterr().out
    assert "fails, 3 problems:" in out and CLEAN not in out
    assert "missing: blocks.0.norm2.weight (20,)" in out
    assert "unused: rope.freqs (3,)" in out
    assert "misshapen: blocks.1.mlp.fc1.bias has shape (45,)" in out
    assert run("describe", *arguments, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["loads"] and len(found["problems"]) == 3


def test_describe_of_what_arguments_make_impossible(timm, capsys):
    assert run("describe", timm, "--set", "representation_size=8") == 1
    out = capsys.readouterr().out
    assert "fails, 1 problems:" in out and "have no pre_logits/kernel" in out


def test_describe_names_what_serves_others(timm, tmp_path, capsys):
    def change(found):
        found["mask_token"] = np.zeros((1, 20), "float32")

    path = plain(timm, tmp_path / "masked.safetensors", change)
    assert run("describe", path, "--num-heads", 5, "--image-size", 32, 56) == 0
    assert "serves others  mask_token\n" in capsys.readouterr().out


def test_what_a_file_does_not_say_is_asked_for_by_option(timm, tmp_path, capsys):
    path = plain(timm, tmp_path / "bare.safetensors")
    assert "pass by --image-size HEIGHT WIDTH the size" in fails(capsys, "describe", path)
    arguments = ("describe", path, "--image-size", 32, 56)
    assert fails(capsys, *arguments).rstrip().endswith("have: pass --num-heads N")
    assert run(*arguments, "--num-heads", 5) == 0
    assert "must divide the width" in fails(capsys, *arguments, "--num-heads", 3)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)
def test_variants_are_named(variant):
    if variant.family == "bit":
        config = {"preactivation": True, **variant.config()}
    else:
        config = {**VIT_DEFAULTS, **variant.config()}
        config["patch_size"] = (variant.patch_size, variant.patch_size)
    assert variant_of(config) == variant.name
    changed = "width_factor" if variant.family == "bit" else "num_heads"
    assert variant_of({**config, changed: 0.5}) is None


def test_a_size_with_another_patch_is_named_too():
    config = {**VIT_DEFAULTS, "patch_size": (14, 14)}
    assert variant_of(config) == "ViT-B/14"
    assert variant_of({**config, "patch_size": (14, 16)}) is None


# convert -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["google", "huggingface"])
def test_there_and_back(name, timm, tmp_path, capsys, no_model):
    other, back = tmp_path / f"other{ENDINGS.get(name, '')}", tmp_path / "back.safetensors"
    assert run("convert", timm, other, "--to", name) == 0
    out = capsys.readouterr().out
    assert out.startswith("found  timm, 2 layers of width 20, 5 heads, MLP of 44, ")
    assert f"wrote  {other} ({name}), " in out
    assert arrays(other).keys() != arrays(timm).keys()
    assert run("convert", other, back, "--to", "timm") == 0
    assert_equal(arrays(back), arrays(timm))


def test_big_vision_has_no_entry_for_the_class_token(timm, tmp_path, no_model):
    target = tmp_path / "big_vision.npz"
    assert run("convert", timm, target, "--to", "big_vision") == 0
    theirs, ours = arrays(timm), arrays(target)
    table = theirs["pos_embed"]
    np.testing.assert_array_equal(ours["params/cls"], theirs["cls_token"] + table[:, :1])
    np.testing.assert_array_equal(ours["params/pos_embedding"], table[:, 1:])
    np.testing.assert_array_equal(ours["params/head/kernel"], theirs["head.weight"].T)


def test_there_and_back_by_torchvision(tmp_path, capsys, no_model):
    """It takes square images alone. Pixels are always ImageNet's there: a note says so."""
    fixture, other, back = (
        tmp_path / name for name in ("a.safetensors", "b.safetensors", "c.safetensors")
    )
    model_config = {**CONFIG, "image_shape": (32, 32, 3), "pixel_range": "clip"}
    write_random(fixture, model_config, "timm")
    assert run("convert", fixture, other, "--to", "torchvision") == 0
    err = capsys.readouterr().err
    assert err.startswith("note: torchvision's own code runs this file with ")
    assert "pixel_range='imagenet'" in err and err.count("\n") == 1
    assert run("convert", other, back, "--to", "timm") == 0
    assert_equal(arrays(back), arrays(fixture))


def write_random(path, config, name):
    """A file of random numbers, without a model."""
    from keras_vit.checkpoints import writing
    from keras_vit.checkpoints.shapes import weight_shapes
    from keras_vit.models.file_config import complete

    full = complete(config)
    shapes = weight_shapes(full)
    writing.write(
        full, lambda variable: harness.noise(shapes[variable], variable), path, format=name
    )


@parity_cases.needs_fixtures
@pytest.mark.parametrize(
    "case", [c for c in parity_cases.CASES if not c.name.startswith("keras_hub")], ids=str
)
def test_a_reference_is_written_in_its_own_format(case, tmp_path, capsys, no_model):
    given = case.arguments
    argv = ["--num-heads", given["num_heads"]] if case.heads else []
    if run("describe", case.path, *argv) == 1:
        argv += ["--image-size", *given["image_shape"][:2]]
    capsys.readouterr()
    assert run("describe", case.path, "--json", *argv) == 0
    found = json.loads(capsys.readouterr().out)
    target = tmp_path / f"copy{ENDINGS.get(found['format'], '')}"
    assert run("convert", case.path, target, "--to", found["format"], *argv) == 0
    ignored, copy = set(found["ignored"]), arrays(target)
    expected = {name: value for name, value in case.source.items() if name not in ignored}
    assert expected.keys() <= copy.keys() and copy.keys() - expected.keys() <= ignored
    for name, value in expected.items():
        np.testing.assert_array_equal(copy[name], value, name)
        assert copy[name].shape == value.shape


def test_dtypes(timm, tmp_path, no_model):
    half, copy, full = (tmp_path / name for name in ("half", "copy.npz", "full.safetensors"))
    assert run("convert", timm, half, "--to", "timm", "--dtype", "bfloat16") == 0
    assert run("convert", half, copy, "--to", "google") == 0
    assert run("convert", copy, full, "--to", "timm", "--dtype", "float32") == 0
    assert [dtypes(path) for path in (timm, half, copy, full)] == [
        {"float32"},
        {"bfloat16"},
        {"bfloat16"},
        {"float32"},
    ]
    assert_equal(arrays(full), arrays(half))
    assert any((arrays(half)[name] != value).any() for name, value in arrays(timm).items())


def test_sums_of_half_precision_are_made_in_float32(tmp_path, no_model):
    """timm's class token has no position entry where there are registers: it is added."""
    meta, out = tmp_path / "meta.safetensors", tmp_path / "timm.safetensors"
    config = {**CONFIG, "num_registers": 3, "image_shape": (32, 32, 3)}
    meta_has = {"num_classes": None, "pixel_range": "imagenet", "layer_scale_init": 1.0}
    write_random(meta, {**config, **meta_has}, "dinov2")
    half = tmp_path / "half.safetensors"
    assert run("convert", meta, half, "--to", "dinov2", "--dtype", "float16") == 0
    assert run("convert", half, out, "--to", "timm", "--dtype", "float32") == 0
    found = arrays(half)
    token, row = (found[name].astype("float32") for name in ("cls_token", "pos_embed"))
    np.testing.assert_array_equal(arrays(out)["cls_token"], token + row[:, :1])
    assert dtypes(out) == {"float32"}


def test_to_keras_and_from_keras(model, timm, saved, tmp_path, capsys):
    path, back = tmp_path / "model.keras", tmp_path / "back.safetensors"
    assert run("convert", timm, path, "--to", "keras") == 0
    expected = harness.snapshot(model)
    loaded = keras_vit.load_model(path)
    assert_equal(
        {variable.path: harness.numpy(variable) for variable in loaded.weights},
        {name: value for name, value in expected.items() if not name.startswith("random")},
    )
    capsys.readouterr()
    assert run("convert", saved, back, "--to", "timm") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"found  VisionTransformer of keras_vit, {model.count_params():,} ")
    assert_equal(arrays(back), arrays(timm))


@pytest.mark.parametrize("source", ["timm", "saved"])
def test_changes_of_size_and_classes(source, request, tmp_path, capsys):
    path, target = request.getfixturevalue(source), tmp_path / "changed.npz"
    arguments = ("--image-size", 40, "--num-classes", 3)
    assert run("convert", path, target, "--to", "google", *arguments) == 0
    found = arrays(target)
    assert found["head/kernel"].shape == (20, 3) and not found["head/kernel"].any()
    table = found["Transformer/posembed_input/pos_embedding"]
    assert table.shape == (1, 26, 20) and table.any()
    err = capsys.readouterr().err
    assert "note: " in err and "ositions were resampled" in err and "Warning" not in err
    assert (
        run("convert", path, target, "--to", "google", "--num-classes", "none", "--overwrite") == 0
    )
    assert not any(name.startswith("head") for name in arrays(target))


def test_size_and_classes_of_the_file_change_nothing(timm, tmp_path, no_model):
    target = tmp_path / "same.safetensors"
    arguments = ("--image-size", 32, 56, "--num-classes", 7)
    assert run("convert", timm, target, "--to", "timm", *arguments) == 0
    assert_equal(arrays(target), arrays(timm))


def test_settings(timm, tmp_path, capsys):
    target = tmp_path / "clip.npz"
    arguments = ("--set", "pixel_range=clip", "norm_epsilon=1e-5")
    assert run("convert", timm, target, "--to", "big_vision", *arguments) == 0
    capsys.readouterr()
    assert run("describe", target) == 0
    out = capsys.readouterr().out
    assert "pixels         clip" in out and "epsilon        1e-05" in out


def test_skip_excuses_only_what_is_left_over(timm, tmp_path, capsys):
    def more(found):
        found["rope.freqs"] = np.zeros(3, "float32")

    def less(found):
        del found["blocks.0.norm2.weight"]

    # What a file without notes does not say.
    given = ("--num-heads", 5, "--image-size", 32, 56, "--set", "activation=gelu_tanh")
    target = tmp_path / "out.npz"
    path = plain(timm, tmp_path / "more.safetensors", more)
    assert "unused: rope.freqs (3,)" in fails(
        capsys, "convert", path, target, "--to", "google", *given
    )
    assert run("convert", path, target, "--to", "google", *given, "--skip", "^rope") == 0
    path, target = plain(timm, tmp_path / "less.safetensors", less), tmp_path / "less.npz"
    message = fails(
        capsys, "convert", path, target, "--to", "google", *given, "--skip", "norm2.weight"
    )
    assert "lacks encoder_block_0/mlp_norm/gamma" in message and "--skip excuses" in message
    assert not target.exists()


def test_values_that_are_not_finite_are_noted(timm, tmp_path, capsys):
    def change(found):
        found["norm.bias"][3] = np.nan

    path = plain(timm, tmp_path / "nan.safetensors", change)
    target, given = tmp_path / "nan.npz", ("--num-heads", 5, "--image-size", 32, 56)
    assert run("convert", path, target, "--to", "google", *given) == 0
    assert "NaN or infinite in encoder_norm/beta" in capsys.readouterr().err
    assert np.isnan(arrays(target)["Transformer/encoder_norm/bias"][3])
    with pytest.warns(UserWarning, match="NaN or infinite in encoder_norm/beta"):
        keras_vit.convert_checkpoint(
            path,
            target,
            format="google",
            num_heads=5,
            image_shape=(32, 56, 3),
            activation="gelu_tanh",
        )


# Errors ------------------------------------------------------------------------------------


def test_what_is_there_is_not_replaced_unasked(timm, tmp_path, capsys):
    target = tmp_path / "a.npz"
    target.write_bytes(b"mine")
    message = fails(capsys, "convert", timm, target, "--to", "google")
    assert "there already" in message and "--overwrite" in message
    assert target.read_bytes() == b"mine"
    assert "unused" not in fails(capsys, "convert", tmp_path / "no", target, "--to", "google")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(timm.read_bytes()[:-5])
    assert "cut short" in fails(capsys, "convert", bad, target, "--to", "google", "--overwrite")
    assert target.read_bytes() == b"mine"
    assert run("convert", timm, target, "--to", "google", "--overwrite") == 0
    assert run("describe", target) == 0


def test_a_file_can_replace_itself(timm, tmp_path):
    path = tmp_path / "timm.safetensors"
    path.write_bytes(timm.read_bytes())
    assert run("convert", path, path, "--to", "timm", "--overwrite") == 0
    assert_equal(arrays(path), arrays(timm))


@pytest.mark.parametrize(
    ("source", "target", "arguments", "message"),
    [
        ("no/such", "a.npz", ("--to", "google"), "No such file or directory"),
        ("timm", "a.txt", ("--to", "google"), "must be a file ending in '.npz'"),
        ("timm", "a.keras", ("--to", "google"), "DST must not end in '.keras' for --to google"),
        ("timm", "a", ("--to", "keras"), "DST must end in '.keras' for --to keras"),
        ("timm", "no/a.npz", ("--to", "google"), "Make it first"),
        ("timm", "a", ("--to", "torchvision"), "no images but square ones"),
        ("timm", "a", ("--to", "timm", "--set", "depth=3"), "Unknown arguments"),
        ("timm", "a", ("--to", "timm", "--skip", "("), "--skip must be one regular expression"),
        ("timm", "a", ("--to", "timm", "--set", "num_heads=7"), "num_heads"),
        ("saved", "a", ("--to", "timm", "--num-heads", 5), "leave out --num-heads"),
        ("__file__", "a", ("--to", "timm"), "cannot be loaded"),
    ],
)
def test_errors(source, target, arguments, message, request, tmp_path, capsys):
    if source in ("timm", "saved"):
        source = request.getfixturevalue(source)
    elif source == "__file__":
        source = tmp_path / "page.npz"
        source.write_text("<html>Not found</html>")
    found = fails(capsys, "convert", source, tmp_path / target, *arguments)
    assert message in found
    assert not (tmp_path / target).exists()


def test_a_format_without_such_models(tmp_path, capsys):
    bit = tmp_path / "bit.npz"
    config = {"block_counts": (1, 1), "width_factor": 0.5, "num_classes": 3}
    write_random(bit, {"image_shape": (40, 40, 3), **config}, "google")
    assert run("describe", bit) == 0
    out = capsys.readouterr().out
    assert "BiT ResNet, units 1 x 1, width x 0.5" in out and "mean of the map" in out
    assert "no BiT ResNets" in fails(capsys, "convert", bit, tmp_path / "x", "--to", "timm")
    assert run("convert", bit, tmp_path / "b.npz", "--to", "big_vision") == 0
    assert_equal(arrays(tmp_path / "b.npz"), arrays(bit))


def test_a_missing_package(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = fails(capsys, "describe", "hf://owner/name")
    assert 'pip install "keras-vision-transformers[weights]"' in message


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("transmogrify",),
        ("convert", "a"),
        ("convert", "a", "b"),
        ("convert", "a", "b", "--to", "pickle"),
        ("convert", "a", "b", "--to", "timm", "--num-classes", "0"),
        ("convert", "a", "b", "--to", "timm", "--num-classes", "few"),
        ("convert", "a", "b", "--to", "timm", "--dtype", "int8"),
        ("convert", "a", "b", "--to", "timm", "--resampling", "magic"),
        ("describe", "a", "--num-heads", "-1"),
        ("describe", "a", "--image-size", "1", "2", "3"),
        ("describe", "a", "--set", "pixel_range"),
    ],
)
def test_usage_errors(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(*argv)
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_interruption(timm, tmp_path, monkeypatch, capsys):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "isfinite", interrupt)
    assert run("convert", timm, tmp_path / "a.npz", "--to", "google") == 130
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in capsys.readouterr().err


def test_options_of_messages():
    assert in_options("have: pass num_heads=...") == "have: pass --num-heads N"
    assert in_options("LAION's take activation='gelu'") == "LAION's take --set activation=gelu"


# The program -------------------------------------------------------------------------------


def program(*argv, **options):
    path = os.pathsep.join(filter(None, (str(harness.ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-m", "keras_vit", *map(str, argv)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=250,
        **options,
    )


def test_version():
    done = program("--version")
    assert (done.returncode, done.stdout) == (0, f"{keras_vit.__version__}\n")


def test_an_error_of_the_program(tmp_path):
    done = program("describe", tmp_path / "nothing")
    assert done.returncode == 1 and done.stdout == ""
    # TensorFlow may have written its own lines before.
    assert done.stderr.splitlines()[-1].startswith("keras-vit: error: No such file")
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_error(timm):
    # The reading end is closed before anything is written.
    reading, writing = os.pipe()
    os.close(reading)
    path = os.pathsep.join(filter(None, (str(harness.ROOT), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "keras_vit", "describe", str(timm)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=250,
        )
    finally:
        os.close(writing)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr


def test_the_script():
    project = tomllib.loads((harness.ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["keras-vit"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(command, "--help")
    assert stopped.value.code == 0
    assert f"usage: keras-vit {command}" in capsys.readouterr().out


def test_convert_knows_every_format():
    parser = argparse.ArgumentParser()
    convert.add_arguments(parser)
    choices = next(action.choices for action in parser._actions if action.dest == "to")
    assert choices == (*formats.FORMATS, "keras")


def test_bytes_on_disk(tmp_path):
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"abc")
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"de")
    (tmp_path / "model.safetensors.index.json").write_bytes(b"{}")
    (tmp_path / "other").write_bytes(b"1234567")
    assert options.bytes_on_disk(tmp_path / "model.safetensors.index.json") == 7
    assert options.bytes_on_disk(tmp_path / "other") == 7
    assert options.bytes_on_disk(tmp_path) == 14
