"""The control API under ``/_llmproxy/``: how a test in any language opens, resets, binds and closes sessions.

A pure table of (method, path) -> function over the engine; the layer carries the bytes. It answers loopback peers only (or whoever
has the token), and nobody who came by a foreign Host or from a web page: a page must not be able to drive it, neither by a form or a
`no-cors` POST (browsers add Origin and Sec-Fetch-Site) nor by a name of its own that points here (Host). `data/openapi.json` describes
every endpoint; a test holds it against `TABLE` and against real answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llmproxy import __version__
from llmproxy.core.control.tool_lines import ToolLines
from llmproxy.core.control.values import (
    BadControl,
    Json,
    circumstances_of,
    faults_of,
    flag_of,
    forking_of,
    join_sample,
    live_of,
    maybe_flag_of,
    name_of,
    one_of,
    show_given,
    speed_of,
    upstreams_of,
)
from llmproxy.core.control.walk import LISTED, SpansOf, faults_told, number, report, spans, walk
from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.session import Session, check_party
from llmproxy.core.sessions.sessions import canonical
from llmproxy.files import DATA
from llmproxy.protocol import Exhausted, Mode, Scope

MOST_LISTED = 10_000


@dataclass(frozen=True, slots=True)
class ControlCall:
    """One call of a row: what stands in path, body and query, and what the proxy is able to."""

    name: str
    body: Mapping[str, Json]
    query: Mapping[str, str]
    ca: tuple[str, str]
    """Paths of the certificate authority: alone, and with everything else that is trusted."""
    spans_of: SpansOf | None = None
    stop: Callable[[], int] | None = None
    lines: ToolLines | None = None
    connection: str = ""

    def limit(self) -> int:
        """Return how many rows are wanted."""
        text = self.query.get("limit", str(LISTED))
        if not text.isdecimal() or len(text) > len(str(MOST_LISTED)) or not 0 < int(text) <= MOST_LISTED:
            raise BadControl(f"llmproxy: limit is {text[:20]!r}; it can be 1 to {MOST_LISTED}.")
        return int(text)

    def session(self) -> str | None:
        """Return the name of the session that a listing is limited to."""
        return canonical(self.query["session"]) if "session" in self.query else None

    def open_session(self, engine: Engine) -> Session:
        """Return the session that the query names, which must be open. Raises BadControl, SessionUnknown."""
        if (name := self.session()) is None:
            raise BadControl("llmproxy: say which session: ?session=NAME.")
        return engine.sessions.get_session(name)


def _health(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    ca, bundle = call.ca
    about = {"status": "ok", "version": __version__, "mode": str(engine.config.mode)}
    return 200, {**about, "ca": ca or None, "ca_bundle": bundle or None}


def _sessions(engine: Engine, _call: ControlCall) -> tuple[int, Json]:
    return 200, {"sessions": [report(engine, each) for each in engine.sessions.walks.values()]}


OPEN_MEMBERS = (
    "name",
    "mode",
    "speed",
    "exhausted",
    "sample",
    "upstreams",
    "overrides",
    "fork",
    "mocks",
    "circumstances",
    "bind",
    "faults",
    "live",
    "unknown_tool",
    "read_only",
)


def _open(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    body = call.body
    if unknown := sorted(set(body) - set(OPEN_MEMBERS)):
        names = ", ".join(show_given(name) for name in unknown[:5])
        raise BadControl(f"llmproxy: a session has no {names}.", hint=f"It has: {', '.join(OPEN_MEMBERS)}")
    forking, child = forking_of(body.get("overrides"), body.get("fork"), body.get("mocks"))
    session = engine.sessions.open(
        join_sample(name_of(body.get("name"), "a session needs a name"), body.get("sample")),
        mode=one_of(Mode, body.get("mode"), "mode"),
        speed=speed_of(body.get("speed")),
        exhausted=one_of(Exhausted, body.get("exhausted"), "exhausted"),
        upstreams=upstreams_of(body.get("upstreams")),
        forking=forking,
        child=child,
        circumstances=circumstances_of(body.get("circumstances")),
        bind=one_of(Scope, body.get("bind"), "bind"),
        faults=faults_of(body.get("faults")),
        live=live_of(body, engine.config.live),
    )
    return 201, report(engine, session)


def _declare(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    if not call.body.get("circumstances") or set(call.body) != {"circumstances"}:
        raise BadControl('llmproxy: say what is declared: {"circumstances": {"name": "value"}}.')
    return 200, report(engine, engine.declare(call.name, circumstances_of(call.body["circumstances"])))


def _set_faults(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    if set(call.body) - {"faults", "seed", "again"} or "faults" not in call.body:
        raise BadControl('llmproxy: say which faults: {"faults": [{"kind": "http-429", "call": 2}], "seed": 0}.')
    seed = {"seed": call.body["seed"]} if "seed" in call.body else {}
    session, given = engine.sessions.get_session(call.name), faults_of(call.body["faults"], **seed)
    again = flag_of(call.body.get("again"), "again", default=False)
    engine.sessions.set_faults(session, engine.config.faults if given is None else given, again=again)
    return _faults(engine, call)


def _faults(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    session = engine.sessions.get_session(call.name)
    return 200, {**faults_told(session), "idle": engine.questions.idle_faults(session)}


def _try_out(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    engine.sessions.try_out(engine.sessions.get_session(call.name))
    return _lessons(engine, call)


def _lessons(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    bound = engine.sessions.get_session(call.name).bound
    trial = bound.trial if bound is not None else None
    if trial is None:
        raise BadControl("llmproxy: this session is no trial.", hint="POST there makes it one.")
    text = engine.redactor.text
    rows = [
        {
            "slot": each.slot.to_dict(),
            "recorded": text(each.recorded),
            "present": text(each.present),
            "path": each.path,
            "accepted": each.accepted,
        }
        for each in trial.lessons
    ]
    return 200, {"served": trial.served, "lessons": rows}


def _get(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    return 200, report(engine, engine.sessions.get_session(call.name))


def _reset(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    return 200, report(engine, engine.sessions.reset(call.name))


def _close(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    complete, after = maybe_flag_of(call.body.get("complete"), "complete"), call.body.get("after")
    session = engine.sessions.get_session(call.name)
    last = report(engine, session)
    if after is not None:
        last["calls"] = walk(engine, session, number(str(after)))["calls"]
    if idle := engine.questions.idle_faults(session):
        last["faults"]["idle"] = idle
    engine.sessions.close(call.name, complete=complete)
    return 200, last


def _bind(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    session = name_of(call.body.get("session"), 'say which session: {"session": "name"}')
    party = call.body.get("party")
    engine.sessions.bind(call.name, session, check_party(None if party is None else str(party)))
    return 200, {"name": call.name, "session": session}


def _unbind(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    engine.sessions.unbind(call.name)
    return 200, {"name": call.name, "session": None}


def _interactions(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    rows = engine.questions.list_rows(call.session(), call.limit())
    names = (
        "id",
        "cassette",
        "sample",
        "party",
        "occurrence",
        "key",
        "provider",
        "operation",
        "model",
        "method",
        "target",
        "status",
    )
    return 200, {"interactions": [{name: getattr(row, name) for name in names} for row in rows]}


def _misses(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    wanted = call.session()
    found = [each for each in engine.journal.misses() if wanted is None or each.data.get("session") == wanted]
    text = engine.redactor.text
    rows = [{"at": each.at, "session": each.data.get("session"), "text": text(each.text)} for each in found]
    return 200, {"misses": rows[-call.limit() :]}


def _list_refused(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    return 200, {"refused": [each._asdict() for each in engine.strays][-call.limit() :]}


def _walk(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    return 200, walk(engine, call.open_session(engine), number(call.query.get("after", "0")))


def _spans(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    return 200, spans(engine, call.open_session(engine), call.query.get("party", ""), call.spans_of)


def _openapi(_engine: Engine, _call: ControlCall) -> tuple[int, Json]:
    return 200, (DATA / "openapi.json").read_bytes()


def _stop(_engine: Engine, call: ControlCall) -> tuple[int, Json]:
    if call.stop is None:
        raise BadControl("llmproxy: this proxy belongs to another program.", hint="End that one.")
    return 200, {"stopping": True, "exit_code": call.stop()}


def _tools(engine: Engine, call: ControlCall) -> tuple[int, Json]:
    if call.lines is None:
        raise BadControl("llmproxy: this proxy belongs to another program, which carries no servers of tools.")
    return 200, call.lines.serve(engine, canonical(call.name), call.body, call.connection)


Handler = Callable[[Engine, ControlCall], tuple[int, Json]]

TABLE: Mapping[tuple[str, ...], Mapping[str, Handler]] = {
    ("health",): {"GET": _health},
    ("stop",): {"POST": _stop},
    ("sessions",): {"GET": _sessions, "POST": _open},
    ("sessions", "*"): {"GET": _get},
    ("sessions", "*", "circumstances"): {"POST": _declare},
    ("sessions", "*", "faults"): {"GET": _faults, "POST": _set_faults},
    ("sessions", "*", "lessons"): {"GET": _lessons, "POST": _try_out},
    ("sessions", "*", "reset"): {"POST": _reset},
    ("sessions", "*", "close"): {"POST": _close},
    ("sessions", "*", "bind"): {"POST": _bind},
    ("sessions", "*", "tools"): {"POST": _tools},
    ("sessions", "*", "unbind"): {"POST": _unbind},
    ("interactions",): {"GET": _interactions},
    ("misses",): {"GET": _misses},
    ("refused",): {"GET": _list_refused},
    ("walk",): {"GET": _walk},
    ("spans",): {"GET": _spans},
    ("openapi.json",): {"GET": _openapi},
}

OPEN = {("health",)}
"""Answered to everybody, so that a container's health check needs no token; without the path of the CA."""
COUNTED = {("sessions", "*"), ("sessions", "*", "reset"), ("sessions", "*", "close")}
"""Answered with a session's sums."""
TOLD = {("walk",), ("spans",)}
"""Answered with what happened in a session that the query names."""
