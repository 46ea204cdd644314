"""Real recorded exchanges, sent again as they were recorded, through the real proxy in replay mode.

Each cassette is a session of its own, walked in order over one connection: by base URL with the session in the path, or by
interception, as a client that knows nothing of us and has HTTPS_PROXY set (a connection for each host then). The table says per host how many came back exactly
(status and decoded body), how many were refused and why, and how many differ; `redacted` are exact but for flagged secrets.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit

from llmproxy.cli.parts.import_files import group_files_by_cassette, read_exchanges_from_import_files
from llmproxy.core.cassettes.formats import Recorded
from llmproxy.core.cassettes.importing import ImportedOrSkippedExchange, convert_exchanges
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.body_decoding import decode_body
from llmproxy.core.traffic.interaction import Headers, header

NOT_SENT = frozenset({"host", "content-length", "transfer-encoding", "connection", "keep-alive", "expect"})


@dataclass(slots=True)
class Row:
    """What became of one host's exchanges."""

    known: bool = False
    exchanges: int = 0
    exact: int = 0
    redacted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)


def exchanges(folder: Path) -> Iterator[tuple[str, list[ImportedOrSkippedExchange]]]:
    """Read every cassette as `llmproxy import` does: (session name, its exchanges)."""
    for name, pieces in group_files_by_cassette([folder], None).items():
        yield (
            name,
            convert_exchanges(read_exchanges_from_import_files(pieces), name, rules=Rules(), redactor=Redactor()),
        )


def strangers(cassettes: Iterable[tuple[str, list[ImportedOrSkippedExchange]]]) -> dict[str, str]:
    """Return the hosts that are in no provider table: provider name -> upstream."""
    found: dict[str, str] = {}
    for _, adopted in cassettes:
        for each in adopted:
            if each.interaction is not None and not each.known:
                found[each.interaction.provider] = each.interaction.upstream
    return found


class Way(Protocol):
    """How a cassette's requests reach the proxy."""

    def ask(self, each: ImportedOrSkippedExchange) -> http.client.HTTPResponse:
        """Send a request as it was recorded."""

    def close(self) -> None:
        """Close the connections."""


class ByBaseURL:
    def __init__(self, port: int, session: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._session = quote(session, safe="")

    def ask(self, each: ImportedOrSkippedExchange) -> http.client.HTTPResponse:
        recorded, interaction = each.recorded, each.interaction
        assert interaction is not None
        prefix = f"/s/{self._session}/{quote(interaction.provider, safe=':')}"
        self._connection.request(recorded.method, prefix + path_of(recorded), recorded.body or None, sendable(recorded))
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()


class ByInterception:
    """CONNECT and TLS to the host itself (http: the absolute form); the session is the proxy's user."""

    def __init__(self, port: int, session: str, trusted: ssl.SSLContext) -> None:
        self._port, self._trusted = port, trusted
        user = base64.b64encode(f"{quote(session, safe='')}:llmproxy".encode()).decode()
        self._user = {"Proxy-Authorization": f"Basic {user}"}
        self._tunnels: dict[str, http.client.HTTPSConnection] = {}
        self._plain = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, each: ImportedOrSkippedExchange) -> http.client.HTTPResponse:
        recorded = each.recorded
        url = urlsplit(recorded.uri)
        if url.scheme == "http":
            target = f"http://{url.netloc}{path_of(recorded)}"
            self._plain.request(recorded.method, target, recorded.body or None, sendable(recorded) | self._user)
            return self._plain.getresponse()
        if (connection := self._tunnels.get(url.netloc)) is None:
            connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=30, context=self._trusted)
            connection.set_tunnel(url.hostname or "", url.port or 443, self._user)
            self._tunnels[url.netloc] = connection
        connection.request(recorded.method, path_of(recorded), recorded.body or None, sendable(recorded))
        return connection.getresponse()

    def close(self) -> None:
        for connection in (self._plain, *self._tunnels.values()):
            connection.close()


def resend(
    way: Callable[[str], Way], cassettes: Iterable[tuple[str, list[ImportedOrSkippedExchange]]]
) -> dict[str, Row]:
    """Send everything and compare; `way` opens one for a session. Returns a row for each host."""
    table: dict[str, Row] = defaultdict(Row)
    for name, adopted in cassettes:
        connection = way(name)
        for each in adopted:
            row = table[each.host]
            row.exchanges += 1
            row.known = row.known or each.known
            if each.interaction is None:
                row.refused[each.why] += 1
                continue
            _one(connection, name, each, row)
        connection.close()
    return dict(table)


def path_of(recorded: Recorded) -> str:
    """Return path and query of a recorded request, as they can be sent."""
    url = urlsplit(recorded.uri)
    return quote((url.path or "/") + (f"?{url.query}" if url.query else ""), safe=SAFE)


def sendable(recorded: Recorded) -> dict[str, str]:
    """Return the headers of a recorded request that are the client's to say."""
    return {key: value for key, value in recorded.headers if key.lower() not in NOT_SENT}


def _one(connection: Way, session: str, each: ImportedOrSkippedExchange, row: Row) -> None:
    recorded, interaction = each.recorded, each.interaction
    if interaction is None:
        raise AssertionError
    answer = connection.ask(each)
    body = answer.read()
    if answer.getheader("x-llmproxy-cache") != "hit":
        row.refused[body.decode("utf-8", "replace")[:200]] += 1
        return
    wanted = _decoded(recorded.response_headers, recorded.response_body)
    if answer.status == recorded.status and body == wanted:
        row.exact += 1
    elif answer.status == recorded.status and interaction.redacted and len(body) == len(wanted):
        row.redacted += 1
    else:
        row.different.append(
            f"{session} #{recorded.number}: {answer.status} {body[:60]!r} for {recorded.status} {wanted[:60]!r}"
        )


SAFE = "".join(chr(code) for code in range(0x21, 0x7F))


def _decoded(headers: Headers, body: bytes) -> bytes:
    coding = header(headers, "content-encoding")
    try:
        return decode_body(body, coding) if coding else body
    except ValueError:
        return body


def render(table: dict[str, Row]) -> str:
    lines = [f"{'host':<48} {'table':<5} {'exchanges':>9} {'exact':>6} {'redacted':>8} {'refused':>7} {'different':>9}"]
    for host, row in sorted(table.items(), key=lambda pair: -pair[1].exchanges):
        lines.append(
            f"{host or '(no host)':<48} {'yes' if row.known else 'no':<5} {row.exchanges:>9} {row.exact:>6} {row.redacted:>8}"
            f" {row.refused.total():>7} {len(row.different):>9}"
        )
        lines += [f"    refused {count}x: {why}" for why, count in row.refused.items()]
        lines += [f"    different: {what}" for what in row.different[:5]]
    total = [sum(getattr(row, name) for row in table.values()) for name in ("exchanges", "exact", "redacted")]
    return "\n".join([*lines, f"{total[0]} exchanges, {total[1]} exact, {total[2]} exact but for redacted secrets"])
