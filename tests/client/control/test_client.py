"""The client of the control API, against a real proxy."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from llmproxy.client.control.client import Control, ControlError, ProxyGone, session_url
from llmproxy.client.control.values import Party, Report, Unused
from llmproxy.trace.reading.told import exchanges
from tests.provider import Provider, step
from tests.support.process import free_port
from tests.support.proxy import DIRECT, Listening, near

ODD = "tests/ä b#1?x=y%20~/.."


def ask(url: str, text: str = "hi") -> int:
    """Ask for a chat below a base URL; returns the status."""
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).encode()
    try:
        with DIRECT.open(Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})) as answer:
            answer.read()  # who leaves after the head is recorded as having left
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_health_says_what_it_is(control: Control) -> None:
    """Version and mode are known before anything is opened."""
    health = control.health()
    assert health.mode == "replay"
    assert health.version


def test_a_session_of_any_name_is_opened_asked_reset_and_closed(control: Control) -> None:
    """A name is one segment, whatever stands in it, and its misses are counted."""
    opened = control.open(ODD)
    assert (opened.name, opened.cassette, opened.mode, opened.calls) == (ODD, ODD, "replay", 0)
    assert ask(session_url(control.url, ODD)) == 404
    report = control.report(ODD)
    assert (report.misses, report.calls, len(report.miss_texts)) == (1, 1, 1)
    assert [miss.session for miss in control.misses(ODD)] == [ODD]
    assert control.reset(ODD).name == ODD
    assert ODD in [each.name for each in control.sessions()]
    assert control.close(ODD).misses == 1
    with pytest.raises(ControlError, match="no session"):
        control.report(ODD)


def test_the_end_of_a_session_tells_what_came_last(control: Control) -> None:
    """With the number of a call; without one, nobody asked."""
    control.open("last")
    for _ in range(3):
        assert ask(session_url(control.url, "last")) == 404
    with pytest.raises(ControlError, match="after is '-1'"):
        control.close("last", after=-1)
    further = control.close("last", after=1).further
    assert further is not None
    assert [(call.seq, call.miss) for call in further] == [(2, True), (3, True)]
    control.open("last")
    assert control.close("last").further is None


def test_a_bound_name_counts_for_its_session_until_that_is_closed(control: Control) -> None:
    """A process whose base URL never changes walks another cassette in each test."""
    for name in ("one", "two"):
        control.open(name)
        control.bind("process", name)
        assert ask(session_url(control.url, "process")) == 404
        assert control.close(name).misses == 1
    control.open("three")
    control.bind("process", "three")
    with pytest.raises(ControlError) as error:
        control.bind("process", "three")
    assert error.value.status == 409
    control.unbind("process")
    assert control.close("three").calls == 0


def test_an_open_session_is_waited_for_as_long_as_one_has_patience(control: Control) -> None:
    """Two test processes may share a cassette, one after the other."""
    control.open("shared")
    with pytest.raises(ControlError) as error:
        control.open("shared")
    assert (error.value.status, error.value.hint != "") == (409, True)
    timer = threading.Timer(0.3, control.close, ["shared"])
    timer.start()
    assert control.open("shared", patience=10).name == "shared"
    timer.join()
    control.close("shared")


@pytest.mark.parametrize(("given", "status"), [({"mode": "record"}, 403), ({"speed": -1.0}, 400), ({"mode": "x"}, 400)])
def test_what_the_proxy_refuses_is_an_error_with_its_words(
    control: Control, given: dict[str, object], status: int
) -> None:
    """The reason, and what to do, reach the user."""
    with pytest.raises(ControlError) as error:
        control.open("refused", **given)  # type: ignore[arg-type]
    assert error.value.status == status


def test_nobody_at_the_address_is_said(px: Listening) -> None:
    """The most frequent mistake: no proxy runs."""
    with pytest.raises(ProxyGone, match="no llmproxy answers at"):
        Control(f"http://127.0.0.1:{free_port()}").health()


class _Other(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html>" if "sessions" in self.path else b"{}"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """Say nothing."""


@pytest.fixture
def stranger() -> Iterator[str]:
    """Run a web server that is no llmproxy."""
    with HTTPServer(("127.0.0.1", 0), _Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_another_server_is_not_taken_for_llmproxy(stranger: str) -> None:
    """Port 8080 is popular."""
    with pytest.raises(ProxyGone, match="is not llmproxy"):
        Control(stranger).health()
    with pytest.raises(ProxyGone, match="is not llmproxy"):
        Control(stranger).sessions()


def test_a_report_goes_to_json_and_back() -> None:
    """It travels from a worker to whoever writes the summary; money stays exact."""
    report = Report(
        name="a",
        cassette="a",
        mode="auto",
        hits=2,
        misses=1,
        recorded=1,
        tokens_in=7,
        cost_not_spent=Decimal("0.00123"),
        unused=(Unused(3, "messages", None, "hi"),),
        parties={"agent": Party(3, 7, 1, Decimal("0.1"))},
        miss_texts=("no",),
    )
    assert Report.of(json.loads(json.dumps(report.to_json()))) == report


def test_a_report_of_another_version_is_read_as_far_as_it_goes() -> None:
    """The proxy may live in another environment, and be older or newer."""
    assert Report.of({"name": "a", "news": 1, "cost_spent": "?"}) == Report(name="a", cassette="", sample=0)


@pytest.mark.parametrize("mode", ["record", "once", "auto", "passthrough"])
def test_a_walk_tells_each_call_in_every_mode(tmp_path: Path, mode: str) -> None:
    """Live calls have their recording as soon as they are over, what passes has none; the second time it is a hit, or recorded anew."""
    dialogue = [step(user="hi", say="hello", times=None)]
    with (
        Provider(dialogue) as provider,
        near(mode, tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
    ):
        control = Control(px.url)
        control.open("a")
        assert control.walk("a") == ()
        assert ask(session_url(px.url, "a")) == 200
        (first,) = control.walk("a")
        assert (first.seq, first.party, first.status, first.miss) == (1, "agent", 200, False)
        assert (first.recording is None) == (mode == "passthrough")
        assert first.decision == ("PASS" if mode == "passthrough" else "RECORD")
        assert ask(session_url(px.url, "a")) == 200
        (second,) = control.walk("a", after=1)
        assert (second.seq, control.report("a").arrived) == (2, 2)
        if mode != "passthrough":
            (said,) = [each.answer.text for each in exchanges(control.walk("a", 1)) if each.answer]
            assert said == "hello"
            assert [span["output"] for span in control.spans("a") if span["kind"] == "agent_output"] == ["hello"] * 2
        control.close("a")


def test_a_walk_tells_misses_and_hits_of_a_replay(control: Control, px: Listening) -> None:
    """The text that the client got is the note; nobody's walk is an error."""
    control.open("walked")
    assert ask(session_url(px.url, "walked")) == 404
    (call,) = control.walk("walked")
    assert (call.decision, call.miss, call.status, call.recording) == ("REFUSE", True, 404, None)
    assert "no recorded response" in call.note
    control.close("walked")
    with pytest.raises(ControlError, match="no session"):
        control.walk("walked")
    with pytest.raises(ControlError, match="no session"):
        control.spans("walked")
