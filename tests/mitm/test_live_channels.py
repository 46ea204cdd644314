"""Some channels live, over real sockets: a model that is asked, tools and services that are not, all counted where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.client.control import ControlApiClient, ControlError
from llmproxy.core.store.file.store import SqliteCassetteStore
from tests.mitm.rig import Rig, connected
from tests.mitm.test_record_host import ask
from tests.mitm.wire import chat, request
from tests.provider import Provider, step
from tests.support.services import CountingService
from tests.support.tools import http_server, use

HOSTS = ("127.0.0.1",)
INVOICE, OTHER = b'{"amount": 7}', b'{"amount": 8}'


def served(store: Path, cassette: str) -> list[tuple[str, int]]:
    """Return what a cassette holds: operation and status."""
    with SqliteCassetteStore.open(store, writable=False, now=lambda: 0.0) as opened:
        return [(each.operation, each.status) for each in opened.list_summaries(cassette)]


@pytest.fixture
def tape(tmp_path: Path, service: CountingService) -> Path:
    """Return a store: a model was asked, a list read, an invoice made, the list read again."""
    store = tmp_path / "x.db"
    with connected(Provider([step(user="old", say="a")]), "record", store, record_host=HOSTS) as (_, c):
        c.ask(chat("old"))
        for method, path, body in (
            ("GET", "/invoices", b""),
            ("POST", "/invoices", INVOICE),
            ("GET", "/invoices", b""),
        ):
            ask(c, service, method, path, body)
    assert len(service.asked) == 3
    return store


def test_a_live_model_makes_no_invoice(tape: Path, service: CountingService) -> None:
    """The model is really asked, the service never; an invoice that was never made is refused and named; lists are told in their state."""
    with (
        Provider([step(user="new", say="b")]) as p,
        Rig("replay", tape, {"openai": p.url}, record_host=HOSTS, live=["llm"]) as rig,
        rig.client() as c,
    ):
        assert "b" in c.ask(chat("new")).body.decode()
        numbers = [ask(c, service, "GET", "/invoices").json["number"] for _ in range(3)]
        refused = ask(c, service, "POST", "/invoices", OTHER)
        made = ask(c, service, "POST", "/invoices", INVOICE)
        numbers.append(ask(c, service, "GET", "/invoices").json["number"])
        again = ask(c, service, "POST", "/invoices", INVOICE)
        rig.wait_idle()
        misses = [outcome for outcome in rig.outcomes if outcome.miss]
        assert len(p.requests) == 1
    assert (numbers, made.status, made.json["number"]) == ([1, 1, 1, 3], 201, 2)
    assert (refused.status, again.status) == (501, 501)
    assert f"POST http:{service.host} /invoices" in refused.body.decode()
    assert len(service.asked) == 3
    assert misses == []
    assert len(served(tape, "default")) == 4
    assert [status for _, status in served(tape, "default@live-1")] == [200, 200, 200, 200, 501, 201, 200, 501]


def test_a_call_without_a_recording_can_fail_the_run(tape: Path, service: CountingService) -> None:
    """`fail`: the same answer, and a miss."""
    with Rig("replay", tape, record_host=HOSTS, live=["llm"], unknown_tool="fail") as rig, rig.client() as c:
        assert ask(c, service, "POST", "/invoices", OTHER).status == 501
        assert [outcome.miss for outcome in rig.wait_outcomes(1)] == [True]
    assert len(service.asked) == 3


def test_a_call_without_a_recording_can_go_to_the_real_tool(tape: Path, service: CountingService) -> None:
    """`live`: it is made and recorded; what it may have changed is in no recording, so the list is really read, too."""
    with Rig("replay", tape, record_host=HOSTS, live=["llm"], unknown_tool="live") as rig, rig.client() as c:
        assert ask(c, service, "GET", "/invoices").json["number"] == 1
        assert ask(c, service, "POST", "/invoices", OTHER).json["number"] == 4
        assert ask(c, service, "GET", "/invoices").json["number"] == 5
    assert [path for _, path, _ in service.asked[3:]] == ["/invoices", "/invoices"]
    assert len(served(tape, "default@live-1")) == 3


def test_live_tools_under_a_recorded_model(tape: Path, service: CountingService) -> None:
    """The other way round: the service is asked, the model is not."""
    with connected(p := Provider([]), "replay", tape, record_host=HOSTS, live=["http"]) as (_, c):
        assert c.ask(chat("old")).status == 200
        assert c.ask(chat("new")).status == 404
        assert ask(c, service, "POST", "/invoices", OTHER).json["number"] == 4
        assert p.requests == []
    assert [status for _, status in served(tape, "default@live-1")] == [200, 201]


def test_a_dead_provider_and_one_that_fails(tape: Path, service: CountingService) -> None:
    """Who cannot be reached is said, and not recorded; a failure is recorded as in every run."""
    with (
        Provider([step(user="new", status=500, json={"error": {"message": "no"}})]) as p,
        Rig("replay", tape, {"openai": p.url}, record_host=HOSTS, live=["llm"]) as rig,
        rig.client() as c,
    ):
        assert c.ask(chat("new")).status == 500
    with Rig("replay", tape, {"openai": "http://127.0.0.1:9"}, live=["llm"]) as rig, rig.client() as c:
        assert c.ask(chat("new")).status == 502
    assert served(tape, "default@live-1") == [("chat.completions", 500)]
    assert served(tape, "default@live-2") == []
    assert len(served(tape, "default")) == 4


def test_sessions_of_a_replay_proxy(tape: Path, tmp_path: Path) -> None:
    """The control API opens such sessions where that is allowed, and says what makes no sense."""
    with Rig("replay", tape) as rig, pytest.raises(ControlError, match="--allow-live"):
        ControlApiClient(rig.url).open_session("default", live={"live": ["llm"]})
    with Rig("replay", tape, allow_live=True) as rig:
        control = ControlApiClient(rig.url)
        opened = control.open_session("default", live={"live": ["llm"], "unknown_tool": "fail", "read_only": ["get_*"]})
        assert opened.live is not None
        assert (opened.live["cassette"], opened.live["unknown_tool"]) == ("default@live-1", "fail")
        assert not opened.needs_no_model_keys
        control.close_session("default")
        for given, said in (
            ({"live": ["models"]}, "not one of llm, mcp, http"),
            ({"live": "llm"}, "lists"),
            ({"unknown_tool": "error"}, "needs live"),
            ({"live": ["llm"], "unknown_tool": "maybe"}, "not one of error, fail, live"),
        ):
            with pytest.raises(ControlError, match=said):
                control.open_session("default", live=given)
        with pytest.raises(ControlError, match="mode replay"):
            control.open_session("default", mode="auto", live={"live": ["llm"]})
        with pytest.raises(ControlError, match="exclude each other"):
            control.open_session("default", fork={"live": True}, live={"live": ["llm"]})
        with pytest.raises(ControlError, match="nothing is recorded in cassette 'other'"):
            control.open_session("other", live={"live": ["llm"]})
    with Rig("replay", tape, live=["llm"]) as rig:
        assert ControlApiClient(rig.url).open_session("default", live={"live": []}).live is None
    assert served(tape, "default@live-1") == []


def test_a_second_run_of_an_agent_is_kept_apart(tape: Path, service: CountingService) -> None:
    """At a proxy that serves run after run: its first request again is another run, whose tools are in their first state."""
    with (
        Provider([step(user="old", say="b"), step(user="old", say="c")]) as p,
        Rig("replay", tape, {"openai": p.url}, record_host=HOSTS, live=["llm"]) as rig,
        rig.client() as c,
    ):
        for _ in range(2):
            assert c.ask(chat("old")).status == 200
            assert ask(c, service, "POST", "/invoices", INVOICE).json["number"] == 2
            assert ask(c, service, "GET", "/invoices").json["number"] == 3
    for run in (1, 2):
        assert len(served(tape, f"default@live-{run}")) == 3
    assert len(service.asked) == 3


def test_ids_of_a_live_run_are_its_own(store: Path) -> None:
    """Two runs without any tool, each naming answers of its own: each replays whole from its cassette."""
    answer = '{"id": "resp_%032x", "object": "response", "status": "completed", "model": "gpt-4o", "output": []}'
    steps = [step(path="/v1/responses", json=json.loads(answer % number)) for number in range(1, 7)]

    def talk(rig: Rig, session: str) -> list[str]:
        named: list[str] = []
        with rig.client() as c:
            for text in ("first", "second"):
                body = {"model": "gpt-4o", "input": text, **({"previous_response_id": named[-1]} if named else {})}
                got = c.ask(request(json.dumps(body).encode(), f"/s/{session}/v1/responses"))
                assert got.status == 200, got.body
                named.append(got.json["id"])
        return named

    with Provider(steps) as p:
        with Rig("record", store, {"openai": p.url}) as rig:
            runs = {"x": talk(rig, "x")}
        with Rig("replay", store, {"openai": p.url}, live=["llm"]) as rig:
            runs |= {f"x%40live-{number}": talk(rig, "x") for number in (1, 2)}
    assert len({each for named in runs.values() for each in named}) == 6
    with Rig("replay", store, {"openai": "http://127.0.0.1:9"}) as rig:
        assert {name: talk(rig, name) for name in runs} == runs


@pytest.mark.slow
def test_a_real_server_of_tools_is_not_asked(tmp_path: Path) -> None:
    """The official SDK's client and server: recorded, then dead; in order each call is answered, out of order it is an error of the tool."""
    store, log = tmp_path / "x.db", tmp_path / "log"
    calls = [["count", {}], ["echo", {"text": "a"}], ["count", {}], ["delete_all", {}]]
    with http_server(log, tmp_path) as origin, Rig("record", store, {"tools": origin}) as rig:
        (recorded,) = use([f"{rig.url}/s/x/tools/mcp"], cwd=tmp_path, calls=calls)
        rig.wait_idle()
    ran = log.read_text()
    with Rig("replay", store, {"tools": "http://127.0.0.1:9"}, live=["llm"]) as rig:
        (same,) = use([f"{rig.url}/s/x/tools/mcp"], cwd=tmp_path, calls=calls)
        rig.wait_idle()
        assert same == recorded
    with Rig("replay", store, {"tools": "http://127.0.0.1:9"}, live=["llm"]) as rig:
        (other,) = use([f"{rig.url}/s/x/tools/mcp"], cwd=tmp_path, calls=[calls[1], calls[0], calls[0]])
        assert [(each["error"], each["text"]) for each in other[1:2]] == [(False, "1")]
        assert [each["error"] for each in other] == [True, False, True]
        assert "it was recorded after count, which this run has not called" in other[0]["text"]
    assert log.read_text() == ran
    assert json.dumps(recorded)
