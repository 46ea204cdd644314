"""A request that nothing answers is refused, with the whole explanation, once.

The explanation (`core.misses.explain`) is given what was asked, what there is, and which recordings it could have
meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmproxy.core.bindings import Bindings
from llmproxy.core.bindings.lessons import restate
from llmproxy.core.bindings.renaming import Renamer
from llmproxy.core.dialects.conversation import last_user_text
from llmproxy.core.engine.accounts import TEXT
from llmproxy.core.engine.decide import MissReason
from llmproxy.core.engine.keying import Keying
from llmproxy.core.engine.state import State
from llmproxy.core.forks.table import fork_of
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.live_channels import name_of_call
from llmproxy.core.misses.context import MissContext, MissPlace
from llmproxy.core.misses.explain import ExplainedMiss, explain
from llmproxy.core.misses.nearest import RestatedCandidate, Wording, conversation
from llmproxy.core.sessions.exchange import Config, Exchange
from llmproxy.core.store.queries import count, count_of, elsewhere
from llmproxy.core.store.rederive import canonical_of
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.differences import Difference, show_json
from llmproxy.core.traffic.interaction import Key, Request, header
from llmproxy.errors import MissError, RefusedError
from llmproxy.protocol import Channel, Scope

CANDIDATES = 50
"""Recordings that are compared with a missed request."""
PLACES = 3
"""Other places of the key that are named."""
RESTATED = 4 << 20
"""Bytes of a canonical body above which it is not told in this run's words."""

Known = Callable[[int], Canonical | None]


def explain_miss(
    exchange: Exchange,
    why: MissReason,
    recordings: int,
    *,
    request: Request,
    wanted: Canonical,
    config: Config,
    store: Store | None,
    known: Known = lambda _: None,
) -> ExplainedMiss:
    """Explain why an exchange is refused.

    `recordings` of its key exist, `request` is redacted, `known` are recordings read before.
    """
    session, where = exchange.session, exchange.route
    key = exchange.key or Key("")
    place, kind = (session.cassette, session.sample), (where.provider.name, exchange.operation)
    context = MissContext(
        mode=session.mode, cassette=session.cassette, session=session.name, sample=session.sample,
        party=exchange.party, key=key, method=exchange.method, provider=where.provider.name,
        operation=exchange.operation, model=exchange.model, stream=exchange.stream,
        last_user=last_user_text(request.body) or "", store=config.shown or str(config.store),
        store_exists=store is not None, again=config.again, upstreams=session.upstreams,
        recordings=count(store, *place) if store else 0, same_operation=count(store, *place, *kind) if store else 0,
        played=recordings if why is MissReason.EXHAUSTED else 0,
        elsewhere=_find_elsewhere(store, key, exchange.channel) if store and session.live is None else (),
        complete=session.complete, state=exchange.unbound if why is MissReason.STATE else "",
        beside_live="" if session.live is None or exchange.channel is Channel.LLM
        else name_of_call(exchange.operation, where.provider.name, exchange.method, where.target),
        toolless=store is not None and exchange.channel is Channel.MCP and not count_of(store, *place, Channel.MCP),
        concurrent=() if session.order is None else session.order.groups,
        is_python="python" in (header(exchange.headers, "user-agent") or "").lower(),
        unbound="" if why is MissReason.STATE else exchange.unbound,
    )  # fmt: skip
    if store is None:
        return explain(context, wanted, ())
    wording = _InThisRunsWords(exchange, store, wanted)
    return explain(context, wanted, _candidates(exchange, config, store, known), wording)


def _find_elsewhere(store: Store, key: Key, channel: Channel) -> tuple[MissPlace, ...]:
    """Return where else a key is recorded.

    A tool's call in the cassette of a live run, whose tools were not live, may be what was refused there.
    """
    found = [MissPlace(*each) for each in elsewhere(store, key, limit=PLACES)]
    forks = {each: fork_of(store, each.cassette, each.sample) for each in found}
    return tuple(each for each, fork in forks.items() if fork is None or not fork.has_served(channel))


def _candidates(exchange: Exchange, config: Config, store: Store, known: Known) -> list[tuple[int, Canonical]]:
    """Return recordings that the request could have meant, as they are seen under today's rules."""
    where, found = exchange.route, list[tuple[int, Canonical]]()
    for id_ in store.candidates(exchange.session.cassette, where.provider.name, exchange.operation, CANDIDATES):
        if (recorded := known(id_)) is None:
            try:
                recorded = canonical_of(store, store.load(id_), config.rules, config.upstreams)
            except RefusedError:  # recorded under a provider that has no route today
                continue
        found.append((id_, recorded))
    return found


