"""Models of the control API's bodies, queries and answers, named in rows of `endpoints.TABLE`.

`scripts/api-document` generates `data/openapi.json` from them, for readers and for generators of clients; a test checks
real answers against it. Nothing else imports this. Unknown members are refused; constraints are in `Annotated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from llmproxy.protocol import BindScope, Channel, Decision, Exhausted, Mode, UnknownToolPolicy


class Health(TypedDict):
    status: Literal["ok"]
    version: str
    mode: Mode
    ca: str | None
    """Path of the certificate authority (PEM) if https is served; else null, and for clients without permission for
    this API."""
    ca_bundle: str | None
    """Path of that authority together with all usually trusted ones (PEM), for variables that replace the trusted
    ones."""


Fork = TypedDict(
    "Fork",
    {
        "live": Annotated[
            bool | None,
            "From the first request that differs from the recording on, go upstream and record a new cassette. Else "
            "such a request is refused.",
        ],
        "from": Annotated[int | None, {"minimum": 1}, "Fork with this request of the agent even if it is recorded."],
        "as": Annotated[str | None, {"minLength": 1}, "Name of the new cassette; `NAME@fork-1`, `-2` ... otherwise."],
    },
    total=False,
)


class Open(TypedDict):
    """Every member but the name defaults to the proxy's setting."""

    name: Annotated[str, {"minLength": 1, "maxLength": 300}]
    """Any printable text. `weather~2` is the second sample of the cassette `weather`."""
    cassette: NotRequired[Annotated[str | None, {"minLength": 1, "maxLength": 300}]]
    """For replay, where several sessions replay one cassette; by default that of the name."""
    under: NotRequired[Annotated[str | None, {"minLength": 1, "maxLength": 300}]]
    """Requests under this name belong to the session, as with `bind`."""
    mode: NotRequired[Literal["replay", "auto", "record", "once", "passthrough", "none", "new_episodes", "all"] | None]
    """VCR's none, new_episodes and all are replay, auto and record. Other modes than replay need --allow-live on a
    proxy that was started in replay."""
    speed: NotRequired[Annotated[float | None, {"minimum": 0, "maximum": 1000000}]]
    """0: at once; 1: as recorded; N: N times as fast."""
    exhausted: NotRequired[Exhausted | None]
    """Answer to a request that is sent more often than it was recorded."""
    sample: NotRequired[Annotated[int | None, {"minimum": 1, "maximum": 999999}]]
    """Number of the cassette's sample; the session is then called `name~sample` (`name` for the first)."""
    upstreams: NotRequired[dict[str, Annotated[str, {"format": "uri"}]] | None]
    """Base URLs of providers, for this session only."""
    overrides: NotRequired[Overrides | None]
    """Overridden results and answers; for mode replay."""
    fork: NotRequired[Fork | None]
    """For mode replay."""
    mocks: NotRequired[Annotated[dict[str, Any] | None, {"minProperties": 1}]]
    """Tool -> result that the agent's model reads instead of the tool's, in any mode, or a list of rules of `when`
    (arguments), `nth` and `returns`. The recording contains these results. Not together with overrides or fork."""
    run_variables: NotRequired[dict[str, str | int] | list[RunVariable] | None]
    """Run variables: the run's folder, its day, captured ids. Recordings of a run with the same declared names fit."""
    bind: NotRequired[BindScope | None]
    """Kinds of values that may be bound; none: only equal requests are hits."""
    faults: NotRequired[
        Annotated[str, {"minLength": 1}]
        | Annotated[list[Annotated[str, {"minLength": 1}] | FaultRule], {"maxItems": 1000}]
        | Faults
        | None
    ]
    """Injected faults, in the form of `setFaults`; an empty list is none, null the proxy's."""
    live: NotRequired[Annotated[list[Channel] | None, {"maxItems": 3}]]
    """Channels that go to their real providers or tools; the others are served from the recording. For mode replay.
    Live calls are recorded in a cassette of their own, `NAME@live-1`, `-2` ...; an empty list is none, null the
    proxy's."""
    unknown_tool: NotRequired[UnknownToolPolicy | None]
    """With `live`: answer to a tool's call that no recording answers in this state. `error`: the model reads that it
    failed; `fail`: it is also a miss; `live`: it goes to the real tool."""
    read_only: NotRequired[Annotated[list[Annotated[str, {"minLength": 1}]] | None, {"maxItems": 1000}]]
    """With `live`: names of tools, or of requests (`POST api.example.com/search*`), that change nothing; `*` matches
    any characters."""
    trial: NotRequired[bool | None]
    """A request that misses is answered by the recording at its place; changes are reported. For mode replay."""
    carry: NotRequired[bool | None]
    """Whether accepted changes count; true unless given."""


