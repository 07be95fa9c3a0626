"""Data sets that tensorflow-datasets prepares here, without a network."""

import gzip
import socket
from pathlib import Path

import harness
import numpy as np
import pytest

from keras_vit import data

tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ["shirt", "trouser", "pullover", "dress", "coat", "sandal", "top", "sneaker", "bag",
           "boot"]  # fmt: skip


def fashion_mnist(part, count):
    """The first pictures and labels of the Debian package; noise where it is not installed."""
    if not FASHION_MNIST.is_dir():
        generator = harness.random_for(part)
        shape = (count, 28, 28, 1)
        return generator.integers(0, 256, shape).astype("uint8"), generator.integers(0, 10, count)
    found = []
    for kind, head, size in (("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1)):
        with gzip.open(FASHION_MNIST / f"{part}-{kind}-ubyte.gz") as file:
            file.seek(head)
            found.append(np.frombuffer(file.read(count * size), "uint8"))
    return found[0].reshape(count, 28, 28, 1), found[1]


SETS = {"train": fashion_mnist("train", 60), "test": fashion_mnist("t10k", 20)}


class FashionSample(tfds.core.GeneratorBasedBuilder):
    """Eighty pictures of Fashion-MNIST."""

    VERSION = tfds.core.Version("1.2.0")
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name=name, version=tfds.core.Version("1.2.0"))
        for name in ("plain", "numbered")
    ]

    def _info(self):
        plain = self.builder_config.name == "plain"
        label = tfds.features.ClassLabel(names=CLASSES) if plain else np.int64
        image = tfds.features.Image(shape=(28, 28, 1))
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {"id": tfds.features.Text(), "picture": image, "category": label}
            ),
            supervised_keys=("picture", "category"),
        )

    def _split_generators(self, dl_manager):
        return {part: self._generate_examples(part) for part in SETS}

    def _generate_examples(self, part):
        for i, (image, label) in enumerate(zip(*SETS[part], strict=True)):
            yield i, {"id": f"{i}", "picture": image, "category": int(label)}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    tfds.disable_progress_bar()
    FashionSample(data_dir=folder, config="plain").download_and_prepare()
    return folder


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def contents(source):
    return sorted(
        (data.decode(source.read(i)[0], channels=1).tobytes(), source.read(i)[1])
        for i in range(source.size)
    )


@pytest.mark.parametrize("budget", [2**30, 0], ids=["in memory", "from the files"])
def test_prepared_data_is_read(data_dir, monkeypatch, budget):
    monkeypatch.setattr("keras_vit.data.records.MEMORY_BYTES", budget)
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    source = data.open_source("tfds:fashion_sample/plain")
    assert source.class_names == tuple(CLASSES) and source.size == 60
    assert source.description == "tfds fashion_sample/plain:train"
    expected = sorted((x.tobytes(), int(y)) for x, y in zip(*SETS["train"], strict=True))
    assert contents(source) == expected
    assert (source.labels is None) == (budget == 0)
    # Its only configuration; a split in the name, by argument, and a part of one.
    assert data.open_source("tfds:fashion_sample:test").size == 20
    assert data.open_source("tfds:fashion_sample:1.2.0:test").size == 20
    assert data.open_source("tfds:fashion_sample:test", "train").size == 60
    half = data.open_source("tfds:fashion_sample:train[:50%]")
    rest = data.open_source("tfds:fashion_sample:train[50%:]")
    assert half.size == rest.size == 30
    assert sorted(contents(half) + contents(rest)) == expected
    builder = tfds.builder_from_directory(str(data_dir / "fashion_sample" / "plain" / "1.2.0"))
    theirs = tfds.as_numpy(builder.as_dataset(split="train[50%:]"))
    assert contents(rest) == sorted((x["picture"].tobytes(), x["category"]) for x in theirs)


def test_batches_repeat(data_dir):
    source = data.open_source("tfds:fashion_sample", data_dir=data_dir)
    kwargs = {"image_size": 14, "channels": 1, "batch_size": 8, "training": True, "seed": 1}
    whole = [x.numpy() for x, _ in data.Pipeline(source, **kwargs).dataset.take(12)]
    later = data.Pipeline(source, start_step=9, **kwargs).dataset.take(3)
    np.testing.assert_array_equal(whole[9:], [x.numpy() for x, _ in later])


def test_its_own_splits_are_used(data_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    training, validation = data.open_splits("tfds:fashion_sample")
    assert (training.size, validation.size) == (60, 20)
    training, validation = data.open_splits("tfds:fashion_sample:train", held_out=0.2)
    assert training.size + validation.size == 60


def test_labels_without_names(data_dir, tmp_path):
    FashionSample(data_dir=tmp_path, config="numbered").download_and_prepare()
    source = data.open_source("tfds:fashion_sample", data_dir=tmp_path)
    assert source.num_classes == SETS["train"][1].max() + 1
    assert sorted(source.labels.tolist()) == sorted(SETS["train"][1].tolist())
    # Two configurations: which?
    (tmp_path / "fashion_sample" / "plain").symlink_to(data_dir / "fashion_sample" / "plain")
    with pytest.raises(ValueError, match=r"Expected one of \['fashion_sample/numbered', 'fash"):
        data.open_source("tfds:fashion_sample", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tfds:mnist", r"has not prepared mnist in .*tfds.builder\('mnist', data_dir="),
        ("tfds:fashion_sample:1.0.0:train", "has not prepared fashion_sample:1.0.0"),
        ("tfds:fashion_sample:validation", r"no split 'validation'.*\['test', 'train'\]"),
        ("tfds:", "Expected tfds:NAME"),
        ("tfds:../secrets", "Expected tfds:NAME"),
        ("tfds:huggingface:mnist", "has not prepared huggingface"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(data_dir, spec, message):
    with pytest.raises(ValueError, match=message):
        data.open_source(spec, data_dir=data_dir)


def test_a_broken_off_preparation_is_none(data_dir, tmp_path):
    leftover = tmp_path / "half" / "incomplete.ABC_1.0.0"
    leftover.mkdir(parents=True)
    (leftover / "dataset_info.json").write_text("{}")
    with pytest.raises(ValueError, match="has not prepared half"):
        data.open_source("tfds:half", data_dir=tmp_path)
