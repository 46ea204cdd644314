"""A shop's agent with two tools, in Python and in Node, the people around it, and what their models say: one scenario, end to end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.provider import Step, step
from tests.support.forked import program
from tests.support.process import Process, clean_env, needed

HERE = Path(__file__).parent
NODE = HERE / "agent.mjs"
LOST, SHALL, PLEASE, DONE = (
    "my lamp arrived broken", "It was delivered on May 2. Shall I refund it?", "yes please", "Refunded.",
)  # fmt: skip
CRITERIA = ("Agent looks the order up", "Agent refunds the lamp")
AGENT, USER = "gpt-4o", "gpt-4.1-mini"
TRANSLATED, PLAIN = "anthropic/claude-sonnet-4-5", "openai/gpt-4.1"
"""Judges: one whose dialect only litellm speaks, which takes seconds to import, and one that is asked without it."""
CALLS = 8
"""LLM calls of a run: the user twice, the agent four times, the judge twice."""


def dialogue(first: str = LOST, last: str = DONE, *, refund: str = "passed", judge: str = PLAIN) -> list[Step]:
    """Return what the models say in one run: agent and user over OpenAI's dialect, the judge over its own."""
    asked = judge.partition("/")[2]
    findings = {
        "c1": {"status": "passed", "evidence": 'look_up_order({"id": "A-1"})', "reason": "it did"},
        "c2": {"status": refund, "evidence": last, "reason": "it says so"},
    }
    verdict = {"criteria": findings, "reasoning": f"The order was looked up: {last}"}
    return [
        step(model=USER, user="Hello, how can I help you today?", say=first),
        step(model=AGENT, user=first, call=[{"name": "look_up_order", "arguments": {"id": "A-1"}}]),
        step(model=AGENT, user=first, tool_result="delivered", say=SHALL),
        step(model=asked, contains=f"user: {first}", call=[{"name": "continue_test", "arguments": {}}]),
        step(model=USER, user=SHALL, say=PLEASE),
        step(
            model=AGENT,
            user=PLEASE,
            contains=first,
            call=[{"name": "refund", "arguments": {"id": "A-1", "amount": 30}}],
        ),
        step(model=AGENT, user=PLEASE, tool_result="30", contains=first, say=last),
        step(model=asked, contains=f"assistant: {last}", call=[{"name": "finish_test", "arguments": verdict}]),
    ]


def play(
    folder: Path, agent: str, url: str, *options: str, judge: str = PLAIN, env: dict[str, str] | None = None
) -> Process:
    """Run the scenario in a process of its own, as a user would, and wait for its end; what it found is :func:`found`."""
    command = [*program("python"), str(HERE / "run.py"), agent, *options]
    root = HERE.parents[2]
    told = clean_env({"LLMPROXY_URL": url, "PYTHONPATH": str(root), "SHOP_JUDGE": judge, **(env or {})})
    child = Process(command, folder, f"run-{len(list(folder.glob('run-*')))}", told, cwd=root)
    child.wait(90)
    return child


def found(child: Process) -> dict[str, Any]:
    assert child.exit_code == 0, child.stderr[-4000:] + child.stdout[-2000:]
    value: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return value


@contextmanager
def served(folder: Path, base_url: str) -> Iterator[str]:
    """Serve the Node agent over HTTP, and give its address; it knows of no session."""
    if shutil.which("node") is None:
        needed("node")
    env = clean_env({"OPENAI_BASE_URL": base_url})
    child = Process(["node", str(NODE), "--port", "0"], folder, f"node-{len(list(folder.glob('node-*')))}", env)
    child.wait_until(lambda: "\n" in child.stdout)
    try:
        yield f"http://127.0.0.1:{child.stdout.strip()}/chat"
    finally:
        child.end()
