"""The page's server: what it answers, what it refuses, and that it goes on after all of it."""

import http.client
import io
import json
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import harness
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.inspection.page import answers, contents, live

Image = pytest.importorskip("PIL.Image", reason="keras_vit.data decodes with Pillow")
# On each backend `tests/test_cli_inspect.py` starts it, and a picture is looked at.
pytestmark = harness.once("no backend has a part in it")
VIT = {**harness.TINY_VIT, "image_shape": (16, 24, 3), "num_registers": 1}
PICTURE = harness.pixels((16, 24, 3)).astype("uint8")
OWN = {"X-Keras-Vit": "look"}
HEAD = b"POST /look HTTP/1.1\r\nHost: localhost\r\nX-Keras-Vit: look\r\nContent-Length: 99\r\n\r\n"


def png(image=PICTURE):
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def read(data):
    return keras_vit.data.decode_image(data, (16, 24))


@pytest.fixture(scope="module")
def model():
    model = keras_vit.VisionTransformer(**VIT)
    harness.randomize(model)
    return model


@pytest.fixture(scope="module")
def server(model):
    with live.Server(model, read, port=0, class_names=["a", "b", "c"], title="Mine") as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, method, path, body=None, headers=OWN):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def error_of(answer):
    status, headers, body = answer
    assert headers["Content-Type"] == "application/json"
    return status, json.loads(body)["error"]


def still_works(server):
    status, _, body = ask(server, "POST", "/look?name=a.png", png())
    return status == 200 and json.loads(body)["picture"]["name"] == "a.png"


def test_the_page(server):
    status, headers, body = ask(server, "GET", "/", headers={})
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"<title>Mine</title>" in body and b"connect-src 'self'" in body
    assert headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-store"
    assert not any(name.startswith("Access-Control") for name in headers)


def test_it_listens_to_this_computer(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/"


def test_a_picture(server, model):
    status, _, body = ask(server, "POST", "/look?name=caf%C3%A9.png", png())
    found = json.loads(body)["picture"]
    assert status == 200 and found["name"] == "café.png"
    likely = inspection.probabilities(model, PICTURE[None])[0]
    assert found["classes"][0]["name"] == "abc"[likely.argmax()]
    assert found["classes"][0]["probability"] == pytest.approx(likely.max(), abs=1e-5)
    assert found["hover"]["kind"] == "heads"


def test_a_picture_of_another_size_and_kind(server):
    stream = io.BytesIO()
    Image.fromarray(np.full((50, 31), 9, "uint8")).save(stream, "JPEG")
    status, _, body = ask(server, "POST", "/look", stream.getvalue())
    assert status == 200 and json.loads(body)["picture"]["name"] == "picture"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"no picture", "not a picture"),
        (png()[:60], "truncated|damaged|broken"),
        (b"GIF89a" + b"\xff" * 40, "not a picture"),
    ],
    ids=["empty", "text", "cut", "header alone"],
)
def test_what_is_no_picture(server, data, words):
    status, error = error_of(ask(server, "POST", "/look?name=x.png", data))
    assert status == 400 and error.startswith("x.png: ")
    assert any(word in error for word in words.split("|"))
    assert still_works(server)


def test_too_large(server):
    headers = {**OWN, "Content-Length": str(answers.MOST_BYTES + 1)}
    status, error = error_of(ask(server, "POST", "/look", b"few bytes", headers))
    assert status == 413 and "20 MB" in error
    assert still_works(server)


@pytest.mark.parametrize("length", ["-1", "many", "", "1e3", "9" * 40])
def test_lengths_that_are_none(server, length):
    status, error = error_of(ask(server, "POST", "/look", None, {**OWN, "Content-Length": length}))
    assert status in (411, 413) and error
    assert still_works(server)


def raw(server, text, close=True):
    """What the server sends after this text; the sender's side is closed behind it."""
    with socket.create_connection(server.server_address[:2], timeout=60) as connection:
        connection.sendall(text)
        if close:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_picture_that_does_not_arrive_in_full(server):
    head = (
        b"POST /look HTTP/1.1\r\nHost: localhost\r\nX-Keras-Vit: look\r\nContent-Length: 99\r\n\r\n"
    )
    found = raw(server, head + b"only this")
    assert found.startswith(b"HTTP/1.1 400") and b"did not arrive in full" in found
    assert still_works(server)