class Replacement(TypedDict):
    """The replacement of older recordings when the session is closed."""

    cassette: str
    """Cassette of the new recordings until then, and afterwards if they replace nothing."""
    why_not: str
    """Reason why they will replace nothing, as far as known; else empty."""


class Sum(TypedDict):
    calls: int
    input: int
    """Prompt tokens."""
    output: int
    cost: float | None
    unpriced: int


class Unused(TypedDict):
    id: int
    operation: str
    model: str | None
    text: str | None


class Live(TypedDict):
    """Live channels of a session, and the outcome of its tools' calls."""

    channels: list[Channel]
    unknown_tool: UnknownToolPolicy
    read_only: list[str]
    parent: str
    """Cassette whose tools are served."""
    parent_sample: int
    cassette: str
    """Cassette that records the run."""
    served: int
    """Number of calls answered from the recording."""
    unknown: list[str]
    """Names of calls that no recording answers in the state in which they came, 100 at most."""


class Tokens(TypedDict):
    input: int
    output: int


class Report(TypedDict):
    """A session's report. Its counts include those before a reset."""

    served_failures: NotRequired[int]
    dealt: NotRequired[int]
    carried: NotRequired[int]
    carried_names: NotRequired[list[str]]
    stale: NotRequired[int]
    stubs: NotRequired[int]
    stub_names: NotRequired[list[str]]
    """Kinds of these stubs."""
    trial: NotRequired[list[dict[str, Any]]]
    """For a session on trial: the outcome of each call that had no recording of its own."""
    replacement: NotRequired[Replacement]
    key_names: NotRequired[list[str]]
    """When it is opened: variables of API keys that the recorded run needed; only their names were stored."""
    name: str
    cassette: str
    sample: int
    mode: Mode
    speed: float
    exhausted: Exhausted
    opened: bool
    """Whether this API opened it; false: the first request under its name did."""
    bind: BindScope
    run_variables: list[RunVariable]
    """Run variables of this run."""
    arrived: int
    """Number of the last call that arrived; `calls` lists them."""
    hits: int
    """Answered from the cassette."""
    bound: int
    bound_names: list[str]
    misses: int
    recorded: int
    """Forwarded, and now in the store."""
    passed: int
    """Forwarded, not recorded."""
    refused: int
    failed: int
    live_calls: int
    tokens: Tokens
    cost_not_spent: float | None
    """Cost of the replayed calls if they had been sent, in US dollars. Null while no price is known."""
    cost_spent: float | None
    """Cost of the live calls, in US dollars. Null while no price is known."""
    unpriced: int
    unpriced_live: int
    """Live calls whose price or usage is unknown."""
    parties: dict[str, Sum]
    """Totals by party: `agent`, or the value of a request's x-llmproxy-party (`user`, `judge`, `judge.2`)."""
    miss_texts: list[str]
    """Texts of the first misses: the nearest recording, and its differences."""
    unused: list[Unused] | None
    """Recordings of the cassette that this session neither played nor made, the first 100; null if recordings are not
    used."""
    unused_total: int | None
    overrides: OverrideUsageReport | None
    injected: NotRequired[int]
    faults: NotRequired[SessionFaults]
    """Absent if the session has none."""
    live: NotRequired[Live]
    """Absent if no channel is live."""


class Sessions(TypedDict):
    sessions: list[Report]


class Bind(TypedDict):
    session: Annotated[str, {"minLength": 1, "maxLength": 300}]
    party: NotRequired[Annotated[str, {"pattern": "^(agent|(user|judge)(\\.[0-9]{1,4})?)$", "default": "agent"}]]
    """Party of these calls, if a request does not name one."""


class Bound(TypedDict):
    name: str
    session: str | None


