"""TF Serving's batching parameters, for a model on a GPU."""

from __future__ import annotations

from pathlib import Path

from keras_vit._atomic import replacing

BATCHING = "batching_parameters.txt"
# A request waits this long for others, in microseconds: less than a forward pass takes.
_TIMEOUT = 1_000
# Batches that wait for the GPU before the server refuses more.
_ENQUEUED = 100
# Threads that hand batches to the GPU: one prepares while the other's batch runs.
_THREADS = 2


def write_batching(folder: Path, max_batch_size: int) -> Path:
    """Writes a text file for `tensorflow_model_server --batching_parameters_file`.

    Batches are padded to powers of two, so that the GPU sees few shapes.

    Args:
        folder: where it is written; an older one is replaced.
        max_batch_size: images at once.

    Returns:
        The file.
    """
    sizes = [2**i for i in range(max_batch_size.bit_length()) if 2**i < max_batch_size]
    lines = [
        f"max_batch_size {{ value: {max_batch_size} }}",
        f"batch_timeout_micros {{ value: {_TIMEOUT} }}",
        f"max_enqueued_batches {{ value: {_ENQUEUED} }}",
        f"num_batch_threads {{ value: {_THREADS} }}",
        *(f"allowed_batch_sizes: {size}" for size in (*sizes, max_batch_size)),
    ]
    path = folder / BATCHING
    with replacing(path) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
