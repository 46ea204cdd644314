"""The same agents over sockets: a provider that answers as written, a real proxy that records, the walk that it tells."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from llmproxy.client.control import Control
from llmproxy.report.events import Status
from llmproxy.trace.observing.wire import Wire
from tests.oracle.agents import World
from tests.oracle.product import judge
from tests.oracle.test_behaviour import FIRST
from tests.oracle.truth import holds, in_sight, think_of
from tests.oracle.upstream import NAMES, Upstream, perform
from tests.support import proxy

RUNS = int(os.environ.get("ORACLE_SOCKET_RUNS", "12"))
"""How many agents; `scripts/lab/oracle` asks for hundreds."""
ASSERTIONS = 12


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Upstream]]:
    """Share a proxy that records, and the provider behind it."""
    upstream = Upstream()
    store: Path = tmp_path_factory.mktemp("oracle") / "x.db"
    with proxy("record", store, upstreams=dict.fromkeys(NAMES, upstream.url)) as px:
        yield px.url, upstream
    upstream.shutdown()
    upstream.server_close()


def test_what_a_real_proxy_tells_is_judged_as_truly(wires: tuple[str, Upstream]) -> None:
    """Framing, streams, cuts and retries as they arrive: nothing passes that is not true, nothing fails that is."""
    url, upstream = wires
    control, tally, found = Control(url), Counter[str](), list[str]()
    for seed in range(FIRST, FIRST + RUNS):
        run, random, name = World(seed).play(), Random(seed), f"oracle-{seed}"
        control.open(name)
        for exchange in run.exchanges:
            upstream.answers[exchange.request].append(exchange)
        perform(url, name, run.exchanges)
        calls = control.calls(name)
        assert [call.attempt for call in calls] == [each.attempt for each in run.exchanges]
        wire = Wire()
        wire.read(calls)
        for step in run.steps:
            measured = wire.step(step.after, step.until)
            for _ in range(ASSERTIONS):
                said = think_of(random)
                true, status = holds(said, step), judge(said, measured)
                tally[f"{true} {status.value}"] += 1
                decided = status is not Status.ENVIRONMENT_ERROR or true is None or not in_sight(said, step)
                if (status is Status.PASSED and true is False) or (status is Status.FAILED and true) or not decided:
                    found.append(
                        f"seed {seed}, calls {step.after} to {step.until}: {said} is {true}, and {status.value}"
                    )
        control.close(name)
    print(dict(tally))
    assert not found, "\n".join(found[:20])
    assert tally["True passed"] > RUNS
    assert tally["False failed"] > RUNS
