"""Models of the control API's bodies, queries and answers, from which `scripts/api-document` makes `data/openapi.json`.

What a class of the program says of a member stands there (`SHAPES`). Unknown members are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from llmproxy import calls_and_totals
from llmproxy.calls_and_totals import Miss, RequestRefusedWithoutSession, Totals, UnusedRecording, UsageSums
from llmproxy.core.bindings import run_variables
from llmproxy.core.bindings.volatile_learning import LearnedField
from llmproxy.core.cassettes.formats import Recorded
from llmproxy.core.control.endpoints import INTERACTION_MEMBERS
from llmproxy.core.control.parsing import BadControlRequest
from llmproxy.core.forks import overrides
from llmproxy.core.forks.fork_rows import Fork as ForkRow
from llmproxy.core.sessions.session import CallsNoLongerKeptError, LiveSessionForbidden, SessionInUse, SessionUnknown
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import BindingPolicy, Channel, Decision, Exhausted, McpStdioLineOutcome, Mode, UnknownToolPolicy


class Health(TypedDict):
    status: Literal["ok"]
    version: str
    mode: Mode
    ca: str | None
    """Path of the certificate authority (PEM) if https is served; else, and for clients without permission, null."""
    ca_bundle: str | None
    """Path of that authority with all usually trusted ones (PEM), for variables that replace the trusted ones."""


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


class OpenSessionRequest(TypedDict):
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
    overrides: NotRequired[ReplayOverrides | None]
    """Overridden results and answers; for mode replay."""
    fork: NotRequired[Fork | None]
    """For mode replay."""
    mocks: NotRequired[Annotated[dict[str, Any] | None, {"minProperties": 1}]]
    """Tool -> result that the agent's model reads instead of the tool's, in any mode, or a list of rules of `when`
    (arguments), `nth` and `returns`. The recording contains these results. Not together with overrides or fork."""
    run_variables: NotRequired[dict[str, str | int] | list[RunVariable] | None]
    """Run variables: the run's folder, its day, captured ids. Recordings of a run with the same declared names fit."""
    bind: NotRequired[BindingPolicy | None]
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


class RecordingReplacementState(TypedDict):
    """The replacement of older recordings when the session is closed."""

    cassette: str
    """Cassette of the new recordings until then, and afterwards if they replace nothing."""
    why_not: str
    """Reason why they will replace nothing, as far as known; else empty."""


class LiveChannelsReport(TypedDict):
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


class TokenTotals(TypedDict):
    """Null while no call's are known."""

    input: int | None
    output: int | None


class SessionReport(TypedDict):
    """A session's report. Its counts include those before a reset."""

    trial: NotRequired[list[dict[str, Any]]]
    """For a session on trial: the outcome of each call that had no recording of its own."""
    replacement: NotRequired[RecordingReplacementState]
    """Whether new recordings replace older ones; absent for most sessions."""
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
    bind: BindingPolicy
    run_variables: list[RunVariable]
    """Run variables of this run."""
    arrived: int
    """Number of the last call that arrived; `calls` lists them."""
    tokens: TokenTotals
    cost_not_spent: float | None
    """Cost of the replayed calls if they had been sent, in US dollars. Null while no price is known."""
    cost_spent: float | None
    """Cost of the live calls, in US dollars. Null while no price is known."""
    unpriced: int
    """Calls whose price or usage is unknown."""
    unpriced_live: int
    """Live calls whose price or usage is unknown."""
    unused: list[UnusedRecording] | None
    """Recordings of the cassette that this session neither played nor made, first 100; null if none are used."""
    unused_total: int | None
    overrides: OverrideUsageReport | None
    """The overrides and the fork point; null without any."""
    faults: NotRequired[SessionFaults]
    """Absent if the session has none."""
    live: NotRequired[LiveChannelsReport]
    """Absent if no channel is live."""


class SessionList(TypedDict):
    sessions: list[SessionReport]


class SessionAliasRequest(TypedDict):
    session: Annotated[str, {"minLength": 1, "maxLength": 300}]
    party: NotRequired[Annotated[str, {"pattern": "^(agent|(user|judge)(\\.[0-9]{1,4})?)$", "default": "agent"}]]
    """Party of these calls, if a request does not name one."""


class SessionAlias(TypedDict):
    name: str
    session: str | None


