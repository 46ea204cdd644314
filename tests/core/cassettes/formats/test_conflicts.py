"""Cassettes of two branches, merged by the real git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from llmproxy.core.cassettes.folder import CassetteDir
from llmproxy.core.cassettes.formats import Source, conflicts, review
from llmproxy.core.keys.normalize import Rules
from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteCorrupt
from tests.core.cassettes.test_folder import answers, record
from tests.support.recordings import NOW

LONG = "You are a helpful assistant, brief and exact, and you know all there is to know about the weather in Oslo. "


def saved(folder: Path, name: str, *texts: str, at: float = 0) -> str:
    """Return the file of a cassette with these chats."""
    with Store.open(folder / f"{name}.db", writable=True, now=lambda: NOW) as store:
        for n, text in enumerate(texts):
            record(store, LONG + text, at=NOW + n + (at if n > 1 else 0))
        path = CassetteDir(folder / name, now=lambda: NOW).save(store, "trip")
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
    assert conflicts.is_conflicted(source)
    kept = review.read(Source(conflicts.keep_both(source).encode(), "trip.yaml"))
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
    with Store.open(branches / "x.db", writable=True, now=lambda: NOW) as store:
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
    with Store.open(branches / "x.db", writable=True, now=lambda: NOW) as store:
        with pytest.raises(
            CassetteCorrupt, match=r"trip\.yaml: both sides .* interaction 4 of ours and interaction 4 of theirs"
        ):
            kept.load_into(store, rules=Rules())
        assert answers(store) == []
    assert path.read_text() == text


@pytest.mark.parametrize("broken", [">>>>>>> x\n", "<<<<<<< x\n<<<<<<< y\n", "<<<<<<< x\n=======\n"])
def test_markers_that_do_not_fit_are_an_error(branches: Path, broken: str) -> None:
    """Half a conflict is never guessed at."""
    text = (branches / "ours").read_text().replace("interactions:\n", f"interactions:\n{broken}")
    with pytest.raises(CassetteCorrupt, match=r"conflict"):
        conflicts.split_sides(Source(text.encode(), "trip.yaml"))
