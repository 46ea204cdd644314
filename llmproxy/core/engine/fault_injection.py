"""A call meets an injected fault: where it is chosen, and what its client is sent then.

It is asked before the arrival is counted, so a struck call uses up no occurrence and its retry gets the recorded
answer. In a session that would refuse the call nothing strikes: a miss stays a miss. The call with which a run forks is
a live one. What can be done only to an answer lets the provider be asked where nothing is recorded; that answer is not
recorded either (PASS), its retry is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmproxy.core.engine.decide import Situation, decide, exhausted_of, playable
from llmproxy.core.faults.choosing import call_of, tools_of, transport_of
from llmproxy.core.faults.injection import Faulting, InjectedFault
from llmproxy.core.faults.pieces import MICROSECONDS, time_pieces, with_pieces
from llmproxy.core.faults.values import FaultTarget
from llmproxy.core.providers.routing import changes_something
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Walker
from llmproxy.core.store.reading import KeyedRecording
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.frames import SWITCHING
from llmproxy.core.traffic.interaction import Ending, Headers, Response, header
from llmproxy.core.traffic.response_bytes import ClientHttp, SendingPlan, plan
from llmproxy.protocol import FAULT_HEADER, Channel, Decision

MOST_READ = 1_000
"""Recordings that are looked at to say why a rule met no call."""
READ_FIRST = MICROSECONDS // 20
"""Microseconds between the last piece and a reset behind it: some systems throw away what was not read by then."""

Read = Callable[[KeyedRecording], Response | None]
"""Reads the answer that a recording would give; None where it cannot be given."""


def inject_fault(
    exchange: Exchange, faulting: Faulting, walker: Walker, slots: Sequence[KeyedRecording], read: Read, *, now: float
) -> bool:
    """Return whether a fault strikes this call; then it is decided."""
    session = exchange.session
    recordings = playable(session.policy, slots)
    if session.starts_again(walker, len(recordings)):
        session.restart()
    nth = session.counts[walker] + 1
    here = walker in session.recorded_here
    exhausted = exhausted_of(
        session.exhausted,
        exchange.channel,
        exchange.method,
        exchange.operation,
        changes=changes_something(exchange.route, exchange.method),
    )
    verdict = decide(Situation(session.policy, slots, nth, exhausted, here))
    forking = session.forking
    goes_on_live = (
        forking is not None and forking.live and not forking.forked and exchange.channel is Channel.LLM
    )  # a tool's call never goes on so
    if verdict.decision is Decision.REFUSE and not goes_on_live:
        return False
    call = _call(exchange, walker, nth, verdict.recording, read, now=now)
    for each in session.aside:
        each.pass_by(call)
    injected = faulting.inject(call)
    if injected is None:
        exchange.bound = None
        return False
    exchange.injected = injected
    if injected.broken is None:
        exchange.decision = Decision.PASS
    else:
        exchange.decision, exchange.made = Decision.FAULT, injected.broken.response
    return True


def _call(
    exchange: Exchange, walker: Walker, nth: int, slot: KeyedRecording | None, read: Read, *, now: float
) -> FaultTarget:
    party, key = walker
    provider = exchange.route.provider.name
    upgrade = (header(exchange.headers, "upgrade") or "").lower() == "websocket"
    known: list[Response | None] = []

    def answer() -> Response | None:
        if not known:
            playable = slot is not None and slot.status != SWITCHING
            known.append(read(slot) if slot is not None and playable else None)
        return known[0]

    return FaultTarget(
        session=exchange.session.name,
        party=party,
        provider=provider,
        model=exchange.model or "",
        operation=exchange.operation,
        channel=exchange.channel,
        transport="websocket" if upgrade else transport_of(provider),
        key=key,
        nth=nth,
        family=exchange.family,
        recording=None if slot is None else slot.id,
        stream=exchange.stream,
        target=exchange.route.target,
        body=exchange.body or b"",
        speed=0 if slot is None else exchange.session.speed,  # what comes from the provider has had its time
        now=int(now),
        answer=answer,
        tools=lambda: tools_of(exchange.family, exchange.operation, exchange.body or b"", answer()),
        in_session=header(exchange.headers, "mcp-session-id") is not None,
    )


def recorded_calls(store: Store, cassette: str, sample: int) -> list[FaultTarget]:
    """Return the recordings of a cassette as calls that a rule can look at.

    The last of them, where there are very many.
    """
    rows = sorted(row.id for row in store.summaries(cassette, sample, limit=MOST_READ))
    return [call_of(store.load(row)) for row in rows]


def fault_passed_answer(exchange: Exchange, injected: InjectedFault, answer: Response) -> None:
    """Do to a provider's answer that is over what the fault does.

    Where there is nothing to do it to, it is sent as it came.
    """
    broken = injected.fault.kind.do(injected.call._replace(answer=lambda: answer), injected.fault.rule.values)
    faulting = exchange.session.faulting
    if broken is not None:
        exchange.injected = injected._replace(broken=broken)
        exchange.made = broken.response
        return
    cut = answer.ending in (Ending.CUT, Ending.LEFT)
    exchange.injected, exchange.made = None, with_pieces(answer, time_pieces(answer, 0), 0, cut=cut)
    exchange.note = f"{injected.fault} found nothing in this answer to be done to; not recorded"
    if faulting is not None:
        faulting.spare(injected)


def lay_out(exchange: Exchange, client: ClientHttp, *, now: float, extra: Headers) -> SendingPlan:
    """Lay out what the client is sent, in the fault's own time; nothing before a reset that comes at once."""
    if exchange.made is None:
        return SendingPlan((), close=True)
    injected = exchange.injected
    told: Headers = () if injected is None else ((FAULT_HEADER, injected.fault.kind.name),)
    said = "fault" if exchange.decision is Decision.FAULT else "passed"
    laid = plan(exchange.made, client, speed=1, now=now, extra=(*told, *extra), prefix=exchange.prefix, said=said)
    if injected is not None and injected.broken is not None and injected.broken.reset:
        return SendingPlan((*laid.pieces, (laid.pieces[-1][0] + READ_FIRST, b"")), close=True)
    return laid