class InteractionList(TypedDict):
    interactions: list[StoredCallSummary]


class MissList(TypedDict):
    misses: list[Miss]


class RefusedRequestList(TypedDict):
    refused: list[RequestRefusedWithoutSession]


class ControlErrorDetails(TypedDict):
    code: str
    message: str
    hint: str
    """What to do next; may be empty."""
    bound_to: NotRequired[str]
    """Session to which a name is bound, so that it cannot be bound or opened."""


class ControlErrorBody(TypedDict):
    error: ControlErrorDetails


class Base64Bytes(TypedDict):
    base64: str


class Recording(TypedDict):
    """One request and its answer: a line of `llmproxy export --format jsonl`."""

    llmproxy: Literal[1]
    cassette: str
    url: str
    body: str | Base64Bytes
    """Text, or base64 if it is not UTF-8."""
    response_body: str | Base64Bytes
    recorded: dict[str, Any]
    """Provider, operation, times, chunk borders, key, usage."""


class Call(TypedDict):
    recording: Recording | None
    """null if nothing is recorded: passed through, refused, lost."""


class SessionCalls(TypedDict):
    session: str
    arrived: int
    """Number of calls that have begun."""
    open: int
    """Number of calls that have not ended, so that they are not listed yet."""
    calls: list[Call]


class SpanList(TypedDict):
    session: str
    spans: list[dict[str, Any]]


class ToolOverride(TypedDict):
    tool: Annotated[str, {"minLength": 1}]
    nth: NotRequired[Annotated[int | None, {"minimum": 1}]]
    when: NotRequired[Annotated[dict[str, Any] | None, {"minProperties": 1}]]
    result: Any
    """A text is used as it is; any other value is written as JSON."""


class OverridingToolCall(TypedDict):
    name: str
    arguments: NotRequired[Any]
    id: NotRequired[str | None]


class AnswerOverride(TypedDict):
    call: Annotated[int, {"minimum": 0}]
    """Number of the agent's call to a model, from 0."""
    text: NotRequired[str | None]
    tool_calls: NotRequired[list[OverridingToolCall] | None]


class ReplayOverrides(TypedDict, total=False):
    """Overrides for a recording that is replayed to a live agent."""

    tools: list[ToolOverride] | None
    answers: list[AnswerOverride] | None


class OverriddenTool(TypedDict):
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


class RunForkState(TypedDict):
    cassette: str | None
    """Cassette that has been recorded since; null: the run stopped there."""


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
    fork: RunForkState | None


class RunVariable(TypedDict):
    """A value with the same meaning all through a run: recorded and present values of one name are exchanged. Paths,
    dates and long ids are found in texts; short values only in members of tools' JSON that name them.
    """

    name: Annotated[str, {"minLength": 1, "maxLength": 100}]
    """cwd, home, tmp, user, host, date, timezone, shell, os_version, git_user, git_branch, git_status, git_commits, or
    one of your own (`task.id`).
    """
    value: str | int


class RunVariablesRequest(TypedDict):
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
    """A rule of injected faults. Without conditions it matches each call of the agent. Other members are the kind's."""

    kind: str
    call: NotRequired[Annotated[int, {"minimum": 1}] | list[Annotated[int, {"minimum": 1}]]]
    """Number of the call among those that the other members match, from 1; a retry counts as what it retries."""
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
    """As provider: `llm`, `mcp`, `http`; without it `mcp` for kinds named `mcp-...`, `llm` and `http` for others."""
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


class McpShimLinesRequest(TypedDict):
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


class CloseSessionRequest(TypedDict, total=False):
    complete: bool
    """Whether the cassette is complete: mode `once` then adds nothing to it. `false`: the run failed or was
    interrupted; mode `once` then replays complete recordings and records the rest. By default it is complete unless an
    answer in it is cut, or failed without a later good one."""
    after: Annotated[int, {"minimum": 0}]
    """Number of a session's call: the answer has `calls` with those that arrived after it, in the session's form."""
    interrupted: bool
    """The run in it was ended from outside: its recordings do not replace older ones."""


class ProxyStopAnswer(TypedDict):
    stopping: bool
    exit_code: int
    """Exit code if no further call comes: 0, 3 or 4."""


