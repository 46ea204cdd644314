"""One place opens databases: what is looked at stays as it is, and nobody gives up the locks of a living recorder."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from urllib.parse import unquote

import pytest

import llmproxy
from llmproxy import sqlite_file
from llmproxy.cli import COMMANDS, main
from llmproxy.cli.ui import make_viewer_query_function
from llmproxy.core.cassettes.folder_sync import CassetteDir
from llmproxy.core.engine.engine import Engine
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig
from llmproxy.core.sessions.journal import (
    CallDecisionJournalWriter,
    read_ids_used_last_run,
    read_last_misses_from_journal,
)
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.store import Store
from llmproxy.errors import RecordingError
from llmproxy.protocol import Mode
from llmproxy.scenario.cache_store import CacheStore
from llmproxy.sqlite_file import (
    SqliteFileStatus,
    copy_raw_database_file,
    detect_sqlite_file_state,
    open_sqlite_connection,
    read_head_of_non_database,
    sidecar_path,
)
from llmproxy.trace import Cassette
from tests.support.chats import chat
from tests.support.recordings import NOW, interaction, look, reopened

LOCKS = Path("/proc/locks")
SIDECARS = ("-wal", "-shm", "-journal")
"""What SQLite puts beside a database."""
PACKAGE = Path(llmproxy.__file__).parent
HERE = Path(__file__).resolve().parents[1]


# --- what lies at a path -------------------------------------------------------------------------------------------------


def rest(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE t (a)")


def in_write_ahead(path: Path) -> None:
    rest(path)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode=WAL")


def killed_while_writing(path: Path) -> None:
    code = """if True:
        import os, sqlite3, sys
        conn = sqlite3.connect(sys.argv[1], isolation_level=None)
        conn.execute("CREATE TABLE t (a)")
        conn.execute("PRAGMA cache_size=1")
        conn.execute("BEGIN")
        conn.executemany("INSERT INTO t VALUES (?)", [("x" * 4000,)] * 100)
        os._exit(9)
    """
    subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60)
    assert sidecar_path(path, "-journal").stat().st_size


FOUND: dict[str, tuple[Callable[[Path], object], SqliteFileStatus]] = {
    "nothing": (lambda _: None, SqliteFileStatus.ABSENT),
    "a folder": (Path.mkdir, SqliteFileStatus.FOLDER),
    "no bytes": (Path.touch, SqliteFileStatus.EMPTY),
    "a database": (rest, SqliteFileStatus.ROLLBACK),
    "write-ahead": (in_write_ahead, SqliteFileStatus.WAL),
    "a crash": (killed_while_writing, SqliteFileStatus.ROLLBACK),
    "a byte": (lambda path: path.write_bytes(b"x"), SqliteFileStatus.FOREIGN),
    "yaml": (lambda path: path.write_text("a: b\n" * 200), SqliteFileStatus.FOREIGN),
    "a cut head": (lambda path: path.write_bytes(b"SQLite format 3\0"), SqliteFileStatus.FOREIGN),
}


@pytest.mark.parametrize("name", FOUND)
def test_looking_tells_what_is_there_and_changes_nothing(name: str, tmp_path: Path) -> None:
    """Every state a file can be in is told, and neither it nor its folder is touched."""
    make, state = FOUND[name]
    path = tmp_path / "a b%20?#ü.db"
    make(path)
    before = look(tmp_path) if state is not SqliteFileStatus.FOLDER else None
    assert detect_sqlite_file_state(path) is state
    assert before is None or look(tmp_path) == before


def test_a_damaged_database_is_not_taken_for_another_file(tmp_path: Path) -> None:
    """A database that was cut, or whose schema is no text, is an error, never an empty or a foreign file."""
    path = tmp_path / "x.db"
    rest(path)
    whole = path.read_bytes()
    for damaged in (whole[:1500], whole.replace(b"CREATE TABLE", b"CREATE\xddTABLE", 1)):
        path.write_bytes(damaged)
        with pytest.raises(sqlite3.DatabaseError) as raised:
            detect_sqlite_file_state(path)
        assert raised.value.sqlite_errorcode == sqlite3.SQLITE_CORRUPT
        assert not sqlite_file.passes_quick_check(path)


# --- locks ---------------------------------------------------------------------------------------------------------------


def locks(path: Path) -> list[str]:
    """Return the locks that this process holds on a database and on the files beside it."""
    inodes = {
        str(each.stat().st_ino): each.name
        for each in (path, *(sidecar_path(path, suffix) for suffix in SIDECARS))
        if each.exists()
    }
    held = [line.split() for line in LOCKS.read_text().splitlines()]
    return sorted(
        f"{inodes[where]} {kind} {first}-{last}"
        for _, _, _, kind, pid, place, first, last in (words for words in held if len(words) == 8)
        if pid == str(os.getpid()) and (where := place.rpartition(":")[2]) in inodes
    )


_seen: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    """Note who opens a database beside the one place for it; an audit hook cannot be taken out again, so it can be switched off."""
    if _seen is None or event not in ("open", "sqlite3.connect"):
        return
    name = unquote(os.fsdecode(arguments[0])) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
    if event == "open" and not name.endswith((".db", "-wal", "-shm", "-journal")):
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(str(PACKAGE)):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename != sqlite_file.__file__:
        _seen.append(f"{event} {name} by {frame.f_code.co_filename}:{frame.f_lineno}")


sys.addaudithook(_audit)


@contextmanager
def watched(path: Path) -> Iterator[None]:
    """See that the block takes no lock away, and opens no database but through the one place."""
    global _seen  # noqa: PLW0603 - see _audit
    before = locks(path) if LOCKS.exists() else []
    assert before or not LOCKS.exists()
    found: list[str] = []
    _seen = found
    try:
        yield
    finally:
        _seen = None
    assert not found
    if LOCKS.exists():
        # the kernel lists locks a page at a time: one is passed over when another process gives an earlier one up
        assert any(not set(before) - set(locks(path)) for _ in range(20))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a store may be made, with everything else that commands look at beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCENARIO_CACHE_DIR", str(tmp_path))
    return tmp_path / "llmproxy.db"


@pytest.fixture
def recorder(path: Path) -> Iterator[Store]:
    with SqliteCassetteStore.open(path, writable=True, now=time.time) as store:
        store.add_interaction(chat(), supersede=False)
        store.add_interaction(chat("And now?"), supersede=False)
        journal = CallDecisionJournalWriter.open(Path(f"{path}.state.db"), time.time)
        CacheStore(path.parent / "cache.db").put("key", "value", name="f", cache_key="k")
        yield store
        journal.close()


TYPED: dict[str, list[list[str]]] = {
    "start": [["--port", "99999"]],  # what it does with the store: test_whatever_opens_the_store below
    "run": [["--port", "0", "--", "true"]],
    "replay": [["--cassette", "default", "--", "true"]],
    "fork": [["default", "--at", "1"]],
    "faults": [[]],
    "env": [[]],
    "doctor": [[]],
    "demo": [["--help"]],  # it records into a folder of its own
    "ls": [[], ["--json"]],
    "show": [["1"], ["1", "--raw"]],
    "diff": [["1", "2"], ["default", "default"]],
    "why": [[]],
    "verify": [[], ["--rekey"]],
    "rm": [["2", "--yes"]],
    "rename": [["default", "other"], ["other", "default"]],
    "rerecord": [["1"]],
    "drift": [[], ["--accept"]],
    "changes": [["--", "true"], ["list"]],
    "review": [[]],
    "accept": [["system-0000"]],
    "mcp": [["--mode", "replay", "--", "true"]],
    "prune": [["--cassette", "default", "--yes"]],
    "import": [["cassettes"], ["llmproxy.db"]],
    "export": [
        ["--cassette", "default", "out.yaml"],
        ["--cassette", "default", "out.har", "--format", "spans"],
        ["out.html", "--all"],
    ],
    "textconv": [["llmproxy.db"]],
    "merge": [["llmproxy.db", "--store", "merged.db"]],
    "push": [["default", "--file", "llmproxy.db"]],
    "pull": [["default", "--file", "llmproxy.db"]],
    "settings": [[]],
    "addon": [[]],
    "test": [["x.suite.yaml"]],
    "suite": [["from-session", "default"]],
    "judge": [["calibrate", "x.yaml"]],
    "label": [["report.json"]],
    "cache": [["stats"], ["list"], ["clear", "--yes"]],
    "status": [[]],
    "stop": [[]],
    "learn": [["default", "--", "true"]],
    "audit": [[]],
    "scan": [["."]],
    "ui": [["no such cassette"]],  # what its page asks: test_whatever_opens_the_store below
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_disturbs_a_living_recorder(command: str, path: Path, recorder: Store) -> None:
    """Whatever is run in the process that records: its locks stay, and what it stores afterwards is found."""
    (path.parent / "x.yaml").write_text("[]")
    for typed in TYPED[command]:
        with watched(path):
            main([command, *typed])
    new = recorder.add_interaction(chat(command), supersede=False)
    assert recorder.load(new).request.body


def engine(mode: Mode, path: Path) -> None:
    journal = CallDecisionJournalWriter.open(Path(f"{path}.state.db"), time.time)
    config = EngineConfig(mode=mode, store=path, cassette_dir=path.parent / "kept")
    made = Engine(config, redactor=Redactor(), journal=journal, now=time.time, clock=time.monotonic)
    made.sessions.open_session("default")
    made.notes()
    made.count_unused()
    made.sessions.close_session("default")
    made.close()
    journal.close()


def cassettes(path: Path) -> None:
    with SqliteCassetteStore.open(path, writable=True, now=time.time) as store:
        kept = CassetteDir(path.parent / "kept", now=time.time)
        kept.save_cassette(store, "default")
        kept.load_into(store, rules=Rules())


def crashed_copy(path: Path) -> None:
    copy_raw_database_file(path, path.with_name("copied.db"))
    read_head_of_non_database(path)


OPENERS: dict[str, Callable[[Path], object]] = {
    "reader": lambda path: reopened(path).close(),
    "writer": lambda path: reopened(path, writable=True).close(),
    "peek": detect_sqlite_file_state,
    "copy": crashed_copy,
    "trace": lambda path: Cassette.from_store(path, cassette="default"),
    "journal": lambda path: (
        read_last_misses_from_journal(Path(f"{path}.state.db"), 1),
        read_ids_used_last_run(Path(f"{path}.state.db")),
    ),
    "journal of": lambda path: CallDecisionJournalWriter.open(path.with_name("other.state.db"), time.time).close(),
    "cache": lambda path: CacheStore(path.with_name("cache.db")).get("key"),
    "cassettes": cassettes,
    "viewer": lambda path: make_viewer_query_function(path)("steps", {"cassette": "default"}),
    **{mode.value: partial(engine, mode) for mode in Mode},
}


@pytest.mark.parametrize("opener", OPENERS)
def test_whatever_opens_the_store_leaves_the_recorder_its_locks(opener: str, path: Path, recorder: Store) -> None:
    """Readers, further writers, engines of every mode, the folder of cassettes, journals: none gives the recorder's locks up."""
    with watched(path):
        OPENERS[opener](path)
    assert recorder.add_interaction(chat(opener), supersede=False)


