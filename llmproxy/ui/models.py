"""Models of the viewer's queries and answers, and a row for each query.

`scripts/api-document` describes them in `data/openapi.json`; a test checks real answers against it. Nothing else
imports this.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from llmproxy.protocol import Channel

ViewRow = TypedDict(
    "ViewRow",
    {
        "id": int, "party": str, "provider": str, "channel": NotRequired[Channel], "operation": str,
        "model": str | None, "stream": NotRequired[bool], "status": int, "ending": str,
        "at": Annotated[float, "Unix time of the request."],
        "first": NotRequired[Annotated[float | None, "Milliseconds to the first byte."]], "ms": float | None,
        "in": int | None, "out": int | None, "cost": Annotated[float | None, "US dollars; null is unknown."],
        "occurrence": NotRequired[int], "asked": Annotated[str, "The beginning of the last prompt."],
        "answered": Annotated[str, "The beginning of the answer, or of the tool calls in it."],
    },
)  # fmt: skip


class ViewCassette(TypedDict):
    name: str
    sample: int
    live: int
    """Recordings that count."""
    asked: NotRequired[str]
    """How the first request's prompt begins; of the first 500 recordings."""
    last_at: NotRequired[float]
    tokens_in: NotRequired[int | None]
    tokens_out: NotRequired[int | None]
    closed_cleanly: NotRequired[bool]
    holder: NotRequired[str | None]
    fork: NotRequired[str | None]
    """Whose child it is, in words."""
    parent: NotRequired[str | None]
    """Name of the recording whose child it is."""
    models: NotRequired[list[str]]
    cost: NotRequired[float | None]
    """What its calls cost, in US dollars. Null while no price is known."""
    failed: NotRequired[int]
    """Calls without a whole good answer."""


class ViewCassettes(TypedDict):
    store: str
    cassettes: list[ViewCassette]


ViewSums = TypedDict(
    "ViewSums",
    {
        "calls": int, "in": int | None, "out": int | None, "cost": float | None, "unpriced": NotRequired[int],
        "failed": int, "from": NotRequired[float | None], "to": NotRequired[float | None],
        "parties": NotRequired[int], "models": NotRequired[list[str]],
    },
)  # fmt: skip


class ViewCalls(TypedDict):
    offset: int
    rows: list[ViewRow]
    sums: NotRequired[ViewSums]
    strip: NotRequired[list[list[Any]]]
    """[id, Unix time, milliseconds, milliseconds to the first byte, failed, party, model] of each call; empty where
    there are too many.
    """


class ViewPlace(TypedDict):
    cassette: str
    sample: int
    place: int
    """Calls before it in the list."""
    recording: str
    """What it is called in every store that is made of the same cassettes: key and occurrence."""


class ViewStep(TypedDict):
    kind: Literal["user", "says", "tool", "answer", "failed", "call"]
    call: int | None
    depth: int
    text: NotRequired[str | None]
    name: NotRequired[str | None]
    given: NotRequired[str]
    result: NotRequired[str | None]
    ms: NotRequired[float | None]


class ViewSteps(TypedDict):
    steps: list[ViewStep]
    calls: int
    """Calls that the steps tell."""
    of: int
    """Calls that there are."""


class ViewToolCall(TypedDict):
    id: NotRequired[str | None]
    name: str
    arguments: str


class ViewMedia(TypedDict):
    type: str
    data: str


class ViewMessage(TypedDict):
    role: str
    text: str
    sent: NotRequired[str]
    """A user's words with what the client wrote around them."""
    reasoning: NotRequired[str]
    calls: NotRequired[list[ViewToolCall]]
    of: NotRequired[str]
    """Of a tool's result: the id of its call."""
    media: NotRequired[list[ViewMedia]]


class ViewChange(TypedDict):
    path: str
    where: NotRequired[str]


ViewResult = TypedDict("ViewResult", {"text": str, "in": int})


class ViewCall(TypedDict):
    id: int
    messages: list[ViewMessage]
    known: int
    """How many of the messages had been said before."""
    previous: int | None
    """The call that this one goes on with."""
    retry: NotRequired[bool]
    changes: list[ViewChange]
    answer: ViewMessage | None
    error: NotRequired[str | None]
    timing: dict[str, Any] | None
    """Milliseconds: head, first, token, last; chunks as [ms, bytes]."""
    results: dict[str, ViewResult]
    """What tools returned, by the id of the call: text, and the call in whose request it stands."""
    usage: dict[str, Any]
    recorded_at: float
    """Unix time of the answer: of the request, unless it was asked again later. 0: nobody knows."""
    client: str
    """Program that asked, with its version; empty where it does not say."""
    answered_by: str
    """The model that the answer names, and its fingerprint; empty where it names none."""
    cost: NotRequired[float | None]
    request: dict[str, Any]
    response: dict[str, Any]


class ViewBodies(TypedDict):
    request: ViewText | ViewBase64
    response: ViewText | ViewBase64


class ViewText(TypedDict):
    text: str


class ViewBase64(TypedDict):
    base64: str


