"""What a feature is: an interceptor, which a session has or has not. Everything else knows none of them.

A call goes through stages: its place is read from the head, its body gives it a key, the key is looked up, what was
found is decided over, and it is answered and accounted for (`engine.request_stages`). At each border every interceptor
of its session is asked; one that has nothing to say there leaves the method out. A session without any is the plain
proxy, and only that has the fast path.

    the way in, in the declared order (`engine.interceptor_order`)
        before_key      another body; or refuse: `call.decide_refusal(error)`
        on_lookup       other recordings than the key's; or decide now: set `call.decision`, count it if it is to be
                        counted (`engine.decide.count_arrival`), and nothing is looked at any more
        on_decision     another decision than the modes' table
        on_miss         deal with a refusal: True, and nobody explains it
        preview_answer, goes_live   what one that is asked later will do with a call, for one that decides before it
    (where the head settled what becomes of a call, as in `record`, none of these is asked)
    the way back, in reverse order
        on_answer       another answer for the client; or the same, noted
        on_send_plan    what is sent, and when: of a replayed answer, and of one that was made here: of a FAULT, or
                        where it is `withheld`
        get_send_delay  seconds until a piece of a replayed answer (its recorded second; None: the last) may go out to
                        the client at `ends`, or is asked for again; only where `call.answer.held` was set; `has_read`
                        says whether a client has read what it was sent
        get_playback    an answer that goes on when its client has done what the recorded one did
        on_sent         all of a replayed answer was sent, and its client is still there
        before_store    another answer for the store
        on_interaction  what is kept of a call, before it is
        on_stored       the provider's answer is in the store
        on_end          the record of a call that is over

To write one: a class that derives from `Interceptor[Exchange]` and overrides what it needs; a `Feature`
(`engine.feature`) whose `create_interceptor` makes one for a session, or None; its row in
`engine.interceptor_order`. What it knows of a session are its own attributes (`on_restart` is called where the session
begins anew). What it knows of a call is a value of a type of its own in `call.state`, which nobody else reads:

    class Waited(NamedTuple): until: float

    def on_lookup(self, call, found):
        call.answer.held = True
        call.state.put(Waited(self.clock() + 1))
        return found._replace(key=other, recordings=store.find_keyed(..., other))  # the answer of another key

    def get_send_delay(self, call, offset, ends, has_read):
        return max(0.0, call.state.get(Waited).until - self.clock()) if offset is None else 0.0

Everything runs on the event loop and must not wait, but what has to do with storing, which runs in the writer's thread.
An exception is a refusal of the call (500), never another answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol

from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.mcp_messages import AnswerPart
from llmproxy.core.misses.explain import ExplainedMiss
from llmproxy.core.misses.miss_context import MissContext
from llmproxy.core.misses.nearest_recording import RecordingRewriter
from llmproxy.core.store.reader import KeyedRecording
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Interaction, Key, Response
from llmproxy.core.traffic.response_bytes import SendingPlan
from llmproxy.protocol import Channel, Decision
from llmproxy.proxy_calls import Call


class MissReason(StrEnum):
    """Why a request is refused."""

    NEVER = "never recorded"
    EXHAUSTED = "every recording was already played"
    STATE = "recorded in another state of the tools"
    UNBOUND = "its answer cannot be told in this run's words"


class Decided(NamedTuple):
    """The decision; which recording answers; why not."""

    decision: Decision
    recording: KeyedRecording | None = None
    reason: MissReason | None = None


class Lookup(NamedTuple):
    """What may answer a call."""

    key: Key
    """Exact key of the recordings: the call's own, unless an interceptor found others."""
    recordings: Sequence[KeyedRecording]
    """In order of occurrence."""
    canonical: Callable[[], Canonical]
    """Returns what counts of the request; made when somebody asks."""


ClientEnds = tuple[object, object] | None
"""Addresses of both ends of a client's connection."""


@dataclass(slots=True)
class CallState:
    """Values by their type: what a feature keeps beside a call, which it alone reads."""

    _values: dict[type, object] = field(default_factory=dict)

    def get[T](self, kind: type[T]) -> T | None:
        value = self._values.get(kind)
        return value if isinstance(value, kind) else None

    def put(self, value: object) -> None:
        """Keep a value; it takes the place of another one of its type."""
        self._values[type(value)] = value

    def copy(self) -> CallState:
        return CallState(dict(self._values))

    def drop(self, kind: type) -> None:
        self._values.pop(kind, None)


