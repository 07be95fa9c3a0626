"""Downloads, from a server on the loopback interface; nothing leaves this machine."""

import hashlib
import http.server
import io
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit._atomic import umask
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.models import download
from keras_vit.models.download import cached_path, fetch, resolve_source


def archive(value: float = 1.0) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, kernel=np.full((3, 5), value, "float32"))
    return buffer.getvalue()


GOOD = archive()
PAGE = b"<!doctype html><title>Sign in</title>"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.answers`: path -> (status, headers, body)."""

    def do_GET(self):  # noqa: N802
        self.server.requests.append(self.path)
        status, headers, body = self.server.answers.get(self.path, (404, {}, PAGE))
        self.send_response(status)
        if isinstance(body, bytes):
            headers, body = {"Content-Length": len(body), **headers}, [body]
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, str(value))
        self.end_headers()
        for piece in body:
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.answers, running.requests = {}, []
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Keras' cache, empty; no proxy before the loopback interface."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "keras"


def files(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("*") if path.is_file())


def serve(server, body=GOOD, path="/vit.npz", status=200, **headers) -> str:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    server.answers[path] = (status, names, body)
    return server.url + path


def test_good_file(server, home, capsys):
    url = serve(server)
    path = resolve_source(url, sha256=hashlib.sha256(GOOD).hexdigest().upper())
    assert path == cached_path(url)
    assert path.parent == home / "models" / "keras_vit"
    assert path.name.endswith("-vit.npz")
    assert path.read_bytes() == GOOD
    assert files(home) == [path.name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    shown = capsys.readouterr().out
    assert url in shown and f"{len(GOOD)}/{len(GOOD)}" in shown


def test_cache_hit_makes_no_request(server):
    url = serve(server)
    assert resolve_source(url) == resolve_source(url)
    assert server.requests == ["/vit.npz"]


def test_without_a_length(server):
    url = serve(server, Content_Length=None)
    assert resolve_source(url).read_bytes() == GOOD


def test_silent_if_keras_is(server, capsys, caplog):
    keras.config.disable_interactive_logging()
    try:
        resolve_source(serve(server))
    finally:
        keras.config.enable_interactive_logging()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("answer", "message"),
    (
        ({"body": GOOD[:-40], "Content_Length": len(GOOD)}, "of [0-9]+: the connection broke off"),
        ({"body": GOOD[:-40], "Content_Length": None}, "is not what was expected"),
        ({"body": PAGE}, "vit.npz is not what was expected"),
        ({"body": b""}, "is not what was expected"),
        ({"body": PAGE, "status": 404}, "answers 404 Not Found"),
        ({"body": PAGE, "status": 503}, "answers 503"),
        ({"body": b"", "status": 302, "Location": "http://example.com/x"}, "'https://' addresses"),
        ({"body": b"", "status": 302, "Location": "file:///etc/passwd"}, "is not allowed"),
    ),
)
def test_bad_answer(server, home, answer, message):
    url = serve(server, **answer)
    with pytest.raises(CheckpointError, match=message) as caught:
        resolve_source(url)
    assert f"/.{cached_path(url).stem}" not in str(caught.value)
    assert files(home) == []


def test_wrong_digest(server, home):
    url = serve(server)
    found = hashlib.sha256(GOOD).hexdigest()
    with pytest.raises(CheckpointError, match=f"SHA-256 {found}. Expected: 0{{64}}"):
        resolve_source(url, sha256="0" * 64)
    assert files(home) == []


def test_follows_a_redirect(server):
    serve(server, path="/moved/vit.npz")
    url = serve(server, b"", status=302, Location="/moved/vit.npz")
    assert resolve_source(url).read_bytes() == GOOD


def test_damaged_file_is_fetched_again(server, home):
    url = serve(server)
    path = cached_path(url)
    path.parent.mkdir(parents=True)
    path.write_bytes(GOOD[:100])
    assert resolve_source(url).read_bytes() == GOOD
    assert server.requests == ["/vit.npz"]
    assert files(home) == [path.name]


def test_file_of_another_digest_is_fetched_again(server):
    url = serve(server, archive(2.0))
    resolve_source(url)
    new = serve(server, archive(3.0))
    assert new == url
    digest = hashlib.sha256(archive(3.0)).hexdigest()
    assert resolve_source(url, sha256=digest).read_bytes() == archive(3.0)


def test_damaged_file_stays_if_there_is_no_better(server):
    url = serve(server, PAGE)
    path = cached_path(url)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(CheckpointError, match="is not what was expected"):
        resolve_source(url)
    assert path.read_bytes() == b"mine"
    assert server.requests == ["/vit.npz"]


def test_offline_says_where_to_put_the_file(home):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/vit.npz"
        path = cached_path(url)
        with pytest.raises(CheckpointError, match="cannot be reached .*refused") as caught:
            resolve_source(url)
        assert url in str(caught.value) and f"put it at {path}" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert files(home) == []
        path.write_bytes(GOOD)
        assert resolve_source(url) == path


def test_a_silent_server_ends(home, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/vit.npz"
        with pytest.raises(CheckpointError, match="cannot be reached .*timed out"):
            resolve_source(url)
    assert files(home) == []


def test_two_addresses_with_the_same_name(server):
    first = serve(server, archive(1.0), "/a/vit.npz")
    second = serve(server, archive(2.0), "/b/vit.npz")
    third = serve(server, archive(3.0), "/b/vit.npz?version=2")
    for value, url in enumerate((first, second, third), 1):
        assert resolve_source(url).read_bytes() == archive(value)


@pytest.mark.parametrize(
    ("address", "name"),
    (
        ("https://host/a/B_16-i21k.npz?x=1#y", "B_16-i21k.npz"),
        ("https://host/a/R50%2BViT-B_16.npz", "R50+ViT-B_16.npz"),
        ("https://host/..%2F..%2Fetc%2Fpasswd", ".._.._etc_passwd"),
        ("https://host/%00%0A%5C.npz", "___.npz"),
        ("https://host/", ""),
        ("https://host", ""),
        ("https://host/" + 300 * "x" + ".npz", 196 * "x" + ".npz"),
    ),
)
def test_name_in_the_cache(home, address, name):
    path = cached_path(address)
    assert path.parent == home / "models" / "keras_vit"
    digits, _, rest = path.name.partition("-")
    assert len(digits) == 8 and rest == name


def test_killed_download_leaves_nothing_under_the_name(server, home):
    killed = threading.Event()

    def slowly():
        yield GOOD[:-1]
        killed.wait(120)

    url = serve(server, slowly(), Content_Length=len(GOOD))
    code = f"from keras_vit.models.download import resolve_source as r; r({url!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    path = cached_path(url)
    partial = f".{path.stem}-*"
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not [*path.parent.glob(partial)]:
            assert process.poll() is None
            time.sleep(0.05)
        assert not path.exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed.set()
    assert [*path.parent.glob(partial)]
    assert not path.exists()
    serve(server)
    assert resolve_source(url).read_bytes() == GOOD


def test_interrupted_download_leaves_nothing(server, home, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.utils.Progbar, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        resolve_source(serve(server))
    assert files(home) == []


def test_cache_that_cannot_be_written(server, home):
    home.mkdir()
    (home / "models").write_text("a file where the directory should be")
    with pytest.raises(CheckpointError, match="cannot be written to .*set KERAS_HOME"):
        resolve_source(serve(server))


def test_home_that_is_not_writable(tmp_path, monkeypatch):
    """As `get_file` does: `.keras` below the temporary directory."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "file" / "keras"))
    (tmp_path / "file").write_text("")
    assert download.keras_home() == Path("/tmp/.keras")


@pytest.mark.parametrize(
    "address",
    (
        *("http://example.com/vit.npz", "http://127.0.0.1.example.com/vit.npz"),
        *("http://10.0.0.1/vit.npz", "https:///vit.npz", "HTTP://example.com/vit.npz"),
    ),
)
def test_plain_http_is_refused(home, address):
    with pytest.raises(CheckpointError, match=f"'https://' addresses only. Received: {address}"):
        resolve_source(address)
    assert files(home) == []


@pytest.mark.parametrize("host", ("localhost", "127.0.0.1", "[::1]"))
def test_plain_http_on_this_machine(host):
    with pytest.raises(CheckpointError, match="cannot be reached"):
        resolve_source(f"http://{host}:1/vit.npz")


def test_local_paths(tmp_path, monkeypatch):
    path = tmp_path / "vit.npz"
    path.write_bytes(GOOD)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_source(path) == resolve_source(str(path)) == resolve_source("~/vit.npz") == path
    assert resolve_source(tmp_path) == tmp_path
    assert resolve_source(path, sha256=hashlib.sha256(GOOD).hexdigest()) == path
    with pytest.raises(CheckpointError, match="vit.npz has the SHA-256 "):
        resolve_source(path, sha256="0" * 64)
    with pytest.raises(CheckpointError, match="is a directory: leave it out"):
        resolve_source(tmp_path, sha256="0" * 64)


@pytest.mark.parametrize("source", ("nowhere.npz", "gs://bucket/a.npz", "ftp://host/x", "", None))
def test_what_is_possible(source):
    message = "Expected a local path, an 'https://' address, or 'hf://owner/name.*Received: "
    with pytest.raises(CheckpointError, match=f"{message}{source!r}"):
        resolve_source(source)


def test_other_content(server, home):
    """Any file that a check accepts; the check runs on the cached file, too."""

    def check(path):
        if path.read_bytes() != b"yes":
            raise CheckpointError(f"{path} says no")

    path = home / "lists" / "a.txt"
    url = serve(server, b"no", "/a.txt")
    with pytest.raises(CheckpointError, match="a.txt is not what was expected: the file says no"):
        fetch(url, path, check)
    serve(server, b"yes", "/a.txt")
    assert fetch(url, path, check) == path
