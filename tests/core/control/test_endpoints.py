"""The control API as a function: what it answers, whom it refuses, and that its OpenAPI document is true."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator

from llmproxy.core.bindings import build_run_variable
from llmproxy.core.cassettes.anonymized_export import build_interaction_from_json
from llmproxy.core.control.endpoints import (
    TABLE,
    ControlApiContext,
    ControlRequest,
    answer_control_request,
    build_session_report,
    build_spans,
    find_open_session_for_totals,
    list_session_calls,
    parse_call_number,
)
from llmproxy.core.control.parsing import BadControlRequest
from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.session import Session
from llmproxy.core.traffic.interaction import Chunk, Interaction, Response
from llmproxy.protocol import UI_PREFIX, Decision, Mode
from tests.core.engine.test_engine import engine, send
from tests.support.chats import chat, fill
from tests.support.recordings import look

DOCUMENT = json.loads((files("llmproxy") / "data" / "openapi.json").read_text("utf-8"))
PREFIX = "/_llmproxy/"
LOCAL = {"host": "127.0.0.1:8080"}


class Api:
    """A client of one engine, without sockets. Every answer is held against the OpenAPI document."""

    def __init__(self, engine: Engine, token: str = "") -> None:
        self.engine = engine
        self.token = token

    def ask(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] = LOCAL, loopback: bool = True
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        asked = ControlRequest(method, PREFIX + path, tuple(headers.items()), data, loopback)
        proxy = ControlApiContext(token=self.token, ca="/home/me/ca.pem")
        status, content, kind = answer_control_request(self.engine, asked, proxy)
        assert kind == "application/json"
        value = json.loads(content)
        check_documented(method, path, status, value)
        return status, value

    def post(self, path: str, body: object = None) -> Any:
        status, value = self.ask("POST", path, body)
        assert status in (200, 201), value
        return value

    def get(self, path: str) -> Any:
        status, value = self.ask("GET", path)
        assert status == 200, value
        return value

    def call(self, session: str, text: str, *, party: str | None = None) -> bytes | None:
        """Let an agent ask under a session's name; returns the replayed answer, or None after a refusal."""
        recorded = chat(text)
        headers = (*recorded.request.headers, *((("x-llmproxy-party", party),) if party else ()))
        target = f"/s/{quote(session, safe='')}/v1/chat/completions"
        exchange = send(self.engine, recorded.request.body, target, headers)
        response = self.engine.answering.serve_recorded(exchange) if exchange.decision is Decision.REPLAY else None
        self.engine.accounting.record_end(exchange, response.status if response else 404)
        return response.body if response else None


def check_documented(method: str, path: str, status: int, value: object) -> None:
    """Hold an answer against the document, where it knows the path; errors that no path explains are all alike."""
    shape = re.sub(r"^sessions/[^/]+", "sessions/{name}", path.partition("?")[0])
    operation = DOCUMENT["paths"].get(PREFIX + shape, {}).get("get" if method == "HEAD" else method.lower())
    schema: object = {"$ref": "#/components/schemas/ControlErrorBody"}
    if operation is not None:
        assert str(status) in operation["responses"], f"{method} {shape} answers {status}, which is not documented"
        found = operation["responses"][str(status)]
        if "$ref" in found:
            found = DOCUMENT["components"]["responses"][found["$ref"].rpartition("/")[2]]
        schema = found["content"]["application/json"]["schema"]
    validator(schema).validate(value)


def validator(schema: object) -> Draft202012Validator:
    """Return a validator of one schema of the document; OpenAPI 3.1 speaks this dialect."""
    assert isinstance(schema, dict)
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


Make = Callable[..., Api]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as running:

        def new(mode: Mode = Mode.REPLAY, *, token: str = "", **config: Any) -> Api:
            return Api(running.enter_context(engine(tmp_path / "x.db", mode, **config)), token)

        yield new


@pytest.fixture
def api(make: Make, tmp_path: Path) -> Api:
    """Return the API of a replay proxy; the cassette `a` has hi, hi, bye, and a judge's hi."""
    fill(
        tmp_path / "x.db",
        chat("hi", "one", cassette="a"),
        chat("hi", "two", cassette="a", occurrence=2),
        chat("bye", "three", cassette="a"),
        chat("hi", "verdict", cassette="a", party="judge"),
    )
    return make()


