"""The document: small, named by digests, and with data that cannot become markup."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from itertools import product
from pathlib import Path

import pytest

import llmproxy
from llmproxy.ui.page import list_viewer_script_sources, render_viewer_page, to_script_safe_json, wrap_js_module
from tests.ui.samples import EVIL

STATIC = Path(llmproxy.__file__).parent / "ui" / "static"
LARGEST = 300_000
TEXTS = ("ink", "soft", "link", "good", "bad", "warn", "other")
GROUNDS = ("back", "tint", "user", "chosen")


def test_the_page_is_small() -> None:
    """It is put into every report: at most 300 KB without data, and what the documentation says."""
    size = len(render_viewer_page({}).encode())
    assert size < LARGEST
    said = (Path(__file__).parents[2] / "docs" / "ui.md").read_text("utf-8")
    assert f"The viewer is {size / 1000:.0f} KB without data" in said


def test_the_policy_names_every_script_and_the_style() -> None:
    """By digest, and allows nothing else; a file may ask nobody, a served page where it came from."""
    text = render_viewer_page({"x": EVIL})
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    for code in [*list_viewer_script_sources(), (STATIC / "style.css").read_text()]:
        assert f"'sha256-{b64encode(sha256(code.encode()).digest()).decode()}'" in found[1]
    assert found[1].startswith("default-src 'none'; ")
    assert "unsafe" not in found[1]
    assert "connect-src" not in found[1]
    assert "connect-src 'self'" in render_viewer_page({}, served=True)
    assert text.count("<script>") == len(list_viewer_script_sources())


def test_data_cannot_become_markup() -> None:
    """No tag and no invisible letter of it stands in the file, and it reads back as it was."""
    held = to_script_safe_json({"x": EVIL})
    assert not re.search(r"[<>&\x00-\x08\x1b\u202e\ud800-\udfff]", held)
    assert json.loads(held) == {"x": EVIL}
    assert "<script>document.title" not in render_viewer_page({"x": EVIL}, EVIL)


def test_without_scripts_the_page_says_what_it_needs() -> None:
    assert "<noscript><p>This page needs JavaScript, which is switched off here.</p></noscript>" in render_viewer_page(
        {}
    )


def test_nothing_of_ours_makes_markup_of_text() -> None:
    """Preact makes text nodes; what would read markup is not in our modules, nor an address out of a recording."""
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacent|dangerouslySet|document\.write|\beval\(|new Function|srcdoc"
    )
    for path in STATIC.glob("*.js"):
        assert not forbidden.search(path.read_text()), path.name


def test_modules_keep_their_lines() -> None:
    """What a browser's tools show as line 30 is line 30 of the file."""
    lines = (STATIC / "main.js").read_text().splitlines()
    assert wrap_js_module("main.js").splitlines()[len(lines) - 1] == lines[-1]
    assert wrap_js_module("main.js").endswith("//# sourceURL=llmproxy/ui/static/main.js\n")


def test_every_module_is_on_the_page() -> None:
    """None is forgotten, and none stays that nobody imports."""
    text = render_viewer_page({})
    for path in STATIC.rglob("*.js"):
        assert f"sourceURL=llmproxy/ui/static/{path.relative_to(STATIC).as_posix()}\n" in text, path


def test_what_is_vendored_names_version_and_licence() -> None:
    told = (STATIC / "vendor" / "README.md").read_text()
    for path in (STATIC / "vendor").glob("*.js"):
        assert f"`{path.name}`" in told
    assert {"MIT", "BSD-3-Clause", "Apache-2.0"} <= set(re.findall(r"[\w.-]+", told))


def _light(colour: str) -> float:
    """Return how light a colour is to the eye, as WCAG measures it: 0 to 1."""
    digits = colour.strip("#")
    digits = digits if len(digits) == 6 else "".join(2 * each for each in digits)
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_each_colour_of_text_can_be_read_on_each_ground(theme: int) -> None:
    """4.5 to 1 at least, WCAG's AA, for whatever may stand on a chosen row, a message, a tint."""
    roots = re.findall(r":root \{(.*?)\}", (STATIC / "style.css").read_text("utf-8"), re.DOTALL)
    known = dict(re.findall(r"--(\w+): (#\w+)", roots[theme]))
    for text, ground in product(TEXTS, GROUNDS):
        brighter, darker = sorted((_light(known[text]), _light(known[ground])), reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= 4.5, f"--{text} on --{ground}"
