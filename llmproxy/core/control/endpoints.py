"""The control API under ``/_llmproxy/``: a table of (method, path) -> function over the engine, without I/O.

Only loopback peers (or peers with the token) get answers, and no request with a foreign Host or from a web page: a page
must not be able to control the proxy. `data/openapi.json` is generated from the table, its handlers' docstrings and
`openapi_models` (`scripts/api-document`). Calls that were not recorded (passed through, refused, lost) have no
recording.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote

from llmproxy import __version__
from llmproxy.calls_and_totals import Call
from llmproxy.core.cassettes.anonymized_export import convert_interaction_to_json
from llmproxy.core.control import parsing
from llmproxy.core.control.mcp_shim_endpoint import StdioShimSessions
from llmproxy.core.control.parsing import BadControlRequest, Json, read_boolean_member
from llmproxy.core.engine.bound_hits import BindingFeature, BindingInterceptor
from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.fault_injection import FaultFeature, FaultInterceptor
from llmproxy.core.sessions.session import Session, SessionInUse, parse_party_header, remove_redundant_sample_suffix
from llmproxy.core.store.queries import list_cassette_api_key_vars
from llmproxy.core.traffic.interaction import Headers, Interaction, header
from llmproxy.core.traffic.origin_guard import ForeignHostHeaderRefused, OriginGuard
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.file_io import DATA
from llmproxy.protocol import AGENT, CONTROL_PREFIX, TOKEN_HEADER, BindingPolicy, Exhausted, Mode

LISTED = 100
SpansOf = Callable[[Sequence[Interaction]], list[Json]]


def build_session_report(engine: Engine, session: Session) -> dict[str, Json]:
    unused, opened = engine.list_unused(session) if session.policy.uses_store else None, session.settings
    rows = [row.to_unused_json() for row in (unused or ())[:LISTED]]
    return {
        "name": session.name, "cassette": session.cassette, "sample": session.sample, "mode": str(opened.mode),
        "speed": opened.speed, "exhausted": str(opened.exhausted), "opened": opened.opened,
        "arrived": session.calls.arrived, **session.calls.totals.to_json(), "bind": str(engine.config.bind),
        "run_variables": [], "overrides": None,
        "unused": None if unused is None else rows, "unused_total": None if unused is None else len(unused),
        **{name: value for each in session.interceptors for name, value in each.build_report().items()},
    }  # fmt: skip


def parse_call_number(text: str) -> int:
    """Return the number of a call in a query. Raises BadControlRequest."""
    if not text.isdecimal() or not text.isascii() or len(text) > len("1000000000000"):
        raise BadControlRequest(f"llmproxy: after is {text[:20]!r}; it can be the number of a call, or 0.")
    return int(text)


def list_session_calls(engine: Engine, session: Session, after: int) -> dict[str, Json]:
    """Return calls that arrived after the `after`-th, and the number of open ones. Raises CallsNoLongerKeptError."""
    calls = session.calls
    return {
        "session": session.name,
        "arrived": calls.arrived,
        "open": calls.open_count,
        "calls": [_build_call(engine, session, call) for call in calls.list_calls_after(after)],
    }


def _build_call(engine: Engine, session: Session, call: Call) -> dict[str, Json]:
    interaction = engine.builder.load_call_interaction(session, call)
    note = engine.redactor.text(session.calls.get_call_note(call))
    return call._replace(
        note=note, recording=None if interaction is None else convert_interaction_to_json(interaction)
    ).to_json()


def build_spans(engine: Engine, session: Session, party: str, make: SpansOf | None) -> dict[str, Json]:
    """Return the spans of a party's calls so far; `party` empty for the agent, ``*`` for all parties."""
    if make is None:
        raise BadControlRequest("llmproxy: this proxy makes no spans.")
    wanted = None if party == "*" else parse_party_header(party or AGENT)
    made: list[Interaction] = []
    for call in session.calls.list_calls_after(0):
        interaction = engine.builder.load_call_interaction(session, call)
        if interaction is not None and wanted in (None, call.party):
            # The same recording may be played twice: two calls, so two sets of spans.
            made.append(replace(interaction, occurrence=call.occurrence or interaction.occurrence))
    return {"session": session.name, "spans": make(made)}


