"""Local paths of what users name: files, addresses, repositories of the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ipaddress
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import keras

from keras_vit._atomic import replacing
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.files import open_checkpoint
from keras_vit.models.hub import resolve_hub

CACHE_FOLDER = "models/keras_vit"
# Seconds that a server may stay silent: on connecting, and between two blocks.
TIMEOUT = 30.0
_BLOCK = 1 << 20


def resolve_source(source: str | os.PathLike, *, sha256: str | None = None) -> Path:
    """Turns what a user names into a local path; downloads it where it is remote.

    Args:
        source: a local file or directory; `"hf://owner/name"`, with `@revision` and
            `/folder-or-file` after it where needed, for the Hugging Face Hub, whose own cache,
            token and offline mode apply; or an `https://` address, which goes to Keras' cache.
        sha256: hexadecimal digest that the file must have.

    Returns:
        A file or directory that exists.

    Raises:
        CheckpointError: if there is no such thing, it cannot be fetched, or it is not what it
            should be. The message says what to do.
        ImportError: if `hf://` needs huggingface_hub and it is not installed.
    """
    text = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    scheme = text.partition("://")[0].lower() if "://" in text else None
    if scheme in ("https", "http"):
        return fetch(text, cached_path(text), _check_checkpoint, sha256=sha256)
    path = resolve_hub(text) if scheme == "hf" else Path(text).expanduser()
    if not text or scheme not in (None, "hf") or not path.exists():
        raise CheckpointError(
            "No such file or directory. Expected a local path, an 'https://' address, or "
            f"'hf://owner/name[@revision][/folder-or-file]'. Received: {source!r}"
        )
    if sha256 is not None:
        _check_digest(path, sha256)
    return path


def cached_path(url: str) -> Path:
    """Where the file of an address lies, or will lie, in Keras' cache.

    Its name is the last part of the address, after a few digits of the whole address' hash:
    addresses that end alike do not collide.
    """
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    # Decoded, the name may hold anything, separators included.
    name = re.sub(r"[^A-Za-z0-9._+=-]", "_", name)[-200:]
    return keras_home() / CACHE_FOLDER / f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{name}"


def keras_home() -> Path:
    """The directory that `keras.utils.get_file` caches in, which Keras gives no name to."""
    home = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
    if os.access(home, os.W_OK):
        return home
    return Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir(), ".keras")


def fetch(
    url: str, path: Path, check: Callable[[Path], object], *, sha256: str | None = None
) -> Path:
    """Downloads a file, unless it is there already and sound.

    `keras.utils.get_file` is not used: it writes under the final name from the start, so that
    what a killed process leaves passes for the file, leaves a file of the wrong digest there,
    and has no timeout. Here the file gets its name when it is whole and checked.

    Args:
        url: `https://` address; `http://` only on this very machine.
        path: where to put it.
        check: raises `CheckpointError` if a file does not hold what it should.
        sha256: hexadecimal digest that the file must have.

    Returns:
        `path`.

    Raises:
        CheckpointError: if the file cannot be had, or is not what it should be. One that was
            there before and is damaged stays until a sound one replaces it.
    """
    _check_address(url)
    try:
        if path.exists():
            with contextlib.suppress(CheckpointError):
                _check_file(path, check, sha256)
                return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            with open(partial, "wb") as file:
                _download(url, path, file)
            try:
                _check_file(partial, check, sha256)
            except CheckpointError as error:
                reason = str(error).replace(str(partial), "the file")
                raise CheckpointError(f"{url} is not what was expected: {reason}") from error
    except OSError as error:
        raise CheckpointError(
            f"{url} cannot be written to {path} ({error}): see to room and permissions there, or "
            "set KERAS_HOME to another directory."
        ) from error
    return path


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to where one may go in the first place."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        try:
            _check_address(newurl)
        except CheckpointError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(url: str, path: Path, file) -> None:
    """Writes what an address sends; `path` is for messages.

    Raises:
        CheckpointError: if it cannot be reached, refuses, or sends less than it announced.
        OSError: if the file cannot be written.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "keras_vit"})
    failures = (OSError, http.client.HTTPException)
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise CheckpointError(
            f"{url} cannot be downloaded: the server answers {error.code} {error.reason}. Check "
            f"the address, or put the file at {path}, where it will be found."
        ) from error
    except failures as error:
        raise CheckpointError(_unreachable(url, path, error)) from error
    with response:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        if keras.config.is_interactive_logging_enabled():
            print(f"Downloading {url} to {path}")
        progress, received = keras.utils.Progbar(total or None), 0
        while True:
            try:
                block = response.read(_BLOCK)
            except failures as error:
                raise CheckpointError(_unreachable(url, path, error)) from error
            if not block:
                break
            file.write(block)
            received += len(block)
            progress.update(received)
        if total is None:
            progress.update(received, finalize=True)
    if total not in (None, received):
        raise CheckpointError(
            f"{url} sent {received} bytes of {total}: the connection broke off. Try again, or "
            f"put the file at {path}, where it will be found."
        )


def _unreachable(url: str, path: Path, error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return (
        f"{url} cannot be reached ({reason}): fetch it by other means and put it at {path}, where "
        "it will be found."
    )


def _check_address(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme.lower() == "https" and parts.hostname:
        return
    if parts.scheme.lower() == "http" and _is_loopback(parts.hostname or ""):
        return
    raise CheckpointError(f"Files are downloaded from 'https://' addresses only. Received: {url}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_file(path: Path, check: Callable[[Path], object], sha256: str | None) -> None:
    if sha256 is not None:
        _check_digest(path, sha256)
    check(path)


def _check_digest(path: Path, sha256: str) -> None:
    if path.is_dir():
        raise CheckpointError(
            f"`sha256` is the digest of one file, and {path} is a directory: leave it out."
        )
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256.lower():
        raise CheckpointError(f"{path} has the SHA-256 {found}. Expected: {sha256}")


def _check_checkpoint(path: Path) -> None:
    """Opens the file, which reads its headers and compares them to its size."""
    with open_checkpoint(path):
        pass
