"""The scenario as a program: `run.py python|node-lines|URL [runs]`; prints what it found as the last line, in JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from typing import Any

from llmproxy import scenario
from llmproxy.scenario import agents
from llmproxy.scenario.repeats.repeats import RepeatResult
from tests.scenario.shop import CRITERIA, NODE
from tests.scenario.shop.agent import Shop


def agent(name: str) -> scenario.AgentAdapter:
    if name == "python":
        return Shop()
    if name == "node-lines":
        return agents.CommandAgent(["node", str(NODE)])
    return agents.ServiceAgent(agents.HttpAgent(name, body={"history": "$messages"}), session="shop")


def told(result: scenario.ScenarioResult) -> dict[str, Any]:
    """Return everything that must be the same again, and where it came from."""
    return {
        "messages": result.messages,
        "success": result.success,
        "reasoning": result.reasoning,
        "criteria": [each.model_dump() for each in result.criteria],
        "thread_id": result.thread_id,
        "tools": [(call.name, call.arguments, call.result) for call in result.tool_calls or ()],
        "usage": {party: dataclasses.asdict(use) for party, use in sorted((result.usage or {}).items())},
        "replayed": result.replayed,
        "labels": result.labels,
    }


def uses_the_order(state: scenario.ScenarioState) -> None:
    """Look at what the agent did: it tells nobody, so the wire is asked."""
    assert state.has_tool_call("look_up_order")
    assert not state.has_tool_call("delete_order")


async def main(name: str, runs: int | None) -> Any:
    if os.environ.get("OPENAI_API_KEY") is None:
        os.environ["OPENAI_API_KEY"] = "none"
    result = await scenario.run(
        name="broken lamp",
        description="The user's lamp arrived broken, and the user wants the money back. The order is A-1.",
        agents=[
            agent(name),
            scenario.UserSimulatorAgent(model="openai/gpt-4.1-mini"),
            scenario.JudgeAgent(model=os.environ["SHOP_JUDGE"], criteria=list(CRITERIA)),
        ],
        script=[scenario.proceed(turns=1), uses_the_order, scenario.proceed()],
        max_turns=5,
        runs=runs,
        set_id="shop",
    )
    if isinstance(result, RepeatResult):
        return {"samples": [told(sample.result) for sample in result.samples], "rate": result.rate}
    return told(result)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else None))))