# --- the document ---------------------------------------------------------------------------------------------------


def test_the_document_and_the_table_agree() -> None:
    """Every endpoint is described, and nothing else is."""
    described = {
        (path.removeprefix(PREFIX), method.upper())
        for path, item in DOCUMENT["paths"].items()
        for method in item
        if not path.startswith(UI_PREFIX)  # tests/ui/test_proxy.py
    }
    served = {("/".join(shape).replace("*", "{name}"), method) for shape, row in TABLE.items() for method in row}
    assert described == served


def test_every_schema_and_example_is_valid() -> None:
    """The schemas are JSON Schema 2020-12, and each example is what its schema says; operation ids are unique."""
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    schemas, responses = (DOCUMENT["components"][kind] for kind in ("schemas", "responses"))
    ids = [operation["operationId"] for item in DOCUMENT["paths"].values() for operation in item.values()]
    examples = [(schema, example) for schema in schemas.values() for example in schema.get("examples", ())]
    contents = [each["content"]["application/json"] for each in responses.values()]
    examples += [(content["schema"], content["example"]) for content in contents]
    assert len(examples) > 14
    for schema, example in examples:
        validator(schema).validate(example)
    assert len(set(ids)) == len(ids)


def test_what_open_takes_is_what_the_document_says(api: Api) -> None:
    """Each documented member is understood, and no other."""
    members = DOCUMENT["components"]["schemas"]["OpenSessionRequest"]["properties"]
    api.post("sessions", dict.fromkeys(members) | {"name": "all"})
    status, value = api.ask("POST", "sessions", {"name": "x", "sped": 1, "\ud800": 2})
    assert status == 400
    assert value["error"]["hint"] == f"It has: {', '.join(members)}"


def test_the_document_is_made_of_the_table() -> None:
    """`scripts/api-document --write` wrote it: rows, handlers' docstrings and models say what is served."""
    made = runpy.run_path(str(Path(__file__).resolve().parents[3] / "scripts/api-document"))
    assert made["DOCUMENT"].read_text("utf-8") == made["render"]()
    assert not made["EXAMPLES"].keys() - DOCUMENT["components"]["schemas"].keys(), "examples of no model"


def test_the_document_is_served(api: Api) -> None:
    assert api.get("openapi.json") == DOCUMENT


# --- who may ask ----------------------------------------------------------------------------------------------------


NODE = {"content-type": "text/plain;charset=UTF-8", "sec-fetch-mode": "cors", "sec-fetch-site": "none"}
OURS = ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]:8080", "[::1]", ""]


@pytest.mark.parametrize("headers", [*({"host": host} for host in OURS), LOCAL | NODE])
def test_our_own_names_are_served(api: Api, headers: dict[str, str]) -> None:
    """Loopback by number or name, any port; Node's fetch and a typed address only look like a page."""
    assert api.ask("POST", "sessions", {"name": "x"}, headers=headers)[0] == 201
    assert api.ask("GET", "sessions", headers=headers)[0] == 200


FOREIGN = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "evil.example:127", "[::2"]
ORIGINS = ["http://evil.example", "null", "http://127.0.0.1:8080", ""]
SITES = ["cross-site", "same-site", "same-origin"]
PAGES = [*({"host": host} for host in FOREIGN), *({"origin": each} for each in ORIGINS),
         *({"sec-fetch-site": site} for site in SITES)]  # fmt: skip


@pytest.mark.parametrize("sent", PAGES)
def test_foreign_hosts_and_web_pages_are_not(api: Api, sent: dict[str, str]) -> None:
    """A name that points here (DNS rebinding), a form, a no-cors POST with text/plain, a page that we replayed."""
    headers = LOCAL | {"content-type": "text/plain"} | sent
    status, value = api.ask("POST", "sessions", {"name": "x"}, headers=headers)
    assert (status, value["error"]["code"]) == (403, "llmproxy_forbidden")
    assert api.ask("GET", "sessions", headers=headers)[0] == 403
    assert api.engine.sessions.open_sessions == {}


