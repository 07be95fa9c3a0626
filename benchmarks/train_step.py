"""Time of a training step of ViT-S/16 fed by `keras_vit.data`, against one on a batch at hand.

    python benchmarks/train_step.py --rounds 5

JPEG files of 500 x 375 pixels, inception crop, flip and RandAugment(2, 10) at 224 px. Rounds of
either kind are taken in turn, so that both see the same machine; medians and their ratio.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import keras_vit  # isort: skip  # chooses the backend, so it comes before Keras

import keras

from keras_vit.data import Pipeline

sys.path.insert(0, str(Path(__file__).resolve().parent))
from data import write_pictures  # noqa: E402


def timed(model, batches, steps):
    """Seconds a step."""
    start = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        model.train_on_batch(*batch)
    return (time.perf_counter() - start) / steps


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder))
        pipe = Pipeline(
            folder, 224, batch_size=options.batch_size, training=True, randaugment=(2, 10)
        )
        stream = iter(pipe.dataset)
        images, labels = (part.numpy() for part in next(stream))
        model = keras_vit.ViTS16(num_classes=2)
        model.train_on_batch(images, labels)
        times = {"at hand": [], "pipeline": []}
        for _ in range(options.rounds):
            time.sleep(2)  # the pipeline fills its buffer, and rests
            times["at hand"].append(timed(model, itertools.repeat((images, labels)), options.steps))
            fed = (tuple(part.numpy() for part in batch) for batch in stream)
            times["pipeline"].append(timed(model, fed, options.steps))
    seconds = {name: round(statistics.median(values), 4) for name, values in times.items()}
    report = {"backend": keras.backend.backend(), "cores": os.cpu_count(), "seconds": seconds}
    report["ratio"] = round(seconds["pipeline"] / seconds["at hand"], 3)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
