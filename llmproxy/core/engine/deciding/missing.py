"""A miss, put together for `core.misses.explain`: what was asked, what there is, and which recordings it could have meant."""

from __future__ import annotations

from dataclasses import replace

from llmproxy.core.bindings import Bindings, rename_request
from llmproxy.core.bindings.learning.restating import restate
from llmproxy.core.dialects.conversation import last_user_text
from llmproxy.core.engine.deciding.decide import MissReason
from llmproxy.core.keys import v1
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.living.channels import name_of_call
from llmproxy.core.misses.explain import ExplainedMiss, MissContext, MissPlace, explain
from llmproxy.core.misses.nearest import RestatedCandidate
from llmproxy.core.sessions.exchange import Config, Exchange
from llmproxy.core.store.questions import count, elsewhere, other_rules
from llmproxy.core.store.rederive import canonical_of
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.differences import Difference, shown
from llmproxy.core.traffic.interaction import Key, Request
from llmproxy.errors import RefusedError
from llmproxy.protocol import Channel, Scope

CANDIDATES = 50
"""Recordings that are compared with a missed request."""
PLACES = 3
"""Other places of the key that are named."""
RESTATED = 4 << 20
"""Bytes of a canonical body above which it is not told in this run's words."""


def explain_miss(
    exchange: Exchange,
    why: MissReason,
    recordings: int,
    *,
    request: Request,
    wanted: Canonical,
    config: Config,
    store: Store | None,
) -> ExplainedMiss:
    """Explain why an exchange is refused; `recordings` of its key exist, `request` is redacted."""
    session, where = exchange.session, exchange.route
    key = exchange.key or Key("")
    place, kind = (session.cassette, session.sample), (where.provider.name, exchange.operation)
    context = MissContext(
        mode=session.mode,
        cassette=session.cassette,
        session=session.name,
        sample=session.sample,
        party=exchange.party,
        key=key,
        method=exchange.method,
        provider=where.provider.name,
        operation=exchange.operation,
        model=exchange.model,
        stream=exchange.stream,
        last_user=last_user_text(request.body) or "",
        store=config.shown or str(config.store),
        store_exists=store is not None,
        again=config.again,
        upstreams=session.upstreams,
        recordings=count(store, *place) if store else 0,
        same_operation=count(store, *place, *kind) if store else 0,
        played=recordings if why is MissReason.EXHAUSTED else 0,
        elsewhere=tuple(MissPlace(*found) for found in elsewhere(store, key, limit=PLACES))
        if store and session.living is None  # what live runs were refused stands in their cassettes
        else (),
        other_rules=other_rules(store, session.cassette, config.rules.digest, config.rules.digest_of(v1.RULES))
        if store
        else False,
        complete=session.complete,
        state=exchange.unbound if why is MissReason.STATE else "",
        beside_live=""
        if session.living is None or exchange.channel is Channel.LLM
        else name_of_call(exchange.operation, where.provider.name, exchange.method, where.target),
        unbound="" if why is MissReason.STATE else exchange.unbound,
    )
    if store is None:
        return explain(context, wanted, ())
    recorded = _candidates(exchange, config, store)
    renamed = [(id_, _rename(exchange, store, id_, each, wanted)) for id_, each in recorded.items()]
    return explain(
        context, wanted, renamed, lambda id_, best: _restate(exchange, store, id_, recorded[id_], best, wanted)
    )


def _candidates(exchange: Exchange, config: Config, store: Store) -> dict[int, Canonical]:
    """Return recordings that the request could have meant, as they are seen under today's rules."""
    found: dict[int, Canonical] = {}
    for each in store.candidates(
        exchange.session.cassette, exchange.route.provider.name, exchange.operation, CANDIDATES
    ):
        try:
            found[each.id or 0] = canonical_of(store, each, config.rules, config.upstreams)
        except RefusedError:  # recorded under a provider that has no route today
            continue
    return found


def _table(exchange: Exchange, store: Store, id_: int) -> Bindings | None:
    """Return what binds a recording in this session; None if nothing does."""
    bound = exchange.session.bound
    return bound.table(store.declared([id_]).get(id_, "")) if bound is not None else None


def _rename(exchange: Exchange, store: Store, id_: int, recorded: Canonical, wanted: Canonical) -> Canonical:
    """Return a recording with this run's circumstances for its own, which are no difference; as it is where nothing else would differ."""
    table = _table(exchange, store, id_)
    if table is None or not table.changed or recorded.tree is None:
        return recorded
    renamed = rename_request(table, recorded.tree)
    return recorded if renamed == wanted.tree else replace(recorded, tree=renamed)


def _restate(
    exchange: Exchange, store: Store, id_: int, recorded: Canonical, renamed: Canonical, wanted: Canonical
) -> RestatedCandidate:
    """Return the nearest recording in this run's words: what fits is no difference, and what varies is not the first that is told."""
    table, bound = _table(exchange, store, id_), exchange.session.bound
    if not table or bound is None or bound.scope is not Scope.ALL or len(wanted.body) > RESTATED:
        return RestatedCandidate(renamed)
    said = restate(table, recorded.tree, wanted.tree, bound.known)
    if said.tree is None or said.tree == wanted.tree:
        return RestatedCandidate(renamed)
    varying = tuple(Difference(x.path, shown(x.recorded), shown(x.present), x.slot.kind) for x in said.varying)
    return RestatedCandidate(replace(renamed, tree=said.tree), said.bound, varying)
