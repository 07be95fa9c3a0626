"""What converting and loading cost: memory, and packages that nobody asked for."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from unittest import mock

import harness
import pytest

BENCHMARK = harness.ROOT / "benchmarks" / "convert_memory.py"
SIZES = {"hidden_dim": 512, "num_layers": 5, "num_heads": 8, "mlp_dim": 2048}


def installed(package):
    return importlib.util.find_spec(package) is not None


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("convert_memory", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    # As a script it has its folder on the path.
    with mock.patch.object(sys, "path", [str(BENCHMARK.parent), *sys.path]):
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def source(benchmark, tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "timm.safetensors"
    benchmark.write_source(path, **SIZES)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["google", "huggingface", "torchvision"])
def test_converting_holds_a_part_of_the_file(name, benchmark, source, tmp_path):
    # The largest arrays are 4 of 67 MB; a conversion that held the file whole would reach 1.
    assert source.stat().st_size > 60e6
    target = tmp_path / f"converted{benchmark.FORMATS[name]}"
    # A system short of memory takes pages back before the start, and they count when they return:
    # what disturbs a measurement only adds to it.
    ratios = []
    while len(ratios) < 3 and not (ratios and 0 < ratios[-1] < 0.5):
        target.unlink(missing_ok=True) if target.is_file() else shutil.rmtree(target, True)
        found = benchmark.measure(source, target, name, benchmark.ROUTES[0], harness.BACKEND)
        ratios.append(found["ratio"])
    assert 0 < ratios[-1] < 0.5, ratios


# Says which of the packages came with Keras, and which the code after that brought.
CHILD = """
import json, sys, warnings
import keras
backends = ("tensorflow", "jax", "torch")
before = [name for name in backends if name in sys.modules]
warnings.simplefilter("ignore")
import keras_vit
from keras_vit.cli.main import main
source, folder = sys.argv[1:]
status = main(["describe", source]) + main(["convert", source, folder + "/a.npz", "--to", "google"])
model = keras_vit.from_checkpoint(folder + "/a.npz", num_classes=3)
model.load_checkpoint(source)
keras_vit.to_checkpoint(model, folder + "/hf", format="huggingface")
status += main(["convert", folder + "/hf", folder + "/b", "--to", "timm", "--image-size", "64"])
brought = [name for name in backends if name in sys.modules and name not in before]
print(json.dumps({"status": status, "before": before, "brought": brought}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_no_other_backend_is_imported(backend, benchmark, tmp_path):
    others = [name for name in ("tensorflow", "torch") if name != backend]
    for name in (backend, *others):
        if not installed(name):
            pytest.skip(f"{name} is not installed")
    tiny = {"hidden_dim": 64, "num_layers": 1, "num_heads": 1, "mlp_dim": 64, "num_classes": 5}
    path = tmp_path / "timm.safetensors"
    benchmark.write_source(path, image_shape=(32, 32, 3), **tiny)
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(harness.ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == 0
    assert not found["brought"], f"Keras itself has {found['before']}"