class Interaction(TypedDict):
    id: int
    cassette: str
    sample: int
    party: str
    occurrence: int
    key: str
    provider: str
    operation: str
    model: str | None
    method: str
    target: str
    """Path and query as the provider sees them."""
    status: int


class Interactions(TypedDict):
    interactions: list[Interaction]


class Miss(TypedDict):
    at: float
    """Unix time, seconds."""
    session: str | None
    key: str
    text: str
    record: str
    unbound: str
    starts: dict[str, str]
    numbers_only: bool
    to_model: bool
    """Whether it was an answer to the model: the run continued."""


class Misses(TypedDict):
    misses: list[Miss]


class RefusedList(TypedDict):
    refused: list[Refused]


class Refused(TypedDict):
    at: float
    """Unix time, seconds."""
    method: str
    target: str
    """As requested, redacted; at most 200 characters."""
    status: int
    text: str


class ErrorBody(TypedDict):
    code: str
    message: str
    hint: str
    """What to do next; may be empty."""
    bound_to: NotRequired[str]
    """Session to which a name is bound, so that it cannot be bound."""


class Error(TypedDict):
    error: ErrorBody


class Base64(TypedDict):
    base64: str


class Recording(TypedDict):
    """One request and its answer: a line of `llmproxy export --format jsonl`."""

    llmproxy: Literal[1]
    cassette: str
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: str | Base64
    """Text, or base64 if it is not UTF-8."""
    status: int
    reason: NotRequired[str]
    response_headers: list[tuple[str, str]]
    response_body: str | Base64
    recorded: dict[str, Any]
    """Provider, operation, times, chunk borders, key, usage."""


class Call(TypedDict):
    seq: int
    at: float
    ms: float
    first_ms: float | None
    channel: NotRequired[Channel]
    party: str
    decision: Decision
    status: int
    miss: bool
    """Refused because it was never recorded; `note` is the text that the client got."""
    note: str
    bound: NotRequired[list[str]]
    carried: NotRequired[list[str]]
    stale: NotRequired[bool]
    stub: NotRequired[str]
    """Kind of an auxiliary call that was answered without a recording; else absent."""
    key: str | None
    occurrence: int | None
    provider: str
    operation: str
    model: str | None
    interaction: int | None
    attempt: int | None
    recording: Recording | None
    """null if nothing is recorded: passed through, refused, lost."""
    fault: str | None


class SessionCalls(TypedDict):
    session: str
    arrived: int
    """Number of calls that have begun."""
    open: int
    """Number of calls that have not ended, so that they are not listed yet."""
    calls: list[Call]


class Spans(TypedDict):
    session: str
    spans: list[dict[str, Any]]


class ToolOverride(TypedDict):
    tool: Annotated[str, {"minLength": 1}]
    nth: NotRequired[Annotated[int | None, {"minimum": 1}]]
    """Number of the tool's call in a conversation; null: every call."""
    when: NotRequired[Annotated[dict[str, Any] | None, {"minProperties": 1}]]
    """Arguments that the call must have, each equal; null: any arguments."""
    result: Any
    """A text is used as it is; any other value is written as JSON."""


class CalledTool(TypedDict):
    name: str
    arguments: NotRequired[Any]
    id: NotRequired[str | None]


class AnswerOverride(TypedDict):
    call: Annotated[int, {"minimum": 0}]
    """Number of the agent's call to a model, from 0."""
    text: NotRequired[str | None]
    tool_calls: NotRequired[list[CalledTool] | None]


class Overrides(TypedDict, total=False):
    """Overrides for a recording that is replayed to a live agent."""

    tools: list[ToolOverride] | None
    answers: list[AnswerOverride] | None


class OverriddenTool(TypedDict):
    tool: str
    nth: int | None
    when: NotRequired[dict[str, Any]]
    """Arguments to which it applies; absent if it applies to all."""
    result: str
    used: int
    """Number of results in requests that it replaced."""
    inherited: bool
    """Whether it comes from the cassette, which was recorded with it."""


class AnswerOverrideUse(TypedDict):
    call: int
    used: bool


class ForkPoint(TypedDict):
    cassette: str | None
    """Cassette that has been recorded since; null: the run stopped there."""
    step: int
    """Number of the agent's request at which it forked."""
    why: str
    path: str | None
    """The first JSON path of that request that differs."""


