"""Images a second of one model of keras_vit: training through `fit`, inference through `predict`.

    python benchmarks/throughput.py --backend jax --model vit_b16 --batch 256
    python benchmarks/throughput.py --backend torch --model vit_l16 --batch 128 --jit-compile true

One case in this process, on one batch of 8-bit images that stays on the device. Beside `fit` and
`predict`: the functions that they call for each batch ("raw"), the first step's seconds, the peak
of memory, what was compiled after the first step, and every line on standard error. "mfu" is the
arithmetic of `keras_vit.count_flops` (three times the forward pass for a training step) against
the matrix products that the same process measured. Inference comes first, so that its peak of
memory is its own (JAX cannot forget one); for the first step of training as a user meets it,
`--cold --modes train --windows 0`: empty compiler caches, and nothing else.
"""

import argparse
import os

import _measure as measure

JIT = {"auto": "auto", "true": True, "false": False}


def build(options):
    """The compiled model."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    size = measure.SMOKE if options.smoke else {"image_shape": (224, 224, 3)}
    remat = {"remat": True} if options.remat else {}
    model = keras_vit.create_model(
        options.model, num_classes=1000, dtype=options.precision, **size, **remat
    )
    model.compile(
        keras_vit.training.AdamW(1e-3, weight_decay=0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=JIT[options.jit_compile],
    )
    return model


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("jax", "torch", "tensorflow"), required=True)
    measure.add_arguments(parser)
    parser.add_argument("--remat", action="store_true", help="compute blocks again backwards")
    parser.add_argument("--partial", action="store_true", help="compilations of a last batch")
    parser.add_argument("--jit-compile", choices=list(JIT), default="auto")
    options = measure.parsed(parser, arguments)
    os.environ["KERAS_BACKEND"] = options.backend
    device = measure.framework(options.backend)
    with measure.record(f"keras_vit {options.backend}", device, options) as found:
        import _keras_runs

        found |= {"remat": options.remat, "jit_compile": options.jit_compile}
        model = build(options)
        found["jit_compiled"] = bool(model.jit_compile)
        found["parameters"] = model.count_params()
        batch = measure.synthetic(device, options.batch, found["image_size"])
        for mode in options.modes:
            found[mode] = getattr(_keras_runs, mode)(model, batch, device, options, found)
        if options.partial:
            found["partial_batch_compilations"] = _keras_runs.partial_batch(model, batch, device)


if __name__ == "__main__":
    main()
