"""The document: one style, a script for each module, and data as JSON that no parser of HTML looks into.

Safe by what it may do rather than by trust: the policy names each script and the style by its digest and allows nothing else, so markup that
should ever get through runs nothing and loads nothing. As a file it may ask nobody; served, only where it came from.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from functools import lru_cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from llmproxy.ui.modules import scripts, source

UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Controls, marks that turn the direction of text, and halves of surrogate pairs: nothing that a page has to hold."""

_NO_SCRIPT = "This page is put together by its own script, which asks nobody. Here scripts are switched off."


def document(data: dict[str, Any], title: str = "llmproxy", plain: str = "", *, served: bool = False) -> str:
    """Return the page with its data; `plain` is shown where no script may run, `served` lets it ask the server that it came from."""
    style, code = source("style.css"), scripts()
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(style, code, served=served)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer"><meta name="generator" content="llmproxy">'
        f"<title>{escape(visible(title))}</title>\n<style>{style}</style></head>\n"
        f'<body><div id="app"></div>\n<noscript><p>{_NO_SCRIPT}</p><pre>{escape(visible(plain))}</pre></noscript>\n'
        f'<script type="application/json" id="data">{in_html(data)}</script>\n'
    )
    return text + "".join(f"<script>{each}</script>\n" for each in code) + "</body></html>\n"


def is_ours(path: Path) -> bool:
    """Tell whether a file is a page of ours."""
    with path.open("rb") as file:
        return b'<meta name="generator" content="llmproxy">' in file.read(20_000)


def policy(style: str, code: list[str], *, served: bool) -> str:
    """Return the Content-Security-Policy of the page."""
    named = " ".join(_digest(each) for each in code)
    asks = "; connect-src 'self'" if served else ""
    return (
        f"default-src 'none'; script-src {named}; style-src {_digest(style)}; img-src data:; media-src data:"
        f"{asks}; base-uri 'none'; form-action 'none'"
    )


@lru_cache(64)
def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def in_html(value: object) -> str:
    """Return JSON that can stand in a script element: no markup in it, and nothing that a terminal would obey."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return visible(text)


def visible(text: str) -> str:
    """Return a text with what does not show written as its number, as JSON writes it."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
