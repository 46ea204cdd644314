"""The GitHub Action's script, against an event of ours and a repository of three commits; the hooks; the container's file."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from llmproxy.cli import main
from llmproxy.settings import list_options_of_settings
from tests.support.chats import chat, fill
from tests.support.forked import program
from tests.support.process import ROOT, clean_env
from tests.ui.samples import call, says, uses

ACTION = ROOT / ".github/actions/llmproxy"
ASK = f"""{sys.executable} -c "
import json, os, urllib.request as u
body = dict(model='gpt-4o', messages=[dict(role='user', content=os.environ['SAY'])])
ask = u.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', json.dumps(body).encode(), dict([('content-type', 'application/json')]))
print(u.urlopen(ask).status)"
"""


@dataclass
class Repository:
    """A clone in which a pull request is looked at."""

    path: Path
    base: str
    """The commit that it is against."""

    def act(
        self, *, say: str = "", run: str = "", told: str | None = None, **inputs: str
    ) -> tuple[subprocess.CompletedProcess[str], str]:
        """Run the script, on the event `told` or one of ours; returns what it did, and its summary."""
        event, summary, outputs = (self.path.parent / name for name in ("event.json", "summary.md", "outputs"))
        event.write_text(json.dumps({"pull_request": {"base": {"sha": self.base}}}) if told is None else told)
        summary.write_text("")
        given = {f"GATE_{name.upper()}": value for name, value in inputs.items()}
        env = clean_env(
            {
                "PATH": os.pathsep.join([str(Path(program("llmproxy")[0]).parent), os.environ["PATH"]]), "SAY": say,
                "GITHUB_EVENT_PATH": str(event), "GITHUB_STEP_SUMMARY": str(summary),
                "GITHUB_OUTPUT": str(outputs), "RUNNER_TEMP": str(self.path.parent), "GATE_RUN": run,
                "GATE_RECORDINGS": "*.db *cassettes/*.yaml", **given,
            }
        )  # fmt: skip
        words = [sys.executable, str(ACTION / "gate.py")]
        done = subprocess.run(words, cwd=self.path, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert str(self.path.parent) not in summary.read_text()
        assert tempfile.gettempdir() not in summary.read_text()
        return done, summary.read_text()


def git(folder: Path, *words: str) -> str:
    mine = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *mine, *words], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Make one: the base has a store and a cassette; the head changes the cassette's answer and adds a second one."""
    path = tmp_path_factory.mktemp("action") / "repo"
    (path / "cassettes").mkdir(parents=True)
    git(path, "init", "-q")
    fill(path / "llmproxy.db", chat("hi", cassette="default"), chat("and now?", cassette="default"))
    _export(path, chat("hi", "one"), "cassettes/weather.yaml")
    git(path, "add", ".")
    git(path, "commit", "-qm", "base")
    base = git(path, "rev-parse", "HEAD")
    _export(path, chat("hi", "two"), "cassettes/weather.yaml")
    _export(path, chat("hi", "three"), "cassettes/second.yaml")
    (path / "README.md").write_text("no recording")
    git(path, "add", ".")
    git(path, "commit", "-qm", "head")
    return Repository(path, base)


@pytest.fixture
def fresh(tmp_path: Path) -> Repository:
    (tmp_path / "repo" / "cassettes").mkdir(parents=True)
    git(tmp_path / "repo", "init", "-q")
    return Repository(tmp_path / "repo", "")


def _export(folder: Path, recorded: object, name: str) -> None:
    store = folder.parent / "made.db"
    store.unlink(missing_ok=True)
    fill(store, recorded)  # type: ignore[arg-type]
    words = ["--cassette", "default", "--store", str(store), "--format", "review", "--force"]
    assert main(["export", str(folder / name), *words]) == 0


def test_a_run_that_hits_is_summed_up_with_what_the_change_alters(repository: Repository) -> None:
    """The command's own output stays, nothing fails, and both cassettes are shown."""
    done, summary = repository.act(run=ASK, say="hi", fail_on="misses")
    assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr
    assert "1 hit, 0 misses" in summary
    assert "`cassettes/weather.yaml`" in summary
    assert "`cassettes/second.yaml`\n\nnew" in summary
    assert "`cassettes/weather.yaml`\n\n**Changed; the tool contract is the same.**\n\n<details>" in summary
    assert "README" not in summary
    assert "llmproxy.db" not in summary
    report = json.loads((repository.path.parent / "llmproxy-report.json").read_text())
    assert (report["hits"], report["misses"], report["recordings_changed"]) == (1, 0, True)
    assert [each["text"] for each in report["unused"]] == ["and now?"]


