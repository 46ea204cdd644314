"""Bound hits: a request without a recording of its own is held against those that it may be, in this run's words.

    exchange, canonical request -> the recording that fits (`FoundRecording`), or why none does
    the recording that was chosen -> its answer with this run's values (`BoundAnswer`)

The exact key is asked first, always. Candidates have the same bound key; each is compared (`bindings.fit_request`).
Where two fit, their answers are compared after binding; if they still differ, the walk's order decides or nobody does:
never is one of two guessed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from llmproxy.core.bindings import (
    Bindings,
    Fit,
    Mismatch,
    RunVariable,
    bound_key,
    find_captured,
    fit_request,
    rebind_answer,
    rewrite_answer,
)
from llmproxy.core.bindings.candidates import read_typed
from llmproxy.core.bindings.lessons import find_lessons
from llmproxy.core.bindings.results import ON_TRIAL
from llmproxy.core.engine.decide import playable
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.sessions.bound import BoundAnswer
from llmproxy.core.sessions.exchange import Config, Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.queries import list_candidates, list_in_order, put_volatile_fields, volatile_fields_of
from llmproxy.core.store.reading import KeyedRecording
from llmproxy.core.store.rederive import canonical_of
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.frames import SWITCHING
from llmproxy.core.traffic.interaction import Key
from llmproxy.core.traffic.json_bytes import dump
from llmproxy.errors import CassetteError, RefusedError
from llmproxy.protocol import Channel, Decision, Plays, Scope

REMEMBERED_KEYS = 100_000
"""Bound keys of recordings; about 150 bytes each."""
REMEMBERED_BYTES = 32 << 20
"""Bodies of the recorded requests that are kept ready to be compared."""
_MOST_COMPARED = 20_000
"""Recordings that one request is compared with."""
_LOOKED_AT = 50
"""Recordings of a session in which a captured value is looked for."""
_MOST_ADVISED = 3
"""Recordings that a miss is held against to say what would make it a hit, and values that are named."""


_MOST_KINDS = 64
_Kind = tuple[str, int, str, str, str, bool]
"""Cassette, sample, party, provider, operation, whether it streams."""
_Index = dict[str, dict[Key, list[int]]]
"""By bound key, and by exact key: ids, in the order in which they were requested."""


@dataclass(frozen=True, slots=True)
class FoundRecording:
    key: Key
    """Exact key of the recordings."""
    slots: tuple[KeyedRecording, ...]
    fit: Fit
    table: Bindings


def _why_not(teaching: Sequence[int], outside: Sequence[tuple[int, Mismatch]]) -> str:
    """Describe why nothing is learned from a request.

    Which recordings would both fit, or where the nearest one parts from it.
    """
    if teaching:
        return (
            f"recordings #{teaching[0]} and #{teaching[1]} would both fit: nothing is learned where that is not clear"
        )
    rule = "a volatile field stands in what a tool answered, never in the question"
    if outside:
        id_, mismatch = outside[0]
        return f"{rule}; recording #{id_}, {mismatch}"
    return f"{rule}; no recording that is not used yet asks the like"


class Binder:
    """Looks for bound hits in one store."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._keys: dict[int, str] = {}
        self._requests: OrderedDict[int, Canonical] = OrderedDict()
        self._bytes = 0
        self._shared: dict[tuple[str, bytes], object] = {}
        """Messages by their list and their canonical writing."""
        self._shared_bytes = 0
        self._declared: dict[int, str] = {}
        """Run variables by recording, as the store writes them: the same text for the same ones."""
        self._indexes: dict[_Kind, tuple[tuple[int, int], _Index]] = {}

    def forget(self) -> None:
        """Forget everything; ids are another store's from now on."""
        self._keys.clear()
        self._requests.clear()
        self._bytes = 0
        self._shared.clear()
        self._shared_bytes = 0
        self._declared.clear()
        self._indexes.clear()

    # --- which recording? ----------------------------------------------------------------------------------------

    def find(self, exchange: Exchange, store: Store, canonical: Callable[[], Canonical]) -> FoundRecording | None:
        """Return the recording that a request without one of its own fits.

        Else the exchange's `unbound` says why none does.
        """
        session = exchange.session
        bound = session.bound
        if bound is None or session.policy.plays is Plays.NOTHING or exchange.route.not_llm or exchange.key is None:
            return None
        wanted = canonical()
        fitting: list[FoundRecording] = []
        typed = None if len(bound.known) else read_typed(wanted, bound.typed)
        for key, ids in self._candidates(exchange, store, wanted):
            table = bound.table(self._read_declared(store, ids[0]))
            if not table or (recorded := self._request(store, ids[0])) is None:
                continue
            if exchange.unbound and typed is not None and not typed.may_be(ids[0], recorded, table):
                continue
            result = fit_request(table, recorded.tree, wanted.tree, bound.known, bound.expectations(table))
            if isinstance(result, Mismatch):
                exchange.unbound = exchange.unbound or f"recording #{ids[0]}, bound: {result}"
                continue
            slots = store.slots(session.cassette, session.sample, exchange.party, key)
            if playable(session.policy, slots):
                fitting.append(FoundRecording(key, slots, result, table))
        if not fitting and bound.trial is not None:
            return self._try(exchange, store, wanted)
        if not fitting and session.policy.on_miss is Decision.REFUSE:
            advice = self._advise(exchange, store, wanted)
            exchange.unbound = "; ".join(filter(None, (exchange.unbound, advice)))
        return self._choose(exchange, store, fitting) if fitting else None

    def _advise(self, exchange: Exchange, store: Store, wanted: Canonical) -> str:
        """Describe which recording would be a hit if some values that tools made were volatile fields; empty where none
        would.
        """
        session = exchange.session
        bound = session.bound
        if bound is None or bound.scope is not Scope.ALL:
            return ""
        fresh = [ids[0] for _, ids in self._candidates(exchange, store, wanted) if ids[0] not in session.served]
        for id_ in fresh[:_MOST_ADVISED]:
            if (recorded := self._request(store, id_)) is None:
                continue
            table = bound.table(self._read_declared(store, id_))
            lessons = find_lessons(table, recorded.tree, wanted.tree, bound.known)
            if not isinstance(lessons, Mismatch) and lessons:
                named = ", ".join(
                    f"{each.slot.name} {each.recorded} -> {each.present}" for each in lessons[:_MOST_ADVISED]
                )
                more = f" and {len(lessons) - _MOST_ADVISED} more" if len(lessons) > _MOST_ADVISED else ""
                return (
                    f"recording #{id_} would be a hit if what tools made were volatile fields ({named}{more}): "
                    f"{self._config.learn_command(session.cassette)}"
                )
        return ""

    def _try(self, exchange: Exchange, store: Store, wanted: Canonical) -> FoundRecording | None:
        """Learn which values vary, where exactly one recording that was not used yet would fit if they did."""
        session = exchange.session
        bound = session.bound
        if bound is None or bound.trial is None:
            return None
        teaching = []
        typed = None if len(bound.known) else read_typed(wanted, bound.typed)
        outside: list[tuple[int, Mismatch]] = []
        for key, ids in self._candidates(exchange, store, wanted):
            if ids[0] in session.served or (recorded := self._request(store, ids[0])) is None:
                continue
            table = bound.table(said := self._read_declared(store, ids[0]))
            if outside and typed is not None and not typed.may_be(ids[0], recorded, table):
                continue
            lessons = find_lessons(table, recorded.tree, wanted.tree, bound.known)
            if isinstance(lessons, Mismatch):
                outside.append((ids[0], lessons))
            else:
                teaching.append((key, ids[0], said, recorded, lessons))
        if len(teaching) != 1:
            exchange.unbound = ON_TRIAL + _why_not([each[1] for each in teaching], outside)
            return None
        key, _, said, recorded, lessons = teaching[0]
        bound.teach(lessons)
        table = bound.table(said)
        result = fit_request(table, recorded.tree, wanted.tree, bound.known)
        slots = store.slots(session.cassette, session.sample, exchange.party, key)
        if isinstance(result, Mismatch) or not playable(session.policy, slots):
            return None
        bound.trial.served += 1
        exchange.unbound = ""
        return FoundRecording(key, slots, result, table)

    def _candidates(self, exchange: Exchange, store: Store, wanted: Canonical) -> list[tuple[Key, list[int]]]:
        """Return the recordings that may fit, by their exact key, in the order in which they were requested."""
        session, where = exchange.session, exchange.route
        if wanted.kind != "json":
            return []
        kind = (
            session.cassette,
            session.sample,
            exchange.party,
            where.provider.name,
            exchange.operation,
            wanted.stream,
        )
        alike = self._index(store, kind).get(bound_key(wanted), {})
        fresh = ((key, ids) for key, ids in alike.items() if (exchange.party, key) not in session.recorded_here)
        return list(islice(fresh, _MOST_COMPARED))

    def _index(self, store: Store, kind: _Kind) -> _Index:
        """Return the recordings of one kind of request by their bound keys; remembered until anybody commits."""
        generation = store.generation
        if (known := self._indexes.get(kind)) is not None and known[0] == generation:
            return known[1]
        made: _Index = {}
        cassette, sample, party, provider, operation, stream = kind
        for each in list_candidates(store, (cassette, sample), party, provider, operation, stream=stream):
            made.setdefault(self._bound_key(store, each.id), {}).setdefault(each.key, []).append(each.id)
        if len(self._indexes) >= _MOST_KINDS:
            self._indexes.clear()
        self._indexes[kind] = (generation, made)
        return made

    def _read_declared(self, store: Store, id_: int) -> str:
        """Return what was declared of the run that made a recording."""
        if (known := self._declared.get(id_)) is None:
            if len(self._declared) >= REMEMBERED_KEYS:
                self._declared.clear()
            known = self._declared[id_] = store.read_declared([id_]).get(id_, "")
        return known

    def _bound_key(self, store: Store, id_: int) -> str:
        if (known := self._keys.get(id_)) is None:
            canonical = self._request(store, id_)
            if len(self._keys) >= REMEMBERED_KEYS:
                self._keys.clear()
            known = self._keys[id_] = "" if canonical is None else bound_key(canonical)
        return known

    def _request(self, store: Store, id_: int) -> Canonical | None:
        """Return the canonical request of a recording; None for one that is damaged, or that no route knows today."""
        if (known := self._requests.get(id_)) is not None:
            self._requests.move_to_end(id_)
            return known
        try:
            made = canonical_of(store, store.load(id_), self._config.rules, self._config.upstreams)
        except (CassetteError, RefusedError):
            return None
        self._share(made.tree)
        self._requests[id_] = made
        self._bytes += len(made.body) + 1000
        while self._bytes > REMEMBERED_BYTES and len(self._requests) > 1:
            _, gone = self._requests.popitem(last=False)
            self._bytes -= len(gone.body) + 1000
        return made

    def find_canonical(self, id_: int) -> Canonical | None:
        """Return the canonical request of a recording that was compared not long ago."""
        return self._requests.get(id_)

    def _share(self, tree: object) -> None:
        """Let a conversation's requests hold the same objects for the messages in common, which are compared once."""
        for name, messages in tree.items() if isinstance(tree, dict) else ():
            for n, message in enumerate(messages if isinstance(messages, list) else ()):
                written = dump(message)
                self._shared_bytes += len(written)
                messages[n] = self._shared.setdefault((name, written), message)
        if self._shared_bytes > REMEMBERED_BYTES:
            self._shared.clear()
            self._shared_bytes = 0

    def _choose(self, exchange: Exchange, store: Store, fitting: Sequence[FoundRecording]) -> FoundRecording | None:
        """Return the one that fits.

        Of several whose answers differ after binding, the one that comes next in the walk.
        """
        if len(fitting) == 1:
            return fitting[0]
        session = exchange.session
        answers = [self._rewrite(exchange, store, each, each.slots[0]) for each in fitting]
        bodies = {each.response.body for each in answers if not isinstance(each, Mismatch)}
        if len(bodies) == 1 and not any(isinstance(each, Mismatch) for each in answers):
            fresh = [each for each in fitting if each.slots[0].id not in session.served]
            return (fresh or fitting)[0]
        follows = self._next(exchange, store)
        if (found := next((each for each in fitting if each.key == follows), None)) is not None:
            return found
        named = " and ".join(f"#{each.slots[0].id}" for each in fitting[:2])
        exchange.unbound = (
            f"recordings {named} both fit, their answers differ, and the order of the run does not say which is meant"
        )
        return None

    @staticmethod
    def _next(exchange: Exchange, store: Store) -> Key | None:
        """Return the key of the recording that comes after what this walk was served last."""
        session = exchange.session
        order = list_in_order(store, (session.cassette, session.sample), exchange.party)
        last = session.last_of(exchange.party)
        if last is None:
            return order[0][1] if order else None
        nth = session.counts[(exchange.party, last)]
        at = next((n for n, (_, key, occurrence) in enumerate(order) if key == last and occurrence == nth), None)
        return order[at + 1][1] if at is not None and at + 1 < len(order) else None

    def record_captured(self, session: Session, store: Store, run_variables: Sequence[RunVariable]) -> None:
        """Keep as volatile fields where captured values stood in what this session recorded before they
        were declared.
        """
        known = volatile_fields_of(store, session.cassette)
        ids = sorted(session.served)[-_LOOKED_AT:]
        trees = [made.tree for id_ in ids if (made := self._request(store, id_)) is not None]
        found = [slot for each in run_variables for slot in find_captured(trees, each)]
        places = {(slot.tool, slot.at, slot.before) for slot in known}
        new = [slot for slot in dict.fromkeys(found) if (slot.tool, slot.at, slot.before) not in places]
        if new:
            put_volatile_fields(store, session.cassette, [*known, *new])

    # --- its answer ----------------------------------------------------------------------------------------------

    def answer(
        self, exchange: Exchange, store: Store, found: FoundRecording, slot: KeyedRecording
    ) -> BoundAnswer | None:
        """Return the answer of a recording that fits; None, and why in `unbound`, where it cannot be written."""
        result = self._rewrite(exchange, store, found, slot)
        if isinstance(result, Mismatch):
            exchange.unbound = f"the answer of recording #{slot.id}: {result}"
            return None
        return result

    @staticmethod
    def _rewrite(
        exchange: Exchange, store: Store, found: FoundRecording, slot: KeyedRecording
    ) -> BoundAnswer | Mismatch:
        bound = exchange.session.bound
        if bound is None:
            raise AssertionError("found without bindings")
        response = rewrite_answer(found.table, found.fit, store.response(slot.id), bound.known)
        if isinstance(response, Mismatch):
            return response
        return BoundAnswer(response, found.fit.names, found.fit.identities, found.fit.below)

    def exact(
        self, exchange: Exchange, store: Store, slot: KeyedRecording, canonical: Callable[[], Canonical]
    ) -> BoundAnswer | Mismatch | None:
        """Return what an exact hit's answer must be in this run; None where it is the recorded one, byte for byte.

        It is another only where it names a recorded folder, or what a tool made, that the request does not hold.
        """
        bound = exchange.session.bound
        if bound is None or slot.id in bound.untouched or slot.status == SWITCHING:
            return None  # a WebSocket's frames are held against what its client sends
        table = bound.table(self._read_declared(store, slot.id))
        if not table.own_paths.changed and not len(bound.known):
            bound.untouched.add(slot.id)
            return None
        recorded = store.response(slot.id)
        named = frozenset(bound.named) if exchange.channel is Channel.LLM else None
        result = rebind_answer(table, canonical().tree, recorded, bound.known, named=named)
        if isinstance(result, Mismatch):
            return result
        if result is recorded:
            bound.untouched.add(slot.id)
            return None
        names = {*table.own_paths.changed, *(each.name for each in bound.known if each.recorded != each.present)}
        return BoundAnswer(result, tuple(sorted(names)))
