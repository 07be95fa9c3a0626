"""Installs the package with a single backend into a fresh environment and uses it there.

    python tests/isolated_install.py jax                    # or tensorflow, torch
    python tests/isolated_install.py jax --package dist/keras_vision_transformers-0.1.0-*.whl

It takes a download, so it is not part of the suite, whose `test_single_backend.py` hides the other
backends instead. Both run `SMOKE`: from an empty directory, with an empty home, so that nothing
but the installed package is found, and without KERAS_BACKEND, so that the package has to choose.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BACKENDS = ("tensorflow", "jax", "torch")

SMOKE = """
import sys

import keras_vit
import keras
import numpy as np

expected = sys.argv[1]
if keras.backend.backend() != expected:
    sys.exit(f"expected the backend {expected}, got {keras.backend.backend()}")

keras.utils.set_random_seed(0)
model = keras_vit.VisionTransformer(
    image_shape=(16, 16, 3),
    patch_size=8,
    hidden_dim=16,
    num_layers=1,
    num_heads=2,
    mlp_dim=32,
    num_classes=3,
)
images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype("float32")
labels = np.array([0, 1, 2, 0])
before = model.predict(images, verbose=0)
model.fit(images, labels, batch_size=4, verbose=0)
after = model.predict(images, verbose=0)
if not np.isfinite(after).all() or np.array_equal(before, after):
    sys.exit("one step of training left the outputs as they were, or not finite")

model.save("model.keras")
loaded = keras_vit.load_model("model.keras")
np.testing.assert_allclose(loaded.predict(images, verbose=0), after, rtol=0, atol=1e-6)
print("works with", expected)
"""


def bare_environment(home: Path) -> dict[str, str]:
    """This process's environment, less what tells Python or Keras where to look."""
    dropped = ("KERAS", "PYTHON", "VIRTUAL_ENV")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return kept | {"HOME": str(home), "USERPROFILE": str(home), "TF_CPP_MIN_LOG_LEVEL": "2"}


def install(python: Path, backend: str, package: str) -> None:
    """Installs `package` with the extra of `backend`, and refuses an environment with others."""
    command = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "tests" / "constraints.txt"]
    subprocess.run([*command, f"{package}[{backend}]"], check=True)
    code = (
        "import importlib.util as u;"
        f"print(*[n for n in {BACKENDS} if n != {backend!r} and u.find_spec(n)])"
    )
    others = subprocess.run([python, "-I", "-c", code], check=True, capture_output=True, text=True)
    if others.stdout.strip():
        sys.exit(f"{backend} brought another backend along: {others.stdout.strip()}")


def main() -> None:
    """Installs, runs the smoke test, prints both times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("--package", default=str(ROOT), help="a directory or a wheel")
    options = parser.parse_args()
    package = str(Path(options.package).resolve())
    with tempfile.TemporaryDirectory() as folder:
        environment, empty, home = (Path(folder, name) for name in ("venv", "empty", "home"))
        empty.mkdir()
        home.mkdir()
        start = time.monotonic()
        venv.create(environment, with_pip=True)
        python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        install(python, options.backend, package)
        installed = time.monotonic()
        subprocess.run(
            [python, "-I", "-c", SMOKE, options.backend],
            check=True,
            cwd=empty,
            env=bare_environment(home),
        )
        end = time.monotonic()
        print(f"{options.backend}: install {installed - start:.0f} s, use {end - installed:.0f} s")


if __name__ == "__main__":
    main()