class OverrideUsageReport(TypedDict):
    """Overrides used so far, and the fork of the run."""

    tools: list[OverriddenTool]
    answers: list[AnswerOverrideUse]
    seen: list[str]
    """Tools whose calls or results were in the agent's requests."""
    requests: int
    llm_calls: int
    parent: str
    parent_sample: int
    fork: ForkPoint | None


class RunVariable(TypedDict):
    """A value with the same meaning all through a run: recorded and present values of one name are exchanged. Paths,
    dates and long ids are found in texts; short values only in members of tools' JSON that name them.
    """

    name: Annotated[str, {"minLength": 1, "maxLength": 100}]
    """cwd, home, tmp, user, host, date, timezone, shell, os_version, git_user, git_branch, git_status, git_commits, or
    one of your own (`task.id`).
    """
    value: str | int
    other: NotRequired[str]
    """A second form of the value: a folder with its links resolved, the day in UTC."""
    tool: NotRequired[str]
    """Tool whose arguments or results contain a short value."""
    path: NotRequired[str]
    """Path in that JSON: `$.items[*].id`."""


class RunVariables(TypedDict):
    run_variables: dict[str, str | int] | list[RunVariable]
    """Names and values, or a list of objects with all members of a run variable."""


class Faults(TypedDict):
    """Injected faults: the first rule that matches a call applies. `llmproxy faults` and docs/faults.md describe the
    kinds and their members.
    """

    faults: (
        Annotated[str, {"minLength": 1}]
        | Annotated[list[Annotated[str, {"minLength": 1}] | FaultRule], {"maxItems": 1000}]
        | None
    )
    """Rules; or the name of a preset, a kind, `http-429@2`. Null: the proxy's own."""
    seed: NotRequired[int]
    """Random seed; 0 by default."""
    again: NotRequired[Annotated[bool, {"default": False}]]
    """Whether a set that the session had before continues at its state, as after a temporary replacement."""


class FaultRule(TypedDict):
    """A rule of injected faults. Without conditions a rule matches every call of the agent. Further members are
    those of the kind.
    """

    kind: str
    call: NotRequired[Annotated[int, {"minimum": 1}] | list[Annotated[int, {"minimum": 1}]]]
    """Number of the call among those that the other members match, from 1; a retry counts as the call that it
    retries."""
    recording: NotRequired[Annotated[int, {"minimum": 1}] | list[Annotated[int, {"minimum": 1}]]]
    """Row of the recording that would answer."""
    provider: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """A name, or a pattern with * and ?."""
    model: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider."""
    operation: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider: `chat.completions`, `messages`."""
    party: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider; `agent` by default."""
    channel: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider: `llm`, `mcp`, `http`; without it `mcp` for kinds named `mcp-...`, `llm` and `http` for all others.
    """
    transport: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider: `http`, `websocket`, `stdio`, `tls`."""
    tool: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """A tool that the recorded answer calls."""
    probability: NotRequired[Annotated[float, {"minimum": 0, "maximum": 1}]]
    """Probability for calls that the other members match; drawn from seed, session, key, occurrence and attempt."""
    times: NotRequired[Annotated[int, {"minimum": 1, "maximum": 1000}] | Literal["always"]]
    """Number of attempts of one request that meet a fault before it gets its recorded answer; 1 by default."""


class FaultCount(TypedDict):
    """A rule, and the number of its injections."""

    kind: str
    injected: int
    idle: NotRequired[str]
    """Reason why it met no call; else absent."""


class SessionFaults(TypedDict):
    name: str
    """Name of the preset or kind that was given; empty for rules."""
    seed: int
    injected: int
    """Number of calls that met a fault, of all rules."""
    faults: list[FaultCount]
    idle: NotRequired[list[str]]
    """Reasons of all rules that met no call; in a report only at the session's close."""


