"""`keras-vit plan`: the answer first, its JSON, its errors, and that it needs no Keras."""

import json
import subprocess
import sys

import harness
import pytest

from keras_vit.cli.main import main
from keras_vit.planning.devices import GIB

pytestmark = harness.once("plans are arithmetic: the same from any backend")
G14 = ["plan", "--model", "vit_g14", "--devices", "8xH100-80G", "--batch", "2048"]
TINY = ["plan", "--model", "ti16", "--devices", "1xL4-24G", "--batch", "8"]
VIT_22B = ["hidden_dim=6144", "num_layers=48", "num_heads=48", "mlp_dim=24576", "qk_norm=True"]


def said(capsys, command):
    status = main(command)
    out, err = capsys.readouterr()
    assert not err
    return status, out


def plan(capsys, *command):
    status, out = said(capsys, [*command, "--json"])
    found = json.loads(out)
    assert status == (0 if found["fits"] else 1)
    return found


def test_answer_comes_first(capsys):
    status, out = said(capsys, [*G14, "--remat"])
    found = plan(capsys, *G14, "--remat")
    first = out.splitlines()[0]
    assert status == 0
    assert first == found["answer"] == f"fits: {found['needed'] / GIB:.1f} of 79.1 GiB a device"
    for word in ("parameters", "adamw state", "gradients", "activations", "peak", "largest batch"):
        assert f"\n{word}" in out or f"\n  {word}" in out


def test_remedies_are_computed(capsys):
    found = plan(capsys, *G14)
    assert found["answer"].startswith("does not fit: ")
    for remedy in found["remedies"]:
        assert remedy["needed"] <= found["available"]
        assert f"{remedy['option']} ({remedy['needed'] / GIB:.1f} GiB)" in found["answer"]
    options = [remedy["option"] for remedy in found["remedies"]]
    assert "--remat" in options
    largest = next(option for option in options if option.startswith("--batch"))
    assert largest == f"--batch {found['largest_batch']}"
    with_remat = plan(capsys, *G14, "--remat")
    index = options.index("--remat")
    assert with_remat["needed"] == found["remedies"][index]["needed"]


def test_a_remedy_can_be_passed(capsys):
    """Each remedy's words are options that this command takes, and then it fits."""
    found = plan(capsys, *G14)
    for remedy in found["remedies"]:
        again = plan(capsys, *G14, *remedy["option"].split())
        assert again["fits"] and again["needed"] == remedy["needed"]


def test_22b_by_settings(capsys):
    command = ["plan", "--model", "vit_g14", "--devices", "256xTPUv4-chip", "--batch", "4096"]
    found = plan(capsys, *command, "--remat", "--distribution", "fsdp", "--set", *VIT_22B)
    assert 21.6e9 < found["parameters"] < 21.9e9
    assert "another hidden_dim" in found["model"]
    rows = found["memory"]["rows"]
    # 256 devices share nearly all.
    assert rows["parameters"] == pytest.approx(4 * found["parameters"] / 256, rel=0.01)
    assert rows["adamw state"] == 2 * rows["parameters"]
    assert found["fits"]


def test_run_and_paper(capsys):
    command = ["plan", "--model", "vit_l16", "--devices", "8xH100-80G", "--batch", "1024"]
    command += ["--mfu", "0.4", "--epochs", "14", "--examples", "303000000"]
    found = plan(capsys, *command)
    seconds = found["step"]["flops"] / (8 * 0.4 * 989.4e12)
    assert found["step"]["seconds"] == pytest.approx(seconds)
    assert found["run"]["images"] == 14 * 303e6
    runs = {(run["data"], run["epochs"]): run for run in found["paper"]}
    paper = runs["JFT-300M", 14]
    assert (paper["exaflops"], runs["JFT-300M", 7]["core_days"]) == (5172, 680)
    assert runs["ImageNet-21k", None]["core_days"] == 230
    assert paper["here_exaflops"] == pytest.approx(found["run"]["exaflops"])
    assert paper["here_device_days"] == pytest.approx(found["run"]["device_days"])
    assert paper["run_ratio"] == pytest.approx(found["run"]["exaflops"] / 5172)
    status, out = said(capsys, command)
    assert "680 TPUv3-core-days" in out and "device-days" in out


