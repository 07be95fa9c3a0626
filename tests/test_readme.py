"""The README's table and its code are what the package does."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import keras_vit

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_variant_table_is_the_script_s():
    path = ROOT / "benchmarks" / "variant_table.py"
    spec = importlib.util.spec_from_file_location("variant_table", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.table() in README


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Positions were resampled")
def test_the_tour_runs(tmp_path, monkeypatch):
    code = re.search(r"## Ten lines\n\n```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    # The same lines on models that two cores can train: only the sizes differ.
    small = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 16}
    for name in ("ViTB16", "ViTS16"):
        real = getattr(keras_vit, name)
        monkeypatch.setattr(
            keras_vit, name, lambda real=real, **arguments: real(**small, **arguments)
        )
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (2, 224, 224, 3)), np.array([0, 1])
    names: dict = {"images": images, "labels": labels}
    exec(compile(code[1], "README.md", "exec"), names)
    assert names["larger"].grid_shape == (24, 16)
    assert names["other"].output_shape == (None, 37)
    assert names["features"].output_shape == (None, 16)
    assert [m.shape for m in names["maps"]] == [(2, 2, 197, 197)]
