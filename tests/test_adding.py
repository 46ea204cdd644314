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

from .provider import Provider, Step, step, stream_answer
from .support.chats import chat, fill
from .support.grown import Grown
from .support.process import ROOT
from .support.proxy import DIRECT, Proxy, alone as proxy

PROVIDER = """\
    _compatible("acme", "https://api.acme.example/v1", "api.acme.example", env={"ACME_BASE_URL": "/v1"}, keys="ACME_API_KEY",
                litellm={"acme_ai": "/acme/v1"}, otel="acme.cloud"),
"""
DIALECT_OPERATION = """\
    "/murmur": Operation("murmur", stream_default=True),
"""
DIALECT_ANSWER = """\
    "murmur": lambda draft, value: draft.say(value.get("heard")),
"""
DIALECT_END = """\
    "murmur": lambda value: value.get("over") is True,
"""
FORMAT_ROW = """\
    Format("twolines", "twolines", "a question and its answer, a line each", (".two",), writes=True),
"""
FORMAT = '''
"""A question and its answer, a line each."""

from __future__ import annotations

import json

from llmproxy.core.cassettes.formats.recorded import Recorded


def recognises(source):
    return source.head.startswith("two lines\\n")


def read(source):
    _, asked, said = source.text.splitlines()
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": asked}]}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": said}}]}
    kind = (("content-type", "application/json"),)
    url = "https://api.openai.com/v1/chat/completions"
    return [Recorded("POST", url, kind, json.dumps(body).encode(), 200, "OK", kind, json.dumps(answer).encode())]


def dumps(recorded, cassette):
    return f"two lines\\n{cassette}\\n{len(recorded)}\\n"
'''
REPORT = '''
"""How many events there were."""


class Counting:
    def __init__(self, path):
        self.path, self.number = path, 0

    def handle(self, event):
        self.number += 1

    def close(self):
        self.path.write_text(f"{self.number} events")
'''
REPORT_MAKER = """\
def _count(path: Path) -> Handler:
    from llmproxy.report.counting import Counting

    return Counting(path)


"""
REPORT_ROW = """\
    "count": ReportKind(_count, "report.txt"),
"""
MATCHER = '''

@matcher("isShout", schema={"type": "boolean"}, help="all in capitals", objection=lambda operand: "")
def is_shout(operand: object, seen: SeenValue) -> Found:
    """Tell whether a text shouts."""
    return Found.of(str(seen.actual).isupper() is operand, "it does not shout")
'''
MODE = """\
    PEEK = "peek", ModePolicy(does="plays what is good and forwards the rest unrecorded", plays=Plays.GOOD, on_miss=Decision.PASS)
"""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    """The package with one more of everything."""
    made = Grown(tmp_path_factory.mktemp("grown"))
    made.add("protocol.py", MODE, before="PASSTHROUGH =")
    made.add("core/providers/table.py", PROVIDER, before='_compatible("mistral"')
    made.add("core/providers/table.py", DIALECT_OPERATION, before='"/fine_tuning": Operation')
    made.add("core/dialects/answers.py", DIALECT_ANSWER, before='"writer.chat":')
    made.add("core/dialects/streams.py", DIALECT_END, before='"v2.chat":')
    made.add("core/cassettes/formats/__init__.py", FORMAT_ROW, before='Format("har"')
    made.write("core/cassettes/formats/twolines.py", FORMAT)
    made.add("report/choices.py", REPORT_MAKER, before="class ReportKind")
    made.add("report/choices.py", REPORT_ROW, before='"github": ReportKind')
    made.write("report/counting.py", REPORT)
    made.write("suite/matchers/text.py", MATCHER)
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


# --- a provider --------------------------------------------------------------------------------------------------------


def test_a_provider_is_a_row(grown: Grown, tmp_path: Path) -> None:
    """Its prefix, its host, its variables, its place for models of the runner and its name in traces follow."""
    made = grown.run("llmproxy", "run", "--mode", "peek", "--", "env", cwd=tmp_path, ACME_API_KEY="k").stdout
    assert re.search(r"^ACME_BASE_URL=http://127.0.0.1:[0-9]+/s/default/acme/v1$", made, re.MULTILINE), made
    asked = """
import json
from llmproxy.core.providers.routing import route, route_host
from llmproxy.scenario.models.route import route as models
from llmproxy.trace.reading.exchange import provider_name
by_prefix = route("POST", "/acme/v1/chat/completions", (), {})
by_host = route_host("https", "api.acme.example", 443, "POST", "/v1/chat/completions", (), {})
print(json.dumps([by_prefix.operation, by_host.provider.name, models("acme_ai/x", "http://p")["api_base"], provider_name("acme")]))
"""
    told = json.loads(grown.python(asked))
    assert told == ["chat.completions", "acme", "http://p/acme/v1", "acme.cloud"]