def test_each_gate_says_why_it_is_shut(repository: Repository) -> None:
    """A miss, a recording that nobody asked for, a price that is too high, recordings that changed: all in one summary."""
    done, summary = repository.act(run=f"{ASK} || true", say="new", fail_on="misses, unused, cost, any", max_cost="0")
    assert done.returncode != 0
    errors = re.findall(r"::error title=llmproxy::(\w+)", done.stdout)
    assert errors == ["misses", "unused", "any"], done.stdout + done.stderr
    assert "- misses: 1 request was never recorded\n- unused: 2 recordings were not asked for" in summary
    assert "no recorded response for this request" in summary
    done, summary = repository.act(run=ASK, say="hi", fail_on="cost", max_cost="0.00001")
    assert done.returncode == 1
    assert "cost: $0.000048, more than $0.00001" in summary


def test_without_a_command_it_looks_at_recordings_only(repository: Repository) -> None:
    """Also a store's, cassette by cassette; a contract that did not change passes, a base that cannot be had is an error."""
    done, summary = repository.act(fail_on="misses,unused,contract")
    assert (done.returncode, "The command ended" in summary) == (0, False), done.stdout
    fill(repository.path / "llmproxy.db", chat("third", cassette="other"))
    try:
        _, summary = repository.act()
        assert "`llmproxy.db: other`\n\nnew" in summary
        assert "llmproxy.db: default" not in summary
    finally:
        git(repository.path, "checkout", "-q", "--", "llmproxy.db")
    done, _ = Repository(repository.path, "1" * 40).act(fail_on="contract")
    assert done.returncode == 1
    assert "contract: it cannot be told: git fetch: fatal" in done.stdout
    done, summary = Repository(repository.path, "1" * 40).act()
    assert (done.returncode, "cannot be told" in summary) == (0, True)
    done, _ = Repository(repository.path, "0" * 40).act(fail_on="contract")
    assert "names no commit" in done.stdout


def test_a_changed_contract_shuts_the_gate(fresh: Repository) -> None:
    """A tool that is called with something else ends the job, and the summary shows it; other words of an answer do not."""
    asked = [{"role": "user", "content": "Mend it."}]

    def commit(path: str, text: str) -> str:
        blocks = says(uses("write_file", "toolu_1", path=path), text=text)
        _export(fresh.path, call(1, asked, blocks, at=0, cassette="default"), "cassettes/weather.yaml")
        git(fresh.path, "add", ".")
        git(fresh.path, "commit", "-qm", text)
        return git(fresh.path, "rev-parse", "HEAD")

    fresh.base = commit("calc.py", "base")
    commit("calc.py", "other words")
    done, summary = fresh.act(fail_on="contract")
    assert (done.returncode, "other words" in summary) == (0, True), done.stdout + done.stderr
    commit("secrets.py", "head")
    done, summary = fresh.act(fail_on="contract")
    assert done.returncode == 1
    assert done.stdout == "::error title=llmproxy::contract: tools, their arguments or their order changed\n"
    assert "secrets.py" in summary
    assert json.loads((fresh.path.parent / "llmproxy-report.json").read_text())["contract_changed"]


@pytest.mark.parametrize(("told", "why"), [
    ("{", "the event in GITHUB_EVENT_PATH cannot be read: Expecting"),
    ("[" * 100_000, "the event in GITHUB_EVENT_PATH cannot be read: maximum recursion"),
    ("[1]", "names no commit"),
    ('{"pull_request": 1}', "names no commit"),
    ('{"pull_request": {"base": [null]}, "before": {}}', "names no commit"),
    ('{"pull_request": {"base": {"sha": "--upload-pack=touch x"}}}', "names no commit"),
])  # fmt: skip
def test_a_damaged_or_hostile_event_is_told(told: str, why: str, repository: Repository) -> None:
    """In words, and nothing that it names becomes an option of git's."""
    done, summary = repository.act(fail_on="contract", told=told)
    assert done.returncode == 1
    assert why in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert summary.count("cannot be told") == summary.count("names no commit")
    assert not (repository.path / "x").exists()