def test_other_machines_need_the_token(make: Make) -> None:
    """Without one nothing is open to them but health; a wrong or empty one is none."""
    closed, opened = make(), make(token="s3cret")
    for token in ("", "s3cre", "s3cret ", "\xff", "s3cret"):
        headers = {"host": "build-box:8080", "x-llmproxy-token": token}
        got = [api.ask("GET", "sessions", headers=headers, loopback=False)[0] for api in (closed, opened)]
        assert got == [403, 200 if token == "s3cret" else 403], token


def test_health_is_open_and_says_little(api: Api) -> None:
    """A container's health check has no token; the path of the CA, with a user's name in it, is not for strangers."""
    status, value = api.ask("GET", "health", headers={"host": "evil.example"}, loopback=False)
    assert (status, value["status"], value["mode"], value["ca"]) == (200, "ok", "replay", None)
    assert api.get("health")["ca"] == "/home/me/ca.pem"


# --- what makes no sense --------------------------------------------------------------------------------------------


UNKNOWN = ["", "session", "sessions/a/b/c", "sessions/a/delete", "spans/x", "../health", "openapi"]
BODIES = [
    b"{",
    b'{"name": %s%s}' % (b"[" * 500, b"]" * 500),
    {"name": "x", "mode": []},
    {},
]
QUERIES = ["limit=0", "limit=x", "limit=", "limit=10001", "limit=" + "9" * 5000, "limit=-1", "session="]
NAMES = ["", "x" * 301, "a\nb", None, 3, "\ud800", ["x"]]


@pytest.mark.parametrize(("method", "path", "body", "status"), [
    *(("GET", path, None, 404) for path in UNKNOWN),
    ("DELETE", "sessions/a", None, 405),
    ("PUT", "sessions", None, 405),
    *(("POST", "sessions", body, 400) for body in BODIES),
    *(("GET", f"{path}?{query}", None, 400) for path in ("interactions", "misses") for query in QUERIES),
    *(("POST", "sessions", {"name": name}, 400) for name in NAMES),
    *(("POST", "sessions/w/bind", {"session": name}, 404 if name in NAMES[:3] else 400) for name in NAMES),
    *(("POST", f"sessions/{name}/close", None, 400) for name in ("%FF", "%ED%A0%80")),
    *(("POST", f"sessions/{name}/close", None, 404) for name in ("", "%")),
], ids=lambda each: str(each)[:40])  # fmt: skip
def test_what_makes_no_sense_is_refused(api: Api, method: str, path: str, body: object, status: int) -> None:
    """In readable JSON, with what is there instead; nothing was opened, and two broken names are never the same session."""
    got, value = api.ask(method, path, body)
    assert got == status
    if path in UNKNOWN:
        assert "sessions/*/close" in value["error"]["hint"]
    if method == "PUT":
        assert value["error"]["message"] == "llmproxy: /_llmproxy/sessions takes GET or POST, not PUT."
    assert api.engine.sessions.open_sessions == {}
    assert api.ask("HEAD", "health")[0] == 200


@pytest.mark.parametrize("name", ["a/b", "ünï 日本", "x" * 300, "..", "~0", "x~0", "a%2Fb", "#?&", "\u2028"])
def test_odd_names_go_through_all_of_it(api: Api, name: str) -> None:
    """Open, ask, bind, list, reset, close: always the same session."""
    encoded = quote(name, safe="")
    assert api.post("sessions", {"name": name})["name"] == name
    assert api.get(f"sessions/{encoded}")["cassette"] == name
    assert api.call(name, "hi") is None
    api.post(f"sessions/{encoded}-w/bind" if len(name) < 290 else "sessions/w/bind", {"session": name})
    assert len(api.get(f"misses?session={encoded}")["misses"]) == 1
    assert api.get(f"interactions?session={encoded}")["interactions"] == []
    api.post(f"sessions/{encoded}/reset")
    assert api.post(f"sessions/{encoded}/close")["misses"] == 1
    assert api.ask("POST", f"sessions/{encoded}/close")[0] == 404