class ToolLine(TypedDict):
    connection: str
    """Id of one client."""
    server: NotRequired[str]
    """Name of the server in recordings; with `line`."""
    line: NotRequired[str]
    """One message of the client; empty to request the rest after `again`."""
    secrets: NotRequired[list[str]]
    """Values that must not be stored; with `line`."""
    held: NotRequired[bool]
    """The client keeps this connection open and ends with it; with the first `line`."""
    known: NotRequired[bool]
    """The client was connected before: a proxy that does not know it refuses; with every other `line`."""
    number: NotRequired[int]
    lines: NotRequired[list[tuple[int, str]]]
    left: NotRequired[bool]
    """The client has cancelled it: `lines` are those it received until then."""
    lost: NotRequired[str]
    end: NotRequired[bool]


class ToolLineAnswer(TypedDict, total=False):
    out: str
    """Lines for the client; with `line`."""
    forward: int | None
    """Number for sending the server's answer; null if no server is needed."""
    late: float
    """An injected fault: seconds until `out` goes to the client; absent for none."""
    gone: bool
    """An injected fault: the server ends, from its client's view; else absent."""
    again: float
    """An answer waits for others that ended before it: seconds until an empty `line` requests it."""


class Close(TypedDict, total=False):
    complete: bool
    """Whether the cassette is complete: mode `once` then adds nothing to it. `false`: the run failed or was
    interrupted; mode `once` then replays complete recordings and records the rest. By default it is complete unless an
    answer in it is cut, or failed without a later good one."""
    after: Annotated[int, {"minimum": 0}]
    """Number of a call of the session: the answer then has `calls` with the calls that arrived after it, in the
    session's form."""
    interrupted: bool
    """The run in it was ended from outside: its recordings do not replace older ones."""


class Stopping(TypedDict):
    stopping: bool
    exit_code: int
    """Exit code if no further call comes: 0, 3 or 4."""


class LessonReport(TypedDict):
    field: dict[str, Any]
    recorded: str
    present: str
    path: str
    accepted: bool
    """Whether `llmproxy learn --accept` takes it."""


class Lessons(TypedDict):
    served: int
    """Number of requests that were answered on trial."""
    lessons: list[LessonReport]


class ListQuery(TypedDict, total=False):
    session: str
    """Only of this session."""
    limit: Annotated[int, {"minimum": 1, "maximum": 10000, "default": 100}]
    """Maximum number; the last ones."""


class LimitQuery(TypedDict, total=False):
    limit: Annotated[int, {"minimum": 1, "maximum": 10000, "default": 100}]
    """Maximum number; the last ones."""


class CallsQuery(TypedDict):
    session: Annotated[str, {"minLength": 1}]
    """An open session."""
    after: NotRequired[Annotated[int, {"minimum": 0, "default": 0}]]
    """Only calls that arrived after the one with this `seq`."""


class SpansQuery(TypedDict):
    session: Annotated[str, {"minLength": 1}]
    """An open session."""
    party: NotRequired[Annotated[str, {"default": "agent"}]]
    """Party of the calls; `*` for all."""


class DocumentedError(NamedTuple):
    status: int
    says: str
    code: str
    message: str
    hint: str = ""


ERRORS: Mapping[str, DocumentedError] = {
    "Bad": DocumentedError(
        400, "The request makes no sense.", "llmproxy_control",
        "llmproxy: mode is 'live'; it can be replay, auto, record, once, passthrough.",
        "",
    ),
    "Forbidden": DocumentedError(
        403, "Not for this peer, host, page or mode.", "llmproxy_live_forbidden",
        "llmproxy: this proxy was started in replay; a session in mode auto may reach the network.",
        "Start the proxy with --allow-live to permit it.",
    ),
    "Unknown": DocumentedError(
        404, "No session of this name is open.", "llmproxy_session_unknown",
        "llmproxy: no session 'wether' is open.",
        "Open now: 'weather'",
    ),
    "Busy": DocumentedError(
        409, "Open or bound already, or recorded by another session.", "llmproxy_session_busy",
        "llmproxy: session 'weather' is open already.",
        "Close it first: POST /_llmproxy/sessions/weather/close",
    ),
    "Gone": DocumentedError(
        410, "Calls so long ago are not kept.", "llmproxy_calls_gone",
        "llmproxy: of the 30000 calls of this session only the last 20000 are kept.",
        "Ask for those after 10000, ask more often, or close the session.",
    ),
}  # fmt: skip
"""Errors, each with an example."""
