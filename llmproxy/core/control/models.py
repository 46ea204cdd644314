"""What the control API takes and gives: a model for each body, query and answer, named in rows of `endpoints.TABLE`.

`scripts/api-document` makes `data/openapi.json` of them, for readers and for generators of clients; a test holds real
answers against it. Nothing else imports this. What a model does not name is refused; constraints stand in `Annotated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from llmproxy.protocol import BindScope, Channel, Decision, Exhausted, Mode, UnknownTool


class Health(TypedDict):
    status: Literal["ok"]
    version: str
    mode: Mode
    ca: str | None
    """Path of the certificate authority (PEM) where https is served; null otherwise, and for whoever may not use this
    API.
    """
    ca_bundle: str | None
    """Path of that authority together with all that is usually trusted (PEM), for variables that replace what is
    trusted.
    """


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
    """Everything but the name is the proxy's own unless given."""

    name: Annotated[str, {"minLength": 1, "maxLength": 300}]
    """Any printable text. `weather~2` is the second sample of the cassette `weather`."""
    cassette: NotRequired[Annotated[str | None, {"minLength": 1, "maxLength": 300}]]
    """For replay, where several sessions replay one cassette; otherwise that of the name."""
    under: NotRequired[Annotated[str | None, {"minLength": 1, "maxLength": 300}]]
    """What arrives under this name belongs to the session, as `bind` would say it."""
    mode: NotRequired[Literal["replay", "auto", "record", "once", "passthrough", "none", "new_episodes", "all"] | None]
    """VCR's none, new_episodes and all are replay, auto and record. Anything but replay needs --allow-live on a proxy
    that was started in replay.
    """
    speed: NotRequired[Annotated[float | None, {"minimum": 0, "maximum": 1000000}]]
    """0: at once; 1: as recorded; N: N times as fast."""
    exhausted: NotRequired[Exhausted | None]
    """Answer to a request that is sent more often than it was recorded."""
    sample: NotRequired[Annotated[int | None, {"minimum": 1, "maximum": 999999}]]
    """Which recorded trial of the cassette; the session is then called `name~sample` (`name` for the first)."""
    upstreams: NotRequired[dict[str, Annotated[str, {"format": "uri"}]] | None]
    """Base URLs of providers, for this session only."""
    overrides: NotRequired[Overrides | None]
    """What is to be different; for mode replay."""
    fork: NotRequired[Fork | None]
    """For mode replay."""
    mocks: NotRequired[Annotated[dict[str, Any] | None, {"minProperties": 1}]]
    """Tool -> what the agent's model reads instead of its results, in whatever mode, or a list of rules of `when`
    (arguments), `nth` and `returns`. The recording is one with them. Not together with overrides or fork.
    """
    run_variables: NotRequired[dict[str, str | int] | list[RunVariable] | None]
    """What is declared of the run: its folder, its day, ids that were captured. Recordings of a run that declared the
    same names fit.
    """
    bind: NotRequired[BindScope | None]
    """What may be bound; none: only equal requests are hits."""
    faults: NotRequired[
        Annotated[str, {"minLength": 1}]
        | Annotated[list[Annotated[str, {"minLength": 1}] | FaultRule], {"maxItems": 1000}]
        | Faults
        | None
    ]
    """Injected faults, as `setFaults` takes them; an empty list is none, null the proxy's."""
    live: NotRequired[Annotated[list[Channel] | None, {"maxItems": 3}]]
    """Channels that go to their real providers or tools; the others are served from the recording. For mode replay.
    What is live is kept in a cassette of its own, `NAME@live-1`, `-2` ...; an empty list is none, null the proxy's.
    """
    unknown_tool: NotRequired[UnknownTool | None]
    """With `live`: what becomes of a tool's call that no recording answers in this state. `error`: the model reads
    that it failed; `fail`: it is a miss, too; `live`: it goes to the real tool.
    """
    read_only: NotRequired[Annotated[list[Annotated[str, {"minLength": 1}]] | None, {"maxItems": 1000}]]
    """With `live`: names of tools, or of requests (`POST api.example.com/search*`), that change nothing; `*` stands
    for any characters.
    """
    trial: NotRequired[bool | None]
    """A request that misses is answered by the recording at its place, and what changed is noted. For mode replay."""
    carry: NotRequired[bool | None]
    """Whether accepted changes count; true unless given."""


