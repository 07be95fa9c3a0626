"""The benchmarks of speed: what they measure, and the table that the README has of it."""

import importlib
import json
import sys
import time

import harness
import keras
import numpy as np
import pytest

BENCHMARKS = harness.ROOT / "benchmarks"


@pytest.fixture(scope="module")
def scripts():
    """Imports a module of `benchmarks` as its own scripts do."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


def record(who, rate, **more):
    raw = {"images_per_second": rate, "mfu": 0.5}
    return {
        **{"who": who, "card": "A card", "date": "2026-11-28T10:00:00+00:00", "batch": 256},
        **{"versions": {"keras": "3.15.1", "torch": "2.11"}, "precision": "mixed_bfloat16"},
        **{"ceiling_tflops": 780.0, "call": "1", "raw": raw, "recompilations": 0, "messages": 0},
        **more,
    }


def results():
    fit = {"images_per_second": 1100.0, "mfu": 0.55}
    return {
        "cases": {
            "train/vit_b16/timm-compile": record("timm", 1000.0, peak_gib=17.4),
            "train/vit_b16/jax": record("jax", 1200.0, fit=fit, peak_gib=16.0),
            "train/vit_b16/torch": {"failed": "not done in 240 s", "last_lines": []},
            "cold/vit_b16/jax": {**record("jax", 0), "raw": None, "first_step_seconds": 19.2},
            "memory/vit_h14/jax": record("jax", 0, raw=None, peak_gib=71.5),
        }
    }


# The table --------------------------------------------------------------------------------


def test_table(scripts, tmp_path):
    table = scripts("speed_table")
    (tmp_path / "speed_a_card.json").write_text(json.dumps(results()))
    (tmp_path / "other.json").write_text("not for this table")
    text = table.text(tmp_path)
    assert text.startswith(
        "**A card**, 2026-11-28, mixed_bfloat16, 224 px: keras 3.15.1, torch 2.11."
    )
    for line in (
        "| training | B/16, batch 256 |",
        "| keras_vit, JAX | 1,100 (1.10) 55% |",
        "| timm, compiled | 1,000 (1.00) 50% |",
        "| keras_vit, JAX | 16.0 |",
        "| keras_vit, JAX | 19 |",
        "| keras_vit, JAX | 71.5 |",
    ):
        assert line in text.splitlines()
    assert "PyTorch" not in text  # that case failed
    assert "*`:" not in text


def test_table_of_a_cpu(scripts, tmp_path):
    table, names = scripts("speed_table"), ("keras_vit-jax", "timm-eager")
    report = {"processor": "A CPU", "cores": 2, "date": "2026-11-28", "model": "ViT-S/16"}
    report |= {"clock": "wall", "ratios": {"train b8": {"keras_vit-jax": 1.25, "timm-eager": 1.0}}}
    times = ({"wall": 40.0, "cpu": 60.0}, {"wall": 50.0, "cpu": 70.0})
    report["competitors"] = {
        name: {"versions": f"{name} 1.0, torch 2.11", "milliseconds": {"train b8": time}}
        for name, time in zip(names, times, strict=True)
    }
    (tmp_path / "cpu_a.json").write_text(json.dumps(report))
    lines = table.text(tmp_path).splitlines()
    head = "**A CPU**, 2 cores, 2026-11-28, ViT-S/16: "
    assert lines[0] == head + "keras_vit-jax 1.0, timm-eager 1.0, torch 2.11."
    assert "| keras_vit-jax |  |  | 40.0 / 60.0 (1.25x) |" in lines


def test_a_ratio_across_calls_is_marked(scripts):
    table, cases = scripts("speed_table"), results()["cases"]
    name = "train/vit_b16/jax"
    assert table.ratio(cases, name) == (pytest.approx(1.1), True)
    cases[name]["call"] = "2"
    assert table.ratio(cases, name)[1] is False
    assert table.speed_cell(cases, name) == "1,100 (1.10*) 55%"
    del cases["train/vit_b16/timm-compile"]
    assert table.ratio(cases, name) == (None, False)
    assert table.speed_cell(cases, name) == "1,100 55%"


def test_the_readme_is_checked(scripts, tmp_path, capsys):
    table, readme = scripts("speed_table"), tmp_path / "README.md"
    (tmp_path / "speed_a_card.json").write_text(json.dumps(results()))
    readme.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    check = ["--results", str(tmp_path), "--check", str(readme)]
    assert table.main(check) == 1
    assert "+| training | B/16, batch 256 |" in capsys.readouterr().out
    table.main(["--results", str(tmp_path), "--write", str(readme)])
    assert table.main(check) == 0
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("before", table.BEGIN, table.END, "after")
    empty = tmp_path / "empty"
    empty.mkdir()
    table.main(["--results", str(empty), "--write", str(readme)])
    assert readme.read_text() == f"before\n{table.BEGIN}\n{table.END}\nafter\n"
    assert table.main(["--results", str(empty), "--check", str(readme)]) == 0
    readme.write_text("nothing")
    with pytest.raises(SystemExit, match="lacks the comments"):
        table.main(check)


def test_the_readme_has_what_the_results_give(scripts):
    table = scripts("speed_table")
    assert table.main(["--check", str(harness.ROOT / "README.md")]) == 0


# Cases ------------------------------------------------------------------------------------


def test_cases_are_resumed(scripts, tmp_path, monkeypatch, capsys):
    speed, asked = scripts("speed"), []

    def run(who, *arguments, limit):
        asked.append((who, [word for word in arguments if word in ("train", "predict")]))
        if who == "torch":
            return {"failed": "exit status 1", "last_lines": ["why"]}
        shared = {key: value for key, value in record(who, 0).items() if key != "raw"}
        rate = {"raw": {"images_per_second": 10.0, "mfu": 0.1}, "first_step_seconds": 1.0}
        return {**shared, "train": rate, "predict": rate}

    monkeypatch.setattr(speed.cases, "run", run)
    call = ["--output", str(tmp_path / "r.json"), "--cases", "(train|predict)/vit_s16/(t|j)"]
    speed.main([*call, "--budget", "0"])
    assert not asked and "0 s are over" in capsys.readouterr().out
    speed.main([*call[:2], "--cases", "train/vit_s16/jax"])
    speed.main(call)
    both = ["predict", "train"]
    assert asked == [
        ("jax", ["train"]),
        *(("timm-compile", both), ("torch", both), ("jax", ["predict"]), ("timm", both)),
    ]
    printed = capsys.readouterr().out
    assert "predict/vit_s16/jax: 10 images/s, 1.000 of timm compiled, raw 10, MFU 10.0%" in printed
    assert "train/vit_s16/torch: failed, exit status 1: why" in printed
    asked.clear()
    speed.main(call)
    assert asked == [("torch", both)]  # what failed is tried again
    found = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert found["train/vit_s16/jax"]["raw"] == {"images_per_second": 10.0, "mfu": 0.1}
    assert "train" not in found["predict/vit_s16/jax"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import time; time.sleep(60)", {"failed": "not done in 1 s", "last_lines": []}),
        (
            "raise SystemExit('torch.OutOfMemoryError: CUDA out of memory.')",
            {"failed": "exit status 1", "out_of_memory": True},
        ),
        ("raise SystemExit('why')", {"failed": "exit status 1", "last_lines": ["why"]}),
    ],
)
def test_a_case_that_fails(scripts, monkeypatch, program, expected):
    cases = scripts("_cases")
    monkeypatch.setattr(cases, "command", lambda *words: [sys.executable, "-c", program])
    limit = 1 if "sleep" in program else 60
    found = cases.run("jax", limit=limit)
    assert expected.items() <= found.items()
    assert ("out_of_memory" in found) == ("out_of_memory" in expected)


@pytest.mark.parametrize("fitting", [0, 5, 8, 47, 48, 200, 1000])
@pytest.mark.parametrize("start", [8, 64, 256])
def test_the_largest_batch(scripts, fitting, start):
    found = scripts("memory").largest(lambda batch: batch <= fitting, start, 256, 8)
    assert found == min(fitting // 8 * 8, 256)


# Measuring --------------------------------------------------------------------------------


def test_messages_are_counted_and_passed_on(scripts, capfd):
    with scripts("_measure").Messages() as messages:
        sys.__stderr__.write("")
        import os

        os.write(2, b"one\n\ntwo\n")
    assert messages.lines == ["one", "two"]
    os.write(2, b"three\n")
    assert capfd.readouterr().err == "one\n\ntwo\nthree\n"
    assert messages.lines == ["one", "two"]


def test_windows(scripts):
    measure = scripts("_measure")
    times, steps = measure.windows(lambda: time.sleep(0.002), lambda: None, 0.01, 3)
    assert len(times) == 3 and 1 <= steps <= 5
    case = {"batch": 8, "forward_gflop": 1000.0, "ceiling_tflops": 100.0}
    found = measure.speed([1.0, 2.0, 4.0], 5, case, passes=3)
    assert found["images_per_second"] == 20.0 and found["windows"] == [40.0, 20.0, 10.0]
    assert found["mfu"] == 0.6


@pytest.mark.skipif(harness.BACKEND == "tensorflow", reason="TensorFlow's data goes by the host")
def test_the_batch_is_not_copied(scripts):
    """`fit` and `predict` hand the step the very memory that the benchmark put on the device."""
    runs, measure = scripts("_keras_runs"), scripts("_measure")
    pointers = []

    class Seen(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, images):
            return self.dense(keras.ops.cast(images, "float32"))

        def train_step(self, *arguments):
            pointers.extend(map(pointer, arguments[-1]))
            return super().train_step(*arguments)

        def predict_step(self, *arguments):
            pointers.append(pointer(arguments[-1][0]))
            return super().predict_step(*arguments)

    def pointer(tensor):
        if harness.BACKEND == "jax":
            return tensor.unsafe_buffer_pointer()
        return tensor.data_ptr()

    device = measure.framework(harness.BACKEND)
    batch = (device.put(np.ones((4, 3), "uint8")), device.put(np.ones(4, "int32")))
    model = Seen()
    model(batch[0])
    model.compile("sgd", "mse", run_eagerly=True)
    pointers.clear()
    model.fit(runs.resident(batch), steps_per_epoch=3, verbose=0, shuffle=False)
    assert pointers == [*map(pointer, batch)] * 3
    pointers.clear()
    model.predict(runs.resident(batch[:1]), steps=2, verbose=0)
    assert pointers == [pointer(batch[0])] * 2
    if harness.BACKEND == "jax":  # what Keras does to each batch on a GPU
        import jax

        assert pointer(jax.device_put(batch[0])) == pointer(batch[0])


def test_borders_are_as_many_as_asked_for(scripts):
    runs = scripts("_keras_runs")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    borders = runs.Borders(2, 5)
    settings = {"steps_per_epoch": 2 + 3 * 5 + 1, "verbose": 0, "shuffle": False}
    model.fit(runs.resident((x, y)), callbacks=[borders], **settings)
    assert len(borders.windows()) == 3 and min(borders.windows()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", [["predict", "train", "--partial"], ["train", "--windows", "0", "--cold"]]
)
def test_throughput(mode):
    words = ["--backend", harness.BACKEND, "--smoke", "--modes", *mode]
    printed = harness.run_interpreter(BENCHMARKS / "throughput.py", *words)
    found = json.loads(printed.splitlines()[-1])
    assert found["model"] == "tiny" and found["versions"]["keras"] == keras.__version__
    assert found["train"]["first_step_seconds"] > 0
    assert found["train"]["recompilations"] in (0, None)
    if "--cold" in mode:
        assert found["cold_caches"] and "fit" not in found["train"]
        return
    for rate in (found["train"]["fit"], found["train"]["raw"]):
        assert len(rate["windows"]) == 3 and rate["images_per_second"] > 0 and rate["mfu"] > 0
    assert found["predict"]["predict"]["whole_call"] > 0
    first, second = found["partial_batch_compilations"]
    assert first in (0, 1, None) and second in (0, None)
    assert found["predict"]["recompilations"] in (0, None)
