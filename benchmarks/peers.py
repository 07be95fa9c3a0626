"""Images a second of one other implementation, measured as `throughput.py` measures ours.

    python benchmarks/peers.py --peer timm-compile --model vit_b16 --batch 256
    python benchmarks/peers.py --peer keras-hub-jax --model vit_b16

timm and transformers train as timm's own script does with `--amp --amp-dtype bfloat16`: autocast,
fused AdamW, a loop that waits for nothing; they infer in the precision itself, in inference mode;
hybrids in channels_last. They get pixels that are scaled already, which their loaders would do, and
no copy of the outputs is asked of them. keras-hub goes through `fit` and `predict` on 8-bit images,
as ours does. Each peer is optional: a sentence says what to install.
"""

import argparse
import gc
import os
import time

import _measure as measure

COMPILED = {"timm-compile": "default", "timm-max-autotune": "max-autotune"}
COMPILED |= {"transformers-compile": "default"}
TORCH_PEERS = ("timm", "timm-compile", "timm-max-autotune", "transformers", "transformers-compile")
KERAS_HUB = {"keras-hub-jax": "jax", "keras-hub-torch": "torch"}
TIMM_NAMES = {
    **{"ViT-Ti/16": "vit_tiny_patch16_224", "ViT-S/16": "vit_small_patch16_224"},
    **{"ViT-B/16": "vit_base_patch16_224", "ViT-L/16": "vit_large_patch16_224"},
    **{"ViT-H/14": "vit_huge_patch14_224", "R50+ViT-B/16": "vit_base_r50_s16_224"},
}


def sizes(options):
    """Keyword arguments of the variant, in keras_vit's words."""
    from keras_vit.variants import parse

    if options.smoke:
        return measure.SMOKE
    return {"image_shape": (224, 224, 3), **parse(options.model).config()}


def timm_model(options):
    from keras_vit.variants import parse

    timm = measure.installed("timm")
    if options.smoke:
        size = measure.SMOKE
        return timm.models.vision_transformer.VisionTransformer(
            **{"img_size": size["image_shape"][0], "patch_size": size["patch_size"]},
            **{"embed_dim": size["hidden_dim"], "depth": size["num_layers"]},
            **{"num_heads": size["num_heads"], "mlp_ratio": 2},
        )
    name = parse(options.model).name
    if name not in TIMM_NAMES:
        raise SystemExit(f"timm is measured for {', '.join(TIMM_NAMES)}, not for {name}.")
    return timm.create_model(TIMM_NAMES[name], pretrained=False, num_classes=1000)


