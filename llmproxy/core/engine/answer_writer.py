"""The answer of a provider is here: into the store with it, before its client sees its end."""

from __future__ import annotations

from collections.abc import Sequence

from llmproxy.core.dialects.usage import usage_of
from llmproxy.core.engine.accounts import TEXT
from llmproxy.core.engine.fault_injection import fault_passed_answer
from llmproxy.core.engine.interaction_builder import InteractionBuilder
from llmproxy.core.engine.keying import Keying
from llmproxy.core.engine.live_exchanges import announce
from llmproxy.core.engine.mcp_playback import as_kept
from llmproxy.core.engine.state import State
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.store.reading import KeyedRecording
from llmproxy.core.store.rows import Described, describe
from llmproxy.core.store.store import Addition
from llmproxy.core.traffic.interaction import Interaction, Usage, header
from llmproxy.errors import RecordingError
from llmproxy.protocol import Decision, Plays

STALE = (
    "not recorded: the provider refused an id that came from a recording; record the cassette anew with --mode record"
)


class AnswerWriter:
    """Writes what the exchanges of one engine recorded. All of it blocks: it is called from a writer's thread."""

    def __init__(self, state: State, keying: Keying, builder: InteractionBuilder) -> None:
        """Share the engine's state."""
        self._state, self._keying, self._builder = state, keying, builder

    def store_answer(self, exchange: Exchange, *, proper: bool) -> Usage:
        """Put the provider's answer into the store and return what it used. Blocks: call it from the writer's thread.

        Raises:
            RecordingError: the store could not take it.
            CassetteError: the store cannot be written.

        """
        return self.stored_together([(exchange, proper)])[0]

    def stored_together(self, ended: Sequence[tuple[Exchange, bool]]) -> list[Usage]:
        """Put several answers into the store in one transaction: all or, if this raises, none of them.

        Else as `stored`.
        """
        made = [self._build_interaction(exchange, proper=proper) for exchange, proper in ended]
        kept = [(exchange, one) for (exchange, _), one in zip(ended, made, strict=True) if one is not None]
        said = [describe(one) for _, one in kept]
        first = [exchange.session.supersedes(exchange.walker) for exchange, _ in kept]
        if (store := self._state.stores.opened) is not None and kept:
            livings = {id(each): each for exchange, _ in kept if (each := exchange.session.live) is not None}
            waiting = [one for each in livings.values() for one in each.take()]
            try:
                ids = store.add_all(
                    [
                        *map(Addition, waiting),
                        *(
                            Addition(one, supersede=supersede, healing=exchange.session.failed, described=told)
                            for (exchange, one), supersede, told in zip(kept, first, said, strict=True)
                        ),
                    ]
                )
            except BaseException:
                for one in waiting:
                    next(each for each in livings.values() if each.child == one.cassette).waiting.append(one)
                for (exchange, _), supersede in zip(kept, first, strict=True):
                    if supersede:
                        exchange.session.superseded.discard(exchange.walker)
                raise
            for (exchange, one), stored, told in zip(kept, ids[len(waiting) :], said, strict=True):
                self._record_stored(exchange, one, stored, told)
        return [Usage() if one is None else one.usage for one in made]

    def _build_interaction(self, exchange: Exchange, *, proper: bool) -> Interaction | None:
        """Return what is to be stored of an exchange, None if nothing is. Raises RecordingError."""
        if self._state.stores.opened is None or exchange.key is None or exchange.body is None:
            raise RecordingError("the request's body never came to its end")
        if exchange.recording.damaged:
            raise RecordingError("a piece of the answer was lost")
        response = exchange.recording.end(exchange.family, exchange.operation, stream=exchange.stream, proper=proper)
        if 400 <= response.status < 500 and self._stale(exchange):
            exchange.decision = Decision.PASS
            exchange.note = STALE
            return None
        response, redacted = self._state.redactor.response(as_kept(exchange, response))
        kind, body = header(response.headers, "content-type") or "", response.body
        usage = usage_of(exchange.family, exchange.operation, kind, body, response.headers)
        return self._builder.interaction(exchange, response, usage, redacted=redacted or exchange.recording.overwritten)

    def _record_stored(self, exchange: Exchange, made: Interaction, stored: int, described: Described) -> None:
        """Note that an exchange is stored, as interaction `stored`."""
        exchange.interaction, exchange.model = stored, made.model
        if exchange.session.live is not None:
            announce(exchange, exchange.session.live, made.response)
        exchange.session.served.add(stored)
        if not KeyedRecording(stored, 0, made.response.status, made.response.ending).good:
            exchange.session.failed.add(stored)
        # Not from the store: reading it belongs to the event loop, and this is the writer's thread.
        said, replied, _ = described
        exchange.asked, exchange.answered = (said or "")[:TEXT], (replied or "")[:TEXT]
        self._state.sessions.on_recording_stored(exchange.session)
        how = made.response.ending
        exchange.note = exchange.note or ("" if how == "complete" else f"incomplete ({how})")

    def _stale(self, exchange: Exchange) -> bool:
        """Return whether a request names an id that was served from a recording.

        The provider may have forgotten it by now.
        """
        if exchange.session.policy.plays is Plays.NOTHING or not exchange.refs:
            return False
        origins = map(self._keying.made_by(exchange.session), exchange.refs)
        return any(origin is not None and not exchange.session.records(origin.key) for origin in origins)

    def read_usage(self, exchange: Exchange, *, proper: bool) -> Usage:
        """Read what an answer used that is not stored."""
        where = exchange.route
        if where.not_llm:
            return Usage()
        response = exchange.recording.end(exchange.family, exchange.operation, stream=exchange.stream, proper=proper)
        if exchange.injected is not None:
            fault_passed_answer(exchange, exchange.injected, response)
            self._builder.keep_injected(exchange)
        kind = header(response.headers, "content-type") or ""
        return usage_of(exchange.family, exchange.operation, kind, response.body, response.headers)
