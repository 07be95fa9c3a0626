"""The package's structure, read from its syntax trees: who imports whom, and what is banned."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "keras_vit"
MAX_LINES = 400

# A package or module imports only from rows above its own; those of one row do not know each
# other. Beside the standard library, only the packages named here are imported at import time.
ROWS = [
    {"_checks": ()},
    {
        **{
            name: ()
            for name in (
                "variants",
                "recipe",
                "_deps",
                "_atomic",
                "_progress",
                "_reading",
                "_compiling",
            )
        },
        "sincos": ("numpy",),
    },
    {
        "counts": (),
        "recipes": (),
        "engines": ("keras", "numpy"),  # and `jax_engine` JAX, see `outside`
        "layers": ("keras", "numpy"),
        "checkpoints": ("numpy",),
        "data": ("numpy",),  # TensorFlow and Pillow through `_deps`
    },
    {"optimizers": ("keras",)},
    {"models": ("keras", "numpy")},
    {name: ("keras", "numpy") for name in ("inspection", "evaluation")},
    {"export": ("keras", "numpy")},
    {"training": ("keras", "numpy")},
    {"planning": ()},
    {"cli": ()},
    {"__main__": ()},
]
ROW = {name: number for number, row in enumerate(ROWS) for name in row}
OUTSIDE = {name: set(allowed) for row in ROWS for name, allowed in row.items()}

# Methods that Keras defines and documents.
KERAS_METHODS = {
    *("build", "call", "compute_output_shape", "compute_output_spec", "compute_mask"),
    *("get_config", "from_config", "get_build_config", "build_from_config", "compile_from_config"),
    "convolution_op",
}


def imports(tree, module):
    """Yields (dotted name, line, at import time) of everything that `module` imports.

    Relative names are resolved; `from a import b` yields `a.b`. What stands in a function, or
    under `if TYPE_CHECKING`, does not happen at import time.
    """

    def walk(node, now):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            now = False
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            now = False
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, now) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: -node.level]
                base = ".".join([*parents, base] if base else parents)
            yield from ((f"{base}.{alias.name}", node.lineno, now) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, now)

    return walk(tree, True)


def outside(part, module):
    """What a module may import at import time beside the standard library."""
    name = module.rpartition(".")[2]
    # One that is named after a backend is imported where that backend runs.
    return OUTSIDE[part] | ({name.partition("_")[0]} if part == "engines" else set())


def layering_faults(tree, module):
    """Imports that the table does not allow; `module` is like `keras_vit.layers.mlp`."""
    part = module.split(".")[1]
    if part == "__init__":
        return []  # the top of the package may import everything in it
    if part not in ROW:
        return [f"{module}: {part} has no row in the table"]
    faults = []
    for name, line, now in imports(tree, module):
        root, _, rest = name.partition(".")
        if root == "keras_vit":
            other = rest.partition(".")[0]
            if other != part and ROW.get(other, len(ROWS)) >= ROW[part]:
                faults.append(f"{module}:{line}: {part} must not import {name}")
        elif now and root not in sys.stdlib_module_names and root not in outside(part, module):
            faults.append(f"{module}:{line}: {part} must not import {root} at import time")
    return faults


def banned(tree, module):
    """Constructs that the package does without."""
    faults = [
        f"{module}:{line}: keras.src"
        for name, line, _ in imports(tree, module)
        if name.startswith("keras.src")
    ]
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="keras"), attr="src"):
                what = "keras.src"
            case ast.Attribute(attr="Lambda") | ast.Name(id="Lambda"):
                what = "Lambda"
            case ast.alias(name="Lambda"):
                what = "Lambda"
            case ast.Assert():
                what = "assert"
            case ast.keyword(arg="allow_pickle", value=value):
                if isinstance(value, ast.Constant) and value.value is False:
                    continue
                what = "allow_pickle"
            case _:
                continue
        faults.append(f"{module}:{getattr(node, 'lineno', '?')}: {what}")
    return faults


def undocumented(tree, module):
    """Public methods without a docstring, other than Keras' own (ruff's D102 spares none)."""
    return [
        f"{module}:{method.lineno}: {owner.name}.{method.name} has no docstring"
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef) and not owner.name.startswith("_")
        for method in owner.body
        if isinstance(method, ast.FunctionDef)
        and not method.name.startswith("_")
        and method.name not in KERAS_METHODS
        and ast.get_docstring(method) is None
    ]


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}


def faults_of_package(check):
    return [
        fault
        for module, path in MODULES.items()
        for fault in check(ast.parse(path.read_text()), module)
    ]


def test_there_is_something_to_check():
    assert len(MODULES) > 5


@pytest.mark.parametrize("check", [layering_faults, banned, undocumented])
def test_package(check):
    faults = faults_of_package(check)
    assert not faults, "\n".join(faults)


def test_files_are_short():
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert not {module: length for module, length in lengths.items() if length > MAX_LINES}


def test_there_is_no_utils():
    assert not [module for module in MODULES if "utils" in module.split(".")]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("keras_vit.layers.mlp", "from keras_vit.models import vit"),
        ("keras_vit.layers.mlp", "from keras_vit import models"),
        ("keras_vit.layers.mlp", "import keras_vit"),
        ("keras_vit.layers.mlp", "from ..models.vit import VisionTransformer"),
        ("keras_vit.layers.mlp", "def f():\n    from keras_vit import checkpoints"),
        ("keras_vit.layers.mlp", "import scipy"),
        ("keras_vit.layers.mlp", "try:\n    import torch\nexcept ImportError:\n    torch = None"),
        ("keras_vit.models.vit", "class A:\n    import jax.numpy"),
        ("keras_vit.models.vit", "from tensorflow import data"),
        ("keras_vit.export.onnx", "import onnx"),
        ("keras_vit.checkpoints.rules", "import keras"),
        ("keras_vit._deps", "import numpy"),
        ("keras_vit.novelty", "import os"),
        ("keras_vit.engines.engine", "import jax"),
        ("keras_vit.engines.torch_engine", "import jax"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert len(layering_faults(ast.parse(source), module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("keras_vit.layers.mlp", "import math\nimport keras\nfrom keras import ops"),
        ("keras_vit.layers.mlp", "from keras_vit.layers.patches import Patches"),
        ("keras_vit.layers.mlp", "from . import patches\nfrom .patches import Patches"),
        ("keras_vit.layers.mlp", "from keras_vit import _checks"),
        ("keras_vit.layers.mlp", "def f():\n    import torch"),
        ("keras_vit.layers.mlp", "if TYPE_CHECKING:\n    import torch"),
        ("keras_vit.models.vit", "from keras_vit import layers, variants\nimport numpy as np"),
        ("keras_vit.__init__", "from keras_vit.models import vit"),
        ("keras_vit.engines.jax_engine", "import jax"),
    ],
)
def test_a_right_import_passes(module, source):
    assert layering_faults(ast.parse(source), module) == []


@pytest.mark.parametrize(
    "source",
    [
        "import keras.src",
        "from keras.src import backend",
        "from keras import src",
        "keras.src.backend.torch",
        "keras.layers.Lambda(f)",
        "from keras.layers import Lambda",
        "assert x",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
    ],
)
def test_a_banned_construct_is_found(source):
    assert len(banned(ast.parse(source), "keras_vit.layers.mlp")) == 1


def test_harmless_constructs_pass():
    source = "np.load(path, allow_pickle=False)\nf = lambda x: x\nname = 'keras.src'"
    assert banned(ast.parse(source), "keras_vit.layers.mlp") == []


def test_a_method_without_a_docstring_is_found():
    source = "class A:\n    def call(self): ...\n    def _f(self): ...\n    def f(self): ..."
    assert undocumented(ast.parse(source), "m") == ["m:4: A.f has no docstring"]
