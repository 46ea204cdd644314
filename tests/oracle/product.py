"""What the product makes of a run: its calls as a proxy tells them, its steps as a suite looks at them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

import httpx

from llmproxy.calls_and_totals import Call
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Key, Request, Response
from llmproxy.protocol import Decision
from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.chat_step_assertions import (
    check_history_edit_assertions,
    check_token_usage_and_cost,
    explain_unseen_traffic,
    find_undecidable_tool_checks,
)
from llmproxy.suite.checks.row_checks import (
    check_created_rows,
    run_verify_step_row_checks,
    take_row_snapshot_before_step,
)
from llmproxy.suite.checks.row_selection import RowCheckContext
from llmproxy.suite.checks.tools import check_expected_tool_calls, check_tool_sequence, check_total_tool_calls
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import AgentHistoryEditAssertions, CreatedRowsAssertion, ToolExpect, Usage, Verify
from llmproxy.suite.schema.suite import ChatStep
from llmproxy.suite.stores import StoreAdapter, build_suite_store
from llmproxy.suite.stores.http import HttpEntityStore, parse_entity_http_endpoints
from llmproxy.trace.observing.agent_activity import AgentActivity, ModelCallObserver
from llmproxy.trace.observing.history_edits import HistoryEditFindings, find_history_cuts
from tests.oracle.agents import Exchange
from tests.oracle.history import Chapter
from tests.oracle.places import Database, Service
from tests.oracle.rows import ME

if TYPE_CHECKING:
    from llmproxy.suite.run.step_context import StepContext

NOW = 1_800_000_000.0


def told(number: int, exchange: Exchange) -> tuple[Call, Interaction]:
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
        seq=number, at=NOW + number, ms=1000.0 * (max(exchange.over, number) - number) + 500.0, first_ms=None, party=exchange.party, decision=Decision.RECORD, status=exchange.status,
        miss=False, note="", key=key, occurrence=1, provider=dialect.provider, operation=dialect.operation, model="m",
        interaction=1000 + number, attempt=exchange.attempt,
    )  # fmt: skip
    return call, interaction


def seen(exchanges: Iterable[Exchange]) -> ModelCallObserver:
    wire = ModelCallObserver()
    wire.add_calls(told(number, exchange) for number, exchange in enumerate(exchanges, 1))
    return wire


def judge(said: dict[str, Any], step: AgentActivity) -> Status:
    scope = CaseVariables()
    usage = Usage.model_validate({"callCount": said["callCount"]}) if "callCount" in said else None
    if explain_unseen_traffic(cast("StepContext", SimpleNamespace(session=object(), scope=scope)), usage, step):
        return Status.ENVIRONMENT_ERROR
    any_tool = ChatStep.model_validate({"chat": "x", "totalToolCalls": 0})
    if usage is not None:
        found = check_token_usage_and_cost(usage, step, scope)
    elif unknown := find_undecidable_tool_checks(any_tool, step):
        found = unknown
    elif "toolOrder" in said:
        found = [check_tool_sequence(said["toolOrder"], step)]
    elif "totalToolCalls" in said:
        found = check_total_tool_calls(said["totalToolCalls"], step, scope, hosted=said.get("includeHosted", False))
    elif "onlyTools" in said:
        some = {name: ToolExpect.model_validate({"count": {"lte": 999}}) for name in said["onlyTools"]}
        found = check_expected_tool_calls(some, step, scope, only=True)
    else:
        tools = {name: ToolExpect.model_validate(each) for name, each in said["tools"].items()}
        found = check_expected_tool_calls(tools, step, scope)
    return worst(found)


def history(wire: ModelCallObserver, step: Chapter) -> HistoryEditFindings:
    """Return what the product knows of the history in a step."""
    before = [each for each in wire.calls if each.call.seq <= step.after]
    return find_history_cuts(
        wire.build_step(step.after, step.until), before, continues=step.continues, spoken=step.spoken
    )


def judge_history(said: dict[str, Any], found: HistoryEditFindings) -> Status:
    """Return what a suite makes of an assertion about it."""
    wanted = AgentHistoryEditAssertions.model_validate(said["messageProcessing"])
    return worst(check_history_edit_assertions(wanted, found, CaseVariables()))


def worst(found: Iterable[Assertion]) -> Status:
    statuses = {each.status for each in found}
    return next((each for each in (Status.FAILED, Status.ENVIRONMENT_ERROR) if each in statuses), Status.PASSED)


def store_of(place: Database | Service) -> StoreAdapter:
    """Return the store that looks at a place; a service is asked without a socket."""
    if isinstance(place, Database):
        return build_suite_store(place.store, place.file.parent)

    def ask(request: httpx.Request) -> httpx.Response:
        status, headers, data = place.answer(request.url.raw_path.decode())
        return httpx.Response(status, headers=headers, content=data)

    client = httpx.Client(transport=httpx.MockTransport(ask))
    return HttpEntityStore("http://rows", {"tasks": parse_entity_http_endpoints("tasks", place.entity)}, client=client)


class Books:
    def __init__(self, store: StoreAdapter) -> None:
        self.store = store
        self.later: deque[Callable[[], None]] = deque()
        self.now = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def _looking(self) -> RowCheckContext:
        return RowCheckContext(
            adapter=self.store, scope=CaseVariables(), user=ME, clock=lambda: self.now, sleep=self._sleep
        )

    def _sleep(self, seconds: float) -> None:
        """Let time go on, in which the agent does the next thing."""
        self.now += max(seconds, 0.001)
        if self.later:
            self.later.popleft()()

    def created(self, said: dict[str, Any], happens: list[Callable[[], None]]) -> Status:
        """Return what a suite makes of an assertion about new rows; the first thing happens before the answer, the others after it."""
        entities = self._looking()
        before = take_row_snapshot_before_step(entities, ["tasks"])
        happens[0]()
        self.later = deque(happens[1:])
        return worst(check_created_rows(entities, before, [CreatedRowsAssertion.model_validate(said)]))

    def verify(self, said: dict[str, Any]) -> Status:
        """Return what a suite makes of an assertion about the rows that are there."""
        return worst(run_verify_step_row_checks(self._looking(), "verify", Verify.model_validate(said)))