class _InThisRunsWords(Wording):
    """Recordings with this run's run variables for their own, which are no difference."""

    def __init__(self, exchange: Exchange, store: Store, wanted: Canonical) -> None:
        self._bound, self._store, self._wanted = exchange.session.bound, store, wanted
        self._declared: dict[int, str] = {}
        """What was declared, by recording."""
        self._renamers: dict[int, Renamer] = {}
        """By table: recordings of one run share theirs."""
        self._messages: dict[tuple[int, int], tuple[object, object]] = {}
        """By table and message, which recordings of one conversation share: that message, which so stays in memory, and
        how it is told.
        """

    def message(self, id_: int, recorded: Canonical, n: int) -> object:
        member, said = conversation(recorded.tree)
        table = self._table(id_)
        if table is None or not table.changed:
            return said[n]
        which = id(table), id(said[n])
        if which not in self._messages:
            self._messages[which] = said[n], self._renamer(table).message(member, said[n])
        return self._messages[which][1]

    def whole(self, id_: int, recorded: Canonical) -> Canonical:
        """As it is where nothing else would differ."""
        table = self._table(id_)
        if table is None or not table.changed or recorded.tree is None:
            return recorded
        renamed = self._restate_tree(id_, recorded, table)
        return recorded if renamed == self._wanted.tree else replace(recorded, tree=renamed)

    def _restate_tree(self, id_: int, recorded: Canonical, table: Bindings) -> object:
        """Return the whole of a recording, its messages as they were told already."""
        member, said = conversation(recorded.tree)
        if not isinstance(recorded.tree, dict) or not isinstance(recorded.tree.get(member), list):
            return self._renamer(table).request(recorded.tree)
        rest = self._renamer(table).request({**recorded.tree, member: []})
        messages = [self.message(id_, recorded, n) for n in range(len(said))]
        return {**rest, member: messages} if isinstance(rest, dict) else rest

    def restate_recording(self, id_: int, recorded: Canonical, whole: Canonical) -> RestatedCandidate:
        """What fits is no difference, and what varies is not the first that is told."""
        table, bound, wanted = self._table(id_), self._bound, self._wanted
        if not table or bound is None or bound.scope is not Scope.ALL or len(wanted.body) > RESTATED:
            return RestatedCandidate(whole)
        said = restate(table, recorded.tree, wanted.tree, bound.known)
        if said.tree is None or said.tree == wanted.tree:
            return RestatedCandidate(whole)
        varying = tuple(
            Difference(x.path, show_json(x.recorded), show_json(x.present), x.slot.kind) for x in said.varying
        )
        return RestatedCandidate(replace(whole, tree=said.tree), said.bound, varying)

    def _table(self, id_: int) -> Bindings | None:
        """Return what binds a recording in this session; None if nothing does."""
        if self._bound is None:
            return None
        if id_ not in self._declared:
            self._declared[id_] = self._store.read_declared([id_]).get(id_, "")
        return self._bound.table(self._declared[id_])

    def _renamer(self, table: Bindings) -> Renamer:
        return self._renamers.setdefault(id(table), Renamer(table))


REPEATED = "asked again without a stream: the miss before"
"""Note of a request that is no second miss: Claude Code asks so when its first question failed."""


class Misses:
    def __init__(self, state: State, keying: Keying) -> None:
        """Share the engine's state."""
        self._state, self._keying = state, keying

    def miss(self, exchange: Exchange, why: MissReason, recordings: int) -> MissError:
        """Explain a miss: to the client in the error, and in the journal for `llmproxy why`."""
        wanted = self._keying.canonical(exchange, exchange.body or b"")
        miss = self.explain_refusal(exchange, why, recordings, wanted)
        exchange.nearest = miss.nearest.id if miss.nearest else None
        if exchange.session.order is not None and exchange.nearest is not None:
            exchange.session.order.give_up(exchange.nearest)
        exchange.asked = self._state.redactor.text(miss.context.last_user[:TEXT])
        if exchange.session.misses_again(wanted):
            exchange.repeats, exchange.note = True, REPEATED
            return MissError(self._state.redactor.text(miss.text))
        places = miss.nearest.places if miss.nearest else ()
        self._state.journal.miss(miss.to_dict(), at=exchange.started_at, places=places, steps=miss.steps)
        forking = exchange.session.forking
        stops = forking is not None and forking.asked_for and exchange.number
        return MissError(
            self._state.redactor.text(forking.record_stop(exchange, miss) if forking and stops else miss.text)
        )

    def explain_refusal(self, exchange: Exchange, why: MissReason, recordings: int, wanted: Canonical) -> ExplainedMiss:
        """Explain why an exchange is refused; `recordings` of its key exist."""
        request = self._keying.request(exchange, exchange.body or b"")
        return explain_miss(
            exchange,
            why,
            recordings,
            request=request,
            wanted=wanted,
            config=self._state.config,
            store=self._state.stores.current,
            known=self._state.binder.find_canonical,
        )