# --- a walk ---------------------------------------------------------------------------------------------------------


def test_a_walk_and_what_it_comes_to(api: Api) -> None:
    """Hits, misses, tokens and what was never asked for; the file of the store is not touched."""
    before = look(api.engine.config.store.parent)["x.db"]
    assert [row["text"] for row in api.post("sessions", {"name": "a"})["unused"]] == ["hi", "hi", "bye", "hi"]
    assert b"one" in (api.call("a", "hi") or b"")
    assert api.call("a", "never recorded") is None
    closed = api.post("sessions/a/close")
    assert (closed["hits"], closed["misses"], closed["live_calls"], closed["recorded"]) == (1, 1, 0, 0)
    assert closed["tokens"] == {"input": 11, "output": 2}
    assert "never recorded" in closed["miss_texts"][0]
    assert [row["text"] for row in closed["unused"]] == ["hi", "bye", "hi"]
    assert closed["unused_total"] == 3
    assert api.get("sessions") == {"sessions": []}
    assert look(api.engine.config.store.parent)["x.db"] == before


def test_a_reset_in_the_middle_of_a_walk(api: Api) -> None:
    """The next request of each key is its first again; what was counted stays."""
    api.post("sessions", {"name": "a"})
    assert b"one" in (api.call("a", "hi") or b"")
    assert b"two" in (api.call("a", "hi") or b"")
    assert api.post("sessions/a/reset")["hits"] == 2
    assert b"one" in (api.call("a", "hi") or b"")
    closed = api.post("sessions/a/close")
    assert (closed["hits"], closed["unused_total"]) == (3, 2)


def test_an_opened_session_does_not_restart_by_itself(api: Api) -> None:
    """`exhausted` decides what answers after the last recording, and no guess."""
    api.post("sessions", {"name": "a", "exhausted": "miss"})
    said = [api.call("a", text) for text in ("hi", "hi", "bye", "hi")]
    assert [text is None for text in said] == [False, False, False, True]
    api.post("sessions/a/close")
    api.post("sessions", {"name": "a", "exhausted": "cycle"})
    said = [api.call("a", "hi") for _ in range(3)]
    assert said[0] == said[2] != said[1]


def test_parties_walk_and_count_apart(api: Api) -> None:
    """The judge's hi is another than the agent's, and its tokens are its own."""
    api.post("sessions", {"name": "a"})
    assert b"verdict" in (api.call("a", "hi", party="judge") or b"")
    assert b"one" in (api.call("a", "hi") or b"")
    assert api.call("a", "hi", party="user") is None
    closed = api.post("sessions/a/close")
    assert {name: each["calls"] for name, each in closed["parties"].items()} == {"agent": 1, "judge": 1}
    assert (closed["hits"], closed["misses"]) == (2, 1)


def test_samples_are_walks_of_their_own(make: Make, tmp_path: Path) -> None:
    """`sample` picks the recorded trial; one that was never recorded misses; samples do not see each other's rows."""
    fill(tmp_path / "x.db", chat("hi", "first", cassette="t"), chat("hi", "second", cassette="t", sample=2))
    api = make()
    opened = api.post("sessions", {"name": "t", "sample": 2})
    assert (opened["name"], opened["cassette"], opened["sample"], opened["unused_total"]) == ("t~2", "t", 2, 1)
    api.post("sessions", {"name": "t", "sample": 1})
    assert api.ask("POST", "sessions", {"name": "t~1"})[0] == 409
    assert b"first" in (api.call("t", "hi") or b"")
    assert b"first" in (api.call("t~1", "hi") or b"")
    assert b"second" in (api.call("t~2", "hi") or b"")
    assert api.call("t~3", "hi") is None
    assert [row["sample"] for row in api.get("interactions?session=t~2")["interactions"]] == [2]
    assert api.post("sessions/t~2/close")["unused"] == []
    assert api.post("sessions/t~1/close")["hits"] == 2


