"""What the live page's server answers, and whom."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from keras_vit.inspection.page.encoding import printable

if TYPE_CHECKING:
    from keras_vit.inspection.page.live import Server

MOST_BYTES = 20_000_000
_SILENCE = 30  # seconds that a sender may be silent
# What is read and thrown away behind a refusal, so that the sender gets to read it.
_DRAINED_BYTES, _DRAINED_SECONDS = 100_000_000, 5.0
_ELSEWHERE = "There is nothing here; the page is at /."


class BadUpload(ValueError):
    """Bytes that are no picture; the message says why."""


class _Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, words: str):
        super().__init__(words)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """Answers `GET /` with the page and `POST /look` with what was found in a picture."""

    server: Server  # type: ignore[assignment]
    timeout = _SILENCE
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
        except Exception as error:  # out of memory, say: the page says so, and the server goes on
            status, kind, body = 500, *_json({"error": f"The model failed: {error}"})
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
        if status != 200:
            self._drain()

    def _drain(self) -> None:
        """Reads what is still being sent: to close before would take the answer away."""
        end, left = time.monotonic() + _DRAINED_SECONDS, _DRAINED_BYTES
        self.wfile.flush()
        self.connection.settimeout(0.5)
        with contextlib.suppress(OSError):
            while left > 0 and time.monotonic() < end:
                found = len(self.connection.recv(65536))
                left = left - found if found else 0

    def _check_host(self) -> None:
        """Refuses what was sent under another name: a page elsewhere may call itself this one."""
        host = _split(f"//{self.headers.get('Host', '')}").hostname
        if self.server.hosts is not None and host not in self.server.hosts:
            raise _Refused(403, f"This server is {self.server.url}; it has no other name.")

    def _page(self) -> tuple[str, bytes]:
        if _split(self.path).path != "/":
            raise _Refused(404, _ELSEWHERE)
        return "text/html; charset=utf-8", self.server.page

    def _look(self) -> tuple[str, bytes]:
        address = _split(self.path)
        if address.path != "/look":
            raise _Refused(404, _ELSEWHERE)
        # Pages of other origins cannot send it: browsers would ask first, and get no answer.
        if self.headers.get("X-Keras-Vit") != "look":
            raise _Refused(403, "Pictures come from this server's own page.")
        name = parse_qs(address.query).get("name", ["picture"])[0][:200]
        try:
            return _json({"picture": self.server.look(self._body(), name)})
        except BadUpload as error:
            raise _Refused(400, f"{name}: {error}") from error

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


def _split(address: str) -> SplitResult:
    try:
        found = urlsplit(address)
        _ = found.hostname  # which is what some malformed addresses fail at
        return found
    except ValueError as error:
        raise _Refused(400, f"That is no address ({error}).") from error


def _json(value: Any) -> tuple[str, bytes]:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return "application/json", printable(text).encode()