MOST_LISTED = 10_000


@dataclass(slots=True, kw_only=True)
class ControlApiContext:
    token: str = ""
    """Permits this API to peers on other machines; empty: they get no answers."""
    page_token: str = ""
    """Permits this API to our own page in a browser."""
    ca: str = ""
    """Path of the certificate authority for https; empty if https is not served."""
    ca_bundle: str = ""
    spans_of: SpansOf | None = None
    stop: Callable[[], int] | None = None
    """Ends the program soon, and returns its exit code as of now; None if the proxy is part of another program."""
    lines: StdioShimSessions | None = None


@dataclass(frozen=True, slots=True)
class RoutedControlRequest:
    name: str
    body: Mapping[str, Json]
    query: Mapping[str, str]
    proxy: ControlApiContext
    trusted: bool
    """Whether the client may use this API: health is answered to all."""
    connection: str

    def get_limit(self) -> int:
        """Return the requested number of rows. Raises BadControlRequest."""
        text = self.query.get("limit", str(LISTED))
        if not text.isdecimal() or len(text) > len(str(MOST_LISTED)) or not 0 < int(text) <= MOST_LISTED:
            raise BadControlRequest(f"llmproxy: limit is {text[:20]!r}; it can be 1 to {MOST_LISTED}.")
        return int(text)

    def get_session_filter(self) -> str | None:
        return remove_redundant_sample_suffix(self.query["session"]) if "session" in self.query else None

    def find_open_session(self, engine: Engine) -> Session:
        """Return the open session in the query. Raises BadControlRequest, SessionUnknown."""
        if (name := self.get_session_filter()) is None:
            raise BadControlRequest("llmproxy: say which session: ?session=NAME.")
        return engine.sessions.get_session(name)


def _report_health(engine: Engine, call: RoutedControlRequest) -> Json:
    """Check that the proxy is running.

    Permitted to all clients.
    """
    ca, bundle = (call.proxy.ca, call.proxy.ca_bundle) if call.trusted else ("", "")
    about = {"status": "ok", "version": __version__, "mode": str(engine.config.mode)}
    return {**about, "ca": ca or None, "ca_bundle": bundle or None}


def _list_sessions(engine: Engine, _call: RoutedControlRequest) -> Json:
    """List all open sessions."""
    return {"sessions": [build_session_report(engine, each) for each in engine.sessions.open_sessions.values()]}


OPEN_MEMBERS = (
    "name", "cassette", "under", "mode", "speed", "exhausted", "sample", "upstreams", "overrides", "fork", "mocks",
    "run_variables", "bind", "faults", "live", "unknown_tool", "read_only", "trial", "carry",
)  # fmt: skip


def _open_session(engine: Engine, call: RoutedControlRequest) -> Json:
    """Open a session.

    Its requests then come under `/s/{name}/...`, or with the header x-llmproxy-session. It replays its cassette from
    the start until it is closed or reset.
    """
    body = call.body
    if unknown := sorted(set(body) - set(OPEN_MEMBERS)):
        names = ", ".join(parsing.format_value_for_error(name) for name in unknown[:5])
        raise BadControlRequest(f"llmproxy: a session has no {names}.", hint=f"It has: {', '.join(OPEN_MEMBERS)}")
    forking, child = parsing.parse_control_fork_or_mocks(body.get("overrides"), body.get("fork"), body.get("mocks"))
    sample, cassette, under = body.get("sample"), body.get("cassette"), body.get("under")
    name = parsing.join_cassette_and_sample(
        parsing.require_url_encodable_name(body.get("name"), "a session needs a name"), sample
    )
    if cassette is not None:
        cassette = parsing.join_cassette_and_sample(
            parsing.require_url_encodable_name(cassette, "name the cassette"), sample
        )
    session = engine.sessions.open_session(
        name, cassette=cassette, mode=parsing.parse_enum(Mode, body.get("mode"), "mode"),
        speed=parsing.parse_control_replay_speed(body.get("speed")),
        exhausted=parsing.parse_enum(Exhausted, body.get("exhausted"), "exhausted"),
        upstreams=parsing.parse_control_upstreams(body.get("upstreams")), forking=forking, child=child,
        run_variables=parsing.parse_control_run_variables(body.get("run_variables")),
        bind=parsing.parse_enum(BindingPolicy, body.get("bind"), "bind"),
        faults=parsing.parse_control_faults(body.get("faults")),
        live=parsing.parse_requested_live_channels(body, engine.config.live),
        trial=read_boolean_member(body.get("trial"), "trial"), carry=read_boolean_member(body.get("carry"), "carry"),
    )  # fmt: skip
    if under is not None:
        try:
            engine.sessions.bind_name(parsing.require_url_encodable_name(under, "say under which name"), session.name)
        except LLMProxyError:
            engine.sessions.close_session(session.name)
            raise
    keys = None if engine.store is None else list_cassette_api_key_vars(engine.store, session.cassette)
    return build_session_report(engine, session) | ({} if keys is None else {"key_names": [*keys]})


