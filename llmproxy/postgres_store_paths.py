"""A store on a server, represented everywhere outside the store itself by the path of its local copy.

Opening that path with `core.store.file.store` opens the server's store; opening it as a file reads the last copied
state. So code between the command line and the store needs no knowledge of servers, and no message can contain a
password.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from llmproxy.errors import SettingsError

SCHEMES = ("postgresql", "postgres")
_SAYS = frozenset({"dbname", "host", "hostaddr", "port", "sslmode", "user"})
"""Members of a URL's query that may be shown; others may be passwords or file names."""
_LIBPQ = ("PGDATABASE", "PGHOST", "PGHOSTADDR", "PGOPTIONS", "PGPORT", "PGSERVICE", "PGSERVICEFILE", "PGUSER")
_known: dict[Path, ServerStoreAddress] = {}


@dataclass(frozen=True, slots=True)
class ServerStoreAddress:
    url: str = field(repr=False)
    """URL in libpq's format; may contain a password."""
    shown: str
    copy: Path

    @property
    def secrets(self) -> tuple[str, ...]:
        parts = urlsplit(self.url)
        given = [parts.password or "", *(value for name, value in parse_qsl(parts.query) if "password" in name)]
        return tuple(dict.fromkeys(each for text in given for each in (text, unquote(text)) if each))


def is_postgres_url(typed: str) -> bool:
    return typed.strip().partition("://")[0].lower() in SCHEMES and "://" in typed


def strip_secrets_from_url(url: str) -> str:
    """Return a server's URL for display. Raises ValueError without repeating the URL."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
        if parts.netloc.count("@") > 1 or "@" in parts.path or "://" in unquote(parts.query):
            raise ValueError  # noqa: TRY301 - an unescaped password
    except ValueError:
        form = "postgresql://USER@HOST:PORT/DATABASE, what is special in a password as %XX"
        raise ValueError(f"the URL of a server is {form} (not repeated, since it may hold a password)") from None
    host = parts.hostname or ""
    where = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    user = f"{quote(unquote(parts.username))}@" if parts.username else ""
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in _SAYS], safe="/")
    return f"postgresql://{user}{where}{parts.path}" + (f"?{query}" if query else "")


def map_postgres_store_to_copy_path(url: str, env: Mapping[str, str]) -> Path:
    """Register a server and return its copy's path; `env`: XDG_CACHE_HOME, else ~/.cache. Raises ValueError."""
    said = strip_secrets_from_url(url)
    folder = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmproxy" / "servers"
    # What libpq takes from elsewhere makes it another store.
    query = [f"&{name}={value}" for name, value in parse_qsl(urlsplit(url).query) if name in ("options", "service")]
    given = [f"&{name}={env[name]}" for name in _LIBPQ if env.get(name)]
    copy = folder / hashlib.sha256("".join([said, *query, *given]).encode()).hexdigest()[:16] / "llmproxy.db"
    _known[copy] = ServerStoreAddress(f"postgresql://{url.partition('://')[2].strip()}", said, copy)
    return copy


def find_postgres_of_local_copy(path: Path | str) -> ServerStoreAddress | None:
    """Return the server whose copy is at a path; None for a file or a server that is not registered."""
    return _known.get(Path(path))


def format_store_location(path: Path | str) -> str:
    server = find_postgres_of_local_copy(path)
    return str(path) if server is None else server.shown


def create_folder_of_local_store_copy(path: Path) -> None:
    """Create the folder of a server's copy and journal; no folder is created for a file. Raises OSError."""
    if find_postgres_of_local_copy(path) is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)


def refuse_postgres_store_for_option(option: str, path: Path) -> None:
    """Raise SettingsError if an operation that needs a store in a file gets a server's store."""
    if find_postgres_of_local_copy(path) is not None:
        msg = f"{option} needs a store in a file; this one is {format_store_location(path)}."
        raise SettingsError(msg, hint="llmproxy pull NAME brings a cassette of it into a file.")


def store_exists(path: Path) -> bool:
    """Return whether there is a store to open; always true for a server's, which is not contacted."""
    return find_postgres_of_local_copy(path) is not None or path.exists()
