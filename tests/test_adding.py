"""What CONTRIBUTING promises: such a thing is a row or a file, and all the rest follows by itself, help texts too.

One copy of the package gets one of each, and real processes of it are asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request

import pytest

from .provider import Provider, Step, step, stream_answer
from .support.chats import chat, fill
from .support.grown import Grown
from .support.process import ROOT
from .support.proxy import DIRECT, Proxy, proxy

PROVIDER = """\
    _compatible("acme", "https://api.acme.example/v1", "api.acme.example", env={"ACME_BASE_URL": "/v1"}, keys="ACME_API_KEY",
                litellm={"acme_ai": "/acme/v1"}, otel="acme.cloud"),
"""
DIALECT_OPERATION = """\
    "/murmur": ApiOperation("murmur", stream_default=True),
"""
DIALECT_ROW = """\
    LazyDialectDescription("murmur", operations=("murmur",)),
"""
DIALECT = '''
"""Murmurs: lines of what is heard."""

from dataclasses import replace

from llmproxy.core.dialects import openai
from llmproxy.core.dialects.dialect_table import ModelAnswerCodec

_MURMUR = ModelAnswerCodec(lambda draft, value: draft.add_text(value.get("heard")), lambda value: value.get("over") is True)
DIALECT = replace(openai.DIALECT, codecs={"murmur": _MURMUR})
'''
FORMAT_ROW = """\
    Format("twolines", "twolines", "a question and its answer, a line each", (".two",), writes=True),
"""
FORMAT = '''
"""A question and its answer, a line each."""

from __future__ import annotations

import json

from llmproxy.core.cassettes.formats import Recorded


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
    "count": ReportKindDefinition(_count, "report.txt"),
"""
MATCHER = '''

@register_matcher("isShout", schema={"type": "boolean"}, help="all in capitals", objection=lambda operand: "")
def is_shout(operand: object, seen: ValueToCheck) -> Match:
    """Return whether a text shouts."""
    return Match.of(str(seen.actual).isupper() is operand, "it does not shout")
'''
MODE = """\
    PEEK = "peek", ModePolicy(does="plays what is good and forwards the rest unrecorded", plays=ReplayablePolicy.GOOD, on_miss=Decision.PASS)
"""


RUN_OPTION = """\
    label: str | None = _run_option_field(
        "--label", metavar="TEXT", again=True, run="A word about this run.", replay="A word about this replay."
    )
"""
SETTING = """\
    loud: bool = _declare_switch("Say it louder.")
"""
COLUMN = """\
    PrintedTableColumn("key", lambda row: row.key[:8]),
"""
SECRET = """\
    "acme": "acme_<hex32>",
"""
CODING_AGENT = """\
def _acme(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> FoundMcpServers | None:
    def place(made: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
        return (*command, "--servers", write_mcp_config_copy(made, folder))

    return FoundMcpServers(make_parsed_mcp_config(_get_table_or_empty(_read_file_or_empty(cwd / ".acme.json"), "servers")), place)


"""
CODING_AGENT_ROW = """\
    "acme": _acme,
"""
EVENT = '''\
@dataclass(frozen=True, slots=True)
class Warned:
    """Something that is no failure."""

    run_id: str
    text: str


'''
EVENT_IN_JUNIT = """\
    for each in (part for part in run.parts if isinstance(part, Warned)):
        ET.SubElement(case, "system-err").text = _escape_text(each.text)
"""


INTERCEPTOR = '''
"""Answers are stamped."""

from dataclasses import replace

from llmproxy.core.engine.feature import Feature
from llmproxy.core.sessions.call_interceptor import SessionCallInterceptor


class StampInterceptor(SessionCallInterceptor):
    reads_answers = True

    def on_answer(self, call, response):
        return replace(response, headers=(*response.headers, ("x-stamp", call.key)))

    def on_end(self, call, record):
        return record._replace(note="stamped")


class StampFeature(Feature):
    kind = StampInterceptor

    def create_interceptor(self, session, asked):
        return StampInterceptor() if session.name == "stamped" else None
'''


class Change(NamedTuple):
    """What is added to a file of the package: a new file, or its end, where nothing is said of what follows."""

    file: str
    text: str
    before: str = ""
    """How the line begins before which it is written."""