def test_a_bound_name_walks_the_session(api: Api) -> None:
    """Until unbound; bound twice is 409, to itself 400, to nothing 404."""
    api.post("sessions", {"name": "a"})
    assert api.post("sessions/w/bind", {"session": "a"}) == {"name": "w", "session": "a"}
    assert b"one" in (api.call("w", "hi") or b"")
    assert b"two" in (api.call("a", "hi") or b"")
    assert api.ask("POST", "sessions/w/bind", {"session": "a"})[0] == 409
    assert api.ask("POST", "sessions/a/bind", {"session": "a"})[0] == 400
    assert api.ask("POST", "sessions/v/bind", {"session": "nobody"})[0] == 404
    assert api.ask("POST", "sessions/v/bind", {})[0] == 400
    assert api.post("sessions/w/unbind") == {"name": "w", "session": None}
    assert api.ask("POST", "sessions/w/unbind")[0] == 404
    assert api.call("w", "hi") is None
    assert api.get("sessions/a")["hits"] == 2


def test_a_replay_proxy_opens_no_live_session(api: Api) -> None:
    """403 with the option that would permit it, also under VCR's names, before anything is changed."""
    walk = api.engine.sessions.get_or_open("live")
    for mode in ("auto", "record", "once", "passthrough", "new_episodes", "all"):
        status, value = api.ask("POST", "sessions", {"name": "live", "mode": mode})
        assert (status, value["error"]["code"]) == (403, "llmproxy_live_forbidden")
        assert "--allow-live" in value["error"]["hint"]
        assert api.engine.sessions.get_or_open("live") is walk
    assert api.post("sessions", {"name": "live", "mode": "none"})["mode"] == "replay"


def test_a_permitted_live_session_records_where_it_says(make: Make) -> None:
    """With --allow-live; upstreams of the session are its own, and what is stored after its close is not lost."""
    api = make(allow_live=True)
    api.post("sessions", {"name": "n", "mode": "all", "upstreams": {"openai": "http://one.example/v1"}})
    api.post("sessions", {"name": "m", "mode": "all", "upstreams": {"openai": "http://two.example/v1"}})
    headers = chat("hi").request.headers
    one, two = (api.engine.begin_exchange("POST", f"/s/{name}/v1/chat/completions", None, headers) for name in "nm")
    assert (one.route.upstream, two.route.upstream) == ("http://one.example", "http://two.example")
    assert one.decision is Decision.RECORD
    api.engine.stages.identify_and_decide(one, chat("hi").request.body)
    assert api.post("sessions/n/close")["recorded"] == 0
    answered = chat("hi", "late").response
    one.recording.on_head(0, 200, "OK", answered.headers)
    one.recording.on_data(1, answered.body)
    usage = api.engine.writer.store_answer(one, proper=True)
    assert api.engine.accounting.record_end(one, 200, usage=usage).interaction is not None
    api.post("sessions", {"name": "n", "mode": "replay"})
    assert b"late" in (api.call("n", "hi") or b"")


def test_an_interrupted_session_leaves_its_cassette_incomplete(make: Make, tmp_path: Path) -> None:
    """Mode `once` replays what is whole, also where it was interrupted and its last answer came after the close: nothing is paid for twice."""
    api = make(allow_live=True)

    def recorded(complete: object) -> bool:
        assert api.post("sessions", {"name": "n", "mode": "once"})["mode"] == "once"
        asked = chat("hi").request
        exchange = send(api.engine, asked.body, "/s/n/v1/chat/completions", asked.headers)
        if live := exchange.decision is Decision.RECORD:
            answered = chat("hi", "late").response
            exchange.recording.on_head(0, 200, "OK", answered.headers)
            exchange.recording.on_data(1, answered.body)
        api.post("sessions/n/close", {"complete": complete})
        if live:
            api.engine.writer.store_answer(exchange, proper=True)
        return live

    assert [recorded(complete) for complete in (False, False, True, None)] == [True, False, False, False]
    api.post("sessions", {"name": "n"})
    status, told = api.ask("POST", "sessions/n/close", {"complete": "no"})
    assert (status, told["error"]["code"]) == (400, "llmproxy_control")


