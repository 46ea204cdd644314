"""``llmproxy import``, ``export`` and ``textconv``; ``push`` and ``pull`` with a real server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import date
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.core.cassettes.folder_sync import build_slug
from llmproxy.core.cassettes.formats import Recorded, read_file_of_recordings
from llmproxy.core.cassettes.formats.vcr import dumps, read
from llmproxy.core.changes.accepted_change_model import AcceptedChange
from llmproxy.core.forks.fork_rows import Fork, find_fork, store_fork_row
from llmproxy.core.forks.overrides import parse_answer_override_options
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import store_accepted_changes
from llmproxy.core.traffic.interaction import Interaction
from tests.support.chats import NOW, chat, fill, run as run_on, run_typed as said

FORMATS = Path(__file__).resolve().parents[2] / "fixtures/formats"
OPENAI = ("--upstream", "openai=http://127.0.0.1:9911/v1")
JSON = (("content-type", "application/json"),)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, so that no settings of anybody's are found."""
    monkeypatch.chdir(tmp_path)


def cassette(path: Path, *texts: str, host: str = "https://api.openai.com") -> Path:
    """Write a file with one chat request for each text."""
    exchanges = [
        Recorded("POST", f"{host}/v1/chat/completions", JSON, f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}'.encode(),
                 200, "OK", JSON, f'{{"answer": "{text}"}}'.encode())
        for text in texts
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(exchanges, "x"))
    return path


def stored(name: str, path: Path = Path("llmproxy.db")) -> list[Interaction]:
    with SqliteCassetteStore.open(path, writable=False, now=lambda: 0.0) as store:
        return list(store.iter_interactions(name))


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def test_import(capsys: pytest.CaptureFixture[str]) -> None:
    """A file becomes the cassette of its name; the table says what came from which host."""
    assert run("import", cassette(Path("trip.yaml"), "a", "b", "a")) == 0
    assert [each.occurrence for each in stored("trip")] == [1, 1, 2]
    out = capsys.readouterr().out
    assert re.search(r"api\.openai\.com +openai +3 +3 +0\n", out)
    assert "1 cassette with 3 interactions in" in out


def test_importing_again_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    """The same file again doubles nothing, and says so; the cassette counts as complete."""
    path = cassette(Path("trip.yaml"), "a", "a", "b")
    assert run("import", path) == 0
    first = stored("trip")
    assert run("import", path) == 0
    again = stored("trip")
    assert [(each.key, each.occurrence, each.response) for each in again] == [
        (each.key, each.occurrence, each.response) for each in first
    ]
    assert [each.id for each in again] == [each.id for each in first]
    assert "3 interactions were there already." in capsys.readouterr().out
    assert run("import", cassette(path, "a", "b", "c")) == 0
    assert "older recordings of the same requests were replaced; nothing is doubled." in capsys.readouterr().out
    with SqliteCassetteStore.open("llmproxy.db", writable=False, now=lambda: 0.0) as store:
        assert store.last_session_ended_cleanly("trip", 1)


def test_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Below a folder the folders between are part of the name; names that do not fit a URL get a hash, and never meet."""
    cassette(Path("all/one/test.yaml"), "a")
    cassette(Path("all/two/test.yml"), "b")
    cassette(Path("all/test[x y].yaml"), "c")
    assert run("import", "all") == 0
    assert len(stored("one.test")) == len(stored("two.test")) == len(stored(build_slug("test[x y]"))) == 1
    assert "3 cassettes" in capsys.readouterr().out
    assert build_slug("a.b-c_1") == "a.b-c_1"
    assert build_slug("a b") != build_slug("a_b") != build_slug("a/b")
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,100}", build_slug(name)) for name in ("ü" * 300, "trip~2"))


def test_one_cassette_for_all() -> None:
    """`--cassette` takes all files together, in order."""
    files = cassette(Path("a.yaml"), "a", "b"), cassette(Path("b.yaml"), "a")
    assert run("import", *files, "--cassette", "all", "--store", "other.db") == 0
    assert [each.occurrence for each in stored("all", Path("other.db"))] == [1, 1, 2]


def test_two_files_of_one_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Two files that would become one cassette are refused before anything is written."""
    assert run("import", cassette(Path("a/x.yaml"), "a"), cassette(Path("b/x.yaml"), "b")) == 2
    said = capsys.readouterr().err
    assert ("would both become cassette x" in said, "Import the folder that holds both" in said) == (True, True)
    for name in ("y", "z"):
        Path(f"a/{name}.yaml").write_text("llmproxy-cassette: 1\ncassette: s\ninteractions: []\n...\n")
    assert run("import", "a") == 2
    said = capsys.readouterr().err
    assert ("would both become cassette s" in said, "Change the line `cassette:` of one" in said) == (True, True)
    assert not Path("llmproxy.db").exists()


