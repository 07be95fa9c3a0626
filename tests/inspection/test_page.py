"""The page about a model: what it holds, what it refuses, that nothing half-written stays."""

import base64
import json
import re
import zlib

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.inspection import page
from keras_vit.inspection.page import contents, encoding, file, render

VIT = {**harness.TINY_VIT, "image_shape": (16, 24, 3), "num_registers": 2}
IMAGES = harness.pixels((2, 16, 24, 3)).astype("uint8")
# What no backend has a part in runs once.
anywhere = harness.once("no backend has a part in it")
MANY = {
    "plain": {},
    "registers and gap": {"pooling": "gap"},
    "map": {"pooling": "map", "class_token": False, "num_registers": 0},
    "distilled": {"distillation": "head"},
    "no head": {"num_classes": None},
    "all tokens": {"num_classes": None, "pooling": None},
    "relative": {"position_embedding": "relative"},
    "every layer": {"position_placement": "every_layer", "position_embedding": "sincos2d"},
    "shared": {"position_placement": "shared", "position_embedding": "learned_2d"},
    "grey": {"image_shape": (16, 24, 1)},
    "one patch": {"image_shape": (8, 8, 3)},
    "one column": {"image_shape": (24, 8, 3), "num_registers": 0, "class_token": False}
    | {"pooling": "mean"},
    "hybrid": {"image_shape": (64, 96, 3), "patch_size": 1}
    | {"stem": {"block_counts": (1,), "width": 32}},
    "half precision": {"dtype": "mixed_bfloat16"},
}


def vit(**options):
    model = keras_vit.VisionTransformer(**{**VIT, **options})
    harness.randomize(model)
    return model


@pytest.fixture(scope="module")
def model():
    return vit()


def inflated(text):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "uint8")


def decoded(encoded, tokens):
    """What the page's script makes of rows."""
    rows = encoded.reshape(-1, 2 + tokens).astype("float64")
    largest = (256 * rows[:, 0] + rows[:, 1]) / 65535
    return largest[:, None] * (rows[:, 2:] / 255) ** 2


