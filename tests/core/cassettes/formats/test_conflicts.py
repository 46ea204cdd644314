"""Cassettes of two branches, merged by the real git."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from llmproxy.core.cassettes.folder_sync import CassetteDir
from llmproxy.core.cassettes.formats import Source, review_yaml
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.errors import CassetteCorrupt
from tests.core.cassettes.test_folder import answers, record
from tests.support.recordings import NOW

LONG = "You are a helpful assistant, brief and exact, and you know all there is to know about the weather in Oslo. "


def saved(folder: Path, name: str, *texts: str, at: float = 0) -> str:
    with SqliteCassetteStore.open(folder / f"{name}.db", writable=True, now=lambda: NOW) as store:
        for n, text in enumerate(texts):
            record(store, LONG + text, at=NOW + n + (at if n > 1 else 0))
        path = CassetteDir(folder / name, now=lambda: NOW).save_cassette(store, "trip")
    assert path is not None
    return path.read_text()


def merged(folder: Path, *, style: str = "merge") -> str:
    """Let git merge `ours` and `theirs` over `base`; the text that it leaves."""
    command = ["git", "-c", f"merge.conflictStyle={style}", "merge-file", "-p"]
    done = subprocess.run(
        [*command, "ours", "base", "theirs"], cwd=folder, capture_output=True, text=True, check=False, timeout=30
    )
    assert "<<<<<<<" in done.stdout
    return done.stdout


@pytest.fixture
def branches(tmp_path: Path) -> Path:
    """Return a folder with three versions of a file, each side with an interaction of its own and one that both have."""
    (tmp_path / "base").write_text(saved(tmp_path, "0", "a", "b"))
    (tmp_path / "ours").write_text(saved(tmp_path, "1", "a", "b", "both", "mine", at=10))
    (tmp_path / "theirs").write_text(saved(tmp_path, "2", "a", "b", "both", "yours", "more", at=20))
    return tmp_path


@pytest.mark.parametrize("style", ["merge", "diff3", "zdiff3"])
def test_both_sides_are_kept(branches: Path, style: str) -> None:
    """In every style of markers: what each side has is there, what both have stands there once."""
    text = merged(branches, style=style)
    source = Source(text.encode(), "trip.yaml")
    assert review_yaml.has_git_conflict_markers(source)
    kept = review_yaml.read(Source(review_yaml.merge_git_conflict_sides(source).encode(), "trip.yaml"))
    asked = [each.body.decode() for each in kept]
    assert [
        sum(f'Oslo. {text}"' in each for each in asked) for text in ("a", "b", "both", "mine", "yours", "more")
    ] == [1] * 6
    assert len(kept) == 6


def test_a_start_resolves_the_conflict(branches: Path) -> None:
    """The folder is read as if somebody had merged by hand, and the file is whole afterwards."""
    kept = CassetteDir(branches / "kept", now=lambda: NOW)
    kept.path.mkdir()
    path = kept.path / "trip.yaml"
    path.write_text(merged(branches))
    with SqliteCassetteStore.open(branches / "x.db", writable=True, now=lambda: NOW) as store:
        found = kept.load_into(store, rules=Rules())
        assert (found.merged, found.interactions) == ((path,), 6)
        assert len(answers(store)) == 6
        assert "<<<<<<<" not in path.read_text()
        assert kept.load_into(store, rules=Rules()).merged == ()


def test_two_answers_to_one_request_are_an_error(branches: Path) -> None:
    """Nobody but a person knows which is right: said with file and both places, and the file stays as it is."""
    theirs = (branches / "theirs").read_text().replace("yours", "mine").replace(f"to {LONG}mine", "another answer")
    (branches / "theirs").write_text(theirs)
    text = merged(branches)
    kept = CassetteDir(branches / "kept", now=lambda: NOW)
    kept.path.mkdir()
    path = kept.path / "trip.yaml"
    path.write_text(text)
    with SqliteCassetteStore.open(branches / "x.db", writable=True, now=lambda: NOW) as store:
        with pytest.raises(
            CassetteCorrupt, match=r"trip\.yaml: both sides .* line \d+ \(ours\) and line \d+ \(theirs\)"
        ) as found:
            kept.load_into(store, rules=Rules())
        assert answers(store) == []
    assert path.read_text() == text
    lines = text.splitlines()
    for at in re.findall(r"line (\d+)", str(found.value)):
        assert re.search("request|^<<<<<<<|^=======", lines[int(at) - 1]), at


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_question_that_is_asked_again_stays_asked_again(tmp_path: Path, by_hand: bool) -> None:
    """Equal interactions of both sides stay once, those of one side stay, others are an error; none needs a number."""

    def version(name: str, *said: str) -> None:
        """Write a file: each is a question and, behind a colon, its answer."""
        with SqliteCassetteStore.open(tmp_path / f"{name}.db", writable=True, now=lambda: NOW) as store:
            record(store, *(LONG + each.partition(":")[0] for each in said))
            path = CassetteDir(tmp_path / f"{name}.d", now=lambda: NOW).save_cassette(store, "trip")
        assert path is not None
        left = iter(said)
        text = re.sub(
            rf'"to {re.escape(LONG)}(\w+)"',
            lambda found: f'"to {next(left).partition(":")[2] or found[1]}"',
            path.read_text(),
        )
        assert next(left, None) is None
        (tmp_path / name).write_text(re.sub(r"\n    occurrence: \d+", "", text) if by_hand else text)

    version("base", "a", "q:1")
    version("ours", "a", "q:1", "q:2", "mine")
    version("theirs", "a", "q:1", "q:2", "q:3", "yours")
    united = review_yaml.merge_git_conflict_sides(Source(merged(tmp_path).encode(), "trip.yaml"))
    said = [each.response_body for each in review_yaml.read(Source(united.encode(), "trip.yaml"))]
    assert [sum(answer in body for body in said) for answer in (b"to 1", b"to 2", b"to 3")] == [1, 1, 1], said
    assert len(said) == 6
    version("theirs", "a", "q:1", "q:other", "yours")
    with pytest.raises(CassetteCorrupt, match="both sides"):
        review_yaml.merge_git_conflict_sides(Source(merged(tmp_path).encode(), "trip.yaml"))


def test_changes_that_two_branches_accepted_are_both_kept(tmp_path: Path) -> None:
    """What one accepted is not lost where the other accepted something else; what both have stands there once."""
    text = saved(tmp_path, "0", "a")
    for name, accepted in (("base", ""), ("ours", "both mine"), ("theirs", "both yours")):
        rows = "".join(f"  - name: {each}\n" for each in accepted.split())
        head = f"changes:\n{rows}interactions:" if rows else "interactions:"
        (tmp_path / name).write_text(text.replace("interactions:", head, 1))
    united = review_yaml.merge_git_conflict_sides(Source(merged(tmp_path).encode(), "trip.yaml"))
    assert re.findall(r"- (?:\{)?name: (\w+)", united) == ["both", "mine", "yours"]


@pytest.mark.parametrize("broken", [">>>>>>> x\n", "<<<<<<< x\n<<<<<<< y\n", "<<<<<<< x\n=======\n"])
def test_markers_that_do_not_fit_are_an_error(branches: Path, broken: str) -> None:
    text = (branches / "ours").read_text().replace("interactions:\n", f"interactions:\n{broken}")
    with pytest.raises(CassetteCorrupt, match=r"conflict"):
        review_yaml.split_conflict_sides(Source(text.encode(), "trip.yaml"))