def test_measured_utilisation_is_named(capsys):
    assert "3,347 images/s" in said(capsys, ["plan", "--model", "b16", "--devices", "h100"])[1]


def test_number_of_devices_with_memory(capsys):
    command = ["plan", "--model", "ti16", "--devices", "2", "--memory", "4", "--batch", "8"]
    found = plan(capsys, *command)
    assert found["available"] == 4 * GIB
    assert found["step"]["seconds"] is None
    assert "unknown: the device has no peak" in said(capsys, command)[1]


def test_note_on_jax_share_of_memory(capsys):
    command = ["plan", "--model", "vit_g14", "--devices", "8xH100-80G", "--batch", "896"]
    assert any("XLA_PYTHON_CLIENT_MEM_FRACTION" in note for note in plan(capsys, *command)["notes"])
    assert not plan(capsys, *command, "--backend", "torch", "--remat")["notes"]


@pytest.mark.parametrize("model", ["R50+ViT-B/16", "BiT R50x1"])
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_families(capsys, model, backend):
    command = ["plan", "--model", model, "--devices", "1xA100-40G", "--batch", "64"]
    found = plan(capsys, *command, "--backend", backend)
    assert found["fits"]
    assert found["memory"]["rows"]["activations"] > GIB
    said(capsys, [*command, "--backend", backend])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "8xH900"], "Unknown device 'H900'. Expected NxNAME with one of H100-80G"),
        (["--devices", "8"], "pass --memory GIB"),
        (["--devices", "3xL4-24G"], "take 6 or 9"),
        (["--devices", "4xL4-24G", "--mesh", "2x1"], "as many places as there are devices, 4"),
        (["--memory", "-1"], "`memory` must be a positive number"),
        (["--model", "vit_z99"], "Unknown variant"),
        (["--set", "hiden_dim=3"], "hidden_dim"),
        (["--set", "image_shape=(32,32,3)"], "pass --image-size instead"),
        (["--set", "remat=True"], "pass --remat instead"),
        (["--set", "num_heads=5"], "`num_heads` must divide `hidden_dim`"),
        (["--image-size", "32", "32", "3"], "must be N, or HEIGHT WIDTH"),
        (["--image-size", "33"], "must be divisible by `patch_size`"),
        (["--mfu", "1.5"], "--mfu must be above 0 and at most 1"),
        (["--epochs", "3"], "--epochs and --examples go together"),
        (["--epochs", "-3", "--examples", "4"], "--epochs must be a positive number"),
        (["--check", "--backend", "torch"], "--check compiles with JAX"),
        (["--backend", "torch", "--distribution", "fsdp"], "take the backend 'jax'"),
        (["--devices", "T4-16G"], "does not compute in bfloat16"),
        (["--model", "BiT R50x1", "--remat"], "'remat' is no argument of BiT R50x1"),
    ],
    ids=str,
)
def test_errors(capsys, arguments, message):
    assert main([*TINY, *arguments]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("keras-vit: error: ") and message in err


@pytest.mark.parametrize("arguments", [["--batch", "0"], ["--distribution", "pipeline"]], ids=str)
def test_wrong_usage(capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        main([*TINY, *arguments])
    assert "usage:" in capsys.readouterr().err


def test_it_needs_no_keras():
    code = f"""
import sys
sys.argv = ["keras-vit"]
from keras_vit.cli.main import main
status = main({TINY!r})
heavy = {{"keras", "tensorflow", "jax", "torch"}} & set(sys.modules)
sys.exit(status or (f"imported: {{heavy}}" if heavy else 0))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fits: ")