def test_a_silent_sender(server, monkeypatch):
    monkeypatch.setattr(answers.Handler, "timeout", 0.3)
    head = (
        b"POST /look HTTP/1.1\r\nHost: localhost\r\nX-Keras-Vit: look\r\nContent-Length: 99\r\n\r\n"
    )
    found = raw(server, head, close=False)
    assert found.startswith(b"HTTP/1.1 408")
    assert still_works(server)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""]
)
def test_other_names_for_this_computer(server, host):
    """A page elsewhere whose name leads to this computer gets nothing."""
    for method in ("GET", "POST"):
        status, error = error_of(ask(server, method, "/", None, {**OWN, "Host": host}))
        assert status == 403 and server.url in error


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1", "[::1]:8000"])
def test_its_own_names(server, host):
    assert ask(server, "GET", "/", None, {"Host": host})[0] == 200


def test_pages_of_other_origins(server):
    headers = {"Content-Type": "image/png", "Origin": "https://evil.example"}
    status, error = error_of(ask(server, "POST", "/look", png(), headers))
    assert status == 403 and "own page" in error
    status, headers, _ = ask(server, "OPTIONS", "/look", None, headers)
    assert status == 501 and not any(name.startswith("Access-Control") for name in headers)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/../../etc/passwd", "/look", "//evil", "/?x=/look/"]
)
def test_nothing_else_is_there(server, path):
    status, _, body = ask(server, "GET", path)
    if path == "/?x=/look/":
        assert status == 200
    else:
        assert status == 404 and b"page is at /" in body


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), MemoryError(), KeyError("x")])
def test_a_model_that_fails(server, monkeypatch, error):
    def fails(*args, **options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(contents, "of_picture", fails)
        status, words = error_of(ask(server, "POST", "/look", png()))
    assert status == 500 and words == f"The model failed: {error}"
    assert still_works(server)


def test_a_model_that_has_diverged(model):
    other = keras_vit.VisionTransformer(**VIT)
    head = other.get_layer("head")
    head.set_weights([np.full_like(weights, np.inf) for weights in head.get_weights()])
    with live.Server(other, read, port=0) as server:
        with pytest.raises(ValueError, match="a.png are not finite") as found:
            server.look(png(), "a.png")
        assert not isinstance(found.value, answers.BadUpload)


def test_a_refusal_is_read_by_who_still_sends(server):
    for headers in ({**OWN}, {"X-Keras-Vit": "no"}):
        status, error = error_of(ask(server, "POST", "/look", bytes(30_000_000), headers))
        assert status == (413 if headers == OWN else 403) and error
    assert still_works(server)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: [\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [x]\r\n\r\n",
        b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST http://[/look HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_addresses_that_are_none(server, head, capfd):
    assert raw(server, head).startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
    assert capfd.readouterr() == ("", "")


def test_clients_that_go_away(server, capfd):
    for text in (b"GET / HT", HEAD + b"some", HEAD):
        connection = socket.create_connection(server.server_address[:2], timeout=60)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(text)
        connection.close()  # a reset, no farewell
    assert still_works(server)
    assert capfd.readouterr() == ("", "")


def test_the_end_waits_for_the_picture_in_hand(model, monkeypatch):
    """A process that ends while a thread computes is taken down by it."""
    begun, done = threading.Event(), []

    def slow(*args, **options):
        begun.set()
        time.sleep(0.5)
        done.append(True)
        return {}

    monkeypatch.setattr(contents, "of_picture", slow)
    with live.Server(model, read, port=0) as server:
        thread = threading.Thread(target=server.look, args=(png(), "a.png"))
        thread.start()
        assert begun.wait(30) and not done
    assert done == [True]
    thread.join()
    server.server_close()  # once more does no harm


def test_several_at_once(server):
    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(lambda _: still_works(server), range(12)))


def test_nothing_is_said(server, capfd):
    ask(server, "GET", "/nothing")
    assert capfd.readouterr() == ("", "")


def test_whoever_listens_everywhere_has_many_names(model):
    for host in ("0.0.0.0", "0", ""):
        with live.Server(model, read, host=host, port=0) as server:
            assert server.hosts is None


def test_names_in_capitals_and_numbers(model):
    with live.Server(model, read, host="LOCALHOST", port=0) as server:
        assert server.hosts == {"127.0.0.1", "localhost", "::1"}
    with live.Server(model, read, host="127.1", port=0) as server:
        assert {"127.0.0.1", "127.1"} <= server.hosts


@pytest.mark.skipif(not socket.has_ipv6, reason="Python has no IPv6 here")
def test_the_other_family(model):
    try:
        server = live.Server(model, read, host="::1", port=0)
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with server:
        assert server.url == f"http://[::1]:{server.server_address[1]}/"


def test_an_address_that_is_taken(model, server):
    port = server.server_address[1]
    with pytest.raises(OSError, match=rf"127.0.0.1, port {port} \(.*in use\).*`port`"):
        live.Server(model, read, port=port)
    with pytest.raises(OSError, match="nobody.invalid, port 0.*another `host`"):
        live.Server(model, read, host="nobody.invalid", port=0)