def _declare_variables(engine: Engine, call: RoutedControlRequest) -> Json:
    """Declare run variables.

    At any time while the session is open; it takes effect from the next request on, and replaces a variable of the same
    name. Declare a captured id as soon as it is known, in the recorded run and in the replayed one.
    """
    if not call.body.get("run_variables") or set(call.body) != {"run_variables"}:
        raise BadControlRequest('llmproxy: say what is declared: {"run_variables": {"name": "value"}}.')
    session = engine.sessions.get_session(call.name)
    declared = parsing.parse_control_run_variables(call.body["run_variables"])
    engine.get_feature(BindingFeature).declare_variables(session, declared)
    return build_session_report(engine, session)


def _set_faults(engine: Engine, call: RoutedControlRequest) -> Json:
    """Set a session's injected faults.

    From its next call on, counted anew; they replace its earlier ones. An empty list removes them. A faulty call is not
    sent to the provider, not stored and not counted: its retry gets the recorded answer.
    """
    if set(call.body) - {"faults", "seed", "again"} or "faults" not in call.body:
        raise BadControlRequest('llmproxy: say which faults: {"faults": [{"kind": "http-429", "call": 2}], "seed": 0}.')
    seed = {"seed": call.body["seed"]} if "seed" in call.body else {}
    session, given = engine.sessions.get_session(call.name), parsing.parse_control_faults(call.body["faults"], **seed)
    again = bool(read_boolean_member(call.body.get("again"), "again"))
    engine.get_feature(FaultFeature).change_faults(session, given, again=again)
    return _list_faults(engine, call)


def _list_faults(engine: Engine, call: RoutedControlRequest) -> Json:
    """List a session's injected faults, with the number of injections.

    `idle` has the reason for each rule that met no call.
    """
    session = engine.sessions.get_session(call.name)
    known = session.find_interceptor(FaultInterceptor)
    none: dict[str, Json] = {"name": "", "seed": 0, "faults": [], "injected": 0}
    told = none if known is None else known.build_report().get("faults", none)
    return _add_unmatched_fault_reasons(told, engine.get_feature(FaultFeature).explain_idle_rules(session))


def _add_unmatched_fault_reasons(told: dict[str, Json], idle: Mapping[int, str]) -> dict[str, Json]:
    rows = [row | ({"idle": idle[number]} if number in idle else {}) for number, row in enumerate(told["faults"], 1)]
    return told | {"faults": rows, "idle": list(idle.values())}


def _enable_learning(engine: Engine, call: RoutedControlRequest) -> Json:
    """Make a session a trial.

    `replay` only. From now on a request that misses is compared with the unused recordings. If exactly one differs only
    in values that tools created, it is answered, and these values are listed here.
    """
    engine.get_feature(BindingFeature).enable_learning_in_session(engine.sessions.get_session(call.name))
    return _list_learned_fields(engine, call)


