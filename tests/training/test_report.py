"""The report: what is in it, that it stands alone, and that names do no harm."""

import base64
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.evaluation import metrics
from keras_vit.inspection import pictures
from keras_vit.training.report import Mistakes, worst_mistakes, write_report
from keras_vit.training.report_content import curves, shown_classes

pytest.importorskip("matplotlib", reason="the report is drawn by matplotlib")

VIT = {"image_shape": (8, 12, 3), "patch_size": 4, "hidden_dim": 10, "num_layers": 2}
VIT |= {"num_heads": 2, "mlp_dim": 13, "num_classes": 5}
IMAGES = harness.pixels((23, 8, 12, 3)).astype("uint8")
LABELS = harness.random_for("labels").integers(0, 5, 23)
NAMES = ("a<b>&\"'", "$x_{", "Kätzchen 猫", "</style><script>alert(1)</script>", "plain")
HISTORY = [
    {"epoch": 1, "step": 9, "loss": 2.0, "accuracy": 0.1, "learning_rate": 1e-3},
    {"epoch": 2, "step": 18, "loss": 1.5, "accuracy": 0.4, "learning_rate": 5e-4}
    | {"val_loss": 1.25, "val_accuracy": 0.375},
    {"epoch": 3, "step": 27, "loss": float("nan"), "accuracy": None, "learning_rate": 0.0}
    | {"val_loss": 1.0, "val_accuracy": 0.5},
]


@pytest.fixture(scope="module")
def model():
    model = keras_vit.VisionTransformer(**VIT)
    harness.randomize(model)
    return model


@pytest.fixture(scope="module")
def logits(model):
    return harness.numpy(model(IMAGES, training=False))


@pytest.fixture(scope="module")
def result(logits):
    return metrics(logits, LABELS, NAMES)


