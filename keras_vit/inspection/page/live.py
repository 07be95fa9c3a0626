"""The page, served to this computer: a picture is dropped, and looked into."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from keras_vit.inspection.page import contents
from keras_vit.inspection.page.file import check_classes, check_pixels, chosen_hover
from keras_vit.inspection.page.render import render
from keras_vit.models.vit import VisionTransformer

MOST_BYTES = 20_000_000
_SECONDS = 30  # that a sender may be silent
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Read = Callable[[bytes], np.ndarray]


class _Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, words: str):
        super().__init__(words)
        self.status = status


class Server(ThreadingHTTPServer):
    """Serves the page, and looks at one picture at a time; nothing is kept.

    Args:
        model: a `VisionTransformer` that takes pixels 0..255.
        read: makes a file's bytes an image `(height, width, channels)`, uint8, as the model takes
            it; raises a ValueError whose message says what is wrong with them.
        host: address to listen on.
        port: port; 0 for any that is free.
        class_names: names of the model's classes; `None` for numbers.
        title: heading; `None`: the model's name.

    Raises:
        ValueError: if the model is no `VisionTransformer` or takes scaled pixels.
        OSError: if the address is taken, or not this computer's.
    """

    daemon_threads = True

    def __init__(
        self,
        model: VisionTransformer,
        read: Read,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        class_names: Sequence[str] | None = None,
        title: str | None = None,
    ):
        check_pixels(model)
        check_classes(model, class_names)
        self._model, self._read, self._names = model, read, class_names
        self._hover = chosen_hover(model, 1, None)
        self._looking = threading.Lock()
        content = {
            "title": model.name if title is None else title,
            "live": {"most": MOST_BYTES},
            "model": contents.of_model(model),
            "pictures": [],
        }
        self.page = render(content).encode()
        # Who listens on all addresses has names that it does not know.
        self.hosts = None if host in ("", "0.0.0.0", "::") else (*_LOOPBACK, host)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise OSError(
                f"Cannot listen on {host}, port {port} ({error.strerror}): pass another `port`."
            ) from error

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        return f"http://{host}:{port}/"

    def look(self, data: bytes, name: str) -> dict[str, Any]:
        """What the page shows of a picture.

        Args:
            data: the file's bytes.
            name: its name.

        Raises:
            ValueError: if the bytes are no picture.
        """
        image = self._read(data)
        options = {"class_names": self._names, "hover": self._hover}
        with self._looking:
            return contents.of_picture(self._model, image, image, name, **options)


class _Handler(BaseHTTPRequestHandler):
    """Answers `GET /` with the page and `POST /look` with what was found in a picture."""

    server: Server  # type: ignore[assignment]
    timeout = _SECONDS
    protocol_version = "HTTP/1.1"
    server_version = "keras-vit"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers with the page."""
        self._answered(self._page)

    def do_POST(self) -> None:
        """Answers with what was found in a picture."""
        self._answered(self._look)

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps silent: what was asked is nobody's business."""

    def _answered(self, answer: Callable[[], tuple[str, bytes]]) -> None:
        status = 200
        try:
            self._check_host()
            kind, body = answer()
        except _Refused as refused:
            status, kind, body = refused.status, *_json({"error": str(refused)})
        if status != 200:
            self.close_connection = True  # what was not read of the request is not the next one
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Frame-Options", "DENY")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _check_host(self) -> None:
        """Refuses what was sent under another name: a page elsewhere may call itself this one."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if self.server.hosts is not None and host not in self.server.hosts:
            raise _Refused(403, f"This server is {self.server.url}; it has no other name.")

    def _page(self) -> tuple[str, bytes]:
        if urlsplit(self.path).path != "/":
            raise _Refused(404, "There is nothing here; the page is at /.")
        return "text/html; charset=utf-8", self.server.page

    def _look(self) -> tuple[str, bytes]:
        address = urlsplit(self.path)
        if address.path != "/look":
            raise _Refused(404, "There is nothing here; the page is at /.")
        # Pages of other origins cannot send it: browsers would ask first, and get no answer.
        if self.headers.get("X-Keras-Vit") != "look":
            raise _Refused(403, "Pictures come from this server's own page.")
        name = parse_qs(address.query).get("name", ["picture"])[0][:200]
        try:
            found = self.server.look(self._body(), name)
        except ValueError as error:
            raise _Refused(400, f"{name}: {error}") from error
        return _json({"picture": found})

    def _body(self) -> bytes:
        size = self.headers.get("Content-Length", "")
        if not size.isascii() or not size.isdigit():
            raise _Refused(411, "The picture's size must be said in Content-Length.")
        if len(size) > 12 or int(size) > MOST_BYTES:
            raise _Refused(
                413, f"The picture is too large: {MOST_BYTES // 1_000_000} MB is the most."
            )
        try:
            data = self.rfile.read(int(size))
        except OSError as error:  # the sender fell silent
            raise _Refused(408, "The picture did not arrive in full.") from error
        if len(data) < int(size):
            raise _Refused(400, "The picture did not arrive in full.")
        return data


def _json(value: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def serve(
    model: VisionTransformer,
    read: Read,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    class_names: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Serves the page until interrupted; see `Server`.

    Args:
        model: a `VisionTransformer` that takes pixels 0..255.
        read: makes a file's bytes an image; see `Server`.
        host: address to listen on; the default is reached from this computer alone.
        port: port; 0 for any that is free.
        class_names: names of the model's classes; `None` for numbers.
        title: heading; `None`: the model's name.
    """
    options = {"host": host, "port": port, "class_names": class_names, "title": title}
    with Server(model, read, **options) as server:
        server.serve_forever()