class Replacement(TypedDict):
    """Of a session whose recordings take the place of older ones when it is closed."""

    cassette: str
    """Where they are kept meanwhile, and stay if they do not."""
    why_not: str
    """Why they do not take it, as far as is known; empty if they do."""


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
    """What is live in a session, and what became of its tools."""

    channels: list[Channel]
    unknown_tool: UnknownTool
    read_only: list[str]
    parent: str
    """Cassette whose tools are served."""
    parent_sample: int
    cassette: str
    """Where the run is kept."""
    served: int
    """Calls that were answered from the recording."""
    unknown: list[str]
    """Names of calls that no recording answers in the state in which they came, 100 at most."""


class Tokens(TypedDict):
    input: int
    output: int


class Report(TypedDict):
    """What a session comes to. Counts go on over a reset."""

    served_failures: NotRequired[int]
    dealt: NotRequired[int]
    carried: NotRequired[int]
    carried_names: NotRequired[list[str]]
    stale: NotRequired[int]
    stubs: NotRequired[int]
    stub_names: NotRequired[list[str]]
    """Their kinds."""
    trial: NotRequired[list[dict[str, Any]]]
    """Of a session on trial: what became of each call that had no recording of its own."""
    replacement: NotRequired[Replacement]
    key_names: NotRequired[list[str]]
    """When it is opened: variables of keys that the recorded run needed, of which only the names were kept."""
    name: str
    cassette: str
    sample: int
    mode: Mode
    speed: float
    exhausted: Exhausted
    opened: bool
    """By this API; false: by the first request under its name."""
    bind: BindScope
    run_variables: list[RunVariable]
    """What was declared of this run."""
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
    """What the replayed calls would have cost, in US dollars. Null while no price is known."""
    cost_spent: float | None
    """What the live calls cost, in US dollars. Null while no price is known."""
    unpriced: int
    parties: dict[str, Sum]
    """By who called: `agent`, or what a request's x-llmproxy-party said (`user`, `judge`, `judge.2`)."""
    miss_texts: list[str]
    """What the first misses were told: the nearest recording, and what differs."""
    unused: list[Unused] | None
    """Recordings of the cassette that were neither played nor made by this session, the first 100; null where
    recordings are not looked at.
    """
    unused_total: int | None
    overrides: Overridden | None
    injected: NotRequired[int]
    faults: NotRequired[SessionFaults]
    """Absent where the session has none."""
    live: NotRequired[Live]
    """Absent where no channel is live."""


class Sessions(TypedDict):
    sessions: list[Report]


class Bind(TypedDict):
    session: Annotated[str, {"minLength": 1, "maxLength": 300}]
    party: NotRequired[Annotated[str, {"pattern": "^(agent|(user|judge)(\\.[0-9]{1,4})?)$", "default": "agent"}]]
    """Whose calls they are, where a request names nobody."""


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
    """It was an answer to the model: the run went on."""


class Misses(TypedDict):
    misses: list[Miss]


class RefusedList(TypedDict):
    refused: list[Refused]


class Refused(TypedDict):
    at: float
    """Unix time, seconds."""
    method: str
    target: str
    """As it was asked for, redacted; at most 200 characters."""
    status: int
    text: str


class ErrorBody(TypedDict):
    code: str
    message: str
    hint: str
    """What to do next; may be empty."""
    bound_to: NotRequired[str]
    """The session that a name is bound to, which therefore cannot be bound."""


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
    """Text, or base64 where it is not UTF-8."""
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
    """Kind of an auxiliary call that was answered without a recording; absent else."""
    key: str | None
    occurrence: int | None
    provider: str
    operation: str
    model: str | None
    interaction: int | None
    attempt: int | None
    recording: Recording | None
    """null where nothing is recorded: passed through, refused, lost."""
    fault: str | None


class SessionCalls(TypedDict):
    session: str
    arrived: int
    """Calls that have begun."""
    open: int
    """Calls that have not ended, so that they are not told yet."""
    calls: list[Call]


class Spans(TypedDict):
    session: str
    spans: list[dict[str, Any]]


