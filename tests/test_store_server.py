"""What a server's URL is to everybody but the store: a path, and a text without a password."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from llmproxy.client.proxy_process import ProxyStartCommandLine, begin_proxy_start
from llmproxy.postgres_store_paths import (
    find_postgres_of_local_copy,
    format_store_location,
    is_postgres_url,
    map_postgres_store_to_copy_path,
    strip_secrets_from_url,
)
from llmproxy.settings import format_shown_path, load

URL = "postgresql://me:s3cret%21@db.example:5433/team?sslmode=require&sslpassword=s3cret!&passfile=/x"


def test_what_is_shown_holds_no_secret() -> None:
    """User, host, port, database and sslmode are said; every other member of the query is not."""
    assert strip_secrets_from_url(URL) == "postgresql://me@db.example:5433/team?sslmode=require"
    assert strip_secrets_from_url("postgres://[::1]/x?host=/tmp/y") == "postgresql://[::1]/x?host=/tmp/y"
    for typed in (
        "me:s3/cret@db:x/y", "me:12/cret@db/y", "me:s3@cret@db/y", "me@db/y?dbname=postgresql://u:cret@h/d",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="not repeated") as caught:
            strip_secrets_from_url(f"postgresql://{typed}")
        assert "cret" not in str(caught.value)


def test_settings_take_a_server_for_a_path(tmp_path: Path) -> None:
    """The copy lies below the cache, the same for the same server whoever's password it was; what is printed is the URL."""
    env = {"XDG_CACHE_HOME": str(tmp_path), "LLMPROXY_STORE": URL}
    store = load({}, env, tmp_path).settings.store
    assert store.is_relative_to(tmp_path)
    assert store == map_postgres_store_to_copy_path(URL.replace("s3cret%21", "other"), env)
    assert format_store_location(store) == format_shown_path(store) == strip_secrets_from_url(URL)
    assert find_postgres_of_local_copy(tmp_path / "llmproxy.db") is None
    map_postgres_store_to_copy_path(URL, env)
    server = find_postgres_of_local_copy(store)
    assert server is not None
    assert set(server.secrets) == {"s3cret%21", "s3cret!"}
    assert "s3cret" not in repr(server)


def test_another_database_has_another_copy(tmp_path: Path) -> None:
    """Also where libpq takes its name from a variable: else one would answer from the other's rows."""
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    copies = {
        map_postgres_store_to_copy_path("postgresql://me@/?host=/tmp/y", env | {"PGDATABASE": name} if name else env)
        for name in ("", "a", "b", "a")
    }
    copies |= {map_postgres_store_to_copy_path(f"postgresql:///?service={name}", env) for name in "ab"}
    assert len(copies) == 5


def test_a_file_is_no_server() -> None:
    """Only PostgreSQL's schemes are."""
    found = [is_postgres_url(each) for each in ("x.db", "postgres.db", "mysql://h/x", "POSTGRESQL://h/x")]
    assert found == [False, False, False, True]


def test_a_password_stands_in_no_command_line(tmp_path: Path) -> None:
    """Everybody on the machine may read those: a proxy that is started gets the URL in its environment."""
    program = "import os, sys; print(sys.argv, os.environ['LLMPROXY_STORE'], flush=True)"
    said = tmp_path / "log"
    proxy = begin_proxy_start(
        ProxyStartCommandLine((sys.executable, "-c", program), ""),
        [f"--store={URL}", "--mode=replay"],
        os.environ,
        log=said,
    )
    proxy.popen.wait(60)
    proxy.end()
    typed, _, rest = said.read_text().partition("]")
    assert "--mode=replay" in typed
    assert "s3cret" not in typed
    assert URL in rest
