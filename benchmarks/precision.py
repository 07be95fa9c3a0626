"""How far bfloat16 is from float32 in what a model gives, here and in timm.

    python benchmarks/precision.py --checkpoint b16/ --timm vit_base_patch16_224 --images pics
    python benchmarks/precision.py ... --timm-python other/bin/python --json results.json

One checkpoint, one folder of pictures; each implementation runs in a process of its own and is
compared with its own float32: root mean square of the difference over that of the values. Of timm,
`autocast` is how its script trains, `bfloat16` how it infers with `--precision bfloat16`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _children import ROOT, python_path

OURS = ("jax", "torch", "tensorflow")
BATCH = 8


def outputs_of_ours(checkpoint, images, backend):
    """Precision -> outputs."""
    os.environ["KERAS_BACKEND"] = backend
    import keras_vit

    size = images.shape[1:]
    found = {}
    for dtype in ("float32", "mixed_bfloat16"):
        model = keras_vit.from_checkpoint(checkpoint, image_shape=size, dtype=dtype)
        found[dtype] = np.asarray(model.predict(images, BATCH, verbose=0), "float32")
    return found


def outputs_of_timm(checkpoint, images, name):
    """Precision -> outputs."""
    import timm
    import torch

    model = timm.create_model(name, checkpoint_path=checkpoint).eval()
    model.set_input_size(img_size=images.shape[1:3])
    config = model.pretrained_cfg
    pixels = (images / 255.0 - np.array(config["mean"])) / np.array(config["std"])
    pixels = torch.from_numpy(pixels.astype("float32").transpose(0, 3, 1, 2))

    def run(model, dtype, autocast):
        batches = pixels.to(dtype).split(BATCH)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return torch.cat([model(batch).float() for batch in batches]).numpy()

    return {
        "float32": run(model, torch.float32, False),
        "autocast": run(model, torch.float32, True),
        "bfloat16": run(model.to(torch.bfloat16), torch.bfloat16, False),
    }


def pictures(folder, size):
    """Up to 64 pictures of a folder, `(count, size, size, 3)`, float32 in 0..255."""
    from PIL import Image

    suffixes = {".png", ".jpg", ".jpeg"}
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in suffixes)[:64]
    if not paths:
        raise SystemExit(f"--images: {folder} has no .png or .jpg file.")
    opened = (Image.open(path).convert("RGB").resize((size, size)) for path in paths)
    return np.stack([np.asarray(image, "float32") for image in opened])


def child(options):
    """Writes the errors of one implementation to standard output."""
    images = pictures(options.images, options.size)
    if options.child == "timm":
        found = outputs_of_timm(options.checkpoint, images, options.timm)
    else:
        found = outputs_of_ours(options.checkpoint, images, options.child)
    exact = found.pop("float32").astype("float64")
    scale = np.sqrt(np.mean(exact**2))
    errors = {name: float(np.sqrt(np.mean((x - exact) ** 2)) / scale) for name, x in found.items()}
    print(json.dumps(errors))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True, help="what keras_vit.from_checkpoint takes")
    parser.add_argument("--images", required=True, help="folder of pictures")
    parser.add_argument("--timm", metavar="NAME", help="timm's name of the model")
    parser.add_argument("--timm-python", default=sys.executable)
    parser.add_argument("--backends", nargs="+", default=list(OURS), choices=OURS)
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return child(options)
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        if options.timm:
            sys.path.insert(0, str(ROOT))
            import keras_vit

            keras_vit.convert_checkpoint(options.checkpoint, path, format="timm")
        names = [*options.backends, *(["timm"] if options.timm else [])]
        for name in names:
            timm = name == "timm"
            words = [options.timm_python if timm else sys.executable, __file__, "--child", name]
            words += ["--checkpoint", path if timm else options.checkpoint]
            words += ["--images", options.images, "--size", options.size]
            words += ["--timm", options.timm] if options.timm else []
            done = subprocess.run(
                [str(word) for word in words],
                env={**os.environ, "PYTHONPATH": python_path(), "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdout=subprocess.PIPE,
                check=True,
            )
            report[name] = json.loads(done.stdout.splitlines()[-1])
            for precision, error in report[name].items():
                print(f"{name:12} {precision:16} {error:.2e}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
