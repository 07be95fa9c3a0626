"""Measures a model on labelled pictures: top-1, top-5, and a table of the classes.

keras-vit evaluate --model runs/a --data pictures/test
keras-vit evaluate --model hf://owner/name --data tfds:beans:test --knn-data tfds:beans:train
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from keras_vit.cli import devices
from keras_vit.cli import options as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    shared.add_inference_options(parser, 64, "print one JSON object")
    shared.add_data_option(parser, required=True)
    shared.add_data_option(
        parser, "--knn-data", help="labelled pictures: adds k-NN and a linear probe on features"
    )
    devices.add_arguments(parser)


def check(options: argparse.Namespace) -> None:
    """Raises a ValueError on bad arguments, before Keras is imported."""
    shared.check_model("--model", options.model)
    shared.check_data("--data", options.data)
    shared.check_data("--knn-data", options.knn_data)


def run(options: argparse.Namespace) -> int:
    """Evaluates, and prints what was found."""
    return devices.run(options, _run)


def _run(options: argparse.Namespace, engine) -> int:
    import numpy as np

    from keras_vit.cli.models import load, open_data
    from keras_vit.evaluation import few_shot_probe, knn, metrics, predict_all

    model, known = load(options.model)
    source = open_data(options.data, known)
    pipeline = _pipeline(source, model, options, known)
    classes = model.flat_config["num_classes"]
    found: dict = {}
    text = ""
    if classes is not None:
        logits, labels = predict_all(model, pipeline.dataset, progress=engine.is_chief)
        names = known.get("class_names") or source.class_names
        result = metrics(logits, np.asarray(labels), names)
        found, text = result.to_dict(), result.text()
    elif options.knn_data is None:
        raise ValueError("The model has no head: give --knn-data to measure its features.")
    if options.knn_data is not None:
        train = _features(open_data(options.knn_data, known), model, options, known)
        test = _features(source, model, options, known)
        votes = knn(train[0], train[1], test[0])
        found["knn"] = float((votes.argmax(-1) == test[1]).mean())
        probe = few_shot_probe(train[0], train[1], test[0], test[1], shots=(None,))[0]
        found["linear_probe"] = probe.to_dict()
        text += f"\nk-NN      {found['knn']:.2%}\n{probe.text()}"
    unreadable = pipeline.bad.report()
    if unreadable:
        found["unreadable"] = [name for _, name, _ in pipeline.bad.items]
        text += f"\n{unreadable}"
    print(json.dumps(found, indent=2) if options.json else text.strip())
    return 0


def _pipeline(source, model, options: argparse.Namespace, known: dict):
    from keras_vit.data import Pipeline

    config = model.flat_config
    height, width, channels = config["image_shape"]
    return Pipeline(
        source,
        training=False,
        image_size=(height, width),
        channels=channels,
        batch_size=options.batch_size,
        crop=options.crop or known.get("evaluation") or "squash",
        num_classes=config["num_classes"],
    )


def _features(source, model, options, known) -> Any:
    from keras_vit.evaluation import extract_features

    pipeline = _pipeline(source, model, options, known)
    return extract_features(model, pipeline.dataset)
