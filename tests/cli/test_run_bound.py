"""``llmproxy run``: recorded in one folder, replayed in another, as real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_run import run
from tests.provider import Provider, step
from tests.support.process import llmproxy, python

AGENT = """
import json, os, sys, urllib.request, urllib.error
cwd, home = os.getcwd(), os.environ["HOME"]
body = {"model": "gpt-4o", "messages": [
    {"role": "system", "content": f"You work in {cwd}. Notes are in {home}/notes."},
    {"role": "user", "content": " ".join(sys.argv[1:])},
]}
sent = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
try:
    with urllib.request.urlopen(sent) as answer:
        print(json.loads(answer.read())["choices"][0]["message"]["content"], answer.headers["x-llmproxy-bound"])
except urllib.error.HTTPError as error:
    print("HTTP", error.code, json.load(error)["error"]["message"])
"""


@pytest.mark.slow
def test_a_run_elsewhere_is_replayed_in_its_own_words(tmp_path: Path) -> None:
    """Another folder, another home, the provider dead; what was bound is said, and `--strict` does not take it for a proof."""
    store = str(tmp_path / "x.db")
    a, b = tmp_path / "a" / "project", tmp_path / "somewhere-else" / "of-today"
    homes = {name: tmp_path / f"home-{name}" for name in ("a", "b")}
    for folder in (a, b, *homes.values()):
        folder.mkdir(parents=True)
    command = [python(), "-c", AGENT, "look at order 7"]
    says = f"see {a}/x.txt, {homes['a']}/notes and /tmp"
    with Provider([step(user="look at order 7", say=says, times=1)]) as provider:
        env = {"OPENAI_BASE_URL": provider.url + "/v1", "OPENAI_API_KEY": "sk-mine", "HOME": str(homes["a"])}
        first = run("--mode", "record", "--store", store, "--", *command, env=env, cwd=a)
    assert first.returncode == 0, first.stderr
    here = {"HOME": str(homes["b"])}
    again = run("--store", store, "--fail-on-miss", "--", *command, env=here, cwd=b)
    assert again.returncode == 0, again.stderr + again.stdout
    assert again.stdout == f"see {b}/x.txt, {homes['b']}/notes and /tmp cwd, home\n"
    assert "1 hit (1 bound: cwd, home), 0 misses" in again.stderr
    strict = run("--store", store, "--strict", "--", *command, env=here, cwd=b)
    assert strict.returncode == 4
    assert "1 hit was bound, not exact" in strict.stderr
    assert "HTTP" in run("--store", store, "--bind", "none", "--", *command, env=here, cwd=b).stdout
    other = run("--store", store, "--", *command[:-1], "look at order 8", env=here, cwd=b)
    assert '"look at order 7" -> "look at order 8"' in other.stdout
    assert "differs in 1 place" in other.stdout, "folders that are bound are no difference"


@pytest.mark.slow
def test_run_variables_are_declared_by_hand(tmp_path: Path) -> None:
    """A value of a run's own; a wrong form is an error before anything runs."""
    store = str(tmp_path / "x.db")
    say = "deploy 11111111-2222-4333-8444-555555555555"
    with Provider([step(user=f"{say} now", say=f"done: {say}", times=1)]) as provider:
        env = {"OPENAI_BASE_URL": provider.url + "/v1", "OPENAI_API_KEY": "sk-mine", "HOME": str(tmp_path)}
        words = ["--mode", "record", "--var", f"release={say.split()[1]}", "--store", store]
        asks = [*words, "--", python(), "-c", AGENT]
        first = run(*asks, f"{say} now", env=env, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    new = "99999999-2222-4333-8444-555555555555"
    asks = ["--var", f"release={new}", "--store", store, "--", python(), "-c", AGENT]
    again = run(*asks, f"deploy {new} now", env={"HOME": str(tmp_path)}, cwd=tmp_path)
    assert again.stdout == f"done: deploy {new} release\n", again.stderr
    tried = llmproxy("learn", "default", *asks, f"deploy {new} now", env={"HOME": str(tmp_path)}, cwd=tmp_path)
    assert "trial: 1 hit, 0 misses; the command ended with 0" in tried.stderr
    wrong = run("--var", "release", "--store", store, "--", "true", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "NAME=VALUE" in wrong.stderr
