"""A request that nothing answers is refused, with the whole explanation, once.

The explanation (`core.misses.explain`) is given what was asked, what there is, and which recordings it could have
meant.
"""

from __future__ import annotations

from dataclasses import replace

from llmproxy.core.dialects.conversation import last_user_text
from llmproxy.core.engine.identity import Keying
from llmproxy.core.engine.state import TEXT, State
from llmproxy.core.forks.table import fork_of
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.misses.context import MissContext, MissPlace
from llmproxy.core.misses.explain import ExplainedMiss, explain
from llmproxy.core.misses.nearest import AS_RECORDED, Wording
from llmproxy.core.providers.table import client_of
from llmproxy.core.sessions.exchange import Config, Exchange
from llmproxy.core.sessions.interceptor import MissReason
from llmproxy.core.store.queries import canonical_of, count, count_of, find_other_places
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Key, Request, header
from llmproxy.errors import MissError, RefusedError
from llmproxy.protocol import PLACEHOLDER_KEY, Channel

CANDIDATES = 50
"""Recordings that are compared with a missed request."""
PLACES = 3
"""Other places of the key that are named."""


def context_of(exchange: Exchange, config: Config) -> MissContext:
    """Return what an exchange itself says of its miss, and how its proxy was started."""
    session = exchange.session
    return MissContext(
        mode=session.settings.mode, cassette=session.cassette, session=session.name, sample=session.sample,
        party=exchange.party, key=exchange.key or "", method=exchange.method, provider=exchange.route.provider.name,
        operation=exchange.operation, model=exchange.identity.model, store=config.shown or str(config.store),
        again=config.again, upstreams=session.settings.upstreams,
    )  # fmt: skip


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
    """Explain why an exchange is refused. `recordings` of its key exist, `request` is redacted."""
    session, where = exchange.session, exchange.route
    key = exchange.key or Key("")
    place, kind = (session.cassette, session.sample), (where.provider.name, exchange.operation)
    context = replace(
        context_of(exchange, config), stream=exchange.identity.stream, last_user=last_user_text(request.body) or "",
        store_exists=store is not None, recordings=count(store, *place) if store else 0,
        same_operation=count(store, *place, *kind) if store else 0,
        played=recordings if why is MissReason.EXHAUSTED else 0,
        elsewhere=_find_elsewhere(store, key, exchange.channel) if store else (), complete=session.complete,
        toolless=store is not None and exchange.channel is Channel.MCP and not count_of(store, *place, Channel.MCP),
        client=client_of(exchange.request.headers),
        is_placeholder=any(PLACEHOLDER_KEY in value for _, value in exchange.request.headers),
        is_python="python" in (header(exchange.request.headers, "user-agent") or "").lower(),
    )  # fmt: skip
    for each in exchange.interceptors:
        context = each.on_explain(exchange, context)
    if store is None:
        return explain(context, wanted, ())
    told = (each.wording(store, wanted) for each in exchange.interceptors)
    wording = next((each for each in told if each is not None), AS_RECORDED)
    found = _candidates(exchange, config, store, wording)
    return explain(context, wanted, found, wording, lambda id_: client_of(store.load(id_).request.headers))


def _find_elsewhere(store: Store, key: Key, channel: Channel) -> tuple[MissPlace, ...]:
    """Return where else a key is recorded.

    A tool's call in the cassette of a live run, whose tools were not live, may be what was refused there.
    """
    found = [MissPlace(*each) for each in find_other_places(store, key, limit=PLACES)]
    forks = {each: fork_of(store, each.cassette, each.sample) for each in found}
    return tuple(each for each, fork in forks.items() if fork is None or not fork.has_served(channel))


def _candidates(exchange: Exchange, config: Config, store: Store, wording: Wording) -> list[tuple[int, Canonical]]:
    """Return recordings that the request could have meant, as they are seen under today's rules."""
    where, found = exchange.route, list[tuple[int, Canonical]]()
    for id_ in store.candidates(exchange.session.cassette, where.provider.name, exchange.operation, CANDIDATES):
        if (recorded := wording.recall(id_)) is None:
            try:
                recorded = canonical_of(store, store.load(id_), config.rules, config.upstreams)
            except RefusedError:  # recorded under a provider that has no route today
                continue
        found.append((id_, recorded))
    return found


class RepeatedMiss(MissError):
    """A request that is no second miss: Claude Code asks so when its first question failed."""

    note = "asked again without a stream: the miss before"


class Misses:
    def __init__(self, state: State, keying: Keying) -> None:
        self._state, self._keying = state, keying

    def miss(self, exchange: Exchange, why: MissReason, recordings: int) -> MissError:
        """Explain a miss: to the client in the error, and in the journal for `llmproxy why`."""
        wanted = self._keying.canonical(exchange, exchange.request.data)
        miss = self.explain_refusal(exchange, why, recordings, wanted)
        exchange.kept.asked = self._state.redactor.text(miss.context.last_user[:TEXT])
        if exchange.session.misses_again(wanted):
            exchange.note = RepeatedMiss.note
            error: MissError = RepeatedMiss(self._state.redactor.text(miss.text))
            error.nearest = miss.nearest.id if miss.nearest else None
            return error
        places = miss.nearest.places if miss.nearest else ()
        self._state.journal.miss(miss.to_dict(), at=exchange.progress.started_at, places=places, steps=miss.steps)
        text = miss.text
        for each in exchange.interceptors:
            text = each.on_miss_told(exchange, miss, text)
        error = MissError(self._state.redactor.text(text))
        error.nearest = miss.nearest.id if miss.nearest else None
        return error

    def explain_refusal(self, exchange: Exchange, why: MissReason, recordings: int, wanted: Canonical) -> ExplainedMiss:
        """Explain why an exchange is refused; `recordings` of its key exist."""
        request = self._keying.request(exchange, exchange.request.data)
        return explain_miss(
            exchange, why, recordings, request=request, wanted=wanted, config=self._state.config,
            store=self._state.stores.current,
        )  # fmt: skip
