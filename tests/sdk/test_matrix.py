"""Every client, by base URL and by interception: recorded one way it replays the other, without network and without a key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from tests.support import needed, proxy

from .drivers import CANARY, run
from .matrix import CLIENTS, COLUMNS, SIGNED, WAYS, Client, Matrix, environment

pytestmark = pytest.mark.sdk

by_client = pytest.mark.parametrize(
    "client", [pytest.param(client, id=client.name.replace(" ", "-")) for client in CLIENTS]
)


def performed(matrix: Matrix, environments: dict[str, str], client: Client | None = None) -> Matrix:
    """Return what happened; skips (or fails, where everything is required) if it could not happen."""
    if client is not None and environments[client.driver.environment]:
        needed(environments[client.driver.environment])
    if not matrix.clients:
        needed("; ".join(problem for problem in environments.values() if problem))
    return matrix


@by_client
@pytest.mark.parametrize("way", WAYS)
def test_each_way_records_and_replays(matrix: Matrix, environments: dict[str, str], client: Client, way: str) -> None:
    """Recorded this way, and replayed this way what the other way recorded: the same result, or the same exception."""
    lab = performed(matrix, environments, client)
    assert {case: lab.verdict(client, way, case) for case in client.cases} == dict.fromkeys(client.cases, "yes")


def test_the_matrix_has_no_cell_without_a_word(matrix: Matrix, environments: dict[str, str]) -> None:
    """The table names every client that is promised, with a word for each cell."""
    performed(matrix, environments)
    assert len(CLIENTS) == 16
    assert all(len(client.cases) >= len(COLUMNS) for client in CLIENTS)


def test_replay_connects_to_nobody(matrix: Matrix, environments: dict[str, str]) -> None:
    """Nothing knocked at the upstream's port after it had stopped, whatever way the requests came."""
    lab = performed(matrix, environments)
    assert len(lab.seen) > 4 * len(lab.clients)
    assert lab.late_connections == 0


def test_the_upstream_saw_nothing_of_us(matrix: Matrix, environments: dict[str, str]) -> None:
    """Only what was expected arrived, without headers of ours or of proxies, and with the client's key."""
    lab = performed(matrix, environments)
    assert [f"{seen.method} {seen.target}: {seen.refused}" for seen in lab.seen if seen.refused] == []
    names = {name.lower() for seen in lab.seen for name, _ in seen.headers}
    assert {name for name in names if name.startswith(("x-llmproxy", "proxy-"))} == set()
    assert [seen.target for seen in lab.seen if not any(CANARY in value for _, value in seen.headers)] == []


def test_no_credential_is_written(matrix: Matrix, environments: dict[str, str]) -> None:
    """Keys, Bedrock API keys, session tokens, access key ids and signatures stand in no file that the proxies wrote."""
    lab = performed(matrix, environments)
    files = {path for px in lab.proxies for path in px.files()}
    assert lab.store in files
    for word in (CANARY, SIGNED["AWS_ACCESS_KEY_ID"], "AWS4-HMAC-SHA256"):
        assert [path.name for path in files if word.encode() in path.read_bytes()] == [], word


def test_bedrock_keeps_region_and_model(matrix: Matrix, environments: dict[str, str]) -> None:
    """The model of the path is the recording's; signed requests reached the upstream with their signature and region."""
    client = next(client for client in CLIENTS if client.name.startswith("boto3"))
    lab = performed(matrix, environments, client)
    if client not in lab.clients:
        pytest.skip("boto3 was not selected")
    with SqliteCassetteStore.open(lab.store, writable=False, now=lambda: 0.0) as store:
        rows = [row for row in store.list_summaries(None, None, limit=10_000) if row.provider == "bedrock"]
    assert {row.model for row in rows} == {"anthropic.claude-haiku-4-5-20251001-v1:0"}
    signed = [seen.header("authorization") or "" for seen in lab.seen if seen.dialect.startswith("bedrock")]
    assert any("/eu-central-1/bedrock/aws4_request" in value for value in signed)
    assert any(value.startswith("Bearer ") for value in signed)


def test_a_signed_request_by_base_url_is_told_what_to_do(environments: dict[str, str], tmp_path: Path) -> None:
    """Recording by base URL from AWS itself with SigV4: boto shows our text at once, nothing was sent, and nothing recorded."""
    client = next(client for client in CLIENTS if client.name.startswith("boto3"))
    if environments[client.driver.environment]:
        needed(environments[client.driver.environment])
    with proxy("record", tmp_path / "x.db") as px:
        env = environment(px, replace(client, keys={"base URL": SIGNED}, tls=False), "base URL", "x", record=True)
        outcome = run(client.driver, ["plain", "stream"], env, tmp_path, "signed")
    for line in outcome.values():
        assert line["error"]["class"] == "ValidationException", line
        assert "llmproxy run --intercept" in line["error"]["message"]
    assert "2 refused" in px.stdout


def test_the_proxies_end_cleanly(matrix: Matrix, environments: dict[str, str]) -> None:
    """SIGINT ends both with 0, without a traceback."""
    for px in performed(matrix, environments).proxies:
        assert px.exit_code == 0, px.stdout[-2000:] + px.stderr[-2000:]
        assert "Traceback" not in px.stdout + px.stderr
