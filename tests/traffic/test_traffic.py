"""Some 790 real exchanges of real SDKs with real providers, imported and sent again through the proxy in replay mode."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from llmproxy.core.cassettes.importing import ImportedOrSkippedExchange
from tests.support.forked import program
from tests.support.process import Process, clean_env
from tests.support.proxy import proxy
from tests.traffic.resend import ByBaseURL, ByInterception, Row, exchanges, render, resend, strangers

Cassettes = list[tuple[str, list[ImportedOrSkippedExchange]]]


@pytest.fixture(scope="module")
def cassettes(traffic: Path) -> Cassettes:
    return list(exchanges(traffic))


@pytest.fixture(scope="module")
def store(traffic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traffic")
    store = folder / "traffic.db"
    command = [*program("llmproxy"), "import", str(traffic), "--store", str(store)]
    importing = Process(command, folder, "import", clean_env())
    assert importing.popen.wait(120) == 0, importing.stderr
    return store


def check(table: dict[str, Row], how: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Print what became of it, and see that everything came back."""
    with capsys.disabled():
        print(f"\n{how}\n{render(table)}")
    assert sum(row.exchanges for row in table.values()) > 700
    wrong = {host: (row.refused, row.different) for host, row in table.items() if row.refused or row.different}
    assert not wrong
    redacted = {host: row.redacted for host, row in table.items() if row.known and row.redacted}
    assert redacted == {"api.openai.com": 3}, "signatures in presigned links, and nothing else"


@pytest.mark.slow
def test_real_traffic_comes_back_exactly(store: Path, cassettes: Cassettes, capsys: pytest.CaptureFixture[str]) -> None:
    """Every importable exchange, re-sent as recorded, returns status and body exactly; the table says which and why not."""
    with proxy("replay", store, upstreams=strangers(cassettes)) as running:
        table = resend(lambda session: ByBaseURL(running.port, session), cassettes)
    check(table, "by base URL", capsys)
    assert running.exit_code == 0
    assert running.stderr == ""


@pytest.mark.slow
def test_real_traffic_comes_back_exactly_through_interception(
    store: Path, cassettes: Cassettes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same by CONNECT and TLS to the hosts themselves, streams of Bedrock's frames included."""
    env = {"XDG_DATA_HOME": str(tmp_path)}
    with proxy("replay", store, upstreams=strangers(cassettes), options=("--forward",), env=env) as running:
        trusted = ssl.create_default_context(cafile=running.control("health")["ca"])
        table = resend(lambda session: ByInterception(running.port, session, trusted), cassettes)
    check(table, "by interception", capsys)
    assert any(row.exact for host, row in table.items() if host.startswith("bedrock-runtime"))
    assert running.exit_code == 0
    assert running.stderr == ""
