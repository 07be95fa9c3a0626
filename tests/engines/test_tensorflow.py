"""tf.distribute: several devices give what one gives, or say why they do not."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import harness
import numpy as np
import pytest
from harness import BACKEND

pytestmark = [
    pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute is TensorFlow's"),
    pytest.mark.multi_device,
]

WORKER = Path(__file__).with_name("tensorflow_worker.py")
if BACKEND == "tensorflow":
    from engines import tensorflow_worker as worker

    from keras_vit.engines import tensorflow_engine, tensorflow_patches
    from keras_vit.training import distribution

BOUNDS = {"sgd_everything": 1e-5, "adamw": 1e-4, "adamw_everything": 1e-4}


def start(kind, folder, **environment):
    path = [harness.ROOT, harness.ROOT / "tests"]
    return subprocess.Popen(
        [sys.executable, WORKER, kind, folder],
        env={
            **os.environ,
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """(exit status, the JSON lines it printed, what else it said)."""
    try:
        printed, said = process.communicate(timeout=240)
    finally:
        process.kill()
    return process.returncode, [json.loads(line) for line in printed.splitlines()], said


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory):
    """(folder, values) of one process with two virtual devices."""
    folder = tmp_path_factory.mktemp("mirrored")
    status, values, said = finish(start("mirrored", folder))
    assert status == 0, said
    return folder, values[0]


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """(folder, [(exit status, values)]) of two processes, of which the second kills itself."""
    folder = tmp_path_factory.mktemp("workers")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    started = [
        start(
            "workers",
            folder,
            TF_CONFIG=json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            ),
        )
        for index in range(2)
    ]
    done = [finish(process) for process in started]
    assert [len(values) for _, values, _ in done] == [2, 1], "\n".join(said for *_, said in done)
    return folder, [(status, values) for status, values, _ in done]


@pytest.fixture(scope="module")
def alone():
    """Name of a case -> its arrays on one device, in this process."""
    found = {}

    def get(name):
        if name not in found:
            found[name] = worker.trained(name)[1]
        return found[name]

    return get


def check_equal(arrays, expected, bound):
    assert expected.keys() <= set(arrays)
    for name, value in expected.items():
        kind = name.partition(" ")[0]
        atol = bound if kind in ("weight", "average") else 1e-5
        np.testing.assert_allclose(arrays[name], value, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", BOUNDS)
def test_two_replicas_equal_one_device(mirrored, alone, name):
    """Ten updates' losses, weights and averages, then an evaluation that leaves one image over."""
    arrays = dict(np.load(mirrored[0] / f"{name}-0.npz"))
    assert len(arrays["losses"]) == worker.STEPS and len(set(arrays["losses"])) == worker.STEPS
    check_equal(arrays, alone(name), BOUNDS[name])


def test_bfloat16_is_near_one_device(mirrored, alone):
    arrays, expected = dict(np.load(mirrored[0] / "bfloat16-0.npz")), alone("bfloat16")
    np.testing.assert_allclose(arrays["losses"], expected["losses"], atol=0.02)
    assert all(np.isfinite(value).all() for value in arrays.values())


@pytest.mark.parametrize("name", worker.WORKERS if BACKEND == "tensorflow" else ())
@pytest.mark.parametrize("process", [0, 1])
def test_two_processes_equal_one_device(workers, alone, name, process):
    arrays = dict(np.load(workers[0] / f"{name}-{process}.npz"))
    check_equal(arrays, alone(name), BOUNDS[name])


def values_of(kind, process, mirrored, workers):
    return mirrored[1] if kind == "mirrored" else workers[1][process][1][0]


CASES = [("mirrored", 0), ("workers", 0), ("workers", 1)]


@pytest.mark.parametrize(("kind", "process"), CASES)
def test_the_engine_says_where_it_is(mirrored, workers, kind, process):
    values = values_of(kind, process, mirrored, workers)
    count = 1 if kind == "mirrored" else 2
    assert values["place"] == [2, 2, process, count, process, count]
    words = {"mirrored": "MirroredStrategy of 2 CPUs", "workers": "in 2 processes"}
    assert words[kind] in values["description"]
    assert values["total"] == {"mirrored": 1.5, "workers": 1.5 + 2.5}[kind]