def _list_learned_fields(engine: Engine, call: RoutedControlRequest) -> Json:
    """List what a trial has learned.

    For a session that is a trial: the values in tools' results that vary from run to run, each as a volatile field.
    """
    known = engine.sessions.get_session(call.name).find_interceptor(BindingInterceptor)
    trial = None if known is None else known.bound.trial
    if trial is None:
        raise BadControlRequest("llmproxy: this session is no trial.", hint="POST there makes it one.")
    text = engine.redactor.text
    rows = [
        {
            "field": each.field.to_dict(),
            "recorded": text(each.recorded),
            "present": text(each.present),
            "path": each.path,
            "accepted": each.is_bulk_acceptable,
        }
        for each in trial.lessons
    ]
    return {"served": trial.served, "lessons": rows}


def _report_session(engine: Engine, call: RoutedControlRequest) -> Json:
    """Get a session's report so far."""
    return build_session_report(engine, engine.sessions.get_session(call.name))


def _reset_session(engine: Engine, call: RoutedControlRequest) -> Json:
    """Restart a session.

    Its counts stay. In `record`, new recordings replace those that it has made so far.
    """
    return build_session_report(engine, engine.sessions.reset_session(call.name))


def _close_session(engine: Engine, call: RoutedControlRequest) -> Json:
    """End a session.

    It waits for open calls, a few seconds at most. Its recording is then complete (`once` replays it from now on),
    unless the body says otherwise; names bound to it are free again. Assert on the answer.
    """
    complete, after = read_boolean_member(call.body.get("complete"), "complete"), call.body.get("after")
    session = engine.sessions.get_session(call.name)
    last = build_session_report(engine, session)
    if after is not None:
        last["calls"] = list_session_calls(engine, session, parse_call_number(str(after)))["calls"]
    if idle := engine.get_feature(FaultFeature).explain_idle_rules(session):
        last["faults"] = _add_unmatched_fault_reasons(last["faults"], idle)
    interrupted = bool(read_boolean_member(call.body.get("interrupted"), "interrupted"))
    engine.sessions.close_session(call.name, complete=complete, interrupted=interrupted)
    engine.trials.store_trial(session)
    return last


def _bind_name(engine: Engine, call: RoutedControlRequest) -> Json:
    """Route requests under a name to a session.

    For a process whose base URL is fixed when it starts: it always calls `/s/worker-1/v1`, and each test binds that
    name to its own session. Looked up once, never in a chain; ends with `unbind`, or when the session is closed.
    """
    session = parsing.require_url_encodable_name(call.body.get("session"), 'say which session: {"session": "name"}')
    party = call.body.get("party")
    engine.sessions.bind_name(call.name, session, parse_party_header(None if party is None else str(party)))
    return {"name": call.name, "session": session}


def _unbind_name(engine: Engine, call: RoutedControlRequest) -> Json:
    """Route requests under a name to their own session again."""
    engine.sessions.unbind_name(call.name)
    return {"name": call.name, "session": None}


INTERACTION_MEMBERS = (
    "id", "cassette", "sample", "party", "occurrence", "key", "provider", "operation", "model", "method", "target",
    "status",
)  # fmt: skip


def _list_interactions(engine: Engine, call: RoutedControlRequest) -> Json:
    """List recorded interactions."""
    rows = engine.list_recording_summaries(call.get_session_filter(), call.get_limit())
    return {"interactions": [{name: getattr(row, name) for name in INTERACTION_MEMBERS} for row in rows]}


def _list_misses(engine: Engine, call: RoutedControlRequest) -> Json:
    """List requests that missed."""
    wanted = call.get_session_filter()
    found = [each for each in engine.journal.list_misses() if wanted is None or each.data.get("session") == wanted]
    text = engine.redactor.text
    rows = [
        {"at": each.at, "session": each.data.get("session"), "text": text(each.text)}
        | {name: text(str(each.data.get(name, ""))) for name in ("key", "record", "unbound")}
        | {
            "starts": {mode: text(command) for mode, command in each.data.get("starts", {}).items()},
            **{name: each.data.get(name, False) for name in ("numbers_only", "to_model")},
        }
        for each in found
    ]
    return {"misses": rows[-call.get_limit() :]}


def _list_sessionless_refusals(engine: Engine, call: RoutedControlRequest) -> Json:
    """List requests that were refused before a session was found: unknown hosts, web pages, invalid requests."""
    return {"refused": [each._asdict() for each in engine.accounting.strays][-call.get_limit() :]}


