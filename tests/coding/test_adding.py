"""Another agent is one row: package, command, variables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import needed

from .agents import ASK, Agent
from .environments import environment_of, problem_of
from .lab import Lab, Where

pytestmark = pytest.mark.sdk
PROGRAM = r"""#!/usr/bin/env node
const { spawnSync } = require("node:child_process");
const messages = [{ role: "system", content: `You work in ${process.cwd()}, for ${process.env.TINY_USER}.` },
                  { role: "user", content: process.argv[2] }];
const parameters = { type: "object", properties: { command: { type: "string" } } };
const tools = [{ type: "function", function: { name: "sh", parameters } }];
(async () => {
  for (;;) {
    const body = JSON.stringify({ model: "gpt-4o", stream: false, messages, tools });
    const url = `${process.env.OPENAI_BASE_URL}/chat/completions`;
    const answer = await fetch(url, { method: "POST", body, headers: { "content-type": "application/json" } });
    if (!answer.ok) { console.error(await answer.text()); process.exit(1); }
    const { message } = (await answer.json()).choices[0];
    if (!message.tool_calls) { console.log(message.content); return; }
    messages.push(message);
    for (const call of message.tool_calls) {
      const done = spawnSync("sh", ["-c", JSON.parse(call.function.arguments).command], { encoding: "utf8" });
      messages.push({ role: "tool", tool_call_id: call.id, content: done.stdout + done.stderr });
    }
  }
})();
"""
"""A whole coding agent, in a package of its own."""
TINY = Agent(
    "tiny", "tiny-agent", ("tiny", ASK), "sh", "command", {"TINY_USER": "{home}"}, stream=False
)  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Agent:
    """The row of an agent whose package lies in a folder."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "package.json").write_text(
        json.dumps({"name": "tiny-agent", "version": "1.0.0", "bin": {"tiny": "tiny.cjs"}})
    )
    (folder / "tiny.cjs").write_text(PROGRAM)
    return replace(TINY, source=str(folder))


def test_a_row_is_all_that_a_new_agent_needs(tiny: Agent, tmp_path: Path) -> None:
    """Its lock is made, its program found; it is recorded, tried and replayed as the others are, in three calls."""
    packages = tmp_path / "node"
    if problem := problem_of(tiny, packages):
        needed(problem)
    assert environment_of(tiny, packages).lock.exists()
    lab = Lab(tiny, tmp_path, 3, packages=packages)
    recorded = lab.record(Where(tmp_path / "a" / "project", tmp_path / "a" / "home", tmp_path / "a" / "tmp"))
    assert (recorded.code, recorded.count("recorded")) == (0, 4), recorded.stderr
    tried = lab.learn(Where(tmp_path / "trial" / "it", tmp_path / "trial-home", tmp_path / "trial-tmp"), "--accept")
    assert (tried.code, "not taken" in tried.stderr) == (0, False), tried.stderr
    there = Where(tmp_path / "checkouts" / "of-today", tmp_path / "homes" / "kim", tmp_path / "temporary")
    replayed = lab.replay(there)
    assert lab.problems(replayed, there) == [], replayed.stderr[-3000:]