# --- a dialect ---------------------------------------------------------------------------------------------------------


def test_a_dialect_is_an_operation_and_what_its_answers_mean(grown: Grown, tmp_path: Path) -> None:
    """How an answer is read and where its stream ends: `show` tells it, and one that broke off is known for it."""
    pieces = [b'{"heard": "psst"}\n', b'{"heard": ", you"}\n', b'{"over": true}\n']
    whole, cut = (stream_answer(pieces[:number], "application/x-ndjson") for number in (3, 2))
    store = tmp_path / "x.db"
    with (
        Provider([Step(whole, path="*/murmur"), Step(cut, path="*/murmur")]) as upstream,
        proxy("record", store, upstreams={"openai": upstream.url}, env=grown.env) as px,
    ):
        for text in ("a", "b"):
            request = Request(
                f"{px.url}/v1/murmur", json.dumps({"say": text}).encode(), {"content-type": "application/json"}
            )
            DIRECT.open(request, timeout=10).read()
    shown = grown.run("llmproxy", "show", "1", "--store", str(store)).stdout
    assert "psst, you" in shown
    assert "murmur" in shown
    endings = """
import sys, time
from pathlib import Path
from llmproxy.core.store.file.store import FileStore
with FileStore.open(Path(sys.argv[1]), writable=False, now=time.time) as store:
    print(*(each.response.ending.name for each in store.interactions("default")))
"""
    assert grown.python(endings, str(store)).split() == ["COMPLETE", "UNTERMINATED"]


# --- a format ----------------------------------------------------------------------------------------------------------


def test_a_format_is_a_file_and_a_row(grown: Grown, tmp_path: Path) -> None:
    """It is recognised, read, written, and named where formats are."""
    (tmp_path / "greeting.two").write_text("two lines\nHow are you?\nFine.\n")
    done = grown.run("llmproxy", "import", "greeting.two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Fine." in grown.run("llmproxy", "show", "1", cwd=tmp_path).stdout
    words = ("--cassette", "greeting", "--format", "twolines")
    assert grown.run("llmproxy", "export", "-", *words, cwd=tmp_path).stdout == "two lines\ngreeting\n1\n"
    for command in ("import", "export"):
        assert "|twolines|" in grown.run("llmproxy", command, "--help").stdout


# --- a report ----------------------------------------------------------------------------------------------------------

SUITE = """\
name: s
agent: {python: "agent.py:loud"}
scenarios:
  - {id: shouts, observe: none, steps: [{chat: Hello, response: {allOf: [{isShout: true}]}}]}
"""


@pytest.mark.slow
def test_a_report_and_a_matcher_are_a_file_and_a_function(grown: Grown, tmp_path: Path) -> None:
    """Suites use both; help texts, refusals and the JSON schema name them."""
    (tmp_path / "agent.py").write_text("def loud(message): return message.upper()\ndef soft(message): return message\n")
    (tmp_path / "s.yaml").write_text(SUITE)
    done = grown.run("llmproxy", "test", "s.yaml", "--report", "count=n.txt", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch("[0-9]+ events", (tmp_path / "n.txt").read_text())
    (tmp_path / "s.yaml").write_text(SUITE.replace("loud", "soft"))
    done = grown.run("llmproxy", "test", "s.yaml", cwd=tmp_path)
    assert "it does not shout" in done.stdout
    assert "count=FILE" in grown.run("llmproxy", "test", "--help").stdout
    assert "count=FILE" in grown.run("pytest", "--help").stdout
    assert "jsonl, count or github" in grown.run("llmproxy", "test", "s.yaml", "--report", "xml=x", cwd=tmp_path).stderr
    assert "isShout" in grown.run("llmproxy", "suite", "schema").stdout


def test_nobody_asks_which_mode_it_is() -> None:
    """What a mode does stands in its row: a comparison elsewhere would be a second place for the next mode to be missed in."""
    asked = re.compile(r"(\bis( not)?|==|\bcase) Mode\.[A-Z]")
    found = [path.name for path in (ROOT / "llmproxy").rglob("*.py") if asked.search(path.read_text("utf-8"))]
    assert found == []
