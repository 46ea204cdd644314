"""Which driver a database URL gets, and what its errors become."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import MachineError, SuiteError
from llmproxy.suite.stores.protocol import StoreLost, StoreRefused
from llmproxy.suite.stores.sql_engine import mask_url, open_engine, sqlite_file, translate_errors, url_for

HERE = Path("/suites")


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("postgresql://h/d", "postgresql+psycopg"),
        ("postgres://h/d", "postgresql+psycopg"),
        ("postgresql+asyncpg://h/d", "postgresql+psycopg"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg"),
        ("postgresql+pg8000://h/d", "postgresql+pg8000"),
        ("sqlite:///x.db", "sqlite"),
        ("sqlite+aiosqlite:///x.db", "sqlite"),
    ],
)
def test_the_agents_own_url_is_taken(text: str, driver: str) -> None:
    """A driver that needs an event loop is replaced by one that does not; one that was chosen stays."""
    assert url_for(text, HERE).drivername == driver


def test_a_missing_driver_is_named() -> None:
    with pytest.raises(MachineError, match="no driver for it is installed") as caught:
        url_for("mysql://h/d", HERE)
    assert "pip install 'pymysql'" in str(caught.value)
    with pytest.raises(MachineError, match="needs a driver that is not installed"):
        open_engine(url_for("nosuchdatabase://h/d", HERE))


def test_files_are_relative_to_the_suite() -> None:
    """Wherever the command is started from; absolute ones stay."""
    assert sqlite_file(url_for("sqlite:///data/x.db", HERE)) == Path("/suites/data/x.db")
    assert sqlite_file(url_for("sqlite:////tmp/x.db", HERE)) == Path("/tmp/x.db")
    assert sqlite_file(url_for("postgresql://h/d", HERE)) is None


@pytest.mark.parametrize("text", ["tasks.db", "sqlite://", "sqlite:///:memory:"])
def test_what_nobody_else_can_see_is_refused(text: str) -> None:
    """No URL at all, or a database in our own memory."""
    with pytest.raises(SuiteError):
        url_for(text, HERE)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in mask_url(url_for("postgresql://me:secret@h/d", HERE))


def test_errors_say_what_was_being_done(tmp_path: Path) -> None:
    """A refused statement and a database that cannot be reached are told apart."""
    from sqlalchemy import text

    (tmp_path / "x.db").touch()
    url = url_for("sqlite:///x.db", tmp_path)
    engine = open_engine(url)
    with (
        pytest.raises(StoreRefused, match=r"refused \(looking\): no such table: missing"),
        translate_errors(url, "looking"),
        engine.connect() as connection,
    ):
        connection.execute(text("SELECT * FROM missing"))
    engine.dispose()
    gone = url_for("postgresql://127.0.0.1:1/d", tmp_path)
    engine = open_engine(gone)
    with pytest.raises(StoreLost, match="cannot be reached"), translate_errors(gone, "looking"), engine.connect():
        pass
    engine.dispose()
