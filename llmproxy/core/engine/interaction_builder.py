"""What is kept of an exchange: the interaction that is stored of it, or that its walk tells."""

from __future__ import annotations

from dataclasses import replace

from llmproxy.calls import Call
from llmproxy.core.dialects.conversation import made_ids
from llmproxy.core.dialects.usage import model_of
from llmproxy.core.engine.keying import Keying
from llmproxy.core.engine.state import State
from llmproxy.core.keys.normalize import new_ids
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.traffic.interaction import Interaction, Key, Request, Response, Usage, header
from llmproxy.errors import CassetteNotFound
from llmproxy.protocol import Channel


class InteractionBuilder:
    """Makes interactions of one engine's exchanges, and finds them again."""

    def __init__(self, state: State, keying: Keying) -> None:
        """Share the engine's state."""
        self._state, self._keying = state, keying
        self._said: tuple[str, int, str] = ("", 0, "")
        """Run variables, credentials learned when they were redacted, and as they are kept: the same for all calls of a
        run.
        """

    def interaction(self, exchange: Exchange, response: Response, usage: Usage, *, redacted: bool) -> Interaction:
        """Return an exchange as it is stored; the response is redacted already."""
        kind, body = header(response.headers, "content-type") or "", response.body
        return Interaction(
            provider=exchange.route.provider.name, operation=exchange.operation, key=exchange.key or Key(""),
            request=_sent_to(exchange.route.upstream, self._keying.request(exchange, exchange.body or b"")),
            response=response,
            started_at=exchange.started_at + max(0.0, (exchange.released or 0.0) - exchange.arrived),
            cassette=exchange.place[0], sample=exchange.place[1], party=exchange.party,
            occurrence=exchange.occurrence or exchange.nth, model=self._model(exchange, kind, body),
            stream=exchange.stream, upstream=exchange.route.upstream, usage=usage, redacted=redacted,
            rules=self._state.config.rules.digest, run_variables=self._format_run_variables(exchange.session),
            made_ids=new_ids(made_ids(exchange.family, exchange.operation, kind, body), exchange.refs),
        )  # fmt: skip

    def _format_run_variables(self, session: Session) -> str:
        """Return the run variables under which a session records, without what is secret."""
        if session.bound is None:
            return ""
        said, learned = session.bound.said, self._state.redactor.epoch.count
        if self._said[:2] != (said, learned):
            self._said = (said, learned, self._state.redactor.text(said))
        return self._said[2]

    @staticmethod
    def _model(exchange: Exchange, kind: str, body: bytes) -> str | None:
        """Return the model's name.

        Azure's path names a deployment, and only the answer the model behind it (and so its price).
        """
        named = exchange.model
        if exchange.channel is Channel.MCP or (named is not None and exchange.route.provider.name != "azure"):
            return named
        return model_of(exchange.family, exchange.operation, kind, body) or named

    def keep_injected(self, exchange: Exchange) -> None:
        """Let the walk tell what the client of a struck call got; nothing of it is stored."""
        faulting, injected, response = exchange.session.faulting, exchange.injected, exchange.made
        if faulting is not None and injected is not None and response is not None:
            response, redacted = self._state.redactor.response(response)
            made = self.interaction(exchange, response, Usage(input=0, output=0), redacted=redacted)
            faulting.keep(exchange.seq, replace(made, occurrence=injected.call.nth))

    def read_call(self, session: Session, call: Call) -> Interaction | None:
        """Return what was said in a call that has ended; None where nothing is recorded of it."""
        for each in (session.forking, session.live, session.faulting, *session.aside):
            if each is not None and (made := each.made.get(call.seq)) is not None:
                return made
        return self.load_recording(call.interaction)

    def load_recording(self, interaction: int | None) -> Interaction | None:
        """Return a recording; None where there is none, or it is gone from the store meanwhile.

        Raises CassetteCorrupt.
        """
        store = self._state.stores.current
        if store is None or interaction is None:
            return None
        try:
            return store.load(interaction)
        except CassetteNotFound:
            return None


def _sent_to(upstream: str, request: Request) -> Request:
    """Return a request with the host that it was sent to.

    The client's names our own port, which is another one in each run.
    """
    host = upstream.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if not host or header(request.headers, "host") in (None, host):
        return request
    headers = tuple((name, host if name.lower() == "host" else value) for name, value in request.headers)
    return replace(request, headers=headers)