class Playback(Protocol):
    """A recorded answer that goes on when its client has done what the recorded one did."""

    response: Response
    turns: list[AnswerPart] | None
    """None where nothing has to be waited for."""

    def on_question_sent(self, turn: AnswerPart) -> None:
        """Called when the client was asked what `turn` waits for."""

    def check_ready(self, turn: AnswerPart) -> bool | str:
        """Return whether a turn's data may go out now; a text: never, and why."""

    def build_refusal(self, text: str) -> bytes:
        """Return the end of the answer where it must not be told."""


class Interceptor[C]:
    """What a feature does to the calls (`C`) of one session: nothing, unless a method is overridden."""

    channel: ClassVar[Channel | None] = None
    """Of the calls that it is asked of; None: of all."""
    auxiliary: ClassVar[bool] = False
    """Whether it is asked of auxiliary calls alone (`providers.stubs`)."""
    sees_whole: bool = False
    """Whether a call must be here whole before anything of it goes upstream."""
    rewrites: bool = False
    """Whether a call of which nobody can see the whole must not go upstream."""
    reads_answers: ClassVar[bool] = False
    """Whether `on_answer` is asked of every hit, or only where something else has to read the answer anyway."""

    # -- a call, on the way in

    def before_key(self, call: C, body: bytes) -> bytes:
        return body

    def preview_answer(self, call: C) -> Response | None:
        """Return the answer that it will make of a call, whatever is recorded; nothing is counted yet."""
        return None

    def on_lookup(self, call: C, found: Lookup) -> Lookup:
        return found

    def on_decision(self, call: C, found: Lookup, decided: Decided) -> Decided:
        return decided

    def goes_live(self, call: C, *, hit: bool) -> bool:
        """Return whether a call will go to its provider that no recording answers, or (`hit`) that one would."""
        return False

    def on_miss(self, call: C, why: MissReason, recordings: int) -> bool:
        """Return whether a refusal was dealt with here; `recordings` of the key exist."""
        return False

    def on_explain(self, call: C, context: MissContext) -> MissContext:
        """Return what a miss is explained from."""
        return context

    def build_recording_rewriter(self, store: Store, wanted: Canonical) -> RecordingRewriter | None:
        """Return how recordings are told in this run's words, where a miss is explained."""
        return None

    def on_miss_message(self, call: C, miss: ExplainedMiss, text: str) -> str:
        """Return what the client reads of a miss."""
        return text

    # -- on the way back

    def on_answer(self, call: C, response: Response) -> Response:
        return response

    def on_send_plan(self, call: C, laid: SendingPlan) -> SendingPlan:
        return laid

    def get_send_delay(
        self, call: C, offset: float | None, ends: ClientEnds, has_read: Callable[[ClientEnds], bool]
    ) -> float:
        return 0.0

    def get_playback(self, call: C) -> Playback | None:
        return None

    def on_sent(self, call: C) -> Callable[[], None] | None:
        """Return what is to be done in the writer's thread then; it must not raise."""

    def before_store(self, call: C, response: Response) -> Response:
        return response

    def on_withheld_answer(self, call: C, response: Response) -> None:
        """Take the provider's answer to a call that is `withheld`, which is not stored."""

    def on_interaction(self, call: C, made: Interaction) -> Interaction:
        return made

    def on_stored(self, call: C, made: Interaction) -> None: ...

    def on_end(self, call: C, record: Call) -> Call:
        return record

    # -- the session

    @property
    def leased_cassette(self) -> tuple[str, int] | None:
        """Cassette and sample that this session alone may record, where that is not its own."""
        return None

    @property
    def save_target(self) -> tuple[str, int] | None:
        """Cassette and sample in which the session's answers are kept, where that is not its own."""
        return None

    @property
    def id_source(self) -> tuple[str, int] | None:
        """Cassette and sample whose answers made the ids that requests name, where that is not the session's own."""
        return None

    def replays_channel(self, channel: Channel) -> bool:
        return True

    def on_interceptor_added(self, other: Interceptor[C]) -> None:
        """Called before the session gets another one. Raises RefusedError: they exclude each other."""

    def before_reset(self) -> None:
        """Called when somebody asks for a restart. Raises SessionInUse: it cannot be."""

    def on_restart(self) -> None: ...

    def on_session_end(self) -> None:
        """Called when the session ends; its lease is given back after this."""

    def find_unstored_call(self, seq: int) -> Interaction | None:
        """Return what was told in a call of the session, by its number, where that is in no store."""
        return None

    def build_report(self) -> Mapping[str, Any]:
        """Return plain values for the report of the session, by their names."""
        return {}
