"""The page, served to this computer: a picture is dropped, and looked into."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import ThreadingHTTPServer
from typing import Any

import numpy as np

from keras_vit.inspection.page import contents
from keras_vit.inspection.page.answers import MOST_BYTES, BadUpload, Handler
from keras_vit.inspection.page.file import check_classes, check_pixels, chosen_hover
from keras_vit.inspection.page.render import render
from keras_vit.models.vit import VisionTransformer

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE = ("0.0.0.0", "::")
_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)

Read = Callable[[bytes], np.ndarray]


class Server(ThreadingHTTPServer):
    """Serves the page, and looks at one picture at a time; nothing is kept.

    Args:
        model: a `VisionTransformer` that takes pixels 0..255.
        read: makes a file's bytes an image `(height, width, channels)`, uint8, as the model takes
            it; raises a ValueError whose message says what is wrong with them.
        host: address to listen on; the default is reached from this computer alone.
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
        self._looking, self._closed = threading.Lock(), False
        content = {
            "title": model.name if title is None else title,
            "live": {"most": MOST_BYTES},
            "model": contents.of_model(model),
            "pictures": [],
        }
        self.page = render(content).encode()
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            other = "port" if error.errno in _PORT_ERRORS else "host"
            raise OSError(
                f"Cannot listen on {host}, port {port} ({error.strerror}): pass another `{other}`."
            ) from error
        bound = str(self.server_address[0])
        # Who listens on all addresses has names that it does not know.
        self.hosts = None if bound in _EVERYWHERE else {*_LOOPBACK, host.lower(), bound}

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        return f"http://[{host}]:{port}/" if ":" in str(host) else f"http://{host}:{port}/"

    def look(self, data: bytes, name: str) -> dict[str, Any]:
        """What the page shows of a picture.

        Args:
            data: the file's bytes.
            name: its name.

        Raises:
            BadUpload: if the bytes are no picture.
        """
        with self._looking:
            try:
                image = self._read(data)
            except ValueError as error:
                raise BadUpload(str(error)) from error
            options = {"class_names": self._names, "hover": self._hover}
            return contents.of_picture(self._model, image, image, name, **options)

    def server_close(self) -> None:
        """Ends, after the picture that is being looked at; no other is begun."""
        super().server_close()
        # A thread that is in the middle of native code when the process ends would take it down.
        if not self._closed:
            self._closed = True
            self._looking.acquire()

    def handle_error(self, request, client_address) -> None:
        """Says nothing of clients that went away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def serve(
    model: VisionTransformer,
    read: Read,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    class_names: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Serves the page until interrupted.

    Args:
        model: a `VisionTransformer` that takes pixels 0..255.
        read: makes a file's bytes an image `(height, width, channels)`, uint8, as the model takes
            it, and raises a ValueError that says what is wrong with them; see the example.
        host: address to listen on; the default is reached from this computer alone.
        port: port; 0 for any that is free.
        class_names: names of the model's classes; `None` for numbers.
        title: heading; `None`: the model's name.

    Raises:
        ValueError: if the model is no `VisionTransformer` or takes scaled pixels.
        OSError: if the address is taken, or not this computer's.

    Example:
        ```python
        serve(model, lambda data: keras_vit.data.decode_image(data, (224, 224)))
        ```
    """
    options = {"host": host, "port": port, "class_names": class_names, "title": title}
    with Server(model, read, **options) as server:
        server.serve_forever()
