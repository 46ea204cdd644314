"""The action's script: run the command, look at what the pull request changes in recordings, write one summary, and gate.

It needs Python's standard library, `git` and `llmproxy` on PATH. Inputs come as GATE_*, the event as GITHUB_EVENT_PATH. What
cannot be evaluated (a price that is unknown, a base that was not fetched) fails the gate that asks for it: a gate that cannot see is shut.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

GATES = ("misses", "unused", "cost", "contract", "any")
LONGEST = 60_000
"""Characters of the differences that are shown; GitHub takes a summary of 1 MiB."""
STORE = b"SQLite format 3\0"


class Blind(Exception):
    """What recordings change cannot be told."""


def refuse(why: str) -> NoReturn:
    """End, since something that was asked for cannot be meant."""
    sys.exit(f"llmproxy action: {why}")


def call(*words: str, check: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run a program; its output is kept."""
    try:
        done = subprocess.run(words, capture_output=True, check=False)
    except OSError as error:
        raise Blind(f"{words[0]} cannot be run: {error.strerror}") from error
    if check and done.returncode:
        raise Blind(f"{' '.join(words[:2])}: {first_line(done.stderr)}")
    return done


def first_line(said: bytes) -> str:
    """Return what a program said first."""
    return (said.decode(errors="replace").strip().splitlines() or ["it failed"])[0]


def counted(number: int, what: str, many: str = "") -> str:
    """Return `1 miss`, `2 misses`."""
    return f"{number} {what if number == 1 else many or what + 's'}"


def dollars(amount: float) -> str:
    """Return an amount of which small ones stay visible."""
    return f"${amount:.6f}".rstrip("0").rstrip(".")


def fence(text: str, kind: str = "") -> str:
    """Put text between fences that are longer than any in it."""
    marks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{marks}{kind}\n{text.rstrip()}\n{marks}"


def run_command(command: str, options: list[str], *, miss: bool) -> tuple[int, dict[str, Any]]:
    """Run the command with the proxy; returns its exit code and what it came to."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = ["llmproxy", "run", "--json", str(result), *(["--fail-on-miss"] if miss else []), *options]
        try:
            code = subprocess.run([*words, "--", "bash", "-e", "-o", "pipefail", "-c", command], check=False).returncode
        except OSError as error:
            refuse(f"llmproxy cannot be run: {error.strerror}. The step before should have installed it")
        told = json.loads(result.read_text("utf-8")) if result.is_file() else {}
    return code, told


def base_of(event: object) -> str:
    """Return the commit that the change is against; empty where there is none, or what is named can be no commit."""
    told = event if isinstance(event, dict) else {}
    base = told.get("before")
    for name in ("pull_request", "base", "sha"):
        told = told.get(name) if isinstance(told, dict) else None
    base = str(told or base or "")
    is_commit = re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", base)  # anything else could be an option of git's
    return base if is_commit and set(base) != {"0"} else ""  # a branch that was just made has forty zeros before it


def event_of(path: str) -> object:
    """Read the event; none is an empty one."""
    try:
        return json.loads(Path(path).read_text("utf-8")) if path else {}
    except (OSError, ValueError, RecursionError) as error:
        refuse(f"the event in GITHUB_EVENT_PATH cannot be read: {getattr(error, 'strerror', None) or error}")


def limit_of(text: str) -> float:
    """Read dollars; without any, no limit."""
    try:
        amount = float(text.strip().lstrip("$") or "inf")
    except ValueError:
        amount = math.nan
    if math.isnan(amount) or amount < 0 or (math.isinf(amount) and text.strip()):
        refuse(f"max-cost is {text!r}; it takes US dollars from 0, such as 0.50")
    return amount


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


def named(name: str) -> str:
    """Return a file's name so that it stays a name: a pull request may call a file anything."""
    return "".join(each if each.isprintable() and each != "`" else "?" for each in name)