def _list_calls(engine: Engine, call: RoutedControlRequest) -> Json:
    """List every call of a session, with its recording.

    In order of arrival. It waits for open calls, a few seconds at most; `open` is the number of those that remain. The
    last 20,000 calls of a session are kept.
    """
    return list_session_calls(engine, call.find_open_session(engine), parse_call_number(call.query.get("after", "0")))


def _list_spans(engine: Engine, call: RoutedControlRequest) -> Json:
    """Get a session's calls as spans.

    In the form of `llmproxy export --format spans`: requests, answers, tool calls and their results. It waits for open
    calls, a few seconds at most.
    """
    return build_spans(engine, call.find_open_session(engine), call.query.get("party", ""), call.proxy.spans_of)


def _serve_document(_engine: Engine, _call: RoutedControlRequest) -> Json:
    """Get this document."""
    return (DATA / "openapi.json").read_bytes()


def _stop_proxy(_engine: Engine, call: RoutedControlRequest) -> Json:
    """End the proxy.

    Like SIGTERM: open answers may finish, recordings are kept, the summary is printed. 400 if the proxy is part of
    another program (mitmdump).
    """
    if call.proxy.stop is None:
        raise BadControlRequest("llmproxy: this proxy belongs to another program.", hint="End that one.")
    return {"stopping": True, "exit_code": call.proxy.stop()}


def _handle_tool_lines(engine: Engine, call: RoutedControlRequest) -> Json:
    """Proxy a tool server over stdio.

    Used by `llmproxy mcp -- server`, for a client of an MCP server over stdio. `line`: the client's message; the
    answer's `out` is for the client, and with `forward` the line goes to the real server. `number` and `lines`: the
    server's answer to that, as pairs of microseconds and text. `number` and `lost`: why there is none. `end`: the
    client has left; its `lines` are the server's unsolicited messages, as pairs of the message that they followed and
    text.
    """
    if call.proxy.lines is None:
        raise BadControlRequest("llmproxy: this proxy belongs to another program, which carries no servers of tools.")
    return call.proxy.lines.serve(engine, remove_redundant_sample_suffix(call.name), call.body, call.connection)


Handler = Callable[[Engine, RoutedControlRequest], Json]


@dataclass(frozen=True, slots=True)
class ControlEndpoint:
    """One row: its handler, and the data for `data/openapi.json` that its docstring does not have."""

    handler: Handler
    operation: str
    """Name for generators of clients."""
    gives: str = ""
    """Name of the answer's model (`openapi_models`)."""
    takes: str = ""
    """Name of the body's model; with a question mark if the body is optional."""
    query: str = ""
    """Name of its parameters in `openapi_models.QUERIES`."""
    errors: tuple[str, ...] = ("Bad", "Forbidden", "Unknown")
    """Names of `openapi_models.ERRORS`."""
    status: int = 200


_LISTED = ("Bad", "Forbidden")
_BUSY = ("Bad", "Forbidden", "Unknown", "Busy")
_GONE = ("Bad", "Forbidden", "Unknown", "Gone")

