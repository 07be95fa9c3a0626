"""One competitor of `cpu.py`, in a process of its own that answers over a pipe.

    python _cpu_child.py NAME CORES SIZE

Reads a JSON list `[task, batch, steps]` a line; answers with the wall and the process' CPU seconds
of a step. It knows nothing of the other competitors, and its interpreter may be another one.
"""

import functools
import json
import os
import sys
import time

# The whole network, and one for trying the script: image, patch, width, layers, heads, classes.
SIZES = {"s16": (224, 16, 384, 12, 6, 1000), "tiny": (32, 8, 32, 2, 2, 10)}
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.05


def confine(cores: int) -> None:
    """Keeps this process, and every thread that it will start, on so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    for name in ("OMP", "MKL", "OPENBLAS"):
        os.environ[f"{name}_NUM_THREADS"] = str(cores)
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(cores)
    os.environ["TF_NUM_INTEROP_THREADS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def keras_steps(name: str, size):
    """The steps of a Keras model through `predict_on_batch` and `train_on_batch`."""
    project, backend = name.split("-", 1)
    backend, _, how = backend.partition("-")
    os.environ["KERAS_BACKEND"] = backend
    import numpy as np

    import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras
    import keras

    from keras_vit.training import AdamW

    image, patch, width, layers, heads, classes = size
    shape = {"image_shape": (image, image, 3), "patch_size": patch, "num_layers": layers}
    shape |= {"num_heads": heads, "hidden_dim": width, "mlp_dim": 4 * width}

    @functools.cache
    def model(batch: int):
        """One for each batch size, as a program that has one would compile it."""
        if project == "keras_hub":
            import keras_hub

            backbone = keras_hub.models.ViTBackbone(**shape)
            found = keras_hub.models.ViTImageClassifier(backbone, num_classes=classes)
        else:
            # timm's GELU is the exact one.
            found = keras_vit.VisionTransformer(**shape, num_classes=classes, activation="gelu")
        found.compile(
            optimizer=AdamW(LEARNING_RATE, weight_decay=WEIGHT_DECAY),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=True if how == "jit" else "auto",
        )
        return found

    versions = f"{_version(project)}, keras {keras.__version__}, {_version(backend)}"
    return versions, {
        "forward": lambda pixels: model(len(pixels)).predict_on_batch(pixels),
        "train": lambda pixels, labels: model(len(pixels)).train_on_batch(pixels, labels),
        "pixels": lambda batch: (
            np.random.default_rng(0).random((batch, image, image, 3), "f4") * 255
        ),
        "labels": lambda batch: np.arange(batch) % classes,
    }


def timm_steps(name: str, size):
    """The steps of timm's model in a loop of its own, with PyTorch's fastest AdamW."""
    import timm
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    image, patch, width, layers, heads, classes = size
    model = timm.models.VisionTransformer(
        img_size=image,
        patch_size=patch,
        embed_dim=width,
        depth=layers,
        num_heads=heads,
        num_classes=classes,
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    run = torch.compile(model) if name == "timm-compiled" else model

    def forward(pixels):
        model.eval()
        with torch.inference_mode():
            return run(pixels).numpy()

    def train(pixels, labels):
        model.train()
        loss = torch.nn.functional.cross_entropy(run(pixels), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return f"timm {timm.__version__}, torch {torch.__version__}", {
        "forward": forward,
        "train": train,
        "pixels": lambda batch: torch.rand(batch, 3, image, image) * 2 - 1,
        "labels": lambda batch: torch.arange(batch) % classes,
    }


def _version(package: str) -> str:
    module = __import__(package)
    return f"{package} {module.__version__}"


def serve(name: str, cores: int, size) -> None:
    """Answers requests until the pipe closes."""
    # Nothing that a library prints may come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    confine(cores)
    versions, steps = (timm_steps if name.startswith("timm") else keras_steps)(name, size)

    def answer(content) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    answer({"versions": versions})
    for line in sys.stdin:
        task, batch, repeats = json.loads(line)
        inputs = [steps["pixels"](batch)]
        inputs += [steps["labels"](batch)] if task == "train" else []
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            steps[task](*inputs)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        answer({"wall": wall / repeats, "cpu": cpu / repeats})


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), SIZES[sys.argv[3]])