CHANGES: dict[str, list[Change]] = {
    "a provider": [Change("core/providers/provider_table.py", PROVIDER, '_compatible("mistral"')],
    "a dialect of bodies": [
        Change("core/providers/provider_table.py", DIALECT_OPERATION, '"/fine_tuning": ApiOperation'),
        Change("core/dialects/dialect_table.py", DIALECT_ROW, 'LazyDialectDescription("ollama"'),
        Change("core/dialects/murmur.py", DIALECT),
    ],
    "a format of recordings": [
        Change("core/cassettes/formats/__init__.py", FORMAT_ROW, 'Format("har"'),
        Change("core/cassettes/formats/twolines.py", FORMAT),
    ],
    "an interceptor": [
        Change("core/engine/engine.py", "from llmproxy.core.engine.stamping import StampFeature\n", "FEATURES:"),
        Change("core/engine/engine.py", "    StampFeature,\n", "SessionFeatureMixingLiveAndReplay,"),
        Change("core/engine/stamping.py", INTERCEPTOR),
    ],
    "a report of tests": [
        Change("report/report_kinds.py", REPORT_MAKER, "class ReportKindDefinition"),
        Change("report/report_kinds.py", REPORT_ROW, '"github": ReportKindDefinition'),
        Change("report/counting.py", REPORT),
    ],
    "a matcher of suites": [Change("suite/matchers/text.py", MATCHER)],
    "a mode": [Change("protocol.py", MODE, "PASSTHROUGH =")],
    "an option": [Change("settings.py", SETTING, "verbose: bool")],
    "an option of `run`": [Change("cli/parts/options.py", RUN_OPTION, "jobs: int | None")],
    "a column of `ls`": [Change("cli/ls.py", COLUMN, 'PrintedTableColumn("recorded"')],
    "a kind of secret": [Change("core/secrets/secret_kinds.py", SECRET, '"groq": "gsk_')],
    "a coding agent whose MCP servers a run finds": [
        Change("client/tools/agent_mcp_servers.py", CODING_AGENT, "AGENTS: Mapping"),
        Change("client/tools/agent_mcp_servers.py", CODING_AGENT_ROW, '"codex": _find_codex_tools'),
    ],
    "an event of tests in JUnit": [
        Change("report/events.py", EVENT, "Event = Selected"),
        Change("report/events.py", "Event = Event | Warned\n", "class Handler(Protocol)"),
        Change("report/junit.py", "from llmproxy.report.events import Warned\n", "WHOLE ="),
        Change("report/junit.py", EVENT_IN_JUNIT, "if run.status in _KINDS and"),
    ],
}
"""By what is added, as CONTRIBUTING.md calls it."""
MOST_FILES = 3
MOST_FILES_WITH_A_NAME = 8


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grown]:
    made = Grown(tmp_path_factory.mktemp("grown"))
    for changes in CHANGES.values():
        for change in changes:
            if change.before:
                made.add(change.file, change.text, before=change.before)
            else:
                made.write(change.file, change.text)
    with made.forking():
        yield made


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_touches_few_files_and_is_documented(name: str) -> None:
    """Three files of the package at most, each of them named in the row of CONTRIBUTING.md."""
    files = {change.file for change in CHANGES[name]}
    assert len(files) <= MOST_FILES
    rows = [
        line for line in (ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines() if line.startswith(f"| {name} |")
    ]
    assert len(rows) == 1, name
    here = {file for file in files if (ROOT / "llmproxy" / file).is_file()}
    for file in here:
        assert file in rows[0] or f"{Path(file).parent}/" in rows[0], f"{file} is not named for {name}"


# --- a mode ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Iterator[Provider]:
    with Provider([step(user="And now?", say="Live.")]) as made:
        yield made


def post(url: str, **body: object) -> Any:
    """Ask in JSON."""
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return DIRECT.open(request, timeout=10)


def ask(px: Proxy, text: str) -> tuple[str, str]:
    """Ask as the recorded client did; returns what the answer says and where it came from."""
    asked = [{"role": "user", "content": text}]
    with post(f"{px.url}/v1/chat/completions", model="gpt-4o", messages=asked) as answer:
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
    said = " ".join(grown.run("llmproxy", "start", "--help-all").stdout.split())
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
from llmproxy.core.providers.routing import route, route_by_host
from llmproxy.scenario.models.route_via_proxy import build_litellm_proxy_kwargs as models
from llmproxy.trace.reading.decoded_exchange import map_to_otel_provider_name
by_prefix = route("/acme/v1/chat/completions", (), {})
by_host = route_by_host("https", "api.acme.example", 443, "/v1/chat/completions", {})
print(json.dumps([by_prefix.operation, by_host.provider.name, models("acme_ai/x", "http://p")["api_base"], map_to_otel_provider_name("acme")]))
"""
    told = json.loads(grown.python(asked))
    assert told == ["chat.completions", "acme", "http://p/acme/v1", "acme.cloud"]


# --- a dialect ---------------------------------------------------------------------------------------------------------


def test_a_dialect_is_a_file_and_its_rows(grown: Grown, tmp_path: Path) -> None:
    """How an answer is read and where its stream ends: `show` tells it, and one that broke off is known for it."""
    pieces = [b'{"heard": "psst"}\n', b'{"heard": ", you"}\n', b'{"over": true}\n']
    whole, cut = (stream_answer(pieces[:number], "application/x-ndjson") for number in (3, 2))
    store = tmp_path / "x.db"
    with (
        Provider([Step(whole, path="*/murmur"), Step(cut, path="*/murmur")]) as upstream,
        proxy("record", store, upstreams={"openai": upstream.url}, env=grown.env) as px,
    ):
        for text in ("a", "b"):
            post(f"{px.url}/v1/murmur", say=text).read()
    shown = grown.run("llmproxy", "show", "1", "--store", str(store)).stdout
    assert "psst, you" in shown
    assert "murmur" in shown
    endings = """
import sys, time
from pathlib import Path
from llmproxy.core.store.file.store import SqliteCassetteStore
with SqliteCassetteStore.open(Path(sys.argv[1]), writable=False, now=time.time) as store:
    print(*(each.response.ending.name for each in store.iter_interactions("default")))
"""
    assert grown.python(endings, str(store)).split() == ["COMPLETE", "UNTERMINATED"]


# --- an interceptor ----------------------------------------------------------------------------------------------------


def test_an_interceptor_is_a_file_and_a_row(grown: Grown, tmp_path: Path) -> None:
    """Each answer of the sessions that have it is stamped, whichever way it goes, and its call says so; no other is."""
    store = tmp_path / "x.db"
    fill(store, chat("How are you?", "Fine.", cassette="stamped"), chat("How are you?", "Well."))
    with proxy("replay", store, env=grown.env) as px:
        for path, stamped in (("/s/stamped/v1", True), ("/v1", False)) * 2:
            asked = [{"role": "user", "content": "How are you?"}]
            with post(f"{px.url}{path}/chat/completions", model="gpt-4o", messages=asked) as answer:
                assert answer.headers["x-llmproxy-cache"] == "hit"
                assert answer.headers.get("x-stamp") == (answer.headers["x-llmproxy-key"] if stamped else None)
        calls = px.control("calls?session=stamped")["calls"]
    assert [each["note"] for each in calls] == ["stamped"] * 2


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
    assert "count=FILE" in grown.run("llmproxy", "test", "--help-all").stdout
    assert "count=FILE" in grown.run("pytest", "--help").stdout
    assert "jsonl, count or github" in grown.run("llmproxy", "test", "s.yaml", "--report", "xml=x", cwd=tmp_path).stderr
    assert "isShout" in grown.run("llmproxy", "suite", "schema").stdout


# --- an option ---------------------------------------------------------------------------------------------------------


def test_an_option_is_a_row(grown: Grown, tmp_path: Path) -> None:
    """Flag, variable and key of the file are read, refused where they cannot be meant, and listed."""
    assert "--loud" in grown.run("llmproxy", "start", "--help-all").stdout
    (listed,) = [
        each
        for each in json.loads(grown.run("llmproxy", "settings", "--json", cwd=tmp_path, LLMPROXY_LOUD="yes").stdout)
        if each["name"] == "loud"
    ]
    assert (listed["value"], listed["source"]) == (True, "environment LLMPROXY_LOUD")
    (tmp_path / "pyproject.toml").write_text("[tool.llmproxy]\nloud = 'perhaps'\n")
    assert "loud: 'perhaps' is not one of" in grown.run("llmproxy", "ls", cwd=tmp_path).stderr


def test_an_option_of_run_is_a_row(grown: Grown) -> None:
    """It is a flag of each command that has a help text for it, and part of what is printed to be typed again."""
    said = {name: grown.run("llmproxy", *name.split(), "--help").stdout for name in ("run", "replay", "mcp serve")}
    found = {name: "--label TEXT" in text for name, text in said.items()}
    assert found == {"run": True, "replay": True, "mcp serve": False}
    typed = "from llmproxy.cli.parts.options import *; print(CliRunArguments({}, (), RunCommandOptions(label='a b')).run_command_prefix)"
    assert grown.python(typed) == "llmproxy run --label 'a b'\n"


# --- a column, a secret, an agent, an event -----------------------------------------------------------------------------


def test_a_column_is_a_row(grown: Grown, tmp_path: Path) -> None:
    """`ls` shows it where it stands in the table."""
    made = chat("How are you?", "Fine.")
    fill(tmp_path / "llmproxy.db", made)
    head, row = grown.run("llmproxy", "ls", cwd=tmp_path).stdout.splitlines()[-2:]
    assert head.split()[:2] == ["id", "key"]
    assert row.split()[:2] == ["1", made.key[:8]]


def test_a_secret_is_a_row(grown: Grown) -> None:
    """What has its shape is taken out wherever it stands."""
    code = "from llmproxy.core.secrets.redact import Redactor; print(Redactor().text('it is acme_9f86d081884c7d65' + '9a2feaa0c55ad015.'))"
    said = grown.python(code)
    assert "acme_9f" not in said
    assert "REDACTED" in said


def test_a_coding_agent_is_a_function_and_a_row(grown: Grown, tmp_path: Path) -> None:
    """Its servers are found where it keeps them, and its command gets others in their place."""
    (tmp_path / ".acme.json").write_text(json.dumps({"servers": {"mail": {"command": "mail-server"}}}))
    code = """
import json, sys
from pathlib import Path
from llmproxy.client.tools.agent_mcp_servers import find_agent_mcp_servers
found = find_agent_mcp_servers(None, ("acme", "hi"), {}, Path(sys.argv[1]))
print(json.dumps([list(found.config.servers), found.place({"mcpServers": {}}, Path(sys.argv[1]))[:3]]))
"""
    assert json.loads(grown.python(code, str(tmp_path))) == [["mail"], ["acme", "hi", "--servers"]]


def test_an_event_reaches_junit(grown: Grown) -> None:
    """The tree of a run keeps it, and the report writes it."""
    code = """
from llmproxy.report.events import Finished, Started, Status, Warned
from llmproxy.report.junit import render_junit
from llmproxy.report.run_tree import EventsGroupedByRun
tree = EventsGroupedByRun()
for event in (Started(run_id="r", scenario="s", name="s", at=0.0), Warned("r", "mind the gap")):
    tree.add_event(event)
print(render_junit(tree).decode())
"""
    assert "<system-err>mind the gap</system-err>" in grown.python(code)


def test_nobody_asks_which_mode_it_is() -> None:
    """What a mode does stands in its row: a comparison elsewhere would be a second place for the next mode to be missed in."""
    asked = re.compile(r"(\bis( not)?|==|\bcase) Mode\.[A-Z]")
    found = [path.name for path in (ROOT / "llmproxy").rglob("*.py") if asked.search(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize("name", ["anthropic", "gemini", "bedrock"])
def test_few_files_know_a_dialect_by_name(name: str) -> None:
    """Its own file, the tables, and data about keys, credentials and clients; generic code asks the row."""
    files = [path for path in (ROOT / "llmproxy").rglob("*.py") if name in path.read_text("utf-8").lower()]
    assert len(files) <= MOST_FILES_WITH_A_NAME, files
