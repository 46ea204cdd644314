"""The action's script: `llmproxy drift`, `llmproxy rerecord` of what drifted, and a pull request with the difference by contract.

It needs Python's standard library, `git` and `llmproxy` on PATH. Inputs come as DRIFT_*. It ends with 0 where nothing drifted or a
pull request says what did, with 8 where something drifted that cannot be recorded anew (a retired model), with 9 where drift could not tell.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from decimal import ROUND_DOWN, Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "llmproxy"))
from gate import LONGEST, Blind, differences, named

DRIFTED, UNTOLD = 8, 9
TOKEN = os.environ.pop("DRIFT_TOKEN", "")
"""Not for the commands that we run."""
BOT = ("-c", "user.name=github-actions[bot]", "-c", "user.email=41898282+github-actions[bot]@users.noreply.github.com")


def refuse(why: str) -> NoReturn:
    """End, since it cannot go on."""
    sys.exit(f"llmproxy drift action: {why}")


def call(*words: str, keeps: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program; its stdout is kept, or goes to the log."""
    try:
        return subprocess.run(words, stdout=subprocess.PIPE if keeps else None, text=True, check=False)
    except OSError as error:
        refuse(f"{words[0]} cannot be run: {error.strerror}")


def git(*words: str) -> str:
    """Return what git says."""
    done = call("git", *words, keeps=True)
    if done.returncode:
        refuse(f"git {words[0] if words[0] != '-c' else words[4]} failed")
    return done.stdout.strip()


def ask(method: str, path: str, body: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Ask GitHub's API about this repository; returns what it lists, or the one thing that it says."""
    env = os.environ
    url = f"{env.get('GITHUB_API_URL', 'https://api.github.com')}/repos/{env['GITHUB_REPOSITORY']}/{path}"
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "Content-Type": "application/json",
    }
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - GitHub's
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - GitHub's
            told = json.load(answer)
            return told if isinstance(told, list) else [told]
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")[:500]
        may = "may the workflow (permissions: pull-requests: write) and the repository's settings let it open pull requests?"
        refuse(f"{method} {path.partition('?')[0]}: {error.code} {said}; {may}")
    except OSError as error:
        refuse(f"{method} {path.partition('?')[0]}: {error}")


def propose(base: str, body: str) -> str:
    """Open the pull request of our branch, or say in the open one what it holds now; returns its address."""
    branch, owner = os.environ["DRIFT_BRANCH"], os.environ["GITHUB_REPOSITORY"].partition("/")[0]
    said = {"title": "The model answers otherwise: recordings made anew", "body": body}
    found = ask("GET", f"pulls?state=open&head={owner}:{branch}&base={base}")
    made = (
        ask("PATCH", f"pulls/{found[0]['number']}", said)
        if found
        else ask("POST", "pulls", said | {"head": branch, "base": base})
    )
    return str(made[0]["html_url"])


def describe(told: dict[str, Any]) -> list[str]:
    """Return what drift found, a line of Markdown each."""
    lines = [f"`llmproxy drift`: {told['verdict']}; {told.get('asked', 0)} answers, ${told.get('spent_usd', '0')}.", ""]
    for model in told.get("models", []):
        p = "" if model["p"] is None else f", p {model['p']:.3f}"
        lines.append(f"- `{named(model['model'])}`: {'drift' if model['drifted'] else 'no drift seen'}{p}")
        for each in model["calls"]:
            which = f"#{each['interaction']} {named(each['cassette'])}"
            lines += [f"  - `{which}` {kind}: {named(text)}" for kind in ("gone", "shape") for text in each[kind]]
            lines += [f"  - `{which}` answered otherwise"] if each["otherwise"] else []
    return lines + [f"- left out: {count}: {named(why)}" for why, count in told.get("left_out", {}).items()]


def tell(lines: list[str]) -> None:
    """Write the job's summary."""
    text = "\n".join(["## llmproxy drift", "", *lines, ""])
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as summary:
            summary.write(text)
    print(text)


def record(ids: list[str], left: Decimal) -> None:
    """Record interactions anew within what is left of the money, and write the files of their cassettes."""
    run, folder = os.environ.get("DRIFT_RUN", "").strip(), os.environ.get("DRIFT_CASSETTE_DIR", "")
    options = [*shlex.split(os.environ.get("DRIFT_RUN_OPTIONS", "")), "--max-cost", f"{left:f}"]
    files = ["--cassette-dir", folder] if folder and run else []
    if call("llmproxy", "rerecord", *options, *files, *ids, *(["--", "sh", "-c", run] if run else [])).returncode:
        print("llmproxy drift action: not all was recorded anew", file=sys.stderr)
    if folder and call("llmproxy", "export", folder, "--all", "--force").returncode:
        refuse("the cassettes could not be written")


def main() -> int:
    """Do everything; returns the exit code."""
    env = os.environ
    try:
        limit = Decimal(env.get("DRIFT_MAX_COST", "").strip().lstrip("$"))
        options = shlex.split(env.get("DRIFT_OPTIONS", ""))
    except (InvalidOperation, ValueError) as error:
        refuse(f"max-cost takes US dollars, such as 0.50, and options words of a shell: {error}")
    folder, base = env.get("DRIFT_CASSETTE_DIR", ""), env.get("GITHUB_REF_NAME", "")
    if folder and call("llmproxy", "import", folder).returncode:
        refuse(f"the cassettes of {folder} could not be read")
    done = call("llmproxy", "drift", "--json", "--max-cost", f"{limit:f}", *options, keeps=True)
    if done.returncode not in (0, DRIFTED, UNTOLD):
        return done.returncode
    told = json.loads(done.stdout)
    lines = describe(told)
    if done.returncode != DRIFTED or not told["rerecord"]:
        tell(lines)
        return done.returncode
    head = git("rev-parse", "HEAD")
    left = (limit - Decimal(told["spent_usd"])).quantize(Decimal("0.000001"), ROUND_DOWN)
    record(list(map(str, told["rerecord"])), left)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            shown, some, _ = differences(head, [f"{folder.rstrip('/')}/*" if folder else "*.db"], Path(scratch))
    except Blind as error:
        shown, some = [f"What it changes cannot be told: {error}"], True
    if not some:
        tell([*lines, "", "Nothing could be recorded anew."])
        return DRIFTED
    git("add", "--update", "--", folder or "*.db")
    git("checkout", "--quiet", "-B", env["DRIFT_BRANCH"])
    git(*BOT, "commit", "--quiet", "--message", "Record anew what the model answers otherwise")
    git("push", "--quiet", "--force", "origin", f"HEAD:refs/heads/{env['DRIFT_BRANCH']}")
    text = "\n".join([*lines, "", "## Recordings that this changes", "", "\n\n".join(shown)])
    address = propose(base, text[:LONGEST] + ("\n\n(cut)" if len(text) > LONGEST else ""))
    tell([*lines, "", f"Proposed: {address}"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
