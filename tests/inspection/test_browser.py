"""The page as a person meets it: in a browser, with mouse, keys and fingers."""

import io
import threading

import harness
import numpy as np
import pytest
from inspection_browser import chromium

import keras_vit
from keras_vit import inspection
from keras_vit.inspection import page
from keras_vit.inspection.page import live
from keras_vit.inspection.page.answers import MOST_BYTES

pytestmark = [
    harness.once("the page is the same from any backend"),
    # What Playwright and the event loop under it leave to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
VIT = {**harness.TINY_VIT, "image_shape": (16, 24, 3), "num_registers": 1}
IMAGES = harness.pixels((2, 16, 24, 3)).astype("uint8")
NAMES = ["first.png", "<b>second</b> & a long name of a picture.jpeg"]
CLASSES = ["tabby cat", "<i>dog</i>", "bus"]
PHONE = {"viewport": {"width": 375, "height": 700}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def browser():
    yield from chromium()


@pytest.fixture(scope="module")
def model():
    model = keras_vit.VisionTransformer(**VIT, name="mine")
    harness.randomize(model)
    return model


@pytest.fixture(scope="module")
def written(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    return page.write_page(model, IMAGES, path, names=NAMES, class_names=CLASSES)


@pytest.fixture
def visit(browser):
    """Opens an address; what goes wrong there, or is asked for elsewhere, fails the test."""
    faults, contexts = [], []

    def open_page(address, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        tab.on("pageerror", lambda error: faults.append(str(error)))
        home = str(address).partition("?")[0]
        tab.on(
            "request",
            lambda asked: (
                None if asked.url.startswith((home, "data:", "blob:")) else faults.append(asked.url)
            ),
        )
        tab.goto(str(address))
        tab.wait_for_selector("html[data-ready=yes]")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def warmest(tab, selector="#view"):
    """(row, column) of the grid where the canvas is warmest, at the centres of its cells."""
    found = tab.evaluate(
        """(selector) => {
          const canvas = document.querySelector(selector), context = canvas.getContext("2d");
          const found = [];
          for (let y = 0; y < 2; y++) for (let x = 0; x < 3; x++) {
            const at = [(x + .5) * canvas.width / 3, (y + .5) * canvas.height / 2];
            const [red, , blue] = context.getImageData(...at.map(Math.floor), 1, 1).data;
            found.push(red - blue);
          }
          return found;
        }""",
        selector,
    )
    return divmod(int(np.argmax(found)), 3)


def brightest(values):
    return divmod(int(np.argmax(values)), 3)


def point(tab, row, column):
    box = tab.locator("#view").bounding_box()
    tab.mouse.move(
        box["x"] + (column + 0.5) * box["width"] / 3, box["y"] + (row + 0.5) * box["height"] / 2
    )


def told(tab, words, where="told"):
    tab.wait_for_function(
        "([id, words]) => document.getElementById(id).textContent.includes(words)",
        arg=[where, words],
    )


def test_what_is_shown_first(visit, written, model):
    tab = visit(f"file://{written}")
    assert tab.title() == "mine" and tab.inner_text("h1") == "mine"
    assert "2 x 3, of 8 x 8 pixels" in tab.inner_text("#facts")
    assert tab.locator("#pictures button").count() == 2
    assert tab.inner_text("#pictures button:nth-child(2) span") == NAMES[1]
    told(tab, "Where the class token attends in block 2, the mean of all heads.")
    maps = inspection.attention_maps(model, IMAGES[:1])
    assert warmest(tab) == brightest(maps[-1][0, :, 0, 2:].mean(0))
    assert tab.locator("#heads button").count() == 2
    for head in range(2):
        selector = f"#heads button:nth-child({head + 1}) canvas"
        assert warmest(tab, selector) == brightest(maps[-1][0, head, 0, 2:])
    register = tab.get_by_role("button", name="register 1").inner_text()
    share = float(register.split()[-2])
    assert share == pytest.approx(100 * maps[-1][0, :, 0, 1].mean(), abs=0.6)
    assert tab.locator("#distance circle").count() == 4
    assert tab.locator("#filters img").count() == 16


@pytest.mark.parametrize(("row", "column"), [(0, 2), (1, 0), (1, 1)])
def test_pointing_at_a_patch(visit, written, model, row, column):
    tab = visit(f"file://{written}")
    tab.get_by_label("Head", exact=True).select_option("head 2")
    tab.get_by_role("slider", name="Block").fill("1")
    point(tab, row, column)
    told(tab, f"Where the patch in row {row + 1}, column {column + 1} attends in block 1, head 2.")
    scores = inspection.attention_maps(model, IMAGES[:1], [0])[0][0, 1, 2 + 3 * row + column]
    # The outlined patch's own centre stays as it is: its frame lies at its edge.
    assert warmest(tab) == brightest(scores[2:])
    assert (
        f"{100 * scores[:2].sum():.0f} % of it goes to the class token and register 1."
        in tab.inner_text("#told")
    )
    tab.mouse.move(1, 1)
    told(tab, "Where the class token attends")


def test_the_other_picture(visit, written, model):
    tab = visit(f"file://{written}")
    tab.locator("#pictures button").nth(1).click()
    tab.wait_for_selector("#pictures button:nth-child(2)[aria-pressed=true]")
    scores = inspection.attention_maps(model, IMAGES[1:])[-1][0, :, 0, 2:].mean(0)
    assert warmest(tab) == brightest(scores)
    assert tab.locator("#pictures button[aria-pressed=true]").count() == 1


def test_a_register_that_attends(visit, written, model):
    tab = visit(f"file://{written}")
    tab.get_by_role("button", name="register 1").click()
    told(tab, "Where register 1 attends")
    scores = inspection.attention_maps(model, IMAGES[:1])[-1][0, :, 1, 2:].mean(0)
    assert warmest(tab) == brightest(scores)


def test_classes(visit, written, model):
    tab = visit(f"file://{written}")
    likely = inspection.probabilities(model, IMAGES[:1])[0]
    order = np.argsort(-likely)
    buttons = tab.locator("#classes button")
    assert [text.split("\n")[0] for text in buttons.all_inner_texts()] == [
        CLASSES[i] for i in order
    ]
    buttons.nth(1).click()
    told(tab, f"speaks for “{CLASSES[order[1]]}”")
    relevance = inspection.class_relevance(model, IMAGES[:1], int(order[1]))[0]
    assert warmest(tab) == brightest(relevance)
    assert tab.locator("#layer-field").is_hidden()


@pytest.mark.parametrize("show", ["rollout", "norms", "components"])
def test_other_views(visit, written, model, show):
    tab = visit(f"file://{written}")
    tab.locator("#show").select_option(show)
    if show == "components":
        told(tab, "have become alike")
        assert tab.locator("#legend").is_hidden()
        return
    if show == "rollout":
        told(tab, "reaches the output")
        assert warmest(tab) == brightest(inspection.attention_rollout(model, IMAGES[:1]))
        return
    lengths = inspection.token_norms(inspection.patch_features(model, IMAGES[:1]))
    told(tab, "How long patches' tokens are behind block 2")
    assert tab.inner_text("#least") == f"{float(lengths.min()):.4g}"
    assert tab.inner_text("#most") == f"{float(lengths.max()):.4g}"
    assert warmest(tab) == brightest(lengths)


def test_keys_alone(visit, written):
    tab = visit(f"file://{written}")
    for _ in range(12):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.id") == "view":
            break
    assert tab.evaluate("document.activeElement.id") == "view"
    tab.keyboard.press("ArrowRight")  # begins in the middle
    told(tab, "row 2, column 2")
    for key, words in (
        ("ArrowUp", "row 1, column 2"),
        ("ArrowLeft", "row 1, column 1"),
        ("ArrowLeft", "row 1, column 1"),
        ("ArrowDown", "row 2, column 1"),
        ("h", "head 1"),
        ("h", "head 2"),
        ("Shift+H", "head 1"),
        ("Shift+L", "block 1"),
        ("l", "block 2"),
        ("Escape", "the class token attends"),
    ):
        tab.keyboard.press(key)
        told(tab, words)
    reached = set()
    for _ in range(30):
        tab.keyboard.press("Tab")
        reached.add(
            tab.evaluate("(document.activeElement.closest('[id]') || document.activeElement).id")
        )
    assert {"show", "layer", "head", "tokens", "heads", "classes", "similarity"} <= reached


def test_everything_has_a_name(visit, written):
    tab = visit(f"file://{written}")
    nameless = tab.evaluate(
        """() => [...document.querySelectorAll("button, input, select, canvas[tabindex], img")]
          .filter((e) => !(e.hasAttribute("alt") || e.ariaLabel || e.textContent.trim()
            || (e.labels && e.labels.length))).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    assert tab.evaluate("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(visit, written, scheme):
    tab = visit(f"file://{written}", color_scheme=scheme, **PHONE)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    view = tab.locator("#view")
    view.scroll_into_view_if_needed()
    box = view.bounding_box()
    assert box["width"] > 300
    view.tap(position={"x": box["width"] * 5 / 6, "y": box["height"] / 4})
    told(tab, "row 1, column 3")
    sizes = tab.evaluate(
        """() => [...document.querySelectorAll("p, label, button, dd, select, h2")]
          .filter((e) => e.offsetParent).map((e) => parseFloat(getComputedStyle(e).fontSize))"""
    )
    assert min(sizes) >= 11
    # Text against the page, as WCAG counts contrast.
    ratio = tab.evaluate(
        """() => {
          const light = (color) => {
            const parts = color.match(/[\\d.]+/g).slice(0, 3).map((c) => {
              c /= 255; return c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; });
            return .2126 * parts[0] + .7152 * parts[1] + .0722 * parts[2];
          };
          const page = light(getComputedStyle(document.body).backgroundColor);
          return Math.min(...[...document.querySelectorAll("h1, p, label, dt, #told")].map((e) => {
            const ink = light(getComputedStyle(e).color);
            return (Math.max(ink, page) + .05) / (Math.min(ink, page) + .05); }));
        }"""
    )
    assert ratio >= 4.5


def test_where_the_last_block_alone_is_known(visit, model, tmp_path):
    tab = visit(f"file://{page.write_page(model, IMAGES[:1], tmp_path / 'p.html', hover='last')}")
    point(tab, 0, 1)
    told(tab, "row 1, column 2 attends in block 2")
    tab.mouse.move(1, 1)
    tab.get_by_role("slider", name="Block").fill("1")
    point(tab, 0, 1)
    told(tab, "in the last block alone")


def test_where_no_patch_is_known(visit, model, tmp_path):
    tab = visit(f"file://{page.write_page(model, IMAGES[:1], tmp_path / 'p.html', hover='none')}")
    point(tab, 0, 1)
    tab.locator("#view").click()
    tab.keyboard.press("Shift+L")
    told(tab, "Where the class token attends in block 1")
    assert "Point at" not in tab.inner_text("#keys")
    assert tab.locator("#tokens button:visible").count() == 1


def test_a_click_holds_a_patch(visit, written):
    tab = visit(f"file://{written}")
    point(tab, 0, 0)
    tab.mouse.down()
    tab.mouse.up()
    told(tab, "Held: click the patch again", "keys")
    point(tab, 1, 2)
    tab.get_by_label("Head", exact=True).select_option("head 1")
    told(tab, "row 1, column 1 attends in block 2, head 1.")
    point(tab, 1, 2)
    tab.mouse.down()
    tab.mouse.up()
    told(tab, "row 2, column 3")
    tab.mouse.down()
    tab.mouse.up()
    tab.mouse.move(1, 1)
    told(tab, "the class token attends")


def test_the_legend_has_numbers(visit, written, model):
    tab = visit(f"file://{written}")
    shares = inspection.attention_maps(model, IMAGES[:1])[-1][0, :, 0, 2:].mean(0)
    least, most = (tab.inner_text(f"#{name}").split()[0] for name in ("least", "most"))
    assert float(least) == pytest.approx(100 * shares.min(), abs=0.6)
    assert float(most) == pytest.approx(100 * shares.max(), abs=0.6)
    assert tab.inner_text("#alike") == ""  # six patches have no two in a hundred


def test_where_only_the_mean_is_known(visit, model, tmp_path):
    tab = visit(f"file://{page.write_page(model, IMAGES[:1], tmp_path / 'p.html', hover='mean')}")
    tab.get_by_label("Head", exact=True).select_option("head 2")
    point(tab, 0, 1)
    told(tab, "attends in block 2, the mean of all heads, which is all that this page knows")
    assert tab.locator("#head").input_value() == "-1"
    assert tab.locator("#head").is_disabled()
    tab.mouse.move(1, 1)
    told(tab, "head 2")


def test_attention_pooling(visit, tmp_path):
    options = {**VIT, "pooling": "map", "class_token": False, "num_registers": 0}
    model = keras_vit.VisionTransformer(**options)
    harness.randomize(model)
    tab = visit(f"file://{page.write_page(model, IMAGES[:1], tmp_path / 'p.html')}")
    told(tab, "Where all tokens attend in block 2")
    tab.locator("#show").select_option("pooling")
    told(tab, "Where the pooling attends, the mean of its heads.")
    expected = inspection.output_attention(model, IMAGES[:1])[0].mean(0)
    assert warmest(tab) == brightest(expected)


# Live ---------------------------------------------------------------------------------------


def png(image):
    stream = io.BytesIO()
    pytest.importorskip("PIL.Image").fromarray(image).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def served(model):
    def read(data):
        return keras_vit.data.decode_image(data, (16, 24))

    with live.Server(model, read, port=0, class_names=CLASSES) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_picture_is_dropped(visit, served, model):
    tab = visit(served.url)
    assert tab.locator("#look").is_hidden() and tab.locator("#distance-card").is_hidden()
    file = {"name": "mine.png", "mimeType": "image/png", "buffer": png(IMAGES[0])}
    tab.set_input_files("#file", file)
    told(tab, "Where the class token attends in block 2")
    assert tab.inner_text("#status") == ""
    likely = inspection.probabilities(model, IMAGES[:1])[0]
    first = tab.locator("#classes button").first.inner_text()
    assert first.startswith(CLASSES[likely.argmax()])
    scores = inspection.attention_maps(model, IMAGES[:1])[-1][0, :, 0, 2:].mean(0)
    assert warmest(tab) == brightest(scores)
    more = [{**file, "name": f"{n}.png", "buffer": png(IMAGES[n % 2])} for n in range(12)]
    tab.set_input_files("#file", more)
    tab.wait_for_function(
        "() => document.querySelector('#pictures button:last-child span').textContent === '11.png'"
    )
    tab.wait_for_selector("#pictures button:last-child[aria-pressed=true]")
    assert tab.locator("#pictures button").count() == 12  # the first one has gone
    assert tab.locator("#pictures button").first.inner_text() == "0.png"


def test_a_file_that_is_no_picture(browser, served):
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(served.url)
    tab.wait_for_selector("html[data-ready=yes]")
    tab.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"words"})
    told(tab, "not a picture", "status")
    assert tab.inner_text("#status").startswith("a.txt: ")
    large = {"name": "b.png", "mimeType": "image/png", "buffer": b"0" * (MOST_BYTES + 1)}
    tab.set_input_files("#file", large)
    told(tab, "is the most", "status")
    assert tab.locator("#look").is_hidden()
    context.close()
