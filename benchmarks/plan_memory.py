"""The planner's memory against the measured peak of training steps on one GPU.

    python benchmarks/plan_memory.py
    python benchmarks/plan_memory.py --backends jax --models B --images 128 256 --remat

ViT-S/16, B/16 and L/16 at two batch sizes, on JAX and on PyTorch, in mixed bfloat16 with this
package's AdamW; each case in a process of its own. Prints a table and exits with 1 if a prediction
is off by more than 10%. Peaks are the backends' own: `peak_bytes_in_use` (of JAX's allocator, with
what compilation tried out) and `torch.cuda.max_memory_allocated`; neither knows of the context.
"""

import argparse
import json
import os
import subprocess
import sys

from _children import ROOT, python_path

sys.path.insert(0, str(ROOT))
MODELS = ("S", "B", "L")
IMAGES = {"S": (128, 256), "B": (128, 256), "L": (64, 128)}
BACKENDS = ("jax", "torch")
TOLERANCE = 0.1
GIB = 2**30
ENVIRONMENT = dict(os.environ)
NO_GPU = "plan_memory.py needs a GPU:"


def measured(backend, size, images, remat):
    """(bytes at the peak, name of the GPU), from a new process."""
    case = {"size": size, "images": images, "remat": remat}
    environment = {
        **ENVIRONMENT,
        "KERAS_BACKEND": backend,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": python_path(),
    }
    command = [sys.executable, __file__, "--child", json.dumps(case)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        if NO_GPU in lines[-1]:
            raise SystemExit(lines[-1])
        if "out of memory" in done.stderr.lower() or "RESOURCE_EXHAUSTED" in done.stderr:
            return None, ""
        raise SystemExit(f"{backend} {case} failed:\n{done.stderr}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return found["peak"], found["gpu"]


def child(case):
    """Trains a few steps and prints the peak."""
    import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

    import keras
    import numpy as np

    from keras_vit.optimizers import AdamW
    from keras_vit.training.losses import Crossentropy

    backend = keras.backend.backend()
    gpu, reset, peak = _meter(backend)
    model = keras_vit.models.create_model(
        f"ViT-{case['size']}/16", dtype="mixed_bfloat16", remat=case["remat"]
    )
    model.compile(AdamW(1e-3), loss=Crossentropy("softmax"))
    generator = np.random.default_rng(0)
    images = generator.uniform(0, 255, (case["images"], 224, 224, 3)).astype("float32")
    labels = generator.integers(0, 1000, case["images"]).astype("int32")
    model.train_on_batch(images, labels)
    reset()
    for _ in range(3):
        model.train_on_batch(images, labels)
    print(json.dumps({"peak": int(peak()), "gpu": gpu}))


def _meter(backend):
    """(name of the GPU, what forgets the peak so far, what reads it)."""
    if backend == "torch":
        import torch

        if not torch.cuda.is_available():
            raise SystemExit(f"{NO_GPU} PyTorch sees none")
        name = torch.cuda.get_device_name()
        return name, torch.cuda.reset_peak_memory_stats, torch.cuda.max_memory_allocated
    import jax

    if jax.default_backend() != "gpu":
        raise SystemExit(f"{NO_GPU} JAX runs on {jax.default_backend()}")
    device = jax.local_devices()[0]
    # JAX cannot forget its peak.
    return device.device_kind, lambda: None, lambda: device.memory_stats()["peak_bytes_in_use"]


def predicted(backend, size, images, remat):
    """The planner's memory."""
    from keras_vit.planning.devices import DEVICES
    from keras_vit.planning.memory import memory
    from keras_vit.planning.model import complete
    from keras_vit.planning.setup import make

    config = complete(f"ViT-{size}/16", remat=remat)
    setup = make(config, DEVICES["H100-80G"], batch=images, backend=backend)
    return memory(setup)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--images", nargs="+", type=int, help="batch sizes; else two a model")
    parser.add_argument("--remat", action="store_true")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the GPU is for the children
    ratios, titled = [], False
    for backend in options.backends:
        for size in options.models:
            for images in options.images or IMAGES[size]:
                case = (backend, size, images, options.remat)
                plan = predicted(*case)
                peak, gpu = measured(*case)
                if not titled:
                    print(f"{gpu}\n\n| backend | model | images | planned GiB | measured | ratio |")
                    print("|---|---|---|---|---|---|")
                    titled = True
                if peak is None:
                    print(
                        f"| {backend} | {size}/16 | {images} | {plan.peak / GIB:.2f} | no room | |"
                    )
                    continue
                ratios.append(plan.peak / peak)
                cells = f"{plan.peak / GIB:.2f} | {peak / GIB:.2f} | {ratios[-1]:.3f}"
                print(f"| {backend} | {size}/16 | {images} | {cells} |", flush=True)
    worst = max((abs(ratio - 1) for ratio in ratios), default=0.0)
    print(f"farthest off: {worst:.1%}")
    raise SystemExit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
