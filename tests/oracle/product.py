"""What the product makes of a run: its calls as a proxy tells them, its steps as a suite looks at them."""

from __future__ import annotations

from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from llmproxy.client.control.told import Call
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Key, Request, Response
from llmproxy.report.events import Status
from llmproxy.suite.checks.tools import check_tools, check_total
from llmproxy.suite.checks.traffic import why_unseen
from llmproxy.suite.checks.usage import check_usage
from llmproxy.suite.matchers.variables import Scope
from llmproxy.suite.schema.expect import Usage
from llmproxy.suite.schema.response import ToolExpect
from llmproxy.trace.observing.wire import Observed, Wire
from tests.oracle.agents import Exchange, Run

if TYPE_CHECKING:
    from llmproxy.suite.run.stage import Stage

NOW = 1_800_000_000.0


def told(number: int, exchange: Exchange) -> tuple[Call, Interaction]:
    """Return an exchange as a proxy tells it."""
    dialect, key = exchange.dialect, f"v1:{sha256(exchange.request).hexdigest()}"
    chunks = tuple(Chunk(10 * n, piece) for n, piece in enumerate(exchange.pieces, 1))
    ending = Ending.CUT if exchange.cut else Ending.COMPLETE
    headers = (("content-type", exchange.kind),)
    interaction = Interaction(
        provider=dialect.provider,
        operation=dialect.operation,
        key=Key(key),
        request=Request("POST", dialect.path, (("content-type", "application/json"),), exchange.request),
        response=Response(exchange.status, "", headers, chunks, ending),
        started_at=NOW + number,
        party=exchange.party,
        id=1000 + number,
        stream=bool(exchange.kind == dialect.kind),
    )
    call = Call(
        seq=number, at=NOW + number, ms=1.0, first_ms=None, party=exchange.party, decision="RECORD", status=exchange.status,
        miss=False, note="", key=key, occurrence=1, provider=dialect.provider, operation=dialect.operation, model="m",
        interaction=1000 + number, attempt=exchange.attempt,
    )  # fmt: skip
    return call, interaction


def seen(run: Run) -> Wire:
    """Return the wire of a run."""
    wire = Wire()
    wire.feed(told(number, exchange) for number, exchange in enumerate(run.exchanges, 1))
    return wire


def judge(said: dict[str, Any], step: Observed) -> Status:
    """Return what a suite makes of an assertion."""
    scope = Scope()
    usage = Usage.model_validate({"callCount": said["callCount"]}) if "callCount" in said else None
    if why_unseen(cast("Stage", SimpleNamespace(session=object(), scope=scope)), usage, step):
        return Status.ENVIRONMENT_ERROR
    if usage is not None:
        found = check_usage(usage, step, scope)
    elif "totalToolCalls" in said:
        found = check_total(said["totalToolCalls"], step, scope, hosted=said.get("includeHosted", False))
    elif "onlyTools" in said:
        some = {name: ToolExpect.model_validate({"count": {"lte": 999}}) for name in said["onlyTools"]}
        found = check_tools(some, step, scope, only=True)
    else:
        tools = {name: ToolExpect.model_validate(each) for name, each in said["tools"].items()}
        found = check_tools(tools, step, scope)
    statuses = {each.status for each in found}
    return next((each for each in (Status.FAILED, Status.ENVIRONMENT_ERROR) if each in statuses), Status.PASSED)
