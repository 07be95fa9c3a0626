"""Draws what a Vision Transformer has learned, as figure 7 of arXiv 2010.11929 does.

    python examples/understanding_vit.py                       # trains on Fashion-MNIST first
    python examples/understanding_vit.py --model hf://facebook/dinov2-small --pictures *.jpg

For a trained model: filters of the patch embedding, similarity of position embeddings, attention
distance (figure_7.png); attention, rollout and principal components of patches over pictures
(looked.png); and a page to look around in (report.html). Needs matplotlib, and Pillow for
--pictures. Fashion-MNIST is read as in fashion_mnist.py.
"""

import argparse
import glob
from pathlib import Path

import keras_vit  # before Keras: it chooses a backend that is installed

# isort: split
import keras
import numpy as np
from _fashion_mnist_data import CLASSES, load

from keras_vit import inspection
from keras_vit.inspection import page, plots


def trained_on_fashion_mnist(options):
    """Returns a model, test pictures that differ in class, their names and those of the classes."""
    (images, labels), (test_images, test_labels) = load(options.data)
    if options.smoke:
        images, labels = images[:64], labels[:64]
    keras.utils.set_random_seed(options.seed)
    model = keras_vit.VisionTransformer(
        image_shape=(28, 28, 1),
        patch_size=4,
        hidden_dim=64,
        num_layers=6,
        num_heads=4,
        mlp_dim=256,
        num_classes=10,
        name="fashion_mnist",
    )
    steps = options.epochs * -(-len(images) // 128)
    learning_rate = keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - steps // 10), warmup_target=2e-3, warmup_steps=max(1, steps // 10)
    )
    model.compile(
        keras.optimizers.AdamW(learning_rate, weight_decay=0.05),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(images, labels, batch_size=128, epochs=options.epochs, verbose=2)
    _, accuracy = model.evaluate(test_images, test_labels, batch_size=500, verbose=0)
    print(f"test accuracy {accuracy:.2%} on {len(test_labels):,} pictures")
    firsts = [int(np.flatnonzero(test_labels == label)[0]) for label in np.unique(test_labels)]
    names = [CLASSES[test_labels[index]] for index in firsts]
    return model, test_images[firsts], names, list(CLASSES)


def of_a_checkpoint(options):
    """Returns a model that there is, the pictures as it takes them, and names."""
    from keras_vit.cli.models import load_to_look
    from keras_vit.data import read_images

    paths = [path for pattern in options.pictures for path in sorted(glob.glob(pattern))]
    side = options.image_size
    model, known = load_to_look(options.model, side and (side, side))
    *size, channels = model.flat_config["image_shape"]
    images, indices, problems = read_images(paths, size, channels, crop="resize_small")
    for path, reason in problems:
        print(f"{path}: {reason}")
    if not len(images):
        raise SystemExit("None of --pictures could be read.")
    return model, images, [Path(paths[i]).stem for i in indices], known.get("class_names")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a run, .keras file, checkpoint or hf:// address")
    parser.add_argument("--pictures", nargs="+", default=[], help="files or patterns, for --model")
    parser.add_argument("--image-size", type=int, help="side, for --model (its own)")
    parser.add_argument("--data", help="folder of Fashion-MNIST's four IDX files")
    parser.add_argument("--epochs", type=int, default=3, help="of training on Fashion-MNIST")
    parser.add_argument("--output", type=Path, default=Path("understanding"), help="folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="a few pictures, one epoch")
    options = parser.parse_args()
    if bool(options.model) != bool(options.pictures):
        parser.error("--model and --pictures need each other")
    options.epochs = 1 if options.smoke else options.epochs
    options.output.mkdir(parents=True, exist_ok=True)

    find = of_a_checkpoint if options.model else trained_on_fashion_mnist
    model, images, names, classes = find(options)
    plots.figure_7(model, images).savefig(options.output / "figure_7.png")

    found = {
        "attention": inspection.output_attention(model, images).mean(axis=1),
        "rollout": inspection.attention_rollout(model, images),
        "components": inspection.principal_components(inspection.patch_features(model, images)),
    }
    if model.flat_config["num_classes"] is not None:
        found["for its class"] = inspection.class_relevance(model, images)
    figure = plots.maps(images, list(found.values()), ["picture", *found])
    figure.savefig(options.output / "looked.png")

    path = options.output / "report.html"
    page.write_page(model, images, path, names=names, class_names=classes)
    for name in ("figure_7.png", "looked.png", "report.html"):
        print(f"wrote {options.output / name}")


if __name__ == "__main__":
    main()