def test_damaged_files_do_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Damaged files are named with their line, nothing of them is taken, the others are imported, the exit code says it."""
    cassette(Path("all/good.yaml"), "a")
    Path("all/bad.yaml").write_text("version: 1\ninteractions: [}")
    Path("all/empty.yaml").write_text("")
    assert run("import", "all") == 3
    seen = capsys.readouterr()
    assert "llmproxy: all/bad.yaml, line 2" in seen.err
    assert "empty.yaml: the file is empty" in seen.err
    assert len(stored("good")) == 1
    assert stored("bad") == []


def test_what_no_encoding_has_is_printed() -> None:
    """Half a surrogate pair of a recording as an escape, a file's name of odd bytes as these bytes."""
    line = {"llmproxy": 1, "method": "GET", "url": "\ud800", "status": 200, "response_body": "x"}
    Path("odd.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    written = BytesIO()
    out = TextIOWrapper(written, encoding="utf-8")
    with redirect_stdout(out), redirect_stderr(out):
        assert main(["import", "odd.jsonl"]) != 0
        assert main(["import", "gone\udcff.jsonl"]) != 0
    out.flush()
    said = written.getvalue()
    assert b"\\ud800" in said
    assert b"gone\xff" in said
    assert b"internal error" not in said


def test_fixtures_without_a_model_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    """As aimock's are written: with --model they are recordings, without it nothing comes in, and that is no success."""
    Path("hello.json").write_text('{"fixtures": [{"match": {"userMessage": "hi"}, "response": {"content": "hello"}}]}')
    assert run("import", "hello.json") == 2
    said = capsys.readouterr().out
    assert "Nothing was imported" in said
    assert "--model NAME" in said
    assert not Path("llmproxy.db").exists()
    assert run("import", "hello.json", "--model", "gpt-4o") == 0


def test_unknown_hosts_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A host of no table is imported under its own name, or under that of an upstream; of one host, all are listed."""
    path = cassette(Path("x.yaml"), "a", host="http://localhost:8000")
    assert run("import", path) == 0
    assert "Whose API is at localhost:8000 is not known." in capsys.readouterr().out
    assert stored("x")[0].provider == "localhost:8000"
    assert run("import", path, "--cassette", "y", "--upstream", "mine=http://localhost:8000/v1") == 0
    assert stored("y")[0].provider == "mine"
    assert run("export", "--cassette", "y", "y.yaml") == 0
    assert run("import", "y.yaml", path, "--store", "both.db") == 0
    assert re.search(r"localhost:8000 +mine, localhost:8000 +2", capsys.readouterr().out)


def test_export_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """`-` writes the YAML and nothing else to standard output."""
    run("import", cassette(Path("trip.yaml"), "a"))
    capsys.readouterr()
    assert run("export", "--cassette", "trip", "-", "--format", "vcr") == 0
    Path("again.yaml").write_text(capsys.readouterr().out)
    assert len(read(read_file_of_recordings(Path("again.yaml")))) == 1


def test_export_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A cassette that is not there is an error that names those that are; without a store that is said."""
    assert run("export", "--cassette", "x", "x.yaml") == 3
    run("import", cassette(Path("trip.yaml"), "a"))
    assert run("export", "--cassette", "x", "x.yaml") == 3
    assert "Cassettes there: trip.\n" in capsys.readouterr().err
    assert not Path("x.yaml").exists()


@pytest.mark.parametrize(("file", "held", "said"), [
    ("mine.yaml", b"precious: notes\n", "Not overwritten"),
    ("theirs.har", (FORMATS / "mitmproxy.har").read_bytes(), "was not written by llmproxy"),
])  # fmt: skip
def test_export_overwrites_only_our_own(file: str, held: bytes, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is damaged or not ours, as a HAR that a browser saved, is left alone unless forced."""
    run("import", cassette(Path("trip.yaml"), "a"))
    Path(file).write_bytes(held)
    assert run("export", "--cassette", "trip", file) == 3
    assert Path(file).read_bytes() == held
    assert said in capsys.readouterr().err
    assert run("export", "--cassette", "trip", file, "--force") == 0
    assert run("export", "--cassette", "trip", file) == 0


@pytest.mark.parametrize(
    ("path", "cassette", "interactions"),
    [("mitmproxy.har", "mitmproxy", 7), ("mitmproxy.flows", "mitmproxy", 7), ("cassetter.yaml", "cassetter", 7),
     ("cassetter.toml", "cassetter", 7), ("ddapm", "ddapm", 6), ("aimock", "aimock", 12)],
)  # fmt: skip
def test_other_programs_files(path: str, cassette: str, interactions: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What other programs wrote is told by its content and becomes a cassette; a second import doubles nothing."""
    assert run("import", FORMATS / path, *OPENAI) == 0
    first = stored(cassette)
    assert len(first) == interactions
    assert {each.provider for each in first} <= {"openai", "anthropic"}
    assert run("import", FORMATS / path, *OPENAI) == 0
    assert [(each.key, each.response) for each in stored(cassette)] == [(each.key, each.response) for each in first]
    assert "skipped" not in capsys.readouterr().out


def test_a_folder_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """In a folder, what is no recording is passed over; where each exchange has a file, the folder is the cassette."""
    assert run("import", FORMATS / "ddapm", FORMATS / "aimock", FORMATS / "cassetter.toml", "--cassette", "all") == 0
    assert "1 cassette with 25 interactions" in capsys.readouterr().out
    Path("mixed").mkdir()
    Path("mixed/package.json").write_text("{}")
    assert run("import", "mixed") == 3
    assert "holds no file of recordings" in capsys.readouterr().err
    cassette(Path("mixed/trip.yaml"), "a")
    assert run("import", "mixed") == 0
    assert len(stored("trip")) == 1


def test_a_forced_format(capsys: pytest.CaptureFixture[str]) -> None:
    """`--format` reads a file as what it is said to be."""
    assert run("import", FORMATS / "mitmproxy.har", "--format", "vcr") == 3
    assert "`version` must be 1" in capsys.readouterr().err
    assert run("import", FORMATS / "mitmproxy.har", "--format", "har", *OPENAI) == 0
    Path("notes.txt").write_text("hello")
    assert run("import", "notes.txt") == 3
    assert "not a file of recordings of any format that we know" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["trip.har", "trip.jsonl", "out/trip.yaml"])
def test_every_export_comes_back(file: str) -> None:
    """Store -> file -> store loses nothing, whichever format the file's name asks for; but for review, what chooses no answer."""
    run("import", FORMATS / "mitmproxy.flows", "--cassette", "trip", *OPENAI)
    assert run("export", "--cassette", "trip", file) == 0
    assert run("export", "--cassette", "trip", file) == 0  # our own is overwritten
    assert run("import", file, "--store", "second.db", *OPENAI) == 0
    before, after = stored("trip"), stored("trip", Path("second.db"))
    if file.endswith(".yaml"):
        before = [replace(old, request=new.request) for old, new in zip(before, after, strict=True)]
    assert after == before


def test_export_of_all_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    """`export --all DIR` writes a file a cassette, `import DIR` reads them under their own names."""
    run("import", cassette(Path("one.yaml"), "a", "b", "a"), cassette(Path("odd name.yaml"), "c"))
    assert run("export", "--all", "kept") == 0
    assert "Wrote 2 cassettes to kept." in capsys.readouterr().out
    assert sorted(path.name for path in Path("kept").iterdir()) == [f"{build_slug('odd name')}.yaml", "one.yaml"]
    assert run("import", "kept", "--store", "second.db") == 0
    for name in ("one", build_slug("odd name")):
        back, first = stored(name, Path("second.db")), stored(name)
        assert [replace(each, id=None) for each in back] == [replace(each, id=None) for each in first]
    assert run("export", "--all", "hars", "--format", "har") == 0
    assert sorted(path.suffix for path in Path("hars").iterdir()) == [".har", ".har"]


@pytest.mark.parametrize("options", [("--cassette", "x"), ("--sample", "2"), ("-",), ("--format", "aimock")])
def test_options_that_do_not_go_together(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """`--all` takes everything into a folder; formats of others are read only."""
    run("import", cassette(Path("one.yaml"), "a"))
    folder = () if "-" in options else ("kept",)
    assert run("export", "--all", *folder, *options) == 2
    assert not Path("kept").exists()


def test_a_fork_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    """In files for review; what another format has no place for is said."""
    fork = Fork(
        "trip@fork-1",
        "trip",
        2,
        "because",
        overrides=parse_answer_override_options(["get_weather=5"], []),
        created_at=1.5,
    )
    run("import", cassette(Path("a.yaml"), "a", "b"), "--cassette", fork.cassette)
    with SqliteCassetteStore.open(Path("llmproxy.db"), writable=True, now=lambda: 0.0) as store:
        store_fork_row(store, fork)
    capsys.readouterr()
    assert run("export", "--cassette", fork.cassette, "f.har") == 0
    assert "har cannot say so; without it the result of get_weather is not swapped" in capsys.readouterr().err
    assert run("export", "--cassette", fork.cassette, "--format", "review", "f.yaml") == 0
    assert run("export", "--all", "all") == 0
    assert capsys.readouterr().err == ""
    assert run("textconv", "llmproxy.db") == 0
    assert "fork:\n  parent: trip\n" in capsys.readouterr().out
    for number, file in enumerate(("f.yaml", "all")):
        assert run("import", file, "--store", f"{number}.db") == 0
        with SqliteCassetteStore.open(Path(f"{number}.db"), writable=False, now=lambda: 0.0) as store:
            assert find_fork(store, fork.cassette, 1) == fork


def test_textconv(capsys: pytest.CaptureFixture[str]) -> None:
    """A store as text: every live cassette in the format for review, the same text each time."""
    run("import", cassette(Path("one.yaml"), "a", "b"), cassette(Path("two.yaml"), "c"))
    capsys.readouterr()
    assert run("textconv", "llmproxy.db") == 0
    text = capsys.readouterr().out
    assert re.findall(r"^cassette: (.*)$", text, re.MULTILINE) == ["one", "two"]
    assert run("textconv", "llmproxy.db") == 0
    assert capsys.readouterr().out == text
    assert run("textconv", "missing.db") == 3


def test_git_shows_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    """With the recipe of docs/cassettes.md `git diff` shows what changed in a committed store."""
    if shutil.which("git") is None:
        pytest.skip("MISSING: git")

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
        return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("config", "diff.llmproxy.textconv", f"{sys.executable} -m llmproxy textconv")
    Path(".gitattributes").write_text("llmproxy.db diff=llmproxy\n")
    run("import", cassette(Path("one.yaml"), "a"))
    git("add", "llmproxy.db", ".gitattributes")
    git("commit", "-qm", "one")
    run("import", cassette(Path("one.yaml"), "a", "b"))
    diff = git("diff")
    assert "json: {answer: b}" in diff
    assert "\n-" not in diff.replace("\n---", "")


def test_a_host_that_was_not_known_is_named_later(capsys: pytest.CaptureFixture[str]) -> None:
    """It says how, and what was imported as nobody's is replaced."""
    assert run("import", FORMATS / "mitmproxy.har") == 0
    typed = capsys.readouterr().out.rstrip().rpartition(": llmproxy ")[2].split()
    assert typed == ["import", str(FORMATS / "mitmproxy.har"), "--upstream", "openai=http://127.0.0.1:9911/v1"]
    assert run(*typed) == 0
    assert {each.provider for each in stored("mitmproxy")} == {"openai"}
    assert run("import", FORMATS / "mitmproxy.har") == 0  # without the name: what is known by now stays
    assert {each.provider for each in stored("mitmproxy")} == {"openai"}
    assert len(stored("mitmproxy")) == 7


def test_what_is_no_model_s_beside_it_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A browser's archive has pages and pictures of the same host, and of others: nobody's API, and no question."""
    har = json.loads((FORMATS / "mitmproxy.har").read_text())
    (extra := json.loads(json.dumps(har["log"]["entries"][-1])))["request"] |= {"method": "GET", "postData": None}
    extra["request"]["url"] = "http://127.0.0.1:9911/favicon.ico"
    page = {**extra, "request": {**extra["request"], "url": "https://www.example.com/"}}
    har["log"]["entries"] += [extra, page]
    Path("web.har").write_text(json.dumps(har))
    assert run("import", "web.har") == 0
    assert "Whose API is at 127.0.0.1:9911" in (said := capsys.readouterr().out)
    assert "Whose API is at www.example.com" not in said
    assert run("import", "web.har", *OPENAI) == 0
    assert "Whose API" not in (said := capsys.readouterr().out)
    assert re.search(r"127\.0\.0\.1:9911 +openai ", said)
    assert len(stored("web")) == 9


def test_bodies_that_a_serializer_parsed_are_read() -> None:
    """pydantic-ai's cassettes keep JSON as a tree, in place of its text."""
    (path := Path("parsed.yaml")).write_text(
        "version: 1\ninteractions:\n- request:\n    method: POST\n    uri: https://api.openai.com/v1/chat/completions\n"
        "    headers: {content-type: [application/json]}\n    parsed_body: {model: gpt-4o, messages: [{role: user, content: hi}]}\n"
        "  response:\n    status: {code: 200, message: OK}\n    headers: {content-type: [application/json]}\n"
        "    parsed_body: {choices: [{message: {role: assistant, content: Hü!}}]}\n"
    )
    assert run("import", path) == 0
    (one,) = stored("parsed")
    assert json.loads(one.request.body)["messages"] == [{"role": "user", "content": "hi"}]
    assert one.response.body.decode() == '{"choices":[{"message":{"role":"assistant","content":"Hü!"}}]}'


def test_yaml_is_the_project_s_own_format_unless_another_is_asked_for() -> None:
    """That of vcrpy is written with --format vcr."""
    assert run("import", cassette(Path("trip.yaml"), "a")) == 0
    assert run("export", "--cassette", "trip", "mine.yaml") == 0
    assert "\nllmproxy-cassette: 1\n" in Path("mine.yaml").read_text()
    assert run("export", "--cassette", "trip", "theirs.yaml", "--format", "vcr") == 0
    assert Path("theirs.yaml").read_text().startswith("interactions:\n")


def test_accepted_changes_leave_with_their_cassette(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file for review has them, so that a fresh clone carries what this machine does."""
    path = tmp_path / "llmproxy.db"
    fill(path, chat())
    day = date(2026, 11, 26)
    accepted = AcceptedChange("system-3f2a", "system prompt", "+ x", frozenset([("a" * 16, "b" * 16)]), day)
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as store:
        store_accepted_changes(store, "default", [accepted])
    one = ("--cassette", "default", "--format", "review", str(tmp_path / "one.yaml"))
    for words in (("--all", str(tmp_path / "tapes")), one):
        assert run_on(capsys, path, "export", *words)[0] == 0
    for file in (tmp_path / "tapes" / "default.yaml", tmp_path / "one.yaml"):
        assert "- name: system-3f2a" in file.read_text("utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, team_url: str) -> Path:
    """A folder with a store in a file, where LLMPROXY_STORE names a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMPROXY_STORE", team_url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fill(tmp_path / "llmproxy.db", chat(), chat("And now?", "Still fine.", cassette="other"))
    return tmp_path


@pytest.mark.parametrize("words", [("--all",), ("--cassette", "trip")])
def test_an_export_to_a_server_is_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Its URL would become folders with the password in their names; it is not repeated either."""
    code, out = said(capsys, "export", *words, "postgresql://bob:S3CRET@db/x")
    assert (code, "S3CRET" in out, list(Path().glob("postgresql*"))) == (2, False, [])


def test_a_cassette_goes_to_the_server_and_comes_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, once however often it is pushed, under another name if asked; the help names the kind of server."""
    assert "postgresql://USER@HOST/DATABASE" in said(capsys, "push", "--help")[1]
    assert said(capsys, "push", "default", "other")[0] == 0
    code, out = said(capsys, "push", "default")
    assert (code, "there already, the same 1 interaction" in out) == (0, True)
    code, out = said(capsys, "pull", "default", "--file", "copy.db", "--as", "mine")
    assert code == 0, out
    with (
        SqliteCassetteStore.open(folder / "llmproxy.db", writable=False, now=lambda: NOW) as one,
        SqliteCassetteStore.open(folder / "copy.db", writable=False, now=lambda: NOW) as other,
    ):
        before, after = next(one.iter_interactions("default")), next(other.iter_interactions("mine"))
        assert (before.request, before.response, before.key) == (after.request, after.response, after.key)
        assert other.last_session_ended_cleanly("mine", 1) == one.last_session_ended_cleanly("default", 1)


def test_what_differs_is_said_and_replaced_only_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "push", "default")[0] == 0
    fill(folder / "llmproxy.db", chat("One more?", "Yes."))
    code, out = said(capsys, "push", "default")
    assert (code, "1 of 2 recordings are new" in out, "--replace" in out) == (2, True, True)
    code, out = said(capsys, "push", "default", "--replace")
    assert (code, "1 that it had there are replaced" in out) == (0, True)
    code, out = said(capsys, "ls")
    assert "Yes." in out
    assert said(capsys, "push", "default")[1].count("there already") == 1


def test_commands_look_at_the_server(folder: Path, capsys: pytest.CaptureFixture[str], team_url: str) -> None:
    """As at a file; what only a file has says how it can be done all the same."""
    assert said(capsys, "push", "default", "other")[0] == 0
    code, out = said(capsys, "ls")
    assert (code, "other" in out, "default" in out) == (0, True, True)
    assert said(capsys, "show", "1")[0] == 0
    code, out = said(capsys, "verify")
    assert (code, "nothing is wrong" in out) == (0, True), out
    assert said(capsys, "export", "x.yaml", "--cassette", "other")[0] == 0
    code, out = said(capsys, "import", "x.yaml", "--cassette", "third")
    assert (code, "in postgresql://" in out) == (0, True), out
    code, out = said(capsys, "fork", "other")
    assert (code, "llmproxy pull NAME" in out) == (3, True), out
    code, out = said(capsys, "merge", "llmproxy.db", "--store", team_url)
    assert (code, "llmproxy push NAME" in out) == (2, True), out


def test_recordings_of_the_server_are_changed(folder: Path, capsys: pytest.CaptureFixture[str], team_url: str) -> None:
    """By the words that change them in a file."""
    assert said(capsys, "push", "default", "other")[0] == 0
    code, out = said(capsys, "rename", "other", "renamed")
    assert (code, out) == (0, "other is now renamed.\n")
    code, out = said(capsys, "rm", "renamed", "--yes")
    assert (code, out.splitlines()[-1]) == (0, "Deleted 1 interaction.")
    assert f"of {team_url}" in out
    code, out = said(capsys, "ls")
    assert ("renamed" in out, "default" in out) == (False, True)
    fill(folder / "llmproxy.db", chat("One more?", "Yes."))
    assert said(capsys, "push", "default", "--replace")[0] == 0
    code, out = said(capsys, "prune", "--yes")
    assert (code, "1 interaction of cassette default: 0 live, 1 replaced" in out) == (0, True), out
    code, out = said(capsys, "prune")
    assert (code, out) == (0, f"There is nothing to delete in {team_url}.\n")


def test_keys_of_the_server_are_brought_up_to_date(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the rules of what is equal have changed."""
    assert said(capsys, "push", "default", "other")[0] == 0
    (folder / "pyproject.toml").write_text('[tool.llmproxy.normalize]\nignore = ["$.user"]\n')
    code, out = said(capsys, "verify", "--rekey")
    assert (code, "nothing is wrong" in out) == (0, True), out
    code, out = said(capsys, "verify")
    assert (code, "rules" in out) == (0, False), out


def test_a_file_is_no_server(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a cassette that is not there is said by name."""
    assert said(capsys, "push", "default", "--store", "x.db")[0] == 2
    code, out = said(capsys, "push", "nosuch")
    assert (code, "nosuch" in out) == (3, True)
    assert said(capsys, "push", "default", "other", "--as", "one")[0] == 2
