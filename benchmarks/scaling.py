"""Training speed at a fixed batch a device on 1, 2, 4 devices, and steps that no one device holds.

    python benchmarks/scaling.py --backend jax --model vit_b16 --batch 128 --devices 1 2 4
    python benchmarks/scaling.py --backend torch --model vit_l16 --batch 64 --devices 1 2
    python benchmarks/scaling.py --backend jax --model vit_g14 --batch 192 --devices 2 \
        --distribution model

Each case is a run of its own, or one process a device with PyTorch, under `model.fit` on one batch
that lies ready; the median time of a step after 10 others. The efficiency is the images a second
and device, against those of the first number of devices. `--smoke` takes virtual CPU devices and a
tiny model, to see that the script runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from _children import python_path

WARM, SMOKE_MODEL = 10, "vit_ti16"
SMOKE = {"image_shape": (32, 32, 3), "hidden_dim": 32, "num_layers": 2, "num_heads": 2}


def case(options, devices):
    """The command and environment of a number of devices."""
    inner = [
        __file__,
        "--case",
        *("--model", options.model, "--batch", str(options.batch), "--devices", str(devices)),
        *("--distribution", options.distribution, "--steps", str(options.steps)),
        *(["--smoke"] if options.smoke else []),
    ]
    env = {**os.environ, "KERAS_BACKEND": options.backend, "PYTHONPATH": python_path()}
    if options.smoke:
        env |= {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    if options.backend == "torch" and devices > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
        return [sys.executable, *launcher, *inner], env
    return [sys.executable, *inner], env


def measure(options):
    """Times steps in this process, one of several with PyTorch; the first prints."""
    import keras_vit  # isort: skip

    import keras
    import numpy as np

    from keras_vit.training import AdamW, distribution

    class Clock(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.times = []

        def on_train_batch_end(self, batch, logs=None):
            float(logs["loss"])  # waits for the step
            self.times.append(time.perf_counter())

    devices = options.devices[0]
    smoke = {**SMOKE, "mlp_dim": 64} if options.smoke else {}
    with distribution.scope(options.distribution, devices) as engine:
        keras.utils.set_random_seed(0)
        model = keras_vit.create_model(
            options.model, num_classes=1000, dtype="mixed_bfloat16", **smoke
        )
        model.compile(
            AdamW(1e-4, weight_decay=0.1, clip_norm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        replicas = engine.replicas // engine.processes
        count = options.batch * max(replicas, 1)
        random = np.random.default_rng(engine.process)
        images = random.integers(0, 256, (count, *model.flat_config["image_shape"]), "uint8")
        labels = random.integers(0, 1000, count)

        def batches():
            while True:
                yield images, labels

        clock, steps = Clock(), WARM + options.steps
        model.fit(batches(), steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[clock])
        times = np.diff(clock.times)[WARM - 1 :]
        if engine.is_chief:
            seconds = statistics.median(times.tolist())
            speed = options.batch * engine.replicas / seconds
            found = {"devices": devices, "seconds": seconds, "images_per_second": speed}
            print(json.dumps({**found, "card": card(), "engine": engine.description}), flush=True)


def card():
    """Name of the first device."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return jax.devices()[0].device_kind
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return "?"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("jax", "torch"), default="jax")
    parser.add_argument("--model", default="vit_b16")
    parser.add_argument("--batch", type=int, default=128, help="images of a replica")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--distribution", default="data")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.smoke:
        options.model, options.batch, options.steps = SMOKE_MODEL, 4, 2
    if options.case:
        measure(options)
        return
    first = None
    for devices in options.devices:
        command, env = case(options, devices)
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            print(json.dumps({"devices": devices, "failed": done.stderr.splitlines()[-3:]}))
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        first = first or found["images_per_second"] / devices
        found["efficiency"] = round(found["images_per_second"] / devices / first, 4)
        print(json.dumps({"backend": options.backend, "model": options.model, **found}), flush=True)


if __name__ == "__main__":
    main()