TABLE: Mapping[tuple[str, ...], Mapping[str, ControlEndpoint]] = {
    ("health",): {"GET": ControlEndpoint(_report_health, "health", "Health", errors=())},
    ("stop",): {"POST": ControlEndpoint(_stop_proxy, "stop", "ProxyStopAnswer", errors=_LISTED)},
    ("sessions",): {
        "GET": ControlEndpoint(_list_sessions, "listSessions", "SessionList", errors=("Forbidden",)),
        "POST": ControlEndpoint(
            _open_session,
            "openSession",
            "SessionReport",
            "OpenSessionRequest",
            errors=("Bad", "Forbidden", "Busy"),
            status=201,
        ),
    },
    ("sessions", "*"): {"GET": ControlEndpoint(_report_session, "getSession", "SessionReport")},
    ("sessions", "*", "run_variables"): {
        "POST": ControlEndpoint(_declare_variables, "declareRunVariables", "SessionReport", "RunVariablesRequest")
    },
    ("sessions", "*", "faults"): {
        "GET": ControlEndpoint(_list_faults, "getFaults", "SessionFaults", errors=("Forbidden", "Unknown")),
        "POST": ControlEndpoint(_set_faults, "setFaults", "SessionFaults", "Faults"),
    },
    ("sessions", "*", "lessons"): {
        "GET": ControlEndpoint(_list_learned_fields, "listLessons", "LearnedFieldList"),
        "POST": ControlEndpoint(_enable_learning, "tryOut", "LearnedFieldList"),
    },
    ("sessions", "*", "reset"): {"POST": ControlEndpoint(_reset_session, "resetSession", "SessionReport")},
    ("sessions", "*", "close"): {
        "POST": ControlEndpoint(_close_session, "closeSession", "SessionReport", "CloseSessionRequest?", errors=_BUSY)
    },
    ("sessions", "*", "bind"): {
        "POST": ControlEndpoint(_bind_name, "bindSession", "SessionAlias", "SessionAliasRequest", errors=_BUSY)
    },
    ("sessions", "*", "tools"): {
        "POST": ControlEndpoint(_handle_tool_lines, "carryToolLines", "McpShimLinesAnswer", "McpShimLinesRequest")
    },
    ("sessions", "*", "unbind"): {"POST": ControlEndpoint(_unbind_name, "unbindSession", "SessionAlias")},
    ("interactions",): {
        "GET": ControlEndpoint(_list_interactions, "listInteractions", "InteractionList", query="list", errors=_LISTED)
    },
    ("misses",): {"GET": ControlEndpoint(_list_misses, "listMisses", "MissList", query="list", errors=_LISTED)},
    ("refused",): {
        "GET": ControlEndpoint(
            _list_sessionless_refusals, "listRefused", "RefusedRequestList", query="limit", errors=_LISTED
        )
    },
    ("calls",): {"GET": ControlEndpoint(_list_calls, "listSessionCalls", "SessionCalls", query="calls", errors=_GONE)},
    ("spans",): {"GET": ControlEndpoint(_list_spans, "sessionSpans", "SpanList", query="spans", errors=_GONE)},
    ("openapi.json",): {"GET": ControlEndpoint(_serve_document, "openapi", errors=("Forbidden",))},
}

OPEN = {("health",)}
"""Endpoints without a token, so that a container's health check needs none; their answers omit the path of the CA."""
COUNTED = {("sessions", "*"), ("sessions", "*", "reset"), ("sessions", "*", "close")}
"""Endpoints whose answers have a session's totals."""
TOLD = {("calls",), ("spans",)}
"""Endpoints whose answers have the calls of the session in the query."""


class ControlForbidden(RefusedError):
    code = "llmproxy_forbidden"
    status = 403


class UnknownControlPath(RefusedError):
    code = "llmproxy_not_found"
    status = 404


class WrongMethod(RefusedError):
    code = "llmproxy_method"
    status = 405


@dataclass(frozen=True, slots=True)
class ControlRequest:
    method: str
    target: str
    headers: Headers
    body: bytes
    loopback: bool
    """Whether the peer is on this machine, and that is enough to trust it."""
    guard: OriginGuard = field(default_factory=OriginGuard)
    scheme: str = "http"
    connection: str = ""
    """Id of its connection: some clients end with it."""


NOBODYS = {
    "ended-test": "llmproxy: this call came after its test had ended, and was refused: await in a test what it begins.",
    "no-test": "llmproxy: this call was made outside of any test, and was refused: make it in a test, a hook or a"
    " fixture; a handler that something else calls: AsyncResource.bind(handler), of node:async_hooks.",
}
"""Errors for paths that the npm package requests for calls outside any running test (data/node/attribution.js)."""


def answer_control_request(engine: Engine, asked: ControlRequest, proxy: ControlApiContext) -> tuple[int, bytes, str]:
    try:
        status, value = _serve_request(engine, asked, proxy)
    except LLMProxyError as error:
        return build_control_error_response(error, engine.redactor.text)
    return status, value if isinstance(value, bytes) else _dump_json(value), "application/json"


def build_control_error_response(error: LLMProxyError, redact: Callable[[str], str]) -> tuple[int, bytes, str]:
    said: dict[str, Json] = {"code": error.code, "message": redact(error.message), "hint": redact(error.hint)}
    if isinstance(error, SessionInUse) and error.bound_to:
        said["bound_to"] = error.bound_to
    return error.status, _dump_json({"error": said}), "application/json"


