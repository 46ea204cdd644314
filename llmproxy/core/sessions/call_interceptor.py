"""The interface of features: interceptors, which are added to sessions. No other code depends on a feature.

A call goes through stages: its head determines its session and route, its body its key, the key is looked up, a
decision is made, and the call is answered and recorded (`engine.request_stages`). At each border the stages call every
interceptor of its session, on the way in in the declared order (`engine.FEATURES`), on the way back in
reverse; an interceptor overrides only the methods that it needs. A session without interceptors is the plain proxy, and
only that has the fast path. Where the head settled what becomes of a call, as in `record`, none is asked on the way in.

To write one: a class that derives from `SessionCallInterceptor[Exchange]`; a `Feature` (`engine.feature`) whose
`create_interceptor` returns one for a session, or None; its row of `engine.FEATURES`. Its state for a session
are its attributes (`on_restart` is called when the session restarts). Its state for a call is a value of its own type
in `call.state`:

    class Waited(NamedTuple): until: float

    def on_lookup(self, call, found):
        call.answer.held = True
        call.state.put(Waited(self.clock() + 1))
        return found._replace(key=other, recordings=store.find_keyed(..., other))  # the answer of another key

    def get_send_delay(self, call, offset, ends, has_read):
        return max(0.0, call.state.get(Waited).until - self.clock()) if offset is None else 0.0

All methods run on the event loop and must not block, except those about storing, which run in the writer's thread. An
exception refuses the call (500) and never produces another answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol

from llmproxy.calls_and_totals import Call
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.mcp_answer_replay import McpAnswerPartAfterCondition
from llmproxy.core.misses.explain import ExplainedMiss, MissContext
from llmproxy.core.misses.nearest_recording import RecordingToCurrentRunRewriter
from llmproxy.core.store.reader import RecordingHead
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Interaction, Key, Response
from llmproxy.core.traffic.response_plan import AnswerSendingPlan
from llmproxy.protocol import Channel, Decision


class MissReason(StrEnum):
    NEVER = "never recorded"
    EXHAUSTED = "every recording was already played"
    STATE = "recorded in another state of the tools"
    UNBOUND = "its answer cannot be told in this run's words"


class Decided(NamedTuple):
    """The decision; the recording that answers, or the reason why none does."""

    decision: Decision
    recording: RecordingHead | None = None
    reason: MissReason | None = None


class RecordingLookup(NamedTuple):
    key: Key
    """Exact key of the recordings: the call's own, unless an interceptor found others."""
    recordings: Sequence[RecordingHead]
    """In order of occurrence."""
    canonical: Callable[[], Canonical]
    """Returns the canonical request; built on first use."""


ClientEnds = tuple[object, object] | None
"""Addresses of both ends of a client's connection."""


@dataclass(slots=True)
class InterceptorPrivateCallData:
    """An interceptor's values for a call, by type; only that interceptor reads them."""

    _values: dict[type, object] = field(default_factory=dict)

    def get[T](self, kind: type[T]) -> T | None:
        value = self._values.get(kind)
        return value if isinstance(value, kind) else None

    def put(self, value: object) -> None:
        self._values[type(value)] = value

    def copy(self) -> InterceptorPrivateCallData:
        return InterceptorPrivateCallData(dict(self._values))

    def drop(self, kind: type) -> None:
        self._values.pop(kind, None)


class ClientDrivenAnswerPlayback(Protocol):
    """A recorded answer that continues when its client has done what the recorded one did."""

    response: Response
    turns: deque[McpAnswerPartAfterCondition] | None
    """Parts of the answer that were not taken yet; None if nothing has to be awaited."""

    def take_ready_parts(self, wait_for_last: Callable[[], float]) -> tuple[list[bytes], float]:
        """Take the parts that may be sent now; return also the seconds (`wait_for_last`) that others hold the last."""