@pytest.mark.parametrize("opener", ["nothing", "reader", "copy", "cassettes", "once"])
def test_a_second_process_that_ends_takes_nothing_with_it(opener: str, path: Path, recorder: Store) -> None:
    """Acknowledged is stored: another process opens the store, records and ends, while this one goes on recording."""
    if opener in OPENERS:
        OPENERS[opener](path)
    other = """if True:
        import sys
        sys.path.insert(0, sys.argv[2])
        from pathlib import Path
        from tests.support.recordings import interaction, reopened
        with reopened(Path(sys.argv[1]), writable=True) as store:
            store.add_interaction(interaction(7, cassette="other"), supersede=False)
    """
    done = subprocess.run(
        [sys.executable, "-c", other, str(path), str(HERE)], check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    acknowledged = [recorder.add_interaction(interaction(n, cassette="mine"), supersede=False) for n in range(5)]
    recorder.close()
    with reopened(path) as store:
        assert [row.id for row in store.list_summaries("mine")] == acknowledged
        assert len(store.list_summaries("other")) == 1
        assert store.conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_descriptor_of_ours_is_closed_with_the_last_connection(path: Path, recorder: Store) -> None:
    """What could not be closed is kept exactly as long as it must be: nothing leaks."""
    fds = Path("/proc/self/fd")
    if not fds.exists():
        pytest.skip("no /proc")

    def held() -> int:
        return sum(each.is_symlink() and str(each.readlink()) == str(path) for each in fds.iterdir())

    before = held()
    crashed_copy(path)
    assert held() > before
    recorder.close()
    assert held() == 0


def test_only_one_module_opens_databases() -> None:
    """`sqlite3.connect` stands in one file."""
    openers = [
        file.relative_to(PACKAGE).as_posix()
        for file in sorted(PACKAGE.rglob("*.py"))
        if "sqlite3.connect(" in file.read_text(encoding="utf-8")
    ]
    assert openers == ["sqlite_file.py"]


# --- files that vanish ---------------------------------------------------------------------------------------------------


def removed(path: Path) -> None:
    for suffix in ("", *SIDECARS):
        sidecar_path(path, suffix).unlink(missing_ok=True)


def replaced(path: Path) -> None:
    removed(path)
    with reopened(path, writable=True) as store:
        store.add_interaction(interaction(9, cassette="theirs"), supersede=False)


def cleaned(path: Path) -> None:
    """Do what `git clean` does where the store is committed."""
    for suffix in SIDECARS:
        sidecar_path(path, suffix).unlink(missing_ok=True)


@pytest.mark.parametrize("how", [removed, replaced, cleaned])
def test_what_is_acknowledged_is_in_the_file_under_the_path(how: Callable[[Path], None], path: Path) -> None:
    """A recorder whose file is taken away records into the one that lies there then; the lost one is an error."""
    gone = pytest.raises(RecordingError, match="some are gone") if how is removed else nullcontext()
    with gone, SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as store:
        store.add_interaction(interaction(1), supersede=False)
        how(path)
        acknowledged = [store.add_interaction(interaction(n), supersede=False) for n in (2, 3)]
        assert {slot.id for n in (2, 3) for slot in store.find_keyed("default", 1, "agent", interaction(n).key)} == set(
            acknowledged
        )
    with reopened(path) as again:
        stored = {row.key for row in again.list_summaries("default")}
    assert stored >= {interaction(2).key, interaction(3).key}


def test_connections_know_their_file(tmp_path: Path) -> None:
    """Through a symbolic link too: the files beside it are where SQLite makes them."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real" / "x.db")
    conn = open_sqlite_connection(link, "mode=rwc", timeout=1)
    conn.execute("CREATE TABLE t (a)")
    conn.switch_to_wal()
    assert conn.is_current()
    sidecar_path(tmp_path / "real" / "x.db", "-wal").unlink()
    assert not conn.is_current()
    conn.close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this system's folders")
def test_what_is_no_file_is_foreign_and_not_waited_for(tmp_path: Path) -> None:
    """A pipe gives its reader nothing until somebody writes: a start would hang."""
    pipe = tmp_path / "pipe.db"
    os.mkfifo(pipe)
    assert detect_sqlite_file_state(pipe) is SqliteFileStatus.FOREIGN
    assert read_head_of_non_database(pipe) == b""