def transformers_model(options):
    transformers = measure.installed("transformers")
    size = sizes(options)
    if "stem" in size:
        raise SystemExit("transformers is measured for plain ViTs, not for hybrids.")
    config = transformers.ViTConfig(
        **{"image_size": size["image_shape"][0], "patch_size": size["patch_size"]},
        **{"hidden_size": size["hidden_dim"], "intermediate_size": size["mlp_dim"]},
        **{"num_hidden_layers": size["num_layers"], "num_attention_heads": size["num_heads"]},
        **{"num_labels": 1000, "attn_implementation": "sdpa"},
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
    return transformers.ViTForImageClassification(config)


class TorchPeer:
    """A model of PyTorch in a loop of its own."""

    def __init__(self, options, device, batch):
        self.options, self.device, self.torch = options, device, device.torch
        self.timm = options.peer.startswith("timm")
        self.mode = COMPILED.get(options.peer)
        self.format = self.torch.contiguous_format
        if "stem" in sizes(options):
            self.format = self.torch.channels_last
        images, self.labels = batch
        scaled = (images.float() - 127.5) / 127.5
        self.images = scaled.permute(0, 3, 1, 2).contiguous(memory_format=self.format)
        self.labels = self.labels.long()
        self.dtype = getattr(self.torch, measure.DTYPES[options.precision])
        device.torch.manual_seed(0)

    def model(self):
        model = (timm_model if self.timm else transformers_model)(self.options)
        self.parameters = sum(weight.numel() for weight in model.parameters())
        return model.to(self.device.device, memory_format=self.format)

    def compiled(self, model):
        return model if self.mode is None else self.torch.compile(model, mode=self.mode)

    def logits(self, model, images):
        return model(images) if self.timm else model(pixel_values=images).logits

    def training_step(self):
        """A call that trains one step."""
        torch, functional = self.torch, self.torch.nn.functional
        model = self.model().train()
        fused = {"fused": True} if self.device.gpu else {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, **fused)
        scaler = torch.amp.GradScaler(self.device.device) if self.dtype == torch.float16 else None
        forward = self.compiled(model)
        amp = {"dtype": self.dtype, "enabled": self.dtype != torch.float32}

        def step():
            with torch.autocast(self.device.device, **amp):
                loss = functional.cross_entropy(self.logits(forward, self.images), self.labels)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad(set_to_none=True)

        return step

    def inference_step(self):
        """A call that computes one batch of logits."""
        torch = self.torch
        forward = self.compiled(self.model().to(self.dtype).eval())
        images = self.images.to(self.dtype)

        def step():
            with torch.inference_mode():
                return self.logits(forward, images)

        return step

    def run(self, mode, found):
        """What `_keras_runs.train` and `predict` find, of the own loop alone."""
        options, device = self.options, self.device
        self.torch.compiler.reset()  # lets go of the mode before, and of its model
        gc.collect()
        count = measure.Compilations(device)
        device.forget_peak()
        step = self.training_step() if mode == "train" else self.inference_step()
        start = time.perf_counter()
        step()
        device.wait()
        result = {"first_step_seconds": round(time.perf_counter() - start, 2)}
        result["compilations"] = count.so_far()
        if options.windows:
            times, steps = measure.windows(step, device.wait, options.seconds, options.windows)
            result["raw"] = measure.speed(times, steps, found, passes=3 if mode == "train" else 1)
        else:
            step()
            step()
            device.wait()
        result["recompilations"] = count.so_far()
        result["peak_gib"] = measure.peak_gib(device)
        return result


def keras_hub_model(options):
    """The layers of ViTImageClassifier as a model of Keras, compiled."""
    keras_hub = measure.installed("keras_hub")
    import keras

    size = sizes(options)
    if "stem" in size:
        raise SystemExit("keras-hub is measured for plain ViTs: its hybrids are of another kind.")
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.ViTBackbone(**size, dtype=options.precision)
    classifier = keras_hub.models.ViTImageClassifier(
        backbone=backbone, num_classes=1000, dtype=options.precision, preprocessor=None
    )
    # Its own `fit` puts a pipeline on the host before the model; that of Keras does not.
    model = keras.Model(classifier.input, classifier.output)
    model.compile(
        keras.optimizers.AdamW(1e-3, weight_decay=0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=(*TORCH_PEERS, *KERAS_HUB), required=True)
    measure.add_arguments(parser)
    options = measure.parsed(parser, arguments)
    backend = KERAS_HUB.get(options.peer, "torch")
    os.environ["KERAS_BACKEND"] = backend
    device = measure.framework(backend)
    package = "keras_hub" if options.peer in KERAS_HUB else options.peer.partition("-")[0]
    measure.installed(package)
    with measure.record(options.peer, device, options) as found:
        batch = measure.synthetic(device, options.batch, found["image_size"])
        if options.peer in KERAS_HUB:
            import _keras_runs

            model = keras_hub_model(options)
            found["parameters"] = model.count_params()
            for mode in options.modes:
                found[mode] = getattr(_keras_runs, mode)(model, batch, device, options, found)
            return
        peer = TorchPeer(options, device, batch)
        del batch
        for mode in options.modes:
            found[mode] = peer.run(mode, found)
        found["parameters"] = peer.parameters


if __name__ == "__main__":
    main()