class Page(HTMLParser):
    """Tags, texts and addresses of a page; closing tags must match."""

    EMPTY = ("meta", "img", "line", "circle", "polyline")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.addresses, self.images = [], [], [], [], []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "data", "action"):
                self.addresses.append(value)
            if tag == "img" and name == "src":
                self.images.append(value)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def png_size(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_the_worst_mistakes_are_those_of_the_highest_loss(model, logits):
    logs = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    logs -= logits.max(1, keepdims=True)
    losses = -logs[range(23), LABELS]
    wrong = [i for i in np.argsort(-losses) if logits[i].argmax() != LABELS[i]]
    names = [f"{i}.png" for i in range(23)]
    found = worst_mistakes(model, (IMAGES, LABELS), 4, names=names, batch_size=5)
    assert found.names == [names[i] for i in wrong[:4]]
    np.testing.assert_array_equal(found.images, IMAGES[wrong[:4]])
    np.testing.assert_array_equal(found.true, LABELS[wrong[:4]])
    np.testing.assert_array_equal(found.predicted, logits[wrong[:4]].argmax(1))
    np.testing.assert_allclose(found.confidence, np.exp(logs[wrong[:4]].max(1)), rtol=1e-4)
    every = worst_mistakes(model, (IMAGES, LABELS), 100)
    assert len(every.images) == len(wrong) and set(every.names) == {""}
    nothing = worst_mistakes(model, (IMAGES, logits.argmax(1)), 3)
    assert len(nothing.images) == len(nothing.true) == 0


def test_scaled_pixels_are_stretched(model):
    plain = keras_vit.VisionTransformer(**VIT, include_rescaling=False)
    images = IMAGES.astype("float32") / 127.5 - 1
    found = worst_mistakes(plain, (images, 1 + LABELS % 4), 1)
    assert (found.images.min(), found.images.max()) == (0, 255)


def test_mistakes_need_labels(model):
    with pytest.raises(ValueError, match="labels"):
        worst_mistakes(model, IMAGES)
    with pytest.raises(ValueError, match="`count`"):
        worst_mistakes(model, (IMAGES, LABELS), 0)


def test_both_files_stand_alone(model, result, tmp_path):
    mistakes = worst_mistakes(model, (IMAGES, LABELS), 5, names=[f"<{i}>.png" for i in range(23)])
    count = len(mistakes.images)
    png, page = write_report(
        tmp_path,
        HISTORY,
        result,
        mistakes,
        model=model,
        title="A <title> & $more$",
        facts={"seed": 7, "<data>": "tfds & co"},
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.png"]
    width, height = png_size(png.read_bytes())
    assert width > 1000 and height > 1000
    text = page.read_text("utf-8")
    found = Page(text)
    # Nothing is loaded, and nothing of the names became markup.
    assert found.addresses and all(a.startswith("data:image/png;base64,") for a in found.addresses)
    assert not re.search(r"url\(|@import|https?:", text)
    assert "script" not in found.tags and "b" in found.tags and "title" in found.tags
    assert "default-src 'none'" in text
    texts = "\n".join(found.texts)
    for words in (*NAMES, "A <title> & $more$", "<data>", "tfds & co", f"{result.top1:.2%}"):
        assert words in texts, words
    for name in mistakes.names:
        assert name in found.texts
    # Each mistake with its attention, enlarged.
    assert len(found.images) == 2 * count
    for address in found.images:
        assert png_size(base64.b64decode(address.partition(",")[2])) == (240, 160)
    assert text.count('class="matrix"') == 1 and "prefers-color-scheme: dark" in text


def test_attention_is_laid_over_the_pictures(model, result, tmp_path):
    mistakes = worst_mistakes(model, (IMAGES, LABELS), 1)
    _, page = write_report(tmp_path, [], result, mistakes, model=model)
    shares = inspection.attention_rollout(model, mistakes.images)[0]
    large = pictures.enlarge(mistakes.images[0], 160)
    expected = base64.b64encode(pictures.png(pictures.overlay(large, shares))).decode()
    assert expected in page.read_text("utf-8")


@pytest.mark.parametrize("kind", ["none", "resnet", "scaled", "other size"])
def test_without_attention(kind, result, tmp_path):
    models = {
        "none": lambda: None,
        "resnet": lambda: keras_vit.BiTResNet(
            image_shape=(8, 12, 3), block_counts=(1,), width_factor=0.125, groups=4
        ),
        "scaled": lambda: keras_vit.VisionTransformer(**VIT, include_rescaling=False),
        "other size": lambda: keras_vit.VisionTransformer(**{**VIT, "image_shape": (4, 4, 3)}),
    }
    mistakes = Mistakes(IMAGES[:2, ..., :1], [0, 1], [1, 2], [0.5, 0.25], ["", ""])
    if kind != "none":
        mistakes = mistakes._replace(images=IMAGES[:2])
    _, page = write_report(tmp_path, HISTORY[:1], result, mistakes, model=models[kind]())
    text = page.read_text("utf-8")
    assert len(Page(text).images) == 2 and "where the model looked" not in text


def test_the_barest_report(tmp_path):
    png, page = write_report(tmp_path, [], metrics(np.eye(2), [0, 1]))
    assert png_size(png.read_bytes())[0] > 1000
    found = Page(page.read_text("utf-8"))
    assert not found.images and "Worst mistakes" not in found.texts
    assert "Training" not in found.texts and "100.00%" in found.texts


def test_many_classes(tmp_path):
    rng = harness.random_for("many")
    labels = rng.integers(0, 1000, 3000)
    logits = rng.normal(size=(3000, 1000)).astype("float32")
    logits[range(3000), labels] += 6
    twins = labels == 7
    logits[twins, 700] += 20  # all sevens are taken for 700
    result = metrics(logits, labels, [f"class number {i}" for i in range(1000)])
    chosen = shown_classes(result)
    assert len(chosen) == len(set(chosen)) == 24
    assert chosen[:2] == [7, 700]
    _, page = write_report(tmp_path, HISTORY, result)
    text = page.read_text("utf-8")
    assert "24 most confused of 1,000" in text
    matrix = re.search(r'<table class="matrix">.*?</table>', text, re.S)[0]
    assert matrix.count("<td") == 24 * 24 + 1
    assert f"{twins.sum()} of {twins.sum()} class number 7: class number 700" in matrix
    assert len(text) < 1_000_000


def test_few_classes_are_all_shown(result):
    assert shown_classes(result) == [0, 1, 2, 3, 4]
    assert len(shown_classes(result, limit=3)) == 3
    perfect = metrics(np.eye(30), np.arange(30))
    assert len(shown_classes(perfect)) == 24


def test_curves():
    panels = {panel["name"]: panel["lines"] for panel in curves(HISTORY)}
    assert list(panels) == ["loss", "accuracy", "learning rate"]
    assert panels["loss"] == {
        "training": ([1.0, 2.0], [2.0, 1.5]),
        "validation": ([2.0, 3.0], [1.25, 1.0]),
    }
    assert panels["accuracy"]["training"] == ([1.0, 2.0], [0.1, 0.4])
    assert panels["learning rate"]["learning rate"] == ([1.0, 2.0, 3.0], [1e-3, 5e-4, 0.0])
    other = curves([{"val_top_k": 0.5, "seconds": 3.0, "images_per_second": 9.0, "note": "x"}])
    assert [panel["name"] for panel in other] == ["top k"]
    many = curves([{"epoch": 1, **{f"m{i}": 1.0 for i in range(9)}, "loss": 1.0}])
    assert len(many) == 3 and many[0]["name"] == "loss"


def test_plots_lie_inside_their_frames(result, tmp_path):
    histories = [
        HISTORY,
        [{"epoch": 1, "loss": 0.0}],
        [{"epoch": e, "loss": 1e-9 * e, "accuracy": 1.0} for e in range(1, 4)],
        [{"epoch": e, "loss": -1e6 * e} for e in range(1, 40)],
    ]
    for history in histories:
        _, page = write_report(tmp_path, history, result)
        plots = re.findall(r"<svg.*?</svg>", page.read_text("utf-8"), re.S)
        assert len(plots) == len(curves(history))
        for plot in plots:
            tree = ElementTree.fromstring(plot)
            assert 3 <= len(tree.findall("line")) <= 7
            for line in tree.findall("polyline"):
                points = np.array([p.split(",") for p in line.get("points").split()], float)
                assert (points >= [57, 9]).all() and (points <= [313, 151]).all()


def test_a_failure_leaves_the_old_report(result, tmp_path, monkeypatch):
    write_report(tmp_path, HISTORY, result, title="old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    from keras_vit.training import report_html

    monkeypatch.setattr(report_html, "render", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(tmp_path, HISTORY, result, title="new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_without_matplotlib(result, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"A training report needs matplotlib.*\[plots\]"):
        write_report(tmp_path, HISTORY, result)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be(result, tmp_path):
    good = Mistakes(IMAGES[:2], [0, 1], [1, 0], [0.5, 0.5], ["", ""])
    cases = [
        (tmp_path / "none", good, "`folder`.*none"),
        (tmp_path, good._replace(true=[0]), "`mistakes`.*'true': 1"),
        (tmp_path, good._replace(predicted=[0, 5]), "`mistakes.predicted`.*0 to 4"),
        (tmp_path, good._replace(images=IMAGES[:2].astype("float32")), "uint8"),
        (tmp_path, good._replace(images=IMAGES[:2, ..., 0]), "images of shape"),
    ]
    for folder, mistakes, message in cases:
        with pytest.raises(ValueError, match=message):
            write_report(folder, [], result, mistakes)
    assert not list(tmp_path.iterdir())
