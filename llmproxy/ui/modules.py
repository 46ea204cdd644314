"""The ES modules of `static/` in one document, without a build step: each becomes a function in a script of its own.

    import { h, render as draw } from "./vendor/preact.js";    const { h, render: draw } = use("vendor/preact.js");
    export function shown(text) { ... }                        function shown(text) { ... }  and  exports.shown = shown

So a module keeps its own names, its lines keep their numbers (``//# sourceURL`` tells a browser's tools which file it is), and a page that
is one file needs no import, which a strict policy could not name. Understood is what our modules and the vendored ones use; a test runs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files

MAIN = "main.js"
VENDORED = {"preact": "vendor/preact.js"}
"""How vendored modules name each other."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_IMPORT = re.compile(r"""^import\s*\{([^}]*)\}\s*from\s*["']([^"']+)["'];?""", re.MULTILINE)
_DEFAULT = re.compile(r"""^import\s+(\w+)\s+from\s*["']([^"']+)["'];?""", re.MULTILINE)
_BARE = re.compile(r"""^import\s*["']([^"']+)["'];?""", re.MULTILINE)
_DECLARED = re.compile(r"^export\s+(?=(?:async\s+)?(?:function\*?|const|class)\s+(\w+))", re.MULTILINE)
_LISTED = re.compile(r"export\s*\{([^}]*)\};?")
_EXPORTED_DEFAULT = re.compile(r"\bexport default\s*")

START = (
    "const modules = {}, made = {};\n"
    "function use(name) { if (!(name in made)) { made[name] = {}; modules[name](made[name], use); } return made[name]; }\n"
)


def scripts() -> list[str]:
    """Return the scripts of the page, in order: what defines modules, the modules, and what starts the first one."""
    return [START, *(script(name) for name in _list_needed(MAIN)), f'use("{MAIN}");']


def script(name: str) -> str:
    """Return one module as a script; its first line stays the first, and no character is in it that a terminal obeys."""
    body = _CONTROL.sub(
        lambda found: f"\\x{ord(found[0]):02x}", _body(name)
    )  # one in a minified string stays what it was
    return f'modules["{name}"] = function (exports, use) {{ {body}\n}};\n//# sourceURL=llmproxy/ui/static/{name}\n'


@lru_cache(64)
def source(name: str) -> str:
    """Return the text of a file in `static/`."""
    return files("llmproxy").joinpath("ui", "static", name).read_text("utf-8")


def _list_needed(name: str, seen: dict[str, None] | None = None) -> Iterator[str]:
    """Give a module and those that it imports, each once."""
    seen = {} if seen is None else seen
    if name in seen:
        return
    seen[name] = None
    text = source(name)
    for match in [*_IMPORT.finditer(text), *_DEFAULT.finditer(text), *_BARE.finditer(text)]:
        yield from _list_needed(_path(name, match[match.lastindex or 1]), seen)
    yield name


def _path(importer: str, named: str) -> str:
    """Return the path in `static/` that an import means."""
    if named in VENDORED:
        return VENDORED[named]
    folder = importer.rpartition("/")[0]
    path = named.removeprefix("./")
    return f"{folder}/{path}" if folder else path


def _body(name: str) -> str:
    text = source(name)
    if "module" in text[:300] and "define.amd" in text[:300]:  # UMD: with `exports` and `module` it fills these
        return f"const module = {{ exports }};{text}"
    text = _IMPORT.sub(lambda found: f'const {{{_rename_imports(found[1])}}} = use("{_path(name, found[2])}");', text)
    text = _DEFAULT.sub(lambda found: f'const {found[1]} = use("{_path(name, found[2])}").default;', text)
    text = _BARE.sub(lambda found: f'use("{_path(name, found[1])}");', text)
    declared = _DECLARED.findall(text)
    text = _EXPORTED_DEFAULT.sub("exports.default = ", _DECLARED.sub("", text))
    text = _LISTED.sub(lambda found: _assign_exports(found[1]), text)
    return text + "".join(f"\nexports.{each} = {each};" for each in declared)


def _rename_imports(names: str) -> str:
    return ", ".join(re.sub(r"\s+as\s+", ": ", each.strip()) for each in names.split(",") if each.strip())


def _assign_exports(names: str) -> str:
    pairs = (re.split(r"\s+as\s+", each.strip()) for each in names.split(",") if each.strip())
    return "".join(f"exports.{pair[-1]}={pair[0]};" for pair in pairs)