class ToolOverride(TypedDict):
    tool: Annotated[str, {"minLength": 1}]
    nth: NotRequired[Annotated[int | None, {"minimum": 1}]]
    """Which call of the tool in a conversation; null: every one."""
    when: NotRequired[Annotated[dict[str, Any] | None, {"minProperties": 1}]]
    """Arguments that the call has, each equal; null: whatever it has."""
    result: Any
    """A text is taken as it is; anything else is written as JSON."""


class CalledTool(TypedDict):
    name: str
    arguments: NotRequired[Any]
    id: NotRequired[str | None]


class AnswerOverride(TypedDict):
    call: Annotated[int, {"minimum": 0}]
    """The agent's calls of a model count from 0."""
    text: NotRequired[str | None]
    tool_calls: NotRequired[list[CalledTool] | None]


class Overrides(TypedDict, total=False):
    """What is to be different when a recording is replayed to a living agent."""

    tools: list[ToolOverride] | None
    answers: list[AnswerOverride] | None


class OverriddenTool(TypedDict):
    tool: str
    nth: int | None
    when: NotRequired[dict[str, Any]]
    """Arguments that it is for; absent where it is for all."""
    result: str
    used: int
    """How many results in requests it replaced."""
    inherited: bool
    """The cassette brought it: it was recorded with it."""


class OverriddenAnswer(TypedDict):
    call: int
    used: bool


class Forked(TypedDict):
    cassette: str | None
    """What is recorded since; null: the run stopped there."""
    step: int
    """The agent's request with which it forked."""
    why: str
    path: str | None
    """The first JSON path of that request that differs."""


class Overridden(TypedDict):
    """What was overridden so far, and where the run forked."""

    tools: list[OverriddenTool]
    answers: list[OverriddenAnswer]
    seen: list[str]
    """Tools whose calls or results were in the agent's requests."""
    requests: int
    llm_calls: int
    parent: str
    parent_sample: int
    fork: Forked | None


class RunVariable(TypedDict):
    """A value that stands for the same thing all through a run: recorded and present ones of one name are exchanged.
    Paths, dates and long ids are found in texts; short values only at members of tools' JSON that name them.
    """

    name: Annotated[str, {"minLength": 1, "maxLength": 100}]
    """cwd, home, tmp, user, host, date, timezone, shell, os_version, git_user, git_branch, git_status, git_commits, or
    one of your own (`task.id`).
    """
    value: str | int
    other: NotRequired[str]
    """A second way to say it: what a folder's links resolve to, the day in UTC."""
    tool: NotRequired[str]
    """The tool in whose arguments or results a short value stands."""
    path: NotRequired[str]
    """Where in that JSON: `$.items[*].id`."""


class RunVariables(TypedDict):
    run_variables: dict[str, str | int] | list[RunVariable]
    """Names and values, or a list with everything that a run variable has."""


class Faults(TypedDict):
    """Injected faults: the first rule that fits a call counts. `llmproxy faults` and docs/faults.md say what each
    kind does and takes.
    """

    faults: (
        Annotated[str, {"minLength": 1}]
        | Annotated[list[Annotated[str, {"minLength": 1}] | FaultRule], {"maxItems": 1000}]
        | None
    )
    """Rules; or the name of a preset, a kind, `http-429@2`. Null: the proxy's own."""
    seed: NotRequired[int]
    """What chance is drawn from; 0 unless given."""
    again: NotRequired[Annotated[bool, {"default": False}]]
    """Whether a set that the session met before goes on where it stood, as if those between had only stood in for it.
    """


class FaultRule(TypedDict):
    """Which call meets which fault. What is left out chooses every call of the agent. Further members are what the kind
    takes.
    """

    kind: str
    call: NotRequired[Annotated[int, {"minimum": 1}] | list[Annotated[int, {"minimum": 1}]]]
    """Which call of the session among those that the other members choose, from 1; a retry is the call that it
    retries.
    """
    recording: NotRequired[Annotated[int, {"minimum": 1}] | list[Annotated[int, {"minimum": 1}]]]
    """Row of the recording that would answer."""
    provider: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """A name, or a pattern with * and ?."""
    model: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider."""
    operation: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider: `chat.completions`, `messages`."""
    party: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider; `agent` unless given."""
    channel: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider: `llm`, `mcp`, `http`; without it `mcp` for kinds named `mcp-...`, `llm` and `http` for all others.
    """
    transport: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """As provider: `http`, `websocket`, `stdio`, `tls`."""
    tool: NotRequired[Annotated[str, {"minLength": 1}] | list[Annotated[str, {"minLength": 1}]]]
    """A tool that the recorded answer calls."""
    probability: NotRequired[Annotated[float, {"minimum": 0, "maximum": 1}]]
    """Of the calls that the other members choose; drawn from seed, session, key, occurrence and attempt."""
    times: NotRequired[Annotated[int, {"minimum": 1, "maximum": 1000}] | Literal["always"]]
    """How many attempts of one request meet a fault before it gets its recorded answer; 1 unless given."""


