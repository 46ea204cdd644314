"""One program that plays a scripted case with either package: ours, or langwatch-scenario 0.7.3, whose turn engine ours is to equal.

    python tests/scenario/conformance.py > tests/scenario/running/conformance.jsonl     # in an environment with langwatch-scenario==0.7.3

makes 150 random cases and writes each with what came out. Agents are stubs, so nothing is called. Cases keep off the places where ours
differs on purpose: empty scripted texts, `judge("text")`, a scripted user without a simulator, a result that the agent or the user returns
in a scripted `agent()` or `user()` (it ends the run here, and was dropped there).
"""

# ruff: noqa: A002

from __future__ import annotations

import asyncio
import json
import random
import sys
from types import ModuleType
from typing import Any

CASES = 150
SEED = 20261120

type Case = dict[str, Any]


class NoBus:
    def subscribe_to_events(self, stream: Any) -> None:
        """Listen to nothing."""

    def drain(self) -> None:
        """Nothing to post."""


def played(scenario: ModuleType, executor: ModuleType, case: Case) -> dict[str, Any]:
    """Return what came out of a case: conversation, calls, callbacks, result or error."""
    calls: list[Any] = []
    begun: list[int] = []
    steps: list[int] = []
    people = [_agent(scenario, place, role, ways, calls) for place, (role, ways) in enumerate(case["people"])]
    made = executor.ScenarioExecutor(
        name="n",
        description="d",
        agents=[people[place] for place in case["agents"]],
        script=[_step(scenario, op, begun, steps) for op in case["script"]],
        max_turns=case["max_turns"],
        verbose=False,
        event_bus=NoBus(),
    )
    out: dict[str, Any] = {}
    try:
        result = asyncio.run(made.run())
    except Exception as error:  # noqa: BLE001 (whatever comes out is compared)
        out["error"] = [type(error).__name__, str(error)]
    else:
        out |= {"success": result.success, "reasoning": result.reasoning.split("\n")[0]}
    state = made._state
    messages = [dict(message) for message in state.messages]
    return out | {"messages": messages, "turn": state.current_turn, "calls": calls, "on_turn": begun, "on_step": steps}


def _agent(scenario: ModuleType, place: int, role_name: str, ways: list[str], calls: list[Any]) -> Any:
    class Stub(scenario.AgentAdapter):  # type: ignore[name-defined, misc]
        role = scenario.AgentRole[role_name]

        def __init__(self) -> None:
            self.count = 0

        async def call(self, input: Any) -> Any:
            new = [_brief(message) for message in input.new_messages]
            turn = input.scenario_state.current_turn
            calls.append(
                [place, turn, [_brief(message) for message in input.messages], new, bool(input.judgment_request)]
            )
            way = ways[self.count % len(ways)]
            self.count += 1
            return _answer(scenario, way, f"{place}.{self.count}", role_name)

    return Stub()


def _answer(scenario: ModuleType, way: str, text: str, role_name: str) -> Any:
    own = "user" if role_name == "USER" else "assistant"
    function = {"name": "look", "arguments": "{}"}
    table = {
        "text": text,
        "dict": {"role": own, "content": text, "extra": [1, {"a": None}]},
        "two": [{"role": own, "content": text + "a"}, {"role": "assistant", "content": text + "b"}],
        "tool": [
            {"role": own, "content": "calls", "tool_calls": [{"id": text, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": text, "content": "found"},
        ],
        "nothing": [],
        "end": scenario.ScenarioResult(success=place_is_even(text), messages=[], reasoning=f"ended by {text}"),
        "system": {"role": "system", "content": text},
    }
    return table[way]


def place_is_even(text: str) -> bool:
    return int(text.split(".", maxsplit=1)[0]) % 2 == 0


def _brief(message: Any) -> str:
    return f"{message['role'][0]}:{message.get('content')}"


def _step(scenario: ModuleType, op: list[Any], begun: list[int], steps: list[int]) -> Any:
    word, *rest = op
    if word == "proceed":
        turns, callbacks = rest
        if not callbacks:
            return scenario.proceed(turns=turns)
        told = lambda state: begun.append(state.current_turn)  # noqa: E731
        return scenario.proceed(turns=turns, on_turn=told, on_step=lambda state: steps.append(len(state.messages)))
    if word == "add":
        return lambda state: state.add_message({"role": rest[0], "content": rest[1]})
    if word == "message":
        return scenario.message({"role": rest[0], "content": rest[1]})
    if word == "step":
        return lambda state: state._executor.step()
    return getattr(scenario, word)(*rest)


def cases(count: int = CASES, seed: int = SEED) -> list[Case]:
    chance = random.Random(seed)
    return [_case(chance) for _ in range(count)]


def _case(chance: random.Random) -> Case:
    ways = {
        "USER": ["text", "text", "text", "dict", "two", "nothing", "system", "end"],
        "AGENT": ["text", "text", "dict", "two", "tool", "nothing", "end"],
        "JUDGE": ["nothing", "nothing", "nothing", "nothing", "nothing", "text", "end"],
    }
    roles = [role for role in ways for _ in range(chance.choice([0, 1, 1, 1, 1, 2]))]
    chance.shuffle(roles)
    people = [[role, [chance.choice(ways[role][: chance.choice([1, 3, 9])]) for _ in range(4)]] for role in roles]
    agents = list(range(len(people)))
    if agents and chance.random() < 0.15:
        agents.append(chance.choice(agents))
    script = [_op(chance, roles) for _ in range(chance.randrange(0, 8))]
    if any("end" in ways for role, ways in people if role != "JUDGE"):
        script = [op for op in script if op not in (["user"], ["agent"])]
    return {"people": people, "agents": agents, "max_turns": chance.choice([None, 0, 1, 2, 3, 4]), "script": script}


def _op(chance: random.Random, roles: list[str]) -> list[Any]:
    text = f"s{chance.randrange(100)}"
    scripted_user = ["user", text] if "USER" in roles else ["agent"]
    turns: list[Any] = [["user"]] * 2 + [["agent"]] * 2 + [["judge"], *[scripted_user] * 2, ["agent", text]]
    added = [
        ["message", "assistant", text],
        ["message", "system", text],
        ["add", "system", text],
        ["add", "user", text],
    ]
    some = ["proceed", chance.choice([None, 0, 1, 1, 2, 2, 3]), chance.random() < 0.7]
    told = [["proceed", chance.choice([0, 1, 1, 2, 2, 3]), True] for _ in range(2)]
    choices: list[list[Any]] = [*turns, *added, ["step"], some, *told]
    if chance.random() < 0.05:
        return [chance.choice(["succeed", "fail"]), text]
    return chance.choice(choices)


if __name__ == "__main__":
    import importlib

    theirs = importlib.import_module("scenario")
    for each in cases():
        found = played(theirs, importlib.import_module("scenario.scenario_executor"), each)
        sys.stdout.write(json.dumps([each, found], separators=(",", ":")) + "\n")