def test_a_file_s_name_stays_a_name(fresh: Repository) -> None:
    """Whatever a pull request calls it: no heading and no code of its own in the summary."""
    git(fresh.path, "commit", "-q", "--allow-empty", "-m", "base")
    fresh.base = git(fresh.path, "rev-parse", "HEAD")
    _export(fresh.path, chat("hi", "one"), "cassettes/a`\n# b.yaml")
    git(fresh.path, "add", ".")
    done, summary = fresh.act()
    assert (done.returncode, "`cassettes/a??# b.yaml`\n\nnew" in summary) == (0, True), summary


@pytest.mark.parametrize("old", [True, False])
def test_nothing_is_read_through_a_link(old: bool, fresh: Repository) -> None:
    """A pull request may commit one to any file of the runner, or to a device without an end; the gate that has to look is shut."""
    link = fresh.path / "cassettes" / "a.yaml"
    _export(fresh.path, chat("hi", "one"), "cassettes/whole.yaml")
    if old:
        link.symlink_to("/dev/zero")
    git(fresh.path, "add", ".")
    git(fresh.path, "commit", "-q", "-m", "base")
    fresh.base = git(fresh.path, "rev-parse", "HEAD")
    link.unlink(missing_ok=True)
    if old:
        _export(fresh.path, chat("hi", "one"), "cassettes/a.yaml")
    else:
        link.symlink_to("whole.yaml")
    git(fresh.path, "add", ".")
    done, summary = fresh.act(fail_on="any")
    assert (done.returncode, "a.yaml is a symbolic link" in summary) == (1, True), summary


@pytest.mark.parametrize("end", ["", " ", "\t", "\r", "x"])
def test_no_text_of_a_miss_ends_its_fence(end: str) -> None:
    """Whatever follows the backticks, there are more of them around."""
    first, *_, last = runpy.run_path(str(ACTION / "gate.py"))["fence"](f"a\n````{end}\n# heading").splitlines()
    assert (first, last) == ("`````", "`````")


LIMITS = "max-cost is {!r}; it takes US dollars from 0"


@pytest.mark.parametrize(("inputs", "why"), [
    ({"fail_on": "miss"}, "fail-on has miss;"),
    ({"fail_on": "cost"}, "no limit"),
    *(({"fail_on": "cost", "max_cost": each}, LIMITS.format(each)) for each in ("nan", "inf", "-1", "$", "a lot")),
    ({"max_cost": "-inf"}, LIMITS.format("-inf")),
    ({"options": "--store 'x"}, "options cannot be split into words"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(inputs: dict[str, str], why: str, repository: Repository) -> None:
    """A gate that is spelled wrongly would be open."""
    done, _ = repository.act(**inputs)
    assert done.returncode == 1
    assert why in done.stderr


@pytest.mark.parametrize("name", ["llmproxy", "drift"])
def test_an_action_hands_on_every_input_by_the_environment(name: str) -> None:
    """None stands inside a script, where a pull request's words could run."""
    action = yaml.safe_load((ACTION.with_name(name) / "action.yml").read_text("utf-8"))
    assert "${{" not in "".join(step.get("run", "") for step in action["runs"]["steps"])
    handed = json.dumps([step.get("env", {}) for step in action["runs"]["steps"]])
    assert all(f"inputs.{name} " in handed for name in action["inputs"])


def test_hooks_call_commands_that_take_files(tmp_path: Path) -> None:
    """`llmproxy verify` and `scan` on what their patterns take; a journal beside the store is not verified."""
    hooks = {each["id"]: each for each in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))}
    files = ("llmproxy.db", "tests/cassettes/a.yaml", "llmproxy.db.state.db", "docker-compose.yaml")
    taken = [name for name in files if re.search(hooks["llmproxy-verify"]["files"], name)]
    taken = [name for name in taken if not re.search(hooks["llmproxy-verify"]["exclude"], name)]
    assert taken == ["llmproxy.db", "tests/cassettes/a.yaml"]
    store = tmp_path / "llmproxy.db"
    fill(store, chat())
    for hook in hooks.values():
        assert main([*hook["entry"].split()[1:], str(store)]) == 0


def test_the_container_s_file_is_sound() -> None:
    """Hadolint finds nothing, what it sets exists, and the build sees wheels alone."""
    if linter := shutil.which("hadolint", path=str(Path(sys.executable).parent)):
        done = subprocess.run([linter, ROOT / "Containerfile"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")
    text = (ROOT / "Containerfile").read_text("utf-8")
    known = {option.env for option in list_options_of_settings()}
    assert set(re.findall(r"LLMPROXY_[A-Z_]+", text)) <= known
    assert (ROOT / ".dockerignore").read_text("utf-8").split() == ["*", "!dist/*.whl"]