class FaultCount(TypedDict):
    """The rule, and how often it was used."""

    kind: str
    injected: int
    idle: NotRequired[str]
    """Why it met no call, where it did not; absent otherwise."""


class SessionFaults(TypedDict):
    name: str
    """As they were asked for; empty for rules."""
    seed: int
    injected: int
    """Calls that met a fault, by all rules."""
    faults: list[FaultCount]
    idle: NotRequired[list[str]]
    """For each rule that met no call, why; in a report with the session's close only."""


class ToolLine(TypedDict):
    connection: str
    """Names one client."""
    server: NotRequired[str]
    """Name of the server in recordings; with `line`."""
    line: NotRequired[str]
    """One message of the client's; empty to ask `again`."""
    secrets: NotRequired[list[str]]
    """Values that must not be kept; with `line`."""
    held: NotRequired[bool]
    """The client keeps this connection, and is gone when it ends; with the first `line`."""
    known: NotRequired[bool]
    """The client was here before: a proxy that does not know it refuses; with every other `line`."""
    number: NotRequired[int]
    lines: NotRequired[list[tuple[int, str]]]
    left: NotRequired[bool]
    """The client has cancelled it: `lines` are what it heard until then."""
    lost: NotRequired[str]
    end: NotRequired[bool]


class ToolLineAnswer(TypedDict, total=False):
    out: str
    """Lines for the client; with `line`."""
    forward: int | None
    """The number under which the server's answer is told; null where no server is needed."""
    late: float
    """An injected fault: seconds after which `out` goes to the client; absent for at once."""
    gone: bool
    """An injected fault: the server ends, as far as its client can see; absent otherwise."""
    again: float
    """An answer waits for others that ended before it: seconds after which an empty `line` asks for it."""


class Close(TypedDict, total=False):
    complete: bool
    """Whether the cassette holds all that it should: mode `once` adds nothing to it then. `false`: the run failed or
    was interrupted; mode `once` then replays what is whole and records the rest. Left out: it is complete unless an
    answer in it is cut, or failed and no good one came after it.
    """
    after: Annotated[int, {"minimum": 0}]
    """The number of a call of the session: the answer then has the calls that arrived after it, as `calls`, in the form
    of the session.
    """
    interrupted: bool
    """What ran in it was ended from outside: what it recorded does not take the place of older recordings."""


class Stopping(TypedDict):
    stopping: bool
    exit_code: int
    """What it ends with if nothing more comes: 0, 3 or 4."""


class LessonReport(TypedDict):
    field: dict[str, Any]
    recorded: str
    present: str
    path: str
    accepted: bool
    """Whether `llmproxy learn --accept` takes it."""


class Lessons(TypedDict):
    served: int
    """Requests that were answered on trial."""
    lessons: list[LessonReport]


class ListQuery(TypedDict, total=False):
    session: str
    """Only of this session."""
    limit: Annotated[int, {"minimum": 1, "maximum": 10000, "default": 100}]
    """How many at most; the last ones."""


class LimitQuery(TypedDict, total=False):
    limit: Annotated[int, {"minimum": 1, "maximum": 10000, "default": 100}]
    """How many at most; the last ones."""


class CallsQuery(TypedDict):
    session: Annotated[str, {"minLength": 1}]
    """An open session."""
    after: NotRequired[Annotated[int, {"minimum": 0, "default": 0}]]
    """Only calls that arrived after the one with this `seq`."""


class SpansQuery(TypedDict):
    session: Annotated[str, {"minLength": 1}]
    """An open session."""
    party: NotRequired[Annotated[str, {"default": "agent"}]]
    """Whose calls; `*` for everybody's."""


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
"""What goes wrong, each with an example."""
