"""The document: one style, a script for each module, and data as JSON that no HTML parser interprets; and the responses
of the viewer's servers, with header fields that protect them from others.

The page's policy allows the style and each script by digest and nothing else, so injected markup runs nothing and loads
nothing. A file may send no requests; a served page only to its server.
"""

from __future__ import annotations

import json
import logging
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from llmproxy.errors import CassetteNotFound, LLMProxyError
from llmproxy.protocol import UI_PREFIX

UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Controls, bidirectional marks and lone surrogates, which a page does not need."""

_NO_SCRIPT = "This page needs JavaScript, which is switched off here."


def render_viewer_page(data: dict[str, Any], title: str = "llmproxy", *, served: bool = False) -> str:
    style, code = read_static("style.css"), list_viewer_script_sources()
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{build_page_csp(style, code, served=served)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" '
        'content="no-referrer"><meta name="generator" content="llmproxy">'
        f"<title>{escape(escape_invisible(title))}</title>\n<style>{style}</style></head>\n"
        f'<body><div id="app"></div>\n<noscript><p>{_NO_SCRIPT}</p></noscript>\n'
        f'<script type="application/json" id="data">{to_script_safe_json(data)}</script>\n'
    )
    return text + "".join(f"<script>{each}</script>\n" for each in code) + "</body></html>\n"


def is_exported_page(path: Path) -> bool:
    with path.open("rb") as file:
        return b'<meta name="generator" content="llmproxy">' in file.read(20_000)


def build_page_csp(style: str, code: list[str], *, served: bool) -> str:
    named = " ".join(_digest_for_csp(each) for each in code)
    asks = "; connect-src 'self'" if served else ""
    return (
        f"default-src 'none'; script-src {named}; style-src {_digest_for_csp(style)}; img-src data:; media-src data:"
        f"{asks}; base-uri 'none'; form-action 'none'"
    )


@lru_cache(64)
def _digest_for_csp(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def to_script_safe_json(value: object) -> str:
    """Return JSON for a script element: without markup, and without terminal escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return escape_invisible(text)


def escape_invisible(text: str) -> str:
    """Return a text with invisible characters written as JSON escapes."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


MAIN = "main.js"
VENDORED = {"preact": "vendor/preact.js"}

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_IMPORT = re.compile(r"""^import\s*(\{[^}]*\}|\w+)\s*from\s*["']([^"']+)["'];?""", re.MULTILINE)
"""Of names, or of the default; our modules have no other kind."""
_DECLARED = re.compile(r"^export\s+(?=(?:async\s+)?(?:function\*?|const|class)\s+(\w+))", re.MULTILINE)
_LISTED = re.compile(r"export\s*\{([^}]*)\};?")
_EXPORTED_DEFAULT = re.compile(r"\bexport default\s*")

START = (
    "const modules = {}, made = {};\n"
    "function use(name) { if (!(name in made)) { made[name] = {}; modules[name](made[name], use); } return made[name]; "
    "}\n"
)


def list_viewer_script_sources() -> list[str]:
    return [START, *(wrap_js_module(name) for name in _list_module_and_imports(MAIN)), f'use("{MAIN}");']


def wrap_js_module(name: str) -> str:
    """Return a module as a script, its first line first, without characters that terminals interpret."""
    # A control character in a minified string stays what it was.
    body = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", _convert_js_module(name))
    return f'modules["{name}"] = function (exports, use) {{ {body}\n}};\n//# sourceURL=llmproxy/ui/static/{name}\n'


@lru_cache(64)
def read_static(name: str) -> str:
    return files("llmproxy").joinpath("ui", "static", name).read_text("utf-8")


def _list_module_and_imports(name: str, seen: dict[str, None] | None = None) -> Iterator[str]:
    seen = {} if seen is None else seen
    if name in seen:
        return
    seen[name] = None
    for match in _IMPORT.finditer(read_static(name)):
        yield from _list_module_and_imports(_resolve_import(match[2]), seen)
    yield name


def _resolve_import(named: str) -> str:
    """Return the path in `static/` of an import; vendored modules import only each other."""
    return VENDORED.get(named, named.removeprefix("./"))


def _convert_js_module(name: str) -> str:
    text = read_static(name)
    if "module" in text[:300] and "define.amd" in text[:300]:  # UMD: with `exports` and `module` it fills these
        return f"const module = {{ exports }};{text}"
    text = _IMPORT.sub(_convert_import, text)
    declared = _DECLARED.findall(text)
    text = _EXPORTED_DEFAULT.sub("exports.default = ", _DECLARED.sub("", text))
    text = _LISTED.sub(lambda found: _assign_exports(found[1]), text)
    return text + "".join(f"\nexports.{each} = {each};" for each in declared)


def _convert_import(found: re.Match[str]) -> str:
    names, module = re.sub(r"\s+as\s+", ": ", found[1]), f'use("{_resolve_import(found[2])}")'
    return f"const {names} = {module};" if names.startswith("{") else f"const {names} = {module}.default;"


def _assign_exports(names: str) -> str:
    pairs = (re.split(r"\s+as\s+", each.strip()) for each in names.split(",") if each.strip())
    return "".join(f"exports.{pair[-1]}={pair[0]};" for pair in pairs)


logger = logging.getLogger(__name__)
_FAULT = "That is a fault of the viewer, not of the recording: llmproxy show reads it in the terminal."
Headers = tuple[tuple[str, str], ...]
Ask = Callable[[str, dict[str, str]], Any]
"""Converts question and query to plain values; raises LLMProxyError."""


@dataclass(frozen=True, slots=True)
class ViewerResponse:
    status: int
    kind: str
    body: bytes
    more: Headers = ()


def build_viewer_response_headers(answer: ViewerResponse) -> Headers:
    """Return header fields common to all our answers: no caching, framing, sniffing or referrer."""
    return (
        ("content-type", answer.kind),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        *answer.more,
    )


def build_viewer_page_response(start: dict[str, Any]) -> ViewerResponse:
    return ViewerResponse(
        200, "text/html; charset=utf-8", render_viewer_page({"served": True, **start}, served=True).encode()
    )


def build_viewer_json_response(status: int, value: object) -> ViewerResponse:
    """Return plain values as JSON; lone surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return ViewerResponse(status, "application/json", text.encode("utf-8", "backslashreplace"))


def answer_query_as_json(ask: Ask, question: str, query: dict[str, str]) -> ViewerResponse:
    try:
        return build_viewer_json_response(200, ask(question, query))
    except LLMProxyError as error:
        return answer_viewer_with_error(error)
    except Exception as error:
        logger.debug("the viewer could not answer %s", question, exc_info=True)
        told = f"llmproxy: this cannot be shown: {type(error).__name__}: {str(error)[:300]}"
        return build_viewer_error_response(500, "llmproxy_viewer", told, _FAULT)


def answer_viewer_with_error(error: LLMProxyError) -> ViewerResponse:
    status = 404 if isinstance(error, CassetteNotFound) else error.status
    return build_viewer_error_response(status, error.code, error.message, error.hint)


def build_viewer_error_response(status: int, code: str, message: str, hint: str = "") -> ViewerResponse:
    return build_viewer_json_response(status, {"error": {"code": code, "message": message, "hint": hint}})


def redirect_to_page() -> ViewerResponse:
    return ViewerResponse(302, "text/plain", b"", (("location", UI_PREFIX),))