@pytest.mark.parametrize(("kind", "process"), CASES)
def test_arrays_can_be_put_back(mirrored, workers, kind, process):
    """Metrics too, of which each replica holds a part."""
    equal, cleared = values_of(kind, process, mirrored, workers)["metrics"]
    assert equal and cleared == 0


@pytest.mark.parametrize(("kind", "process"), CASES)
def test_outputs_are_whole_everywhere(mirrored, workers, kind, process):
    folder = mirrored[0] if kind == "mirrored" else workers[0]
    arrays = np.load(folder / f"sgd_everything-{process}.npz")
    model = worker.model()
    names = [f"weight {index}" for index in range(len(model.trainable_variables))]
    for variable, name in zip(model.trainable_variables, names, strict=True):
        variable.assign(arrays[name])
    np.testing.assert_allclose(arrays["predicted"], worker.outputs(model), atol=1e-5)


@pytest.mark.parametrize("kind", ["mirrored", "workers"])
def test_the_chief_can_finish_alone(mirrored, workers, kind):
    """The local model predicts, is saved and loaded, while another process does nothing."""
    found = values_of(kind, 0, mirrored, workers)["alone"]
    assert len(found) == 3 and max(found) < 1e-5


@pytest.mark.parametrize(("kind", "process"), CASES)
def test_evaluation_of_plain_arrays(mirrored, workers, kind, process):
    """`evaluate(images, labels)`, the same in each process: each image counts once."""
    folder = mirrored[0] if kind == "mirrored" else workers[0]
    arrays = np.load(folder / f"sgd_everything-{process}.npz")
    for name in ("loss", "accuracy"):
        expected = arrays[f"evaluation {name}"]
        np.testing.assert_allclose(arrays[f"plain evaluation {name}"], expected, atol=1e-6)


def test_replicas_draw_different_random_numbers(mirrored, workers):
    for seeds in (
        mirrored[1]["seeds"],
        workers[1][0][1][0]["seeds"] + workers[1][1][1][0]["seeds"],
    ):
        assert len(set(seeds)) == 2


def test_an_empty_replica_changes_nothing(mirrored):
    one = mirrored[1]["one"]
    assert abs(one["evaluation loss"] - one["expected"]) < 1e-5


def test_an_uneven_batch_is_refused_before_it_changes_a_weight(mirrored):
    assert mirrored[1]["untouched"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clipnorm", "keras_vit.training.AdamW(..., clip_norm=...)"),
        ("global_clipnorm", "keras_vit.training.AdamW(..., clip_norm=...)"),
        ("clipvalue", "keras_vit.training.AdamW(..., clip_norm=...)"),
        ("gradient_accumulation_steps", "keras_vit.training.AdamW(..., accumulation_steps=...)"),
        ("jit_compile", 'compile the model with `jit_compile="auto"`'),
        ("steps_per_execution", "Received: steps_per_execution=2"),
        ("reduction", 'take reduction="sum_over_batch_size"'),
        ("float16", 'build the model with dtype="mixed_bfloat16"'),
        ("outside", "build and compile the model inside of it"),
        ("optimizer", "Its optimizer (sgd/iteration) was made outside of the scope"),
        ("arrays", "Received: batches of 5"),
        ("last batch", "Received: a last batch of 1"),
        ("check_batch", "must be a multiple of the 2 replicas of MirroredStrategy of 2 CPUs"),
        ("devices", "3 devices were asked for, and there are 2 (CPU). Before anything has run"),
        ("uneven", "batch with drop_remainder=True"),
    ],
)
def test_what_would_go_wrong_is_refused(mirrored, name, words):
    said = mirrored[1]["refused"][name]
    assert said is not None, "not refused"
    assert said.startswith("ValueError: ") and words in said


@pytest.mark.parametrize(
    ("name", "words"),
    [("devices", "use all of their 2 devices"), ("clipnorm", "keras_vit.training.AdamW")],
)
def test_what_would_go_wrong_is_refused_in_each_process(workers, name, words):
    for _, values in workers[1]:
        assert words in values[0]["refused"][name]


def test_a_killed_process_ends_the_other(workers):
    (status, values), (killed, _) = workers[1]
    assert killed == -9 and status == 0
    said = values[1]
    assert said["lost"].startswith("PeerLostError: Process 0 of 2 lost another one. Start all")
    assert said["seconds"] < 60  # with the building of the step