def _dump_json(value: Json) -> bytes:
    # Half a surrogate pair (recorded text may hold one) has no UTF-8; Python's backslash form of it is JSON's.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def find_open_session_for_totals(engine: Engine, asked: ControlRequest) -> Session | None:
    """Return the session of a request for totals, whose open exchanges may end first; None: answer at once."""
    try:
        words, shape = _parse_control_path(asked.target)
        name = words[1] if shape in COUNTED else _parse_query(asked.target).get("session", "") if shape in TOLD else ""
        return engine.sessions.open_sessions.get(remove_redundant_sample_suffix(name)) if name else None
    except RefusedError:
        return None


def _parse_control_path(target: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the decoded segments of a control path, and its key in TABLE. Raises BadControlRequest."""
    path = target.partition("?")[0].removeprefix(CONTROL_PREFIX).strip("/")
    try:
        words = tuple(unquote(word, errors="strict") for word in path.split("/"))
    except UnicodeDecodeError as error:
        raise BadControlRequest("llmproxy: the path is not percent-encoded UTF-8.") from error
    return words, tuple("*" if at == 1 and words[0] == "sessions" else word for at, word in enumerate(words))


def _parse_query(target: str) -> dict[str, str]:
    return dict(parse_qsl(target.partition("?")[2], keep_blank_values=True))


def _serve_request(engine: Engine, asked: ControlRequest, proxy: ControlApiContext) -> tuple[int, Json]:
    words, shape = _parse_control_path(asked.target)
    path = engine.redactor.redact_target(asked.target.partition("?")[0])[:80]
    refusing = find_control_api_access_refusal(asked, proxy.token, proxy.page_token)
    if refusing is not None and shape not in OPEN:
        raise refusing
    if (endpoints := TABLE.get(shape)) is None:
        if (told := NOBODYS.get(shape[0])) is not None:
            raise UnknownControlPath(told)
        known = ", ".join(sorted("/".join(row) for row in TABLE))
        raise UnknownControlPath(f"llmproxy: there is no {path}.", hint=f"There is, under {CONTROL_PREFIX}: {known}")
    if (endpoint := endpoints.get("GET" if asked.method == "HEAD" else asked.method)) is None:
        raise WrongMethod(f"llmproxy: {path} takes {' or '.join(endpoints)}, not {asked.method[:20]}.")
    name = words[1] if len(words) > 1 else ""
    body, query = parsing.parse_control_body_or_raise(asked.body), _parse_query(asked.target)
    call = RoutedControlRequest(name, body, query, proxy, trusted=refusing is None, connection=asked.connection)
    return endpoint.status, endpoint.handler(engine, call)


def find_control_api_access_refusal(asked: ControlRequest, token: str, page_token: str = "") -> ControlForbidden | None:
    """Return the error for a peer without permission; `token` permits all peers, `page_token` only our own page."""
    given = header(asked.headers, TOKEN_HEADER) or ""
    if is_same_control_token(given, token):
        return None  # no web page has the token
    if not asked.loopback:
        return ControlForbidden(
            f"llmproxy: a proxy that other machines reach is driven only by who sends its token, as {TOKEN_HEADER}.",
            hint="Set LLMPROXY_TOKEN for it and for who asks it, or let it listen on 127.0.0.1 alone.",
        )
    page = header(asked.headers, "origin") is not None or header(asked.headers, "sec-fetch-site") not in (None, "none")
    try:
        asked.guard.require_own_host(asked.headers)
    except ForeignHostHeaderRefused:
        page = True
    if page and is_same_control_token(given, page_token) and asked.guard.is_own_page(asked.headers, asked.scheme):
        return None
    return ControlForbidden("llmproxy: the control API does not answer web pages or foreign hosts.") if page else None


def is_same_control_token(given: str, token: str) -> bool:
    """Return whether the tokens are equal; an empty one never is."""
    sides = (each.encode("utf-8", "surrogateescape") for each in (given, token))
    return bool(token) and hmac.compare_digest(*sides)
