"""Which fault strikes: rules in order, words, numbers, chance that depends on the call alone."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from llmproxy.core.faults import KINDS, Faulting, read_faults
from llmproxy.core.faults.injection import choose, draw
from tests.core.faults.cases import call


def first(rules: object, **given: Any) -> str:  # noqa: ANN401 - as Call takes them
    """Return the kind that strikes a call first; empty if none does."""
    found = next(choose(read_faults(rules), call(**given), injected=0, numbers={}), None)
    return "" if found is None else found.kind.name


MCP = {"channel": "mcp", "operation": "mcp:tools/call send", "tools": lambda: ("send",)}


def test_texts_of_every_kind_are_whole() -> None:
    """They stand in sentences of ours: none ends in a blank, a comma or a word that asks for another."""
    texts = [text for kind in KINDS.values() for text in (kind.about, kind.sound, *(each.about for each in kind.takes))]
    assert [
        each
        for each in texts
        if not each or not (each[-1].isalnum() or each[-1] in ")_`") or each.split()[-1] in {"a", "the"}
    ] == []


@pytest.mark.parametrize(("words", "met", "spared"), [
    ({"provider": "openai"}, {}, {"provider": "anthropic"}),
    ({"model": "gpt-4o*"}, {"model": "gpt-4o-mini"}, {"model": "o3"}),
    ({"model": ["o3", "o4-mini"]}, {"model": "o3"}, {"model": "o4"}),
    ({"operation": "chat.*"}, {}, {"operation": "embeddings"}),
    ({"party": "judge*"}, {"party": "judge.2"}, {}),
    ({}, {}, {"party": "user"}),
    ({"party": "*"}, {"party": "user"}, MCP),
    ({"channel": "mcp"}, MCP, {}),
    ({"channel": "mcp"}, MCP, MCP | {"operation": "mcp:tools/list"}),
    ({"channel": "mcp", "operation": "mcp:tools/list"}, MCP | {"operation": "mcp:tools/list"}, MCP),
    ({"channel": "mcp", "tool": "se*"}, MCP, MCP | {"tools": lambda: ("find",)}),
    ({"channel": "mcp"}, MCP, MCP | {"transport": "stdio"}),
    ({"channel": "http"}, {"channel": "http"}, {}),
    ({"transport": "websocket"}, {"transport": "websocket"}, {}),
    ({"recording": [7, 8]}, {"recording": 8}, {"recording": None}),
    ({"tool": "get_*"}, {"tools": lambda: ("get_weather",)}, {"tools": lambda: ("send",)}),
])  # fmt: skip
def test_a_rule_chooses_by_its_words(
    words: dict[str, object], met: dict[str, object], spared: dict[str, object]
) -> None:
    """Each word lets through what it means, and nothing else; without a word it is the agent, no tool's server, and of MCP a call of a tool."""
    assert first([{"kind": "reset", **words}], **met) == "reset"
    assert first([{"kind": "reset", **words}], **spared) == ""


def test_the_first_rule_that_strikes_counts() -> None:
    """Rules are asked in their order."""
    assert first(["http-500", {"kind": "reset"}]) == "http-500"
    assert first([{"kind": "http-500", "probability": 0}, "reset"]) == "reset"
    assert first([{"kind": "http-500", "model": "o3"}, {"kind": "reset"}]) == "reset"


def drawn(seed: int, session: str = "default") -> list[bool]:
    """Return which of a hundred calls meet a fault of probability one half."""
    walk = Faulting(read_faults({"seed": seed, "faults": [{"kind": "reset", "probability": 0.5}]}))
    return [walk.inject(call(key=f"v2:{n}", session=session)) is not None for n in range(100)]


def test_the_same_seed_draws_the_same_and_another_draws_others() -> None:
    """Chance comes from seed, session, key and occurrence; about half of the calls are struck."""
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1) != drawn(1, "other")
    assert 30 < sum(drawn(1)) < 70


def test_the_order_of_arrival_does_not_matter_to_chance() -> None:
    """In parallel the same calls are struck as one after the other."""
    walk = Faulting(read_faults({"faults": [{"kind": "reset", "probability": 0.5}]}))
    with ThreadPoolExecutor(8) as pool:
        injected = list(pool.map(lambda n: (n, walk.inject(call(key=f"v2:{n}")) is not None), reversed(range(100))))
    assert [was for _, was in sorted(injected)] == drawn(0)


def test_another_process_draws_the_same() -> None:
    """Nothing of this process is in it: no hash of strings, no random state, no clock."""
    code = "from tests.core.faults.cases import call\nfrom llmproxy.core.faults.injection import draw\nprint(draw(7, call(), 3, 1))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) == draw(7, call(), 3, 1)


def test_a_retry_is_the_call_that_it_retries() -> None:
    """`call: 2` strikes the second request once, whatever is sent again before and after."""
    walk = Faulting(read_faults(["reset@2"]))
    came = [walk.inject(call(key=key)) is not None for key in ("a", "a", "b", "b", "c")]
    assert came == [False, False, True, False, False]


def test_a_call_has_its_number_whatever_other_rules_do() -> None:
    """The second call is the second one too where the first was another rule's."""
    walk = Faulting(read_faults(["reset@1", "http-500@2"]))
    found = [walk.inject(call(key=key)) for key in ("a", "a", "b", "c")]
    assert [each and each.fault.kind.name for each in found] == ["reset", None, "http-500", None]


def test_times_is_of_all_rules_together() -> None:
    """A request is struck so many times at most; `always` never lets it through; another occurrence is another request."""
    twice = Faulting(read_faults([{"kind": "reset", "times": 2}, {"kind": "http-500", "times": 2}]))
    assert [bool(twice.inject(call())) for _ in range(4)] == [True, True, False, False]
    assert twice.inject(call(nth=2)) is not None
    always = Faulting(read_faults([{"kind": "reset", "times": "always"}]))
    assert all(always.inject(call()) for _ in range(50))


def test_a_restart_meets_the_same_faults_again() -> None:
    """The second run of the same agent against one proxy has the same day."""
    walk = Faulting(read_faults({"seed": 3, "faults": [{"kind": "reset", "probability": 0.5}]}))
    first_run = [walk.inject(call(key=str(n))) is not None for n in range(40)]
    walk.restart()
    assert [walk.inject(call(key=str(n))) is not None for n in range(40)] == first_run
    assert walk.injected[1] == 2 * sum(first_run)