def differences(base: str, patterns: list[str], folder: Path) -> tuple[list[str], bool, bool]:
    """Return what to show of each changed cassette, whether any changed, and whether the tools' contract did."""
    shown, contract, some = [], False, False
    for number, name in enumerate(changed(base, patterns)):
        now = Path(name)
        if now.is_symlink() or b"\n120000 " in b"\n" + call("git", "ls-tree", base, "--", name).stdout:
            raise Blind(f"{named(name)} is a symbolic link, which may lead anywhere: nothing is read through it")
        before = call("git", "show", f"{base}:{name}")
        old = cassettes(None if before.returncode else before.stdout, name, folder / f"{number}-old")
        new = cassettes(now.read_bytes() if now.is_file() else None, name, folder / f"{number}-new")
        for cassette in sorted(old.keys() | new.keys()):
            if cassette not in old or cassette not in new:
                shown.append(f"### `{named(cassette)}`\n\n{'new' if cassette in new else 'removed'}")
                some = True
                continue
            words = ("llmproxy", "diff", str(old[cassette]), str(new[cassette]))
            told = call(*words, "--format", "markdown", "--fail-on", "any")
            if told.returncode == 0:
                continue
            if told.returncode != 1:
                raise Blind(f"{named(cassette)}: {first_line(told.stderr).replace(f'{folder}/', '')}")
            some = True
            contract |= call(*words, "--fail-on", "contract").returncode != 0
            _, _, text = (
                told.stdout.decode(errors="replace").strip().partition("\n")
            )  # its heading names our temporary files
            for side, path in (("old", old[cassette]), ("new", new[cassette])):
                text = text.replace(str(path), side)
            shown.append(f"### `{named(cassette)}`\n\n{text.strip()}")
    return shown, some, contract


def judge(gates: set[str], told: dict[str, Any], limit: float, *, some: bool, contract: bool) -> list[str]:
    """Return why the job fails."""
    why = []
    if "misses" in gates and told.get("misses"):
        why.append(f"misses: {counted(told['misses'], 'request was', 'requests were')} never recorded")
    if "unused" in gates and (unused := told.get("unused")) != []:
        many = counted(len(unused or ()), "recording was", "recordings were")
        why.append("unused: it is not known" if unused is None else f"unused: {many} not asked for")
    if "cost" in gates:
        parts = [told.get("cost_spent"), told.get("cost_not_spent")]
        spent = sum(float(part) for part in parts if part is not None)
        if told.get("unpriced") or not told:
            calls = counted(told["unpriced"], "call") if told.get("unpriced") else "all calls"
            why.append(f"cost: the price of {calls} is not known")
        elif spent > limit:
            why.append(f"cost: {dollars(spent)}, more than {dollars(limit)}")
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
    limit = limit_of(env.get("GATE_MAX_COST", ""))
    if unknown := sorted(gates - set(GATES)):
        refuse(f"fail-on has {', '.join(unknown)}; it can have {', '.join(GATES)}")
    if "cost" in gates and math.isinf(limit):
        refuse("fail-on has cost, and max-cost says no limit")
    try:
        options = shlex.split(env.get("GATE_OPTIONS", ""))
    except ValueError as error:
        refuse(f"options cannot be split into words: {error}")
    base = base_of(event_of(env.get("GITHUB_EVENT_PATH", "")))
    code, told = run_command(command, options, miss="misses" in gates) if command else (0, {})
    shown, some, contract, blind = [], False, False, "" if base else "the event names no commit to compare with"
    try:
        with tempfile.TemporaryDirectory() as folder:
            shown, some, contract = differences(base, patterns, Path(folder)) if base else ([], False, False)
    except Blind as error:
        blind = str(error)
    asked = gates if command else gates - {"misses", "unused", "cost"}
    why = judge(asked, told, limit, some=some, contract=contract)
    unseen = sorted(gates & {"contract", "any"})
    if blind and unseen:
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
    elif base and not (blind and unseen):
        lines += [f"What recordings change cannot be told: {blind}" if blind else "No recording changes.", ""]
    if env.get("GITHUB_STEP_SUMMARY"):
        here = f"{Path.cwd()}{os.sep}"  # where the runner works is nobody's business
        with Path(env["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as summary:
            summary.write("\n".join(lines).replace(here, "") + "\n")
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