def content_of(path):
    text = path.read_text("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(data)


@anywhere
def test_rows_keep_their_digits():
    values = np.exp(3 * harness.noise((2, 5, 40)).astype("float64"))
    values /= values.sum(-1, keepdims=True)
    found = decoded(encoding.rows(values.astype("float32")), 40)
    expected = values.reshape(-1, 40)
    # A step is at most 2/255 of the row's largest value; small values have small steps.
    assert np.abs(found - expected).max() < 0.005 * expected.max()
    small = expected < 0.01 * expected.max(-1, keepdims=True)
    assert small.any()
    limit = 0.0005 * np.broadcast_to(expected.max(-1, keepdims=True), found.shape)[small]
    assert (np.abs(found - expected)[small] < limit).all()


@pytest.mark.parametrize("values", [np.zeros((1, 3)), np.full((1, 3), 1 / 3), np.eye(3)])
@anywhere
def test_rows_of_extremes(values):
    np.testing.assert_allclose(decoded(encoding.rows(values), 3), values, atol=1e-5)


def test_what_the_page_holds_is_what_the_functions_find(model, tmp_path):
    path = page.write_page(model, IMAGES, tmp_path / "p.html", names=["a", "b"], title="Mine")
    content = content_of(path)
    assert content["title"] == "Mine" and content["live"] is False
    about, (first, second) = content["model"], content["pictures"]
    assert about["grid"] == [2, 3] and about["cell"] == [8, 8]
    assert about["prefix"] == ["class token", "register 1", "register 2"]
    assert (about["layers"], about["heads"], about["reader"]) == (2, 2, "class token")
    assert [first["name"], second["name"]] == ["a", "b"]
    maps = inspection.attention_maps(model, IMAGES)
    close = {"rtol": 0, "atol": 0.004}
    for index, picture in enumerate((first, second)):
        read = decoded(inflated(picture["read"]), 9).reshape(2, 2, 9)
        expected = np.stack([scores[index, :, 0] for scores in maps])
        np.testing.assert_allclose(read, expected, **close)
        assert picture["hover"]["kind"] == "heads"
        for block, scores in zip(picture["hover"]["blocks"], maps, strict=True):
            found = decoded(inflated(block), 9).reshape(2, 9, 9)
            np.testing.assert_allclose(found, scores[index], **close)
        rollout = decoded(inflated(picture["rollout"]), 6).reshape(2, 3)
        expected = inspection.attention_rollout(model, IMAGES)[index]
        np.testing.assert_allclose(rollout, expected, **close)
        norms = inflated(picture["norms"]).reshape(2, 2, 3)
        for layer in range(2):
            features = inspection.patch_features(model, IMAGES, layer)
            lengths = inspection.token_norms(features)[index]
            assert picture["lengths"][layer] == pytest.approx([lengths.min(), lengths.max()], 1e-3)
            assert (norms[layer] == encoding.shares(lengths)).all()
            parts = inflated(picture["components"]).reshape(2, 2, 3, 3)[layer]
            expected = inspection.principal_components(features[index : index + 1])[0]
            np.testing.assert_allclose(parts / 255, expected, atol=0.01)
        likely = inspection.probabilities(model, IMAGES)[index]
        classes = picture["classes"]
        assert [c["name"] for c in classes] == [str(i) for i in np.argsort(-likely)]
        np.testing.assert_allclose(
            [c["probability"] for c in classes], np.sort(likely)[::-1], atol=1e-5
        )
        relevance = inspection.class_relevance(model, IMAGES, int(classes[1]["name"]))[index]
        found = inflated(classes[1]["relevance"]).reshape(2, 3)
        assert np.abs(found.astype(int) - encoding.shares(relevance)).max() <= 1
    both = np.mean([first["distances"], second["distances"]], axis=0)
    np.testing.assert_allclose(both, inspection.mean_attention_distance(model, IMAGES), atol=2e-3)
    similar = inflated(about["similarity"]).reshape(2, 3, 2, 3) / 127.5 - 1
    np.testing.assert_allclose(similar, inspection.position_similarity(model), atol=0.01)


@pytest.mark.parametrize("options", harness.cases(MANY, {"plain", "map", "half precision"}))
def test_every_kind_of_model(options, tmp_path):
    model = vit(**options)
    images = harness.pixels((1, *model.flat_config["image_shape"]))
    before = harness.numpy(model(images, training=False))
    content = content_of(page.write_page(model, images, tmp_path / "p.html"))
    np.testing.assert_array_equal(harness.numpy(model(images, training=False)), before)
    (picture,), about = content["pictures"], content["model"]
    grid, tokens = model.grid_shape, model.num_prefix_tokens + int(np.prod(model.grid_shape))
    assert about["grid"] == list(grid) and len(about["prefix"]) == model.num_prefix_tokens
    assert ("classes" in picture) == (model.flat_config["num_classes"] is not None)
    assert ("pooling" in picture) == (model.flat_config["pooling"] == "map")
    assert bool(about["filters"]) == (model.flat_config["stem"] is None)
    assert (about["similarity"] is None) == (options.get("position_embedding") == "relative")
    assert inflated(picture["read"]).shape == (2 * 2 * (tokens + 2),)
    assert inflated(picture["components"]).shape == (2 * int(np.prod(grid)) * 3,)
    width, height = picture["size"]
    assert min(width, height) >= 64 and width * images.shape[1] == height * images.shape[2]


@anywhere
def test_readers_in_words():
    readers = {"plain": "class token", "registers and gap": "all patches", "map": "all tokens"}
    readers |= {"distilled": "class and distillation token", "one column": "all tokens"}
    for name, words in readers.items():
        assert contents.of_model(vit(**MANY[name]))["reader"] == words


@pytest.mark.parametrize(
    ("hover", "blocks", "size"),
    [("heads", 2, 2 * 9 * 11), ("mean", 2, 9 * 11), ("last", 1, 9 * 11), ("none", 0, 0)],
)
@anywhere
def test_what_single_patches_attend_to(model, tmp_path, hover, blocks, size):
    path = page.write_page(model, IMAGES[:1], tmp_path / "p.html", hover=hover)
    found = content_of(path)["pictures"][0]["hover"]
    assert found["kind"] == hover and len(found["blocks"]) == blocks
    assert all(inflated(block).size == size for block in found["blocks"])
    assert contents.hover_bytes(model, hover) == blocks * size
    if hover in ("mean", "last"):
        scores = inspection.attention_maps(model, IMAGES[:1])[-1][0].mean(0)
        np.testing.assert_allclose(decoded(inflated(found["blocks"][-1]), 9), scores, atol=0.004)


@anywhere
def test_many_pictures_know_less_of_single_patches(model, monkeypatch):
    sizes = [contents.hover_bytes(model, hover) for hover in contents.HOVERS]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 0
    for budget, expected in ((sizes[0], "heads"), (sizes[0] - 1, "mean"), (sizes[2], "last")):
        monkeypatch.setattr(file, "BUDGET", 3 * budget)
        assert file.chosen_hover(model, 3, None) == expected
    monkeypatch.setattr(file, "BUDGET", 0)
    assert file.chosen_hover(model, 3, None) == "none"
    assert file.chosen_hover(model, 3, "heads") == "heads"


@anywhere
def test_names_are_data_and_never_markup(model, tmp_path):
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'\u2028{{data}}"
    classes = [bad, "b", "c"]
    path = page.write_page(
        model, IMAGES[:1], tmp_path / "p.html", names=[bad], class_names=classes, title=bad
    )
    text = path.read_text("utf-8")
    assert text.count("</script>") == 2 and "<img src=x" not in text
    content = content_of(path)
    assert content["title"] == bad and content["pictures"][0]["name"] == bad
    assert {c["name"] for c in content["pictures"][0]["classes"]} == set(classes)


@anywhere
def test_the_page_loads_nothing(model, tmp_path):
    text = page.write_page(model, IMAGES[:1], tmp_path / "p.html").read_text("utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy and "connect-src" not in policy
    assert "unsafe" not in policy
    without_data = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.S)
    addresses = re.findall(r"https?://[^\s\"'<>)]+", without_data)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}  # a namespace, which is not fetched
    live = render.render({"title": "", "live": {"most": 1}, "model": {}, "pictures": []})
    assert "connect-src 'self'" in live


