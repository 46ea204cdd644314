"""The action's script: run the command, look at what the pull request changes in recordings, write one summary, and gate.

It needs Python's standard library, `git` and `llmproxy` on PATH. Inputs come as GATE_*, the event as GITHUB_EVENT_PATH. What
cannot be evaluated (a price that is unknown, a base that was not fetched) fails the gate that asks for it: a gate that cannot see is shut.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

GATES = ("misses", "unused", "cost", "contract", "any")
LONGEST = 60_000
"""Characters of the differences that are shown; GitHub takes a summary of 1 MiB."""
STORE = b"SQLite format 3\0"


class Blind(Exception):
    """What recordings change cannot be told."""


def call(*words: str, check: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run a program; its output is kept."""
    done = subprocess.run(words, capture_output=True, check=False)
    if check and done.returncode:
        raise Blind(f"{shlex.join(words)}: {done.stderr.decode(errors='replace').strip()}")
    return done


def fence(text: str, kind: str = "") -> str:
    """Put text between fences that are longer than any in it."""
    longest = max((len(run) for run in text.replace("\n", " ").split(" ") if set(run) == {"`"}), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{kind}\n{text.rstrip()}\n{marks}"


def run_command(command: str, options: list[str], *, miss: bool) -> tuple[int, dict]:
    """Run the command with the proxy; returns its exit code and what it came to."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = ["llmproxy", "run", "--json", str(result), *(["--fail-on-miss"] if miss else []), *options]
        code = subprocess.run([*words, "--", "bash", "-e", "-o", "pipefail", "-c", command], check=False).returncode
        told = json.loads(result.read_text("utf-8")) if result.is_file() else {}
    return code, told


def base_of(event: dict) -> str:
    """Return the commit that the change is against; empty where there is none."""
    base = str((event.get("pull_request") or {}).get("base", {}).get("sha") or event.get("before") or "")
    return "" if set(base) <= {"0"} else base  # a branch that was just made has forty zeros before it


def changed(base: str, patterns: list[str]) -> list[str]:
    """Return the files of recordings that differ from the base, both ways. Raises Blind."""
    if call("git", "cat-file", "-e", f"{base}^{{commit}}").returncode:
        call("git", "fetch", "--quiet", "--depth=1", "origin", base, check=True)
    names = call("git", "diff", "--name-only", "-z", "--no-renames", base, "--", check=True).stdout.decode(
        errors="surrogateescape"
    )
    return [name for name in names.split("\0") if name and any(fnmatch.fnmatch(name, each) for each in patterns)]


def cassettes(data: bytes | None, name: str, folder: Path) -> dict[str, Path]:
    """Write a version of a file out as cassette files, by cassette; a store holds several."""
    if data is None:
        return {}
    folder.mkdir(parents=True)
    path = folder / Path(name).name
    path.write_bytes(data)
    if not data.startswith(STORE):
        return {name: path}
    out = folder / "all"
    call("llmproxy", "export", str(out), "--all", "--format", "review", "--store", str(path), check=True)
    return {f"{name}: {each.stem}": each for each in sorted(out.glob("*.yaml"))}


def differences(base: str, patterns: list[str], folder: Path) -> tuple[list[str], bool, bool]:
    """Return what to show of each changed cassette, whether any changed, and whether the tools' contract did."""
    shown, contract, some = [], False, False
    for number, name in enumerate(changed(base, patterns)):
        before = call("git", "show", f"{base}:{name}")
        now = Path(name)
        old = cassettes(None if before.returncode else before.stdout, name, folder / f"{number}-old")
        new = cassettes(now.read_bytes() if now.is_file() else None, name, folder / f"{number}-new")
        for cassette in sorted(old.keys() | new.keys()):
            if cassette not in old or cassette not in new:
                shown.append(f"### `{cassette}`\n\n{'new' if cassette in new else 'removed'}")
                some = True
                continue
            words = ("llmproxy", "diff", str(old[cassette]), str(new[cassette]))
            told = call(*words, "--format", "markdown", "--fail-on", "any")
            if told.returncode == 0:
                continue
            if told.returncode != 1:
                raise Blind(f"{cassette}: {told.stderr.decode(errors='replace').strip()}")
            some = True
            contract |= call(*words, "--fail-on", "contract").returncode != 0
            shown.append(f"### `{cassette}`\n\n{told.stdout.decode(errors='replace').strip()}")
    return shown, some, contract


def judge(gates: set[str], told: dict, limit: str, *, some: bool, contract: bool) -> list[str]:
    """Return why the job fails."""
    why = []
    if "misses" in gates and told.get("misses"):
        why.append(f"misses: {told['misses']} requests were never recorded")
    if "unused" in gates and (unused := told.get("unused")) != []:
        why.append(
            "unused: it is not known" if unused is None else f"unused: {len(unused)} recordings were not asked for"
        )
    if "cost" in gates:
        parts = [told.get("cost_spent"), told.get("cost_not_spent")]
        spent = sum(float(part) for part in parts if part is not None)
        if told.get("unpriced") or not told:
            why.append(f"cost: the price of {told.get('unpriced') or 'all'} calls is not known")
        elif spent > float(limit):
            why.append(f"cost: ${spent:.4f}, more than ${float(limit):.4f}")
    if "contract" in gates and contract:
        why.append("contract: tools, their arguments or their order changed")
    if "any" in gates and some:
        why.append("any: recordings changed")
    return why


def main() -> int:
    """Do everything; returns the exit code."""
    env = os.environ
    command, patterns = env.get("GATE_RUN", "").strip(), env.get("GATE_RECORDINGS", "").split()
    gates = {each.strip() for each in env.get("GATE_FAIL_ON", "").split(",") if each.strip()}
    limit = env.get("GATE_MAX_COST", "").strip().lstrip("$")
    if unknown := sorted(gates - set(GATES)):
        sys.exit(f"llmproxy action: fail-on has {', '.join(unknown)}; it can have {', '.join(GATES)}")
    if "cost" in gates and not limit:
        sys.exit("llmproxy action: fail-on has cost, and max-cost says no limit")
    options = shlex.split(env.get("GATE_OPTIONS", ""))
    event = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_text("utf-8")) if env.get("GITHUB_EVENT_PATH") else {}
    base = base_of(event)
    code, told = run_command(command, options, miss="misses" in gates) if command else (0, {})
    shown, some, contract, blind = [], False, False, "" if base else "the event names no commit to compare with"
    try:
        with tempfile.TemporaryDirectory() as folder:
            shown, some, contract = differences(base, patterns, Path(folder)) if base else ([], False, False)
    except Blind as error:
        blind = str(error)
    asked = gates if command else gates - {"misses", "unused", "cost"}
    why = judge(asked, told, limit, some=some, contract=contract)
    if blind and (unseen := sorted(gates & {"contract", "any"})):
        why.append(f"{', '.join(unseen)}: it cannot be told: {blind}")
    lines = ["## llmproxy", ""]
    if command:
        lines += [f"`{told.get('summary') or 'no request was counted'}`", ""]
        lines += [f"The command ended with {told.get('command_exit_code', code)}.", ""]
    if why:
        lines += ["**Failed:**", "", *(f"- {each}" for each in why), ""]
    if texts := told.get("miss_texts"):
        lines += ["<details><summary>Misses</summary>", "", fence("\n\n".join(texts)[:LONGEST]), "", "</details>", ""]
    if shown:
        text = "\n\n".join(shown)
        more = "\n\n(cut)" if len(text) > LONGEST else ""
        lines += ["## Recordings that this change alters", "", text[:LONGEST] + more, ""]
    elif base:
        lines += [f"What recordings change cannot be told: {blind}" if blind else "No recording changes.", ""]
    if env.get("GITHUB_STEP_SUMMARY"):
        with Path(env["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as summary:
            summary.write("\n".join(lines) + "\n")
    report = Path(env.get("RUNNER_TEMP") or tempfile.gettempdir()) / "llmproxy-report.json"
    report.write_text(
        json.dumps(told | {"failed": why, "recordings_changed": some, "contract_changed": contract}), "utf-8"
    )
    if env.get("GITHUB_OUTPUT"):
        with Path(env["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as outputs:
            outputs.write(f"report={report}\n")
    for each in why:
        print(f"::error title=llmproxy::{each}".replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
    return code or (1 if why else 0)


if __name__ == "__main__":
    sys.exit(main())
