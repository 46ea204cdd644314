"""State shared by the parts of one engine: its open store, pending recordings and caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llmproxy.core.dialects.conversation import list_server_made_ids
from llmproxy.core.keys.normalize import IdOrigin, RequestKeyCache, list_ids_new_in_response
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig, Exchange
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.sessions.session import Session, Sessions
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import derive_keys_under_current_rules
from llmproxy.core.store.reader import RecordingHead
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.response_plan import SerializedAnswerCache
from llmproxy.postgres_store_paths import store_exists
from llmproxy.protocol import Decision, Mode, ReplayablePolicy

TEXT = 240
"""Maximum characters of prompt and answer that are shown."""


class PendingRecordings:
    def __init__(self) -> None:
        self._places: dict[tuple[str, int], dict[int, Exchange]] = {}
        """Exchanges by cassette and sample, then by `id`."""

    def reserve_occurrence(self, exchange: Exchange, slots: Sequence[RecordingHead]) -> None:
        """Reserve the occurrence of an answer to record: its ids may be used before it is stored."""
        if exchange.decision is not Decision.RECORD:
            return
        session = exchange.session
        beside, own = self._places.setdefault(exchange.save_target, {}), exchange.party_and_key
        twins = [each.kept for each in beside.values() if each.party_and_key == own]
        for each in (*twins, exchange.kept) if twins else ():
            each.has_twin = True
        taken = [each.occurrence for each in twins]
        if not session.policy.anew:
            taken += [slot.occurrence for slot in slots]
        exchange.kept.occurrence = exchange.nth if exchange.nth not in taken else max(taken) + 1
        beside[id(exchange)] = exchange

    def on_call_end(self, exchange: Exchange) -> None:
        self._places.get(exchange.save_target, {}).pop(id(exchange), None)

    def find_pending_id_origin(self, place: tuple[str, int], name: str) -> IdOrigin | None:
        """Return the unstored answer that created an id: its first chunk may be used before the last one arrives."""
        for each in self._places.get(place, {}).values():
            so_far = each.recording.body_so_far if each.key is not None else b""
            if name.encode("utf-8", "surrogatepass") not in so_far:
                continue
            found = list_server_made_ids(each.family, each.operation, each.recording.mime_type, so_far)
            made = list_ids_new_in_response(found, each.identity.refs)
            if each.key is not None and name in made:
                return IdOrigin(each.key, each.kept.occurrence, made.index(name))
        return None


class EngineStoreOpener:
    def __init__(self, config: EngineConfig, now: Callable[[], float], forget: Callable[[], None]) -> None:
        """Create without opening; `now` returns Unix time, `forget` is called when ids refer to other recordings."""
        self._config, self._now, self._forget = config, now, forget
        self.opened: Store | None = None

    def open_at_start(self) -> None:
        """Open (or, to record, create) the store, so that damage is reported at the start, not at the first request."""
        if self._config.mode.policy.writes:
            self.opened = self._open_store(writable=True)
        self.current  # noqa: B018 - opens it where there is one

    @property
    def current(self) -> Store | None:
        """The store. If this proxy only reads, it may appear later, when another process records."""
        if self.opened is None:
            policy = self._config.mode.policy
            if policy.plays is not ReplayablePolicy.NOTHING and not policy.writes and store_exists(self._config.store):
                self.opened = self._open_store(writable=False)
        return self.opened

    def _open_store(self, *, writable: bool) -> Store:
        store = open_store(self._config.store, writable=writable, now=self._now, whole=False)
        store.reopened = self._forget

        def refresh_cassette(places: Sequence[tuple[str, int]]) -> None:
            for place in places:
                self.refresh_cassette(store, *place)

        store.on_replaced = refresh_cassette
        return store

    def open_for_mode(self, mode: Mode) -> Store | None:
        """Return the store, open for writing if this mode writes; a replay proxy opens it for writing only here."""
        store = self.current
        if not mode.policy.writes or (store is not None and store.writable):
            return store
        opened: list[tuple[str, int]] = []
        if store is not None:
            opened = list(store.derived)
            store.close()
            self.opened = None
            self._forget()
        self.opened = self._open_store(writable=True)
        for place in opened:
            self.refresh_cassette(self.opened, *place)
        return self.opened

    def refresh_cassette(self, store: Store, cassette: str, sample: int) -> None:
        """Read other processes' recordings of a cassette; derive current keys for recordings of older versions."""
        store.refresh_cassette(cassette)
        derive_keys_under_current_rules(store, cassette, sample, self._config.rules, self._config.upstreams)

    def write_cassette_file(self, session: Session) -> None:
        """Write the file of a recorded cassette if a cassette folder is set. Thread-safe: opens its own connection."""
        if self._config.cassette_dir is not None and (writer := self.opened) is not None:
            from llmproxy.core.cassettes.folder_sync import CassetteDir

            with open_store(self._config.store, writable=False, now=self._now) as store:
                kept = CassetteDir(self._config.cassette_dir, now=self._now)
                kept.save_cassette(store, session.cassette, remember=writer.record_synced_file)

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


@dataclass(slots=True)
class EngineState:
    config: EngineConfig
    redactor: Redactor
    journal: CallDecisionJournalWriter
    now: Callable[[], float]
    """Unix seconds."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    stores: EngineStoreOpener
    sessions: Sessions
    memory: RequestKeyCache = field(default_factory=RequestKeyCache)
    plans: SerializedAnswerCache = field(default_factory=SerializedAnswerCache)
    pending: PendingRecordings = field(default_factory=PendingRecordings)