@anywhere
def test_scaled_pixels_get_a_warning(model, tmp_path):
    with pytest.warns(UserWarning, match="0..1"):
        page.write_page(model, IMAGES / 255.0, tmp_path / "p.html")


@anywhere
def test_progress(model, tmp_path):
    done = []
    page.write_page(model, IMAGES, tmp_path / "p.html", progress=done.append)
    assert done == [1, 2]


@anywhere
def test_a_failure_leaves_the_old_page(model, tmp_path, monkeypatch):
    path = tmp_path / "p.html"
    path.write_text("old")
    monkeypatch.setattr(file, "render", lambda content: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write_page(model, IMAGES[:1], path)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["p.html"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": IMAGES[0]}, r"images.*\(n, height, width, channels\).*\(16, 24, 3\)"),
        ({"images": IMAGES[:0]}, r"one at least.*\(0, 16, 24, 3\)"),
        ({"images": IMAGES[:, :8]}, r"\(batch, 16, 24, 3\).*\(1, 8, 24, 3\)"),
        ({"names": ["one"]}, "names.*2.*Received: 1"),
        ({"class_names": ["a", "b"]}, "class_names.*3.*Received: 2"),
        ({"hover": "some"}, "hover.*'heads', 'mean', 'last', 'none'.*some"),
        ({"path": "/nowhere/p.html"}, "no folder /nowhere"),
    ],
    ids=["one image", "no image", "other size", "names", "classes", "hover", "folder"],
)
@anywhere
def test_what_cannot_be(model, tmp_path, arguments, message):
    arguments = {"images": IMAGES, "path": tmp_path / "p.html", **arguments}
    with pytest.raises(ValueError, match=message):
        page.write_page(model, **arguments)
    assert not list(tmp_path.iterdir())


@anywhere
def test_models_that_pictures_cannot_be_fed_to(tmp_path):
    resnet = keras_vit.BiTResNet(
        image_shape=(32, 32, 3), block_counts=(1,), width_factor=0.125, groups=4
    )
    with pytest.raises(ValueError, match="VisionTransformer.*BiTResNet"):
        page.write_page(resnet, IMAGES, tmp_path / "p.html")
    with pytest.raises(ValueError, match="include_rescaling=False"):
        page.write_page(vit(include_rescaling=False), IMAGES, tmp_path / "p.html")