ViewLiveRow = TypedDict(
    "ViewLiveRow",
    {
        "n": int, "at": float,
        "what": Literal["hit", "bound", "carried", "miss", "recorded", "passed", "fault", "refused"],
        "session": str, "party": str, "provider": str, "model": str | None, "operation": str, "status": int,
        "ms": float, "first": NotRequired[float | None], "in": int | None, "out": int | None, "cost": float | None,
        "id": int | None, "nearest": NotRequired[int | None], "key": NotRequired[str | None],
        "bound": NotRequired[list[str]], "carried": NotRequired[list[str]], "fault": NotRequired[str],
        "lost": NotRequired[bool], "note": NotRequired[str], "asked": NotRequired[str], "answered": NotRequired[str],
    },
)  # fmt: skip


class ViewLive(TypedDict):
    now: float
    mode: str
    store: str
    count: int
    """Calls so far; ask again with after=count."""
    rows: list[ViewLiveRow]
    sessions: list[dict[str, Any]]
    open: list[dict[str, Any]]


class ViewMissPlace(TypedDict):
    path: str
    where: NotRequired[str]
    looks: NotRequired[str | None]
    before: NotRequired[int]
    after: NotRequired[int]


class ViewMissStep(TypedDict):
    about: str
    commands: list[str]


class ViewMiss(TypedDict):
    at: float
    text: str
    reason: NotRequired[str | None]
    cassette: NotRequired[str | None]
    nearest: NotRequired[int | None]
    places: list[ViewMissPlace]
    steps: list[ViewMissStep]
    suggestion: NotRequired[dict[str, Any] | None]


class ViewWanted(TypedDict):
    scenarios: int
    runs: int


class ViewScenario(TypedDict):
    n: NotRequired[int]
    """Its place among all."""
    id: str
    name: str
    suite: str
    status: str
    """That of a report; `running` until it has ended."""
    runs: list[dict[str, Any]]


class ViewReport(TypedDict):
    """The document of `--report json=FILE`; of a test that the asker knows, only the scenarios that changed."""

    test: str
    """Which test, and whether it runs."""
    count: int
    """Events so far."""
    running: bool
    wanted: NotRequired[ViewWanted]
    """How many there will be."""
    title: NotRequired[str]
    mode: NotRequired[str]
    at: NotRequired[float | None]
    exit_code: NotRequired[int | None]
    seconds: NotRequired[float | None]
    notes: NotRequired[list[str]]
    scenarios: list[ViewScenario]
    trend: NotRequired[list[dict[str, Any]]]
    """The last tests; with a test that the asker does not know."""


class ViewStepsQuery(TypedDict):
    cassette: str
    """Which cassette."""
    sample: NotRequired[int]
    """Which sample; 1 unless given."""


class _CallFilterQuery(TypedDict):
    find: NotRequired[str]
    """Only calls whose prompt, answer, model, operation, target or party holds this."""
    failed: NotRequired[str]
    """1: only those without a whole good answer."""
    model: NotRequired[str]
    """Only calls of this model."""
    ids: NotRequired[str]
    """Only calls of these numbers, with commas between them."""


class ViewCallsQuery(ViewStepsQuery, _CallFilterQuery):
    offset: NotRequired[int]
    """Calls to leave out."""
    limit: NotRequired[int]
    """At most so many, up to 1000."""
    sums: NotRequired[str]
    """1: also what all of them come to."""


class ViewCallQuery(TypedDict):
    id: int
    """Number of the call."""


class ViewPlaceQuery(ViewCallQuery, _CallFilterQuery):
    pass


class ViewReportQuery(TypedDict, total=False):
    test: str
    """The test that the asker knows, as it was told."""
    after: int
    """Number of the event of that test after which to tell; of the scenarios those in which something happened since.
    """


class ViewLiveQuery(TypedDict, total=False):
    after: int
    """Number of the call after which to tell; 0 unless given."""


class ViewMissQuery(TypedDict):
    at: float
    """Unix time of the call, as `live` tells it."""
    session: str
    """Its session."""
    key: NotRequired[str]
    """Its key, by which one that was asked again is found."""


class ViewerQueryDoc(NamedTuple):
    """A question, under its path below `ui/data/`."""

    summary: str
    answer: str
    """Name of a model here."""
    query: str = ""
    more: str = ""


VIEWER_QUESTIONS = {
    "cassettes": ViewerQueryDoc("Every recording of the store", "ViewCassettes"),
    "calls": ViewerQueryDoc("A window of a recording's calls", "ViewCalls", "ViewCallsQuery"),
    "place": ViewerQueryDoc("Where in its recording a call stands", "ViewPlace", "ViewPlaceQuery"),
    "steps": ViewerQueryDoc("What was asked, done and answered", "ViewSteps", "ViewStepsQuery"),
    "call": ViewerQueryDoc(
        "One call, opened: what is new in it, and what its tools returned", "ViewCall", "ViewCallQuery"
    ),
    "bodies": ViewerQueryDoc("Both bodies of a call, byte for byte", "ViewBodies", "ViewCallQuery"),
    "report": ViewerQueryDoc(
        "What the last test in this folder told, or tells while it runs",
        "ViewReport",
        "ViewReportQuery",
        "`llmproxy ui REPORT` answers it of the report that is named.",
    ),
    "live": ViewerQueryDoc("What happened in this proxy since a call", "ViewLive", "ViewLiveQuery"),
    "miss": ViewerQueryDoc(
        "A miss of this proxy: places with their values, and what to type", "ViewMiss", "ViewMissQuery"
    ),
}
