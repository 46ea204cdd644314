"""What CONTRIBUTING promises: such a thing is a row or a file, and all the rest follows by itself, help texts too.

One copy of the package gets one of each, and real processes of it are asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request

import pytest

from .provider import Provider, step
from .support.chats import chat, fill
from .support.grown import Grown
from .support.process import ROOT
from .support.proxy import DIRECT, Proxy, proxy

MODE = """\
    PEEK = "peek", Policy(does="plays what is good and forwards the rest unrecorded", plays=Plays.GOOD, on_miss=Decision.PASS)
"""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    """The package with one more of everything."""
    made = Grown(tmp_path_factory.mktemp("grown"))
    made.add("protocol.py", MODE, before="PASSTHROUGH =")
    return made


# --- a mode ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Iterator[Provider]:
    """A provider that expects one question."""
    with Provider([step(user="And now?", say="Live.")]) as made:
        yield made


def ask(px: Proxy, text: str) -> tuple[str, str]:
    """Ask as the recorded client did; returns what the answer says and where it came from."""
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).encode()
    request = Request(f"{px.url}/v1/chat/completions", body, {"content-type": "application/json"})
    with DIRECT.open(request, timeout=10) as answer:
        said = json.loads(answer.read())["choices"][0]["message"]["content"]
        return said, answer.headers.get("x-llmproxy-cache", "")


def test_a_mode_is_a_row(grown: Grown, upstream: Provider, tmp_path: Path) -> None:
    """It plays, forwards and keeps from writing as its row says; the proxy that replays forbids it, since it reaches the network."""
    store = tmp_path / "x.db"
    fill(store, chat("How are you?", "Recorded."))
    before = store.read_bytes()
    with proxy("peek", store, upstreams={"openai": upstream.url}, env=grown.env) as px:
        assert ask(px, "How are you?") == ("Recorded.", "hit")
        assert ask(px, "And now?") == ("Live.", "passed")
        (session,) = px.control("sessions")["sessions"]
    assert len(upstream.requests) == 1
    assert session["mode"] == "peek"
    assert store.read_bytes() == before, "a mode that does not write wrote"


def test_a_mode_arrives_in_help_texts_and_refusals(grown: Grown) -> None:
    """Of the command, of pytest, and of what is no mode."""
    said = " ".join(grown.run("llmproxy", "start", "--help").stdout.split())
    assert "|peek|" in said
    assert "peek plays what is good and forwards the rest unrecorded" in said
    assert "|peek|" in grown.run("pytest", "--help").stdout
    wrong = grown.run("llmproxy", "start", "--mode", "live").stderr
    assert "peek" in wrong


def test_nobody_asks_which_mode_it_is() -> None:
    """What a mode does stands in its row: a comparison elsewhere would be a second place for the next mode to be missed in."""
    asked = re.compile(r"(\bis( not)?|==|\bcase) Mode\.[A-Z]")
    found = [path.name for path in (ROOT / "llmproxy").rglob("*.py") if asked.search(path.read_text("utf-8"))]
    assert found == []
