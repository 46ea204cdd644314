"""Connection to a PostgreSQL server: opened when needed, reopened after a failure, always with timeouts.

psycopg is imported only if a server is named. No message contains a password.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from llmproxy.advice import build_install_command
from llmproxy.core.store.row_conversion import Sql, to_sql
from llmproxy.errors import CassetteBusy, CassetteError, LLMProxyError, MachineError, RecordingError, StoreReadOnly
from llmproxy.postgres_store_paths import ServerStoreAddress

if TYPE_CHECKING:
    import psycopg

    Conn = psycopg.Connection[tuple[Any, ...]]
    Answer = psycopg.Cursor[tuple[Any, ...]]

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5
ANSWER_SECONDS = 30.0  # timeout of one statement in seconds; a broken network reports nothing
SOON = 0.5  # maximum seconds that the event loop waits until another thread has used the connection or the copy
PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0)
"""Seconds between attempts to write while the server is unavailable."""
_SETTINGS = (
    # A confirmed commit is on the disk. A machine that disappears in a transaction holds its locks for
    # seconds only.
    "SELECT set_config('synchronous_commit', 'on', false), set_config('lock_timeout', '10s', false),"
    " set_config('idle_in_transaction_session_timeout', '5s', false)"
)
_DENIED = frozenset({"42501", "25006"})
_AGAIN = frozenset({"40001", "40P01", "23503"})  # the last: what a body builds on was deleted since it was read


class CassetteServerLost(MachineError):
    """The server is unavailable; a statement that was sent may or may not have been executed."""

    code = "llmproxy_server_away"
    status = 503


class PostgresTransactionConflict(LLMProxyError):
    """Two transactions conflicted; a retry can succeed."""


class ReopeningPostgresConnection:
    """A connection that one thread at a time may use."""

    def __init__(self, server: ServerStoreAddress) -> None:
        self.server = server
        self._conn: Conn | None = None
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            conn, self._conn = self._conn, None
            if conn is not None:
                with suppress(Exception):
                    conn.close()

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and free soon."""
        free = self._conn is not None and self._lock.acquire(timeout=SOON)
        try:
            return free and self._conn is not None
        finally:
            if free:
                self._lock.release()

    @contextmanager
    def borrow_connection(self, *, writing: bool) -> Iterator[Conn]:
        """Yield the connection, in no transaction. Raises CassetteServerLost, StoreReadOnly and others."""
        with self._lock:
            if self._conn is None:
                self._conn = connect_to_postgres_cassette_store(self.server)
            conn = self._conn
            import psycopg  # `connect_to_postgres_cassette_store` reports a missing driver

            try:
                yield conn
            except psycopg.Error as error:
                away = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
                lost = conn.closed or (away and (error.sqlstate or "08").startswith(("57P", "08", "53")))
                if lost or conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    self.close()
                if lost:
                    raise _build_lost_error(self.server, error) from error
                raise translate_postgres_error(self.server, error, writing=writing) from error


@contextmanager
def run_pipelined_transaction(conn: Conn) -> Iterator[None]:
    """Run a transaction of statements sent together, committed at the end, where errors appear at the latest."""
    import psycopg

    try:
        with conn.pipeline():  # psycopg's own transactions wait at their beginning and before their end
            conn.execute("BEGIN")
            yield
            conn.execute("COMMIT")
    except BaseException:
        if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                conn.execute("ROLLBACK")
        raise