def test_many_unused_are_counted_all_and_listed_in_part(make: Make, tmp_path: Path) -> None:
    """A big cassette makes no big answer; a session that passes through looks at no recordings, so it knows of none."""
    fill(tmp_path / "x.db", *(chat(f"q{n}", cassette="big") for n in range(130)))
    opened = make().post("sessions", {"name": "big"})
    assert (len(opened["unused"]), opened["unused_total"]) == (100, 130)
    opened = make(allow_live=True).post("sessions", {"name": "big", "mode": "passthrough"})
    assert (opened["unused"], opened["unused_total"]) == (None, None)


def test_listings_give_the_last_rows(api: Api) -> None:
    """Of all sessions or one; in order."""
    api.call("a", "never 1")
    api.call("b", "never 2")
    assert [row["session"] for row in api.get("misses")["misses"]] == ["a", "b"]
    assert [row["session"] for row in api.get("misses?session=a~1")["misses"]] == ["a"]
    assert len(api.get("misses?limit=1")["misses"]) == 1
    assert [row["party"] for row in api.get("interactions?session=a&limit=2")["interactions"]] == ["agent", "judge"]
    assert api.get("interactions?session=b")["interactions"] == []


def test_without_a_store_nothing_is_known(make: Make) -> None:
    """A replay proxy before the first recording: null, not an empty list."""
    api = make()
    assert api.post("sessions", {"name": "a"})["unused"] is None
    assert api.call("a", "hi") is None
    assert api.get("interactions") == {"interactions": []}
    assert api.post("sessions/a/close")["misses"] == 1


def test_half_a_surrogate_pair_in_a_recording_can_be_said(make: Make, tmp_path: Path) -> None:
    """What was recorded is listed, come what may."""
    fill(tmp_path / "x.db", chat("half \ud83d", cassette="a", response=Response(200, "OK", (), (Chunk(1, b"{}"),))))
    assert make().post("sessions", {"name": "a"})["unused_total"] == 1


def test_secrets_are_not_listed(api: Api) -> None:
    """A key that the agent put into its prompt is in no answer of ours."""
    secret = "sk-proj-" + "Zx9Qw3Er" * 5
    api.post("sessions", {"name": "a"})
    api.call("a", f"my key is {secret}")
    assert api.get("misses")["misses"] != []
    for path in ("misses", "sessions", "sessions/a", "interactions"):
        assert secret not in json.dumps(api.get(path))


@pytest.mark.parametrize(("asked", "found"), [
    ("GET sessions/a", True), ("POST sessions/a~1/close", True), ("POST sessions/a/reset", True),
    ("POST sessions/a/bind", False), ("GET sessions", False), ("GET sessions/b", False), ("GET sessions/%FF", False),
    ("GET sessions/~~1", False), ("GET sessions//close", False),
])  # fmt: skip
def test_which_session_a_request_asks_about(api: Api, asked: str, found: bool) -> None:
    """So that the proxy can let its open calls end before it is summed up."""
    api.post("sessions", {"name": "a"})
    method, _, path = asked.partition(" ")
    session = find_open_session_for_totals(api.engine, ControlRequest(method, PREFIX + path, (), b"", loopback=True))
    assert (session is not None) == found


@pytest.fixture
def session(api: Api) -> Session:
    return api.engine.sessions.open_session("a")


def test_each_call_is_told_with_its_recording(api: Api, session: Session) -> None:
    """Hits in order, with what was played; a miss with the text its client got and no recording; who asked."""
    for text, party in (("hi", None), ("hi", "judge"), ("nothing", None), ("hi", None)):
        api.call("a", text, party=party)
    told = list_session_calls(api.engine, session, 0)
    assert (told["arrived"], told["open"]) == (4, 0)
    calls: list[dict[str, Any]] = told["calls"]
    assert [call["seq"] for call in calls] == [1, 2, 3, 4]
    assert {call["channel"] for call in calls} == {"llm"}
    assert [call["party"] for call in calls] == ["agent", "judge", "agent", "agent"]
    answers = [call["recording"] and call["recording"]["response_body"] for call in calls]
    assert ["one" in answers[0], "verdict" in answers[1], answers[2], "two" in answers[3]] == [True, True, None, True]
    ends = [(call["decision"], call["miss"], call["status"]) for call in calls[2:]]
    assert ends == [("REFUSE", True, 404), ("REPLAY", False, 200)]
    assert "no recorded response" in calls[2]["note"]
    assert [call["seq"] for call in list_session_calls(api.engine, session, 3)["calls"]] == [4]


