"""The viewer at a proxy's own port: who may read, what is told, and that openapi.json names each question."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from llmproxy.calls_and_totals import KEPT, RecentProxyCallLog
from llmproxy.core.control.endpoints import (
    ControlApiContext,
    ControlRequest,
    answer_control_request,
    find_control_api_access_refusal,
)
from llmproxy.core.engine.engine import Engine
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.protocol import UI_PREFIX, Decision, Mode
from llmproxy.report.events import Selected, Started
from llmproxy.report.json_report import JsonLinesReport
from llmproxy.report.live_report_reader import make_report_query_handler
from llmproxy.ui.mount_in_proxy import ProxyViewerRequestHandler
from llmproxy.ui.queries import QUESTIONS, read_query_integer
from tests.support.chats import NOW, chat, fill
from tests.ui import samples
from tests.ui.test_data import ASKED

DOCUMENT = json.loads((files("llmproxy") / "data" / "openapi.json").read_text("utf-8"))
DATA = UI_PREFIX + "data/"
PAGE = "the-page's"
TYPED = {"host": "127.0.0.1:8080", "sec-fetch-site": "none", "sec-fetch-dest": "document"}
OWN = {"host": "127.0.0.1:8080", "sec-fetch-site": "same-origin", "sec-fetch-dest": "empty", "x-llmproxy-token": PAGE}


class Asker:
    def __init__(self, engine: Engine, token: str = "") -> None:
        self.engine, self.watch = engine, RecentProxyCallLog()
        self.viewer = ProxyViewerRequestHandler(engine, self.watch, list, token, PAGE)

    def ask(
        self, target: str, headers: dict[str, str] = OWN, *, method: str = "GET", loopback: bool = True
    ) -> tuple[int, str]:
        found = self.viewer.answer_request(
            ControlRequest(method, target, tuple(headers.items()), b"", loopback)
        ).result(10)
        return found.status, found.body.decode()

    def get(self, question: str, **query: object) -> Any:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        status, body = self.ask(f"{DATA}{question}?{text}")
        assert status == 200, body
        value = json.loads(body)
        assert isinstance(value, dict)
        return value

    def call(self, text: str, session: str = "default") -> int:
        """Let an agent ask; returns the status that it got."""
        recorded = chat(text)
        exchange = self.engine.begin_exchange(
            "POST", f"/s/{session}/v1/chat/completions", None, recorded.request.headers
        )
        self.engine.stages.identify_and_decide(exchange, recorded.request.body)
        response = self.engine.answering.serve_recorded(exchange) if exchange.decision is Decision.REPLAY else None
        self.watch.record(self.engine.accounting.record_end(exchange, response.status if response else 404))
        return response.status if response else 404


Make = Callable[..., Asker]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[tuple[Asker, CallDecisionJournalWriter]] = []

    def new(**config: Any) -> Asker:
        journal = CallDecisionJournalWriter.open(tmp_path / f"{len(made)}.state.db", lambda: NOW)
        settings = EngineConfig(mode=Mode.REPLAY, store=tmp_path / "x.db", **config)
        engine = Engine(settings, redactor=Redactor(), journal=journal, now=lambda: NOW, clock=lambda: 0.0)
        made.append((Asker(engine), journal))
        return made[-1][0]

    yield new
    for asker, journal in made:
        asker.viewer.close()
        asker.engine.close()
        journal.close()


@pytest.fixture
def asker(make: Make, tmp_path: Path) -> Asker:
    """Return a viewer of a replay proxy with the sample recordings and a chat."""
    samples.store(tmp_path / "x.db")
    fill(tmp_path / "x.db", chat("hi, said at length " * 40, "one", cassette="default"))
    return make()


def test_every_question_is_documented(asker: Asker) -> None:
    """With its parameters, and none is described that nobody answers."""
    described = {
        path.removeprefix(DATA): item["get"] for path, item in DOCUMENT["paths"].items() if path.startswith(DATA)
    }
    assert set(described) == {*QUESTIONS, "live", "miss", "report"}
    for question in QUESTIONS:
        assert asker.get(question, **ASKED[question])
        assert set(ASKED[question]) <= {each["name"] for each in described[question].get("parameters", ())}


def test_the_last_test_of_the_folder_is_told(asker: Asker, tmp_path: Path) -> None:
    """While it runs, and when it is over; where the proxy knows of no folder there is no such question."""
    assert asker.ask(f"{DATA}report")[0] == 404
    asker.viewer.tests = make_report_query_handler(tmp_path / "last.jsonl", tmp_path / "x.db.state.db")
    assert asker.get("report")["scenarios"] == []
    writer = JsonLinesReport(tmp_path / "last.jsonl")
    for event in (Selected(title="tasks", scenarios=1, runs=1), Started(run_id="r", scenario="s", name="s")):
        writer.handle(event)
    told = asker.get("report")
    assert [each["status"] for each in told["scenarios"]] == ["running"]
    assert asker.get("report", test=told["test"].replace("+", "%2B"), after=2)["scenarios"] == []
    writer.close()
    assert asker.get("report")["running"] is False


def test_what_happens_is_told_once(asker: Asker) -> None:
    """Hits and misses with their texts, numbered; asked again, only what came since."""
    assert (asker.call("hi, said at length " * 40), asker.call("hi, not recorded")) == (200, 404)
    told = asker.get("live")
    assert [(row["n"], row["what"], row["answered"]) for row in told["rows"]] == [(1, "hit", "one"), (2, "miss", "")]
    assert told["rows"][1]["asked"] == "hi, not recorded"
    assert [(each["name"], each["hits"], each["misses"]) for each in told["sessions"]] == [("default", 1, 1)]
    assert asker.get("live", after=told["count"])["rows"] == []
    asker.call("another")
    assert [row["n"] for row in asker.get("live", after=2)["rows"]] == [3]


def test_a_miss_is_told_with_both_texts(asker: Asker) -> None:
    """What surrounds the difference stays, the rest is counted; with commands to type."""
    asker.call("hi, said at length " * 20 + "but " + "hi, said at length " * 20)
    row = asker.get("live")["rows"][0]
    told = asker.get("miss", at=row["at"], session="default")
    (place,) = told["places"]
    assert (place["path"], place["before"] > 100, place["after"] > 100) == ("$.messages[0].content", True, True)
    assert "but " in place["new"]
    assert "but " not in place["old"]
    assert any("llmproxy start --mode auto" in " ".join(step["commands"]) for step in told["steps"])
    assert asker.get("miss", at=1, session="default", key=row["key"])["text"] == told["text"]  # asked once more
    assert asker.ask(f"{DATA}miss?at=1&session=default")[0] == 404
    assert asker.ask(f"{DATA}miss?at=x&session=default")[0] == 400


def test_without_a_store_there_is_nothing_to_look_at_yet(make: Make) -> None:
    """The page of a first run says so, instead of an error."""
    asker = make()
    assert asker.get("cassettes")["cassettes"] == []
    asker.call("hi")
    assert [row["what"] for row in asker.get("live")["rows"]] == ["miss"]
    assert asker.ask(f"{DATA}call?id=1")[0] != 200


# --- who may ------------------------------------------------------------------------------------------------------


def test_the_page_comes_with_its_token_to_who_opens_it(asker: Asker) -> None:
    """To a browser that a person opened, or a client of this machine; never to a script, another page, or another name."""
    for headers in (TYPED, {"host": "localhost"}, TYPED | {"sec-fetch-site": "same-origin"}):
        status, body = asker.ask(UI_PREFIX, headers)
        assert (status, PAGE in body) == (200, True), headers
    for headers in (
        {"host": "evil.example"},
        TYPED | {"host": "evil.example"},
        TYPED | {"sec-fetch-site": "cross-site"},
        TYPED | {"sec-fetch-site": "same-site"},
        TYPED | {"origin": "https://evil.example"},
        TYPED | {"sec-fetch-site": "same-origin", "sec-fetch-dest": "empty"},
        TYPED | {"sec-fetch-site": "same-origin", "sec-fetch-dest": "iframe"},
    ):
        status, body = asker.ask(UI_PREFIX, headers)
        assert (status, PAGE in body) == (403, False), headers


@pytest.mark.parametrize(
    "changed",
    [
        {"x-llmproxy-token": ""}, {"x-llmproxy-token": PAGE + "x"}, {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"}, {"origin": "null"}, {"origin": "https://127.0.0.1:8080"},
        {"origin": "http://127.0.0.1:8081"}, {"host": "evil.example:8080"},
    ],
)  # fmt: skip
def test_data_is_for_our_own_page(asker: Asker, changed: dict[str, str]) -> None:
    """With the token that came with it, from the same origin, under our name: all three."""
    assert asker.ask(DATA + "cassettes")[0] == 200
    assert asker.ask(DATA + "cassettes", OWN | changed)[0] == 403


def test_our_page_may_ask_the_control_api_too(asker: Asker) -> None:
    """Reads and writes, with its token; a recorded page on the same port has none, and stays out."""

    def status(method: str, headers: dict[str, str]) -> int:
        body = b'{"name": "x"}' if method == "POST" else b""
        asked = ControlRequest(method, "/_llmproxy/sessions", tuple(headers.items()), body, loopback=True)
        return answer_control_request(asker.engine, asked, ControlApiContext(page_token=PAGE))[0]

    own = OWN | {"origin": "http://127.0.0.1:8080"}
    assert (status("GET", own), status("POST", own)) == (200, 201)
    without = {name: value for name, value in own.items() if name != "x-llmproxy-token"}
    assert (status("GET", without), status("POST", without)) == (403, 403)


def test_other_machines_get_the_page_and_no_data(asker: Asker) -> None:
    """A port bound beyond loopback wants the token that it was started with; it is typed behind the address."""
    asker.viewer.token = "s3cret"
    there = {"host": "build-box:8080", "sec-fetch-site": "none", "sec-fetch-dest": "document"}
    status, body = asker.ask(UI_PREFIX, there, loopback=False)
    assert (status, PAGE in body, "s3cret" in body) == (200, False, False)
    assert asker.ask(DATA + "live", OWN | {"host": "build-box:8080"}, loopback=False)[0] == 403
    found = asker.ask(DATA + "live", OWN | {"host": "build-box:8080", "x-llmproxy-token": "s3cret"}, loopback=False)[0]
    assert found == 200


def test_an_empty_token_is_none() -> None:
    """A proxy without a page token lets no page in, whatever it sends."""
    headers = tuple((OWN | {"x-llmproxy-token": ""}).items())
    assert find_control_api_access_refusal(ControlRequest("GET", DATA, headers, b"", loopback=True), "", "") is not None


@pytest.mark.parametrize(
    "query", ["live?after=x", "live?after=-1", f"live?after={10**20}", "miss?at=x", "report?after=x"]
)
def test_a_bad_number_is_the_askers_mistake(asker: Asker, query: str) -> None:
    """Also where the answer begins in the engine's own thread: nothing there is an internal error."""
    asker.viewer.tests = lambda given: read_query_integer(given, "after", 0, 9)
    status, body = asker.ask(DATA + query)
    assert (status, json.loads(body)["error"]["code"]) == (400, "llmproxy_question")


def test_it_is_for_reading(asker: Asker) -> None:
    """Nothing below it takes anything; a call that is not there may have been replaced, and nothing in the proxy is wrong."""
    assert asker.ask(DATA + "live", method="POST")[0] == 405
    assert asker.ask(UI_PREFIX + "x")[0] == 404
    assert asker.ask("/", TYPED)[0] == 302
    status, body = asker.ask(DATA + "call?id=987654321")
    assert (status, json.loads(body)["error"]["code"]) == (404, "llmproxy_cassette_not_found")


def test_the_ring_is_bounded() -> None:
    watch, outcome = RecentProxyCallLog(), Asker.__new__
    for _ in range(KEPT + 10):
        watch.record(outcome)  # type: ignore[arg-type]
    assert [number for number, _ in watch.since(0, 3)] == [KEPT + 8, KEPT + 9, KEPT + 10]
    assert len(watch.since(0, 10**9)) == KEPT
    assert watch.since(KEPT + 10, 5) == []
