"""The engine, which connects its parts.

    bytes in -> request -> redact -> normalize -> key -> decide -> (recording out | upstream -> recording in)

It does no network I/O and reads only the clocks that it is given. For each request `mitm` calls `begin_exchange` (its
head is here), `stages.identify_and_decide` (its body), and `writer.store_answer` (the provider's answer; slow: from a
writer's thread), and obeys the results. No answer is cached by a request, only its *key*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llmproxy.core.changes.accepted_change_model import digest_key_of_call_not_made
from llmproxy.core.engine.auxiliary_call_stubs import StubFeature
from llmproxy.core.engine.bound_hits import BindingFeature
from llmproxy.core.engine.carried_answers import AcceptedChangesFeature
from llmproxy.core.engine.concurrent_answer_order import CoalesceFeature, DuplicateChoiceFeature, EndOrderFeature
from llmproxy.core.engine.engine_state import EngineState, EngineStoreOpener
from llmproxy.core.engine.fast_path import FastPath
from llmproxy.core.engine.fault_injection import FaultFeature
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.forking import ForkFeature
from llmproxy.core.engine.mcp_playback import McpPlaybackFeature
from llmproxy.core.engine.partly_live_sessions import SessionFeatureMixingLiveAndReplay
from llmproxy.core.engine.recording_and_accounting import (
    CallJournalAndUsageRecorder,
    InteractionFromExchangeBuilder,
    RecordingStoreWriter,
)
from llmproxy.core.engine.recording_replacement import (
    AbandonedRecordingFeature,
    BudgetFeature,
    RecordingUpdateFeature,
    StaleRecordingFeature,
)
from llmproxy.core.engine.request_identification import KeyDeriver, RequestRouteResolver
from llmproxy.core.engine.request_stages import AnswerSendingPlanner, MissExplainer, RequestDecider
from llmproxy.core.providers.stubs import OPTIONAL
from llmproxy.core.secrets.redact import Redactor, find_placeholder_credential_name
from llmproxy.core.sessions.exchange import EngineConfig, Exchange
from llmproxy.core.sessions.journal import CallDecisionJournalWriter, ChangedAgentTrialResultWriter
from llmproxy.core.sessions.session import Session, Sessions, SessionSettings, split_cassette_and_sample
from llmproxy.core.store.queries import count_unused, list_key_digests_allowed_unused
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Headers
from llmproxy.protocol import OFFLINE

FEATURES: tuple[type[Feature], ...] = (
    StubFeature,  # before all others: they ignore auxiliary calls
    SessionFeatureMixingLiveAndReplay,  # before lookups: live calls need none; last on answers: stores what clients got
    DuplicateChoiceFeature,  # before the features that rewrite the chosen answer
    BindingFeature,  # finds bound hits; one whose answer cannot be rewritten is a miss
    AcceptedChangesFeature,  # only if neither the key nor bindings found a recording
    RecordingUpdateFeature,  # sends what AcceptedChangesFeature found changed; chooses the cassette of all answers
    FaultFeature,  # after all hits are found, and before the arrival is counted
    ForkFeature,  # counts calls without a fault, and forks if no feature before it found a recording
    StaleRecordingFeature,  # checks the final hit
    BudgetFeature,  # limits the requests that are finally sent
    McpPlaybackFeature,  # goes by what was decided
    CoalesceFeature,  # goes by what was decided
    EndOrderFeature,  # delays the final answer
    AbandonedRecordingFeature,  # last: extends the end of the final answer
)
"""In the order in which their interceptors handle a request, and check options; answers pass them in reverse."""


@dataclass(frozen=True)
class EngineComponentClasses:
    """The replaceable parts of an engine; a test can inject a broken one."""

    dispatcher: type[RequestRouteResolver] = RequestRouteResolver
    keying: type[KeyDeriver] = KeyDeriver
    stages: type[RequestDecider] = RequestDecider
    misses: type[MissExplainer] = MissExplainer
    answering: type[AnswerSendingPlanner] = AnswerSendingPlanner
    writer: type[RecordingStoreWriter] = RecordingStoreWriter
    accounting: type[CallJournalAndUsageRecorder] = CallJournalAndUsageRecorder


class Engine:
    parts = EngineComponentClasses()

    def __init__(
        self, config: EngineConfig, *, redactor: Redactor, journal: CallDecisionJournalWriter, now: Callable[[], float],
        clock: Callable[[], float], holder: str = "llmproxy",
    ) -> None:  # fmt: skip
        """Open (to record: create) the store. `now`: Unix time, `clock`: monotonic, `holder`: our name in leases."""
        stores = EngineStoreOpener(config, now, self._clear_caches)
        self.redactor, self.journal, self.now, self.clock = redactor, journal, now, clock
        self.sessions = Sessions(
            SessionSettings(config.mode, config.speed, config.exhausted), stores.open_for_mode, holder,
            stores.write_cassette_file, stores.refresh_cassette, now, allow_live=config.allow_live,
        )  # fmt: skip
        state = EngineState(config, redactor, journal, now, clock, stores, self.sessions)
        parts = self.parts
        self.dispatcher, self.answering = parts.dispatcher(config, redactor, self.sessions), parts.answering(state)
        self.keying = keying = parts.keying(state)
        self.builder, self.accounting = InteractionFromExchangeBuilder(state, keying), parts.accounting(state)
        self.writer, misses = parts.writer(state, keying, self.builder), parts.misses(state, keying)
        self.stages = parts.stages(state, keying, misses)
        self._state, self.config = state, config
        shared = EngineParts(state, keying, self.builder, misses, self.accounting)
        self.sessions.features = tuple(feature(shared) for feature in FEATURES)
        self.fast_path = FastPath(state, self.accounting)
        self.trials = ChangedAgentTrialResultWriter(config.store, now)
        stores.open_at_start()

    def get_feature[F: Feature](self, kind: type[F]) -> F:
        return next(each for each in self.sessions.features if isinstance(each, kind))

    @property
    def store(self) -> Store | None:
        """The store. If this proxy only reads, it may appear later, when another process records."""
        return self._state.stores.current

    def _clear_caches(self) -> None:
        self._state.plans.clear()
        self.fast_path.clear_cache()
        self.accounting.prices.forget()
        self.get_feature(BindingFeature).requests.clear()

    def begin_exchange(self, method: str, target: str, host: tuple[str, str, int] | None, headers: Headers) -> Exchange:
        """Find provider and session. `host` is (scheme, host, port) where the client named one itself.

        Raises RefusedError (destination, session or party), CassetteBusy: another session records this cassette.
        """
        return self.stages.begin_exchange(self.dispatcher.place_request(method, target, host, headers))

    def may_pass_unrecorded(self, exchange: Exchange) -> bool:
        session, policy = exchange.session, exchange.session.policy
        unseen = policy.writes and not policy.alone and not any(each.rewrites for each in session.interceptors)
        allowed = unseen and bool(exchange.route.upstream)
        return allowed and find_placeholder_credential_name(exchange.request.headers, exchange.route.target) is None

    def put_port_in_restart_command(self, port: int) -> None:
        """Add the port to the start command if any free one was chosen: clients of a restarted proxy know this one."""
        again = self.config.again
        if ("port", "0") in again.options:
            options = tuple((name, str(port) if name == "port" else value) for name, value in again.options)
            self.config = self._state.config = replace(self.config, again=replace(again, options=options))

    def wait_for_store_server(self) -> None:
        """Wait until the store's server is available again; not on the event loop. Raises CassetteServerLost."""
        if (store := self._state.stores.opened) is not None:
            store.wait_for_server()

    def close(self) -> None:
        if self._state.stores.opened is None:
            return
        for session in list(self.sessions.open_sessions.values()):
            self.trials.store_trial(session)
        self.trials.close()
        try:
            self.sessions.close_sessions()
        finally:
            self._state.stores.close()

    # --- queries -----------------------------------------------------------------------------------------------------

    def notes(self) -> list[str]:
        store, cassette = self._state.stores.current, self._state.config.cassette
        if self._state.config.mode not in OFFLINE:
            return []
        shown = self._state.config.shown_store_path
        if store is None:
            record = self._state.config.again.command("record", store=shown)
            return [f"there is no store {shown} yet, so every request will be a miss. Record first: {record}"]
        self._state.stores.refresh_cassette(store, cassette, 1)
        if not store.has_recordings(cassette, 1) and (others := store.list_cassette_names(10)):
            return [f"cassette {cassette} is empty; {shown} has: {', '.join(others)}"]
        if "coding-agents" in self._state.config.rules.packs:
            learn = self._state.config.build_learn_command(cassette)
            return [f"the pack coding-agents stays as it is; `{learn}` does more, and needs no rule"]
        return []

    def count_unused(self) -> int | None:
        if self._state.stores.opened is None:
            return None
        served = {place: set(ids) for place, ids in self._state.sessions.served_before.items()}
        for walk in self._state.sessions.open_sessions.values():
            served.setdefault((walk.cassette, walk.sample), set()).update(walk.served)
        store, live = self._state.stores.opened, self._state.config.live
        return sum(count_unused(store, *place, ids, live.channels if live else ()) for place, ids in served.items())

    def list_unused(self, session: Session) -> list[StoredCallSummary] | None:
        """Return live recordings of a session's cassette that it neither played nor recorded; None in other modes."""
        if (store := self._state.stores.current) is None:
            return None
        unused = [row for row in store.list_summaries(session.cassette, session.sample) if row.id not in session.served]
        gone = list_key_digests_allowed_unused(store, session.cassette) if unused else ()
        played = (row for row in unused if all(each.replays_channel(row.channel) for each in session.interceptors))
        return [
            row for row in played if row.operation not in OPTIONAL and digest_key_of_call_not_made(row.key) not in gone
        ]

    def list_recording_summaries(self, name: str | None, limit: int) -> list[StoredCallSummary]:
        if (store := self._state.stores.current) is None:
            return []
        cassette, sample = split_cassette_and_sample(name) if name is not None else (None, None)
        return store.list_summaries(cassette, sample, limit=limit)