class SessionCallInterceptor[C]:
    """A feature's effect on the calls (`C`) of one session; each method does nothing by default."""

    channel: ClassVar[Channel | None] = None
    """Channel of the calls that it handles; None: all."""
    auxiliary: ClassVar[bool] = False
    """Whether it handles auxiliary calls only (`providers.stubs`)."""
    sees_whole: bool = False
    """Whether a call must have arrived completely before anything of it is sent upstream."""
    rewrites: bool = False
    """Whether a call that cannot be read completely must not be sent upstream."""
    reads_answers: ClassVar[bool] = False
    """Whether `on_answer` is called for every hit, or only if the answer is read anyway."""
    leased_cassette: tuple[str, int] | None = None
    """Cassette and sample that only this session may record, if not its own."""
    save_target: tuple[str, int] | None = None
    """Cassette and sample for the session's answers, if not its own."""
    id_source: tuple[str, int] | None = None
    """Cassette and sample whose answers created the ids in requests, if not the session's own."""

    def before_key(self, call: C, body: bytes) -> bytes:
        """Return the body that counts; or refuse: `call.mark_refused(error)`."""
        return body

    def preview_answer(self, call: C) -> Response | None:
        """Return the answer that it will create for a call, whatever is recorded; nothing is counted yet."""
        return None

    def on_lookup(self, call: C, found: RecordingLookup) -> RecordingLookup:
        """Return other recordings; or end it: set `call.decision` (`request_stages.assign_call_occurrence`)."""
        return found

    def on_decision(self, call: C, found: RecordingLookup, decided: Decided) -> Decided:
        """Return another decision than the modes' table."""
        return decided

    def goes_live(self, call: C, *, hit: bool) -> bool:
        """Return whether a call without a recording (or, if `hit`, with one) will go to its provider."""
        return False

    def on_miss(self, call: C, why: MissReason, recordings: int) -> bool:
        """Return whether it handled a refusal; `recordings` is the number of recordings of the key."""
        return False

    def on_explain(self, call: C, context: MissContext) -> MissContext:
        return context

    def build_recording_rewriter(self, store: Store, wanted: Canonical) -> RecordingToCurrentRunRewriter | None:
        """Return a rewriter of recordings with this run's values, for the explanation of a miss."""
        return None

    def on_miss_message(self, call: C, miss: ExplainedMiss, text: str) -> str:
        return text

    def on_answer(self, call: C, response: Response) -> Response:
        """Return another answer for the client; or the same, noted."""
        return response

    def on_send_plan(self, call: C, laid: AnswerSendingPlan) -> AnswerSendingPlan:
        """Return what is sent, and when: a replayed answer, one made here, a FAULT, or where it is `withheld`."""
        return laid

    def get_send_delay(
        self, call: C, offset: float | None, ends: ClientEnds, has_read: Callable[[ClientEnds], bool]
    ) -> float:
        """Return seconds until a piece of a replayed answer may go out; only asked where `call.answer.held` was set.

        `offset` is its recorded second; None: the last piece. `has_read`: whether a client has read what it was sent.
        """
        return 0.0

    def get_playback(self, call: C) -> ClientDrivenAnswerPlayback | None:
        """Return an answer that goes on when its client has done what the recorded one did."""
        return None

    def on_sent(self, call: C) -> Callable[[], None] | None:
        """Return a job for the writer's thread, or None, when all of a replayed answer was sent; it must not raise."""

    def before_store(self, call: C, response: Response) -> Response:
        return response

    def on_withheld_answer(self, call: C, response: Response) -> None:
        """Handle the provider's answer to a call that is `withheld`, which is not stored."""

    def on_interaction(self, call: C, made: Interaction) -> Interaction:
        return made

    def on_stored(self, call: C, made: Interaction) -> None:
        """Called when the provider's answer is in the store."""

    def on_end(self, call: C, record: Call) -> Call:
        return record

    def replays_channel(self, channel: Channel) -> bool:
        return True

    def on_interceptor_added(self, other: SessionCallInterceptor[C]) -> None:
        """Called before the session gets another one. Raises RefusedError if they exclude each other."""

    def before_reset(self) -> None:
        """Called before a requested restart. Raises SessionInUse if it is impossible."""

    def on_restart(self) -> None: ...

    def on_session_end(self) -> None:
        """Called when the session ends; its lease is released after this."""

    def find_unstored_call(self, seq: int) -> Interaction | None:
        """Return the interaction of the session's call `seq` if it is in no store."""
        return None

    def build_report(self) -> Mapping[str, Any]:
        """Return plain values for the session's report, by name."""
        return {}