def test_a_strategy_of_the_users_own(mirrored):
    said = mirrored[1]["stand_in"]
    assert said["description"] == "OwnStrategy of 2 devices"
    assert "applies clipnorm" in said["adopted"]


def test_a_tpu_that_is_not_there_is_explained(mirrored):
    said = mirrored[1]["tpu"]
    assert said[""].startswith("ValueError: No TPU has this name or address")
    assert said["local"].startswith("ValueError: TensorFlow finds no TPU here")
    for name in ("", "local"):
        assert "The JAX backend is the better way" in said[name]


def test_the_way_to_a_tpu(mirrored, alone):
    """The resolver, the connection, the start; then the strategy trains like one device."""
    said = mirrored[1]["tpu"]
    assert said["calls"] == ["pod", "resolver", "resolver"] and said["replicas"] == 2
    check_equal(dict(np.load(mirrored[0] / "tpu.npz")), alone("sgd_everything"), 1e-5)


def make(kind="data", devices=None, mesh=None, shard_optimizer=False, **options):
    return tensorflow_engine.make(kind, devices, mesh, shard_optimizer, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "model"}, "take the JAX backend .*KERAS_BACKEND=jax.* distribution='model'"),
        ({"kind": "fsdp"}, "take the JAX backend .*distribution='fsdp'"),
        ({"mesh": (1, 2)}, r"take the JAX backend .*mesh=\(1, 2\)"),
        ({"shard_optimizer": True}, "take the JAX backend .*shard_optimizer=True"),
        ({"mesh": (2, 1), "devices": 3}, "has 2 devices. Received: devices=3"),
        ({"devices": 7}, "7 devices were asked for, and there .*set_logical_device_configuration"),
        ({"strategy": "mirrored"}, "`strategy` must be a tf.distribute.Strategy"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        make(**arguments)


CLUSTER = {"worker": ["localhost:1", "localhost:2"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "TF_CONFIG must be JSON such as"),
        ("[]", "TF_CONFIG must be JSON such as"),
        (json.dumps({"cluster": CLUSTER}), "TF_CONFIG must be JSON such as"),
        (
            json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 2}}),
            r"its task is \('worker', 2\)",
        ),
        (
            json.dumps(
                {
                    "cluster": {**CLUSTER, "ps": ["localhost:3"]},
                    "task": {"type": "worker", "index": 0},
                }
            ),
            r"tasks that Keras 3 does not train with: \['ps'\]",
        ),
        (
            json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 0}}),
            "TensorFlow already runs in this process",
        ),
    ],
)
def test_a_wrong_cluster_is_explained(monkeypatch, text, words):
    import tensorflow as tf

    tf.constant(0) + 1  # TensorFlow runs
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("task", "index", "place"),
    [("chief", 0, (0, 3)), ("worker", 0, (1, 3)), ("worker", 1, (2, 3))],
)
def test_the_chief_comes_first(task, index, place):
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["b:1", "c:1"], "chief": ["a:1"]}),
        task_type=task,
        task_id=index,
    )
    assert tensorflow_engine._place(resolver) == place
    assert tensorflow_engine._place(None) == (0, 1)


def test_one_device_is_plain():
    engine = make(devices=1)
    assert engine.replicas == 1 and engine.description == "one device"
    with distribution.scope("data", devices=1) as engine:
        assert distribution.current() is engine


def test_the_repairs_are_undone():
    import tensorflow as tf

    trainer, module = tensorflow_patches._trainer()
    names = {trainer: "_maybe_symbolic_build", module: "reduce_per_replica"}
    before = [getattr(owner, name) for owner, name in names.items()]
    strategy = tf.distribute.get_strategy()
    with tensorflow_patches.repaired(strategy, several_processes=True):
        inside = [getattr(owner, name) for owner, name in names.items()]
        assert all(new is not old for new, old in zip(inside, before, strict=True))
    assert [getattr(owner, name) for owner, name in names.items()] == before


def test_an_unknown_keras_is_refused_where_it_must_be_repaired(monkeypatch):
    import tensorflow as tf

    monkeypatch.delattr(tensorflow_patches._trainer()[1], "reduce_per_replica")
    strategy = tf.distribute.get_strategy()
    with tensorflow_patches.repaired(strategy, several_processes=False):
        pass
    with pytest.raises(RuntimeError, match="Take Keras 3.15, one process"):
        with tensorflow_patches.repaired(strategy, several_processes=True):
            pass