def connect_to_postgres_cassette_store(server: ServerStoreAddress) -> Conn:
    """Open a connection with autocommit. Raises CassetteServerLost; MachineError: the driver is missing."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise MachineError(
            f"The store {server.shown} is PostgreSQL's, and its driver is not installed ({error}).",
            hint=build_install_command("postgres"),
        ) from error

    class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
        """A connection whose waits for answers have a timeout."""

        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            return super().wait(gen, interval, ANSWER_SECONDS if timeout is None else timeout)

    usual = {
        "connect_timeout": CONNECT_SECONDS, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
        "tcp_user_timeout": 10_000, "application_name": "llmproxy",
    }  # fmt: skip
    try:
        given = conninfo_to_dict(server.url)
        added = {k: v for k, v in usual.items() if k not in given}
        conn = TimedConnection.connect(server.url, autocommit=True, **added)  # type: ignore[arg-type]
        conn.execute(_SETTINGS)
    except psycopg.Error as error:
        raise _build_lost_error(server, error) from error
    return conn


def iterate_transaction_attempts(*, once: bool = False) -> Iterator[AbstractContextManager[None]]:
    """Yield a context per attempt; only the last raises CassetteServerLost or PostgresTransactionConflict."""
    for pause in () if once else PAUSES:
        yield suppress(CassetteServerLost, PostgresTransactionConflict)
        time.sleep(pause)
    yield nullcontext()


def _format_error(server: ServerStoreAddress, error: Exception) -> str:
    """Return the first line of the driver's error, without a password."""
    text = " ".join(str(error).strip().splitlines()[:1]) or type(error).__name__
    text = text.rpartition("FATAL:  ")[2]
    for secret in server.secrets:
        text = text.replace(secret, "***")
    return text.rstrip(".")


def _build_lost_error(server: ServerStoreAddress, error: Exception) -> CassetteServerLost:
    said = _format_error(server, error)
    if "password" in said or "authentication" in said:
        hint = "Its password comes from the URL, from PGPASSWORD or from ~/.pgpass."
    elif "SSL" in said or "certificate" in said or "no encryption" in said:
        hint = "What TLS must hold is sslmode in the URL: postgresql://HOST/DATABASE?sslmode=verify-full"
    elif "does not exist" in said:
        hint = "Make it on the server (createdb), or correct the URL: postgresql://USER@HOST:PORT/DATABASE"
    else:
        hint = "See that the server runs and can be reached from here."
    return CassetteServerLost(f"The store {server.shown} cannot be reached: {said}.", hint=hint)


def translate_postgres_error(server: ServerStoreAddress, error: psycopg.Error, *, writing: bool) -> LLMProxyError:
    said, state = _format_error(server, error), error.sqlstate or ""
    if state in _AGAIN:
        return PostgresTransactionConflict(f"The store {server.shown}: {said}.")
    if state in _DENIED and writing:
        return StoreReadOnly(
            f"The store {server.shown} cannot be written to as this role: {said}.",
            hint="Replay works (--mode replay). To record, to delete or to rename, use a role that may: docs/store.md "
            "has the grants.",
        )
    if state == "55P03":  # it waited for a lock
        return CassetteBusy(f"The store {server.shown} is held by another transaction ({said}).", hint="Try again.")
    if writing:
        return RecordingError(f"The store {server.shown} did not take the recording: {said} ({state}).")
    hint = "docs/store.md has the grants that a role needs to read." if state in _DENIED else ""
    return CassetteError(f"The store {server.shown} cannot be read: {said} ({state}).", hint=hint)


# -- texts that PostgreSQL cannot hold (a NUL, bytes that are no UTF-8), in its columns of type text and back ----------

_MARK = "\x01"


def to_pg_value(value: Sql) -> Sql:
    """Return the server's column value for a file's; bytes in a text are marked and written as hex."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, bytes):
        return f"{_MARK}b{value.hex()}"
    if isinstance(value, str) and ("\0" in value or value.startswith(_MARK)):
        return f"{_MARK}t{value.encode().hex()}"
    return value


def decode_pg_value(value: Sql) -> Sql:
    if not isinstance(value, str) or not value.startswith(_MARK):
        return value
    content = bytes.fromhex(value[2:])
    return content if value[1] == "b" else content.decode()


def encode_pg_text(text: str) -> str:
    return str(to_pg_value(to_sql(text)))
