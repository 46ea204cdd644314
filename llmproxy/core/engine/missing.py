"""A miss, put together for `core.misses.explain`: what was asked, what there is, and which recordings it could have meant."""

from __future__ import annotations

from dataclasses import replace

from llmproxy.core.bindings import rename_request
from llmproxy.core.dialects.conversation import last_user_text
from llmproxy.core.engine.decide import MissReason
from llmproxy.core.keys import v1
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.living.channels import name_of_call
from llmproxy.core.misses.explain import ExplainedMiss, MissContext, MissPlace, explain
from llmproxy.core.sessions.exchange import Config, Exchange
from llmproxy.core.store.questions import count, elsewhere, other_rules
from llmproxy.core.store.rederive import canonical_of
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Key, Request
from llmproxy.errors import RefusedError
from llmproxy.protocol import Channel

CANDIDATES = 50
"""Recordings that are compared with a missed request."""
PLACES = 3
"""Other places of the key that are named."""


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
    return explain(context, wanted, _candidates(exchange, config, store, wanted))


def _candidates(
    exchange: Exchange, config: Config, store: Store | None, wanted: Canonical
) -> list[tuple[int, Canonical]]:
    """Return recordings that the request could have meant, as they are seen under today's rules and in this run's folders."""
    if store is None:
        return []
    found = []
    for each in store.candidates(
        exchange.session.cassette, exchange.route.provider.name, exchange.operation, CANDIDATES
    ):
        try:
            canonical = canonical_of(store, each, config.rules, config.upstreams)
            found.append((each.id or 0, _rename(exchange, store, each.id or 0, canonical, wanted)))
        except RefusedError:  # recorded under a provider that has no route today
            continue
    return found


def _rename(exchange: Exchange, store: Store, id_: int, recorded: Canonical, wanted: Canonical) -> Canonical:
    """Return a recording with this run's paths for its own, which are no difference; as it is where nothing else would differ."""
    bound = exchange.session.bound
    if bound is None or recorded.tree is None:
        return recorded
    table = bound.table(store.declared([id_]).get(id_, ""))
    if not table.only_paths.changed:
        return recorded
    renamed = rename_request(table, recorded.tree)
    return recorded if renamed == wanted.tree else replace(recorded, tree=renamed)
