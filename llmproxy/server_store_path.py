"""A store on a server, as everybody but the store itself knows it: a path on this machine, under which a copy of it
lies.

    path = register_server("postgresql://me:secret@db.example/team", env)    the copy's path; from now on known here
    find_store_server(path)                                                -> Server, None for a file
    show_store(path)                                               what is printed: the URL without a password, or the
                                                                   path

Whoever opens that path with `core.store.file.store` has the server's store; who opens it as a file has what was read of
it last. So nobody between the command line and the store needs to know that there are servers, and no message can hold
a password.
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
"""Members of a URL's query that may be shown; `password` is one as well, and others name files."""
_known: dict[Path, StoreServer] = {}


@dataclass(frozen=True, slots=True)
class StoreServer:
    url: str = field(repr=False)
    """As libpq takes it; may hold a password."""
    shown: str
    """The same without what is secret."""
    copy: Path
    """What of it was read lies there, as a store of this machine."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not stand in any message."""
        parts = urlsplit(self.url)
        given = [parts.password or "", *(value for name, value in parse_qsl(parts.query) if "password" in name)]
        return tuple(dict.fromkeys(each for text in given for each in (text, unquote(text)) if each))


def is_server(typed: str) -> bool:
    return typed.strip().partition("://")[0].lower() in SCHEMES and "://" in typed


def without_secrets(url: str) -> str:
    """Return the URL of a server as it may be shown. Raises ValueError, the URL not repeated."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ValueError(
            "the URL of a server is postgresql://USER@HOST:PORT/DATABASE, what is special in a password as %XX"
            " (not repeated, since it may hold a password)"
        ) from None
    host = parts.hostname or ""
    where = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    user = f"{quote(unquote(parts.username))}@" if parts.username else ""
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in _SAYS], safe="/")
    return f"postgresql://{user}{where}{parts.path}" + (f"?{query}" if query else "")


def register_server(url: str, env: Mapping[str, str]) -> Path:
    """Return, and note, where a server's copy lies; `env`: XDG_CACHE_HOME, else ~/.cache. Raises ValueError, no URL."""
    said = without_secrets(url)
    folder = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmproxy" / "servers"
    copy = folder / hashlib.sha256(said.encode()).hexdigest()[:16] / "llmproxy.db"
    _known[copy] = StoreServer(f"postgresql://{url.partition('://')[2].strip()}", said, copy)
    return copy


def find_store_server(path: Path | str) -> StoreServer | None:
    """Return the server whose copy lies at a path; None for nobody's copy, or a server unknown to this process."""
    return _known.get(Path(path))


def show_store(path: Path | str) -> str:
    server = find_store_server(path)
    return str(path) if server is None else server.shown


def make_copy_folder(path: Path) -> None:
    """Make the folder of a server's copy and its journal; a file's folder is its user's. Raises OSError."""
    if find_store_server(path) is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)


def refuse_server(option: str, path: Path) -> None:
    """Raise SettingsError for what only a store in a file can do, where the store is a server's."""
    if find_store_server(path) is not None:
        raise SettingsError(
            f"{option} needs a store in a file; this one is {show_store(path)}.",
            hint="llmproxy pull NAME brings a cassette of it into a file.",
        )


def store_exists(path: Path) -> bool:
    """Return whether there is a store that can be opened; of a server's that is known when it is asked."""
    return find_store_server(path) is not None or path.exists()