class LearnedFieldReport(TypedDict):
    field: dict[str, Any]
    accepted: bool
    """Whether `llmproxy learn --accept` takes it."""


class LearnedFieldList(TypedDict):
    served: int
    """Number of requests that were answered on trial."""
    lessons: list[LearnedFieldReport]


class ClassBehindOpenApiModel(NamedTuple):
    """A class of the program whose fields are members of a model, with their types and docstrings."""

    source: type
    always: Iterable[str] = ()
    """Members that are never absent; empty: all fields."""
    sometimes: tuple[str, ...] = ()


SHAPES: Mapping[str, ClassBehindOpenApiModel] = {
    "Call": ClassBehindOpenApiModel(
        calls_and_totals.Call, calls_and_totals.Call(Decision.REPLAY).to_json(), ("bound", "carried", "stale", "stub")
    ),
    "RunForkState": ClassBehindOpenApiModel(ForkRow, ("step", "why", "path")),
    "Interaction": ClassBehindOpenApiModel(StoredCallSummary, INTERACTION_MEMBERS),
    "LearnedFieldReport": ClassBehindOpenApiModel(LearnedField, ("recorded", "present", "path")),
    "Miss": ClassBehindOpenApiModel(Miss),
    "OverriddenTool": ClassBehindOpenApiModel(overrides.ToolResultOverride, ("tool", "nth")),
    "Recording": ClassBehindOpenApiModel(Recorded, ("method", "headers", "status", "response_headers"), ("reason",)),
    "RefusedRequest": ClassBehindOpenApiModel(RequestRefusedWithoutSession),
    "SessionReport": ClassBehindOpenApiModel(Totals, Totals().to_json(), Totals.RARE),
    "RunVariable": ClassBehindOpenApiModel(run_variables.RunVariable, ("name", "value"), ("other", "tool", "path")),
    "Sum": ClassBehindOpenApiModel(UsageSums),
    "McpShimLinesAnswer": ClassBehindOpenApiModel(McpStdioLineOutcome, (), McpStdioLineOutcome._fields),
    "ToolOverride": ClassBehindOpenApiModel(overrides.ToolResultOverride, ("tool",), ("nth", "when")),
    "Unused": ClassBehindOpenApiModel(UnusedRecording),
}
Parameters = dict[str, tuple[Any, str]]
"""Type and description of each parameter of a query; a name that ends in `!` is required."""
_LIMIT: Parameters = {
    "limit": (Annotated[int, {"minimum": 1, "maximum": 10000, "default": 100}], "Maximum number; the last ones.")
}
_SESSION: Parameters = {"session!": (Annotated[str, {"minLength": 1}], "An open session.")}
_AFTER = Annotated[int, {"minimum": 0, "default": 0}]
QUERIES: Mapping[str, Parameters] = {
    "": {},
    "list": {"session": (str, "Only of this session.")} | _LIMIT,
    "limit": _LIMIT,
    "calls": _SESSION | {"after": (_AFTER, "Only calls that arrived after the one with this `seq`.")},
    "spans": _SESSION | {"party": (Annotated[str, {"default": "agent"}], "Party of the calls; `*` for all.")},
}

ERRORS: Mapping[str, tuple[str, LLMProxyError]] = {
    "Bad": ("The request makes no sense.", BadControlRequest(
        "llmproxy: mode is 'live'; it can be replay, auto, record, once, passthrough.",
    )),
    "Forbidden": ("Not for this peer, host, page or mode.", LiveSessionForbidden(
        "llmproxy: this proxy was started in replay; a session in mode auto may reach the network.",
        hint="Start the proxy with --allow-live to permit it.",
    )),
    "Unknown": ("No session of this name is open.", SessionUnknown(
        "llmproxy: no session 'wether' is open.", hint="Open now: 'weather'",
    )),
    "Busy": ("Open or bound already, or recorded by another session.", SessionInUse(
        "llmproxy: session 'weather' is open already.",
        hint="Close it first: POST /_llmproxy/sessions/weather/close",
    )),
    "Gone": ("Calls so long ago are not kept.", CallsNoLongerKeptError(
        "llmproxy: of the 30000 calls of this session only the last 20000 are kept.",
        hint="Ask for those after 10000, ask more often, or close the session.",
    )),
}  # fmt: skip
"""Errors, each with an example."""