def test_what_is_told_is_the_interaction(api: Api, session: Session) -> None:
    """Read back, it is what the store has; of one that was pruned beside us, nothing is told."""
    api.call("a", "hi")
    recording = list_session_calls(api.engine, session, 0)["calls"][0]["recording"]
    assert api.engine.store is not None
    (call,) = session.calls.list_calls_after(0)
    assert (
        build_interaction_from_json(recording)
        == api.engine.store.load(1)
        == api.engine.builder.load_call_interaction(session, call)
    )
    gone = (call._replace(interaction=each) for each in (999, None))
    assert [api.engine.builder.load_call_interaction(session, each) for each in gone] == [None, None]


def test_calls_go_on_over_a_reset(api: Api, session: Session) -> None:
    """`seq` counts since the session was opened, so nobody who asks for what is new sees a call twice."""
    api.call("a", "hi")
    api.engine.sessions.reset_session("a")
    api.call("a", "hi")
    assert [call["seq"] for call in list_session_calls(api.engine, session, 1)["calls"]] == [2]
    assert build_session_report(api.engine, session)["arrived"] == 2


def test_spans_are_of_one_party_and_of_each_call(api: Api, session: Session) -> None:
    """A recording that is played twice is two calls; the agent's unless another is named; nobody's are a question."""
    for party in (None, "judge", None, None):
        api.call("a", "hi", party=party)

    def make(given: Sequence[Interaction]) -> list[Any]:
        return [each.occurrence for each in given]

    for party, occurrences in (("", [1, 2, 3]), ("judge", [1]), ("*", [1, 1, 2, 3])):
        assert build_spans(api.engine, session, party, make)["spans"] == occurrences
    with pytest.raises(BadControlRequest, match="no spans"):
        build_spans(api.engine, session, "", None)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "9" * 40, "²"])
def test_after_is_a_number(text: str) -> None:
    with pytest.raises(BadControlRequest, match="after is"):
        parse_call_number(text)


@pytest.mark.parametrize(("name", "value"), [
    ("token", "sk-proj-" + "a1B2c3D4" * 6), ("db_password", "Hx7Qm2Wz9LpT4"), ("api_token", "Hx7Qm2Wz9LpT4vRk8sBn"),
])  # fmt: skip
def test_a_run_variable_that_is_a_secret_is_told_without_it(api: Api, name: str, value: str) -> None:
    """Neither to who asks for the session, nor in any other form; what is none stands there."""
    declared = [build_run_variable(name, value), build_run_variable("cwd", "/srv/a")]
    opened = api.engine.sessions.open_session("a", run_variables=declared)
    found = build_session_report(api.engine, opened)["run_variables"]
    assert found == [{"name": name, "value": "[REDACTED]"}, {"name": "cwd", "value": "/srv/a"}]


@pytest.mark.parametrize(("path", "body"), [
    ("sessions", {"mode": "{}"}), ("sessions", {"{}": 1}), ("nosuch/{}", {}), ("sessions/{}", {}),
    ("sessions/" + "x" * 40 + "/{}", {}), ("nosuch/%73{}", {}), ("sessions", {"run_variables": {"{}~": "x"}}),
])  # fmt: skip
def test_an_error_repeats_no_secret(api: Api, path: str, body: dict[str, object]) -> None:
    """Wherever in the request it stands, and however much of it is shown."""
    key = "sk-proj-Zq8Jw3Lx7Vn2Rt5Yb9Kd4Mf6Hg1Pc0" if "%73" not in path else "k-proj-Zq8Jw3Lx7Vn2Rt5Yb9Kd4Mf6Hg1Pc0"
    asked = json.loads(json.dumps(body).replace("{}", key)) if body else body
    status, value = api.ask("POST", path.replace("{}", key), asked)
    assert status >= 400
    assert "Zq8Jw3Lx" not in json.dumps(value)
