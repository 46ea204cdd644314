"""What the model of the lab asks for: shell commands that list, read, write, commit, and make things whose ids it then names.

A turn is a command; `{cwd}` is the folder of the recording, and a name of TAKES the value that an earlier command printed, as a model
names it again. What a command makes is written down by the machine itself beside it (`.ids`), so that afterwards it can be said
whether the agent used the ids of *its* run, in names, contents and commits.
"""

from __future__ import annotations

from typing import Any

from tests.provider import Script, load

from .agents import ASK, Agent

NOTE = "buy milk"
UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
TAKES = {
    "uuid": f"({UUID})",
    "commit": r"\[\S+(?: \(root-commit\))? ([0-9a-f]{7,40})\] Add",
    "whole": r"commit ([0-9a-f]{40})",
    "temp": r"(/\S*/?tmp\.[A-Za-z0-9]{10})",
    "folder": r"(/\S*/?run-[A-Za-z0-9]{6})",
    "token": r"token=([0-9a-f]{16})",
}
_PYTHON = "python3 -c"
TURNS = (
    "ls -la {cwd}",
    "cat {cwd}/notes.txt",
    f"{_PYTHON} 'import uuid; print(uuid.uuid4())' | tee -a .ids",
    "echo 'for {uuid}' > {cwd}/{uuid}.txt && ls {cwd}",
    "git -C {cwd} add -A && git -C {cwd} commit -m 'Add the note'",
    "git -C {cwd} show --stat {commit}",
    "mktemp | tee -a .ids",
    "echo hello > {temp} && cat {temp} && rm {temp}",
    "echo Process Group PGID: $$",
    _PYTHON
    + " 'import json, random; d = dict(a=1, b=[2, 3], c=dict(d=4), e=5); k = list(d); random.shuffle(k);"
    + " print(json.dumps({n: d[n] for n in k}))'",
    "git -C {cwd} log --format=%H -1 | sed 's/^/commit /' | tee -a .ids",
    "git -C {cwd} branch keep-{whole} && git -C {cwd} branch --list 'keep-*'",
    "date",
    "mktemp -d -t run-XXXXXX | tee -a .ids",
    "cp {cwd}/notes.txt {folder}/copy.txt && wc -c {folder}/copy.txt && rm -r {folder}",
    f"echo token=$({_PYTHON} 'import secrets; print(secrets.token_hex(8))') | tee -a .ids",
    "mkdir -p {cwd}/out && echo '{uuid} {token}' > {cwd}/out/{token}.log && cat {cwd}/out/{token}.log",
    "stat -c '%n %s %y' {cwd}/out/{token}.log",
    "pwd && echo $HOME",
    "git -C {cwd} status --short && echo {uuid}",
)


def script(agent: Agent, cwd: str, turns: int) -> Script:
    """Return the dialogue of so many tool calls, recorded in `cwd`; requests that are none of it are refused."""
    steps: list[dict[str, Any]] = [{"times": None, **aside} for aside in agent.aside]
    if agent.says:
        asked = enumerate(agent.says[:turns], 1)
        steps += [{"user": text, "stream": agent.stream, "say": f"Line {number}: {NOTE}."} for number, text in asked]
        return load({"steps": steps})
    for number, command in enumerate(TURNS[:turns]):
        text = command.replace("{cwd}", cwd) + agent.pause
        call = {"name": agent.tool, "arguments": {agent.argument: text, **agent.arguments}}
        steps.append({"results": number, "stream": agent.stream, "call": [call], "takes": _taken(text)})
    said = f"The notes say: {NOTE}." + (" It is in {uuid}.txt." if turns > 2 else "")
    last: dict[str, Any] = {"say": said}
    if agent.submits:
        text = agent.submits.replace("{said}", said)
        last = {"call": [{"name": agent.tool, "arguments": {agent.argument: text, **agent.arguments}}]}
    steps.append({"results": turns, "stream": agent.stream, "takes": _taken(said), **last})
    return load({"ordered": False, "steps": steps})


def _taken(text: str) -> dict[str, str]:
    return {name: pattern for name, pattern in TAKES.items() if f"{{{name}}}" in text}


__all__ = ["ASK", "NOTE", "TAKES", "TURNS", "UUID", "script"]
