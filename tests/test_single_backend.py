"""The package works where the current backend is the only one installed.

The other two are hidden from the import system of a child process; `isolated_install.py` does the
same with real environments.
"""

import subprocess
import sys

import isolated_install
import keras
import pytest

# Wraps every finder, so that both `import torch` and `importlib.util.find_spec("torch")` behave as
# they do where torch is not installed. `-P` keeps the working directory off the path.
HIDE = """
import sys

class Hide:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in {names}
        return None if hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
sys.path.insert(0, {root!r})
"""


def run(code, names, folder):
    """Runs `code` where the packages in `names` cannot be found; KERAS_BACKEND is unset."""
    home = folder / "home"
    home.mkdir()
    preamble = HIDE.format(names=set(names), root=str(isolated_install.ROOT))
    return subprocess.run(
        [sys.executable, "-P", "-c", preamble + code, keras.backend.backend()],
        cwd=folder,
        env=isolated_install.bare_environment(home),
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
def test_trains_saves_and_loads(tmp_path):
    others = set(isolated_install.BACKENDS) - {keras.backend.backend()}
    done = run(isolated_install.SMOKE, others, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"works with {keras.backend.backend()}"


def test_without_any_backend_the_import_says_what_to_install(tmp_path):
    done = run("import keras_vit", isolated_install.BACKENDS, tmp_path)
    assert done.returncode == 1
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("ImportError: keras_vit needs TensorFlow, JAX or PyTorch")
    assert 'pip install "keras-vision-transformers[jax]"' in message
