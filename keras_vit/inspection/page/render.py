"""HTML of the page: markup, style, script and data in one text that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from keras_vit.inspection.page.encoding import printable

_PACKAGE = __name__.rpartition(".")[0]
# In this order they are one function: nothing of it is seen from outside.
_SCRIPTS = (
    *("state.js", "data.js", "drawing.js", "choosing.js"),
    *("pictures.js", "model.js", "live.js", "start.js"),
)
# What the page may do: show what it holds, run its own script, and, live, ask its server.
_POLICY = "default-src 'none'; img-src data: blob:; style-src '{style}'; script-src '{script}'"
_LIVE = "; connect-src 'self'"


def render(content: Mapping[str, Any]) -> str:
    """The page.

    Args:
        content: what the script reads: "title", "live", "model" and "pictures".

    Returns:
        HTML; what it says of model and pictures is data, never markup.
    """
    parts = "\n".join(map(_asset, _SCRIPTS))
    style, script = _asset("page.css"), f'"use strict";\n(() => {{\n{parts}}})();\n'
    policy = _POLICY.format(style=_digest(style), script=_digest(script))
    # In JSON "<" stands in strings alone; escaped, none of them can close the element.
    data = json.dumps(content, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "policy": policy + (_LIVE if content["live"] else ""),
        "title": html.escape(str(content["title"])),
        "style": style,
        "data": data,
        "script": script,
    }
    page = _asset("page.html")
    head, *rest = page.split("{{")
    found = [head]
    for part in rest:
        name, _, text = part.partition("}}")
        found += [parts[name], text]
    return printable("".join(found))


def _asset(name: str) -> str:
    return files(_PACKAGE).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
