"""Any other HTTP in the same cassette (`--record-host`), over real sockets: what is recorded, what replay serves, what it refuses."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import FileStore
from llmproxy.protocol import Channel
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import Received, Wire, request
from tests.support.services import CountingService

INVOICE = b'{"customer": "ann", "amount": 7}'
SAME_INVOICE = b'{"amount":7,"customer":"ann"}'
HOSTS = ("127.0.0.1",)


@pytest.fixture
def service() -> Iterator[CountingService]:
    """Return a service that counts."""
    with CountingService() as running:
        yield running


def ask(client: Wire, service: CountingService, method: str, path: str, body: bytes = b"", **headers: str) -> Received:
    """Ask a service as a client does whose HTTP_PROXY we are."""
    fields = {"host": service.host, "content_type": ("application/json" if body else ""), **headers}
    return client.ask(request(body, f"http://{service.host}{path}", method, **fields))


@pytest.fixture
def tape(tmp_path: Path, service: CountingService) -> Path:
    """Return a store with one invoice made and one list read, as a tool did through the proxy."""
    store = tmp_path / "x.db"
    with Rig("record", store, record_host=HOSTS) as rig, rig.client() as c:
        assert ask(c, service, "POST", "/invoices", INVOICE).json["number"] == 1
        assert ask(c, service, "GET", "/invoices?page=2").json["number"] == 2
    assert len(service.asked) == 2
    return store


def test_a_recorded_service_is_not_asked_again(tape: Path, service: CountingService) -> None:
    """In replay the tool gets what the service said, and the service hears nothing; the body counts by what it says."""
    with Rig("replay", tape, record_host=HOSTS) as rig, rig.client() as c:
        made = ask(c, service, "POST", "/invoices", SAME_INVOICE)
        read = ask(c, service, "GET", "/invoices?page=2", accept="*/*")
    assert (made.status, made.json["number"]) == (201, 1)
    assert (read.status, read.json["number"]) == (200, 2)
    assert len(service.asked) == 2
    assert [outcome.decision for outcome in rig.outcomes] == ["REPLAY", "REPLAY"]


@pytest.mark.parametrize(("method", "path", "body"), [
    ("POST", "/invoices", b'{"customer": "ann", "amount": 8}'),
    ("POST", "/refunds", INVOICE),
    ("PUT", "/invoices", INVOICE),
    ("GET", "/invoices?page=3", b""),
])  # fmt: skip
def test_what_was_never_recorded_is_refused_and_named(
    tape: Path, service: CountingService, method: str, path: str, body: bytes
) -> None:
    """Another amount, place, method or page is nothing that the service said: a miss, which is no 404 of the service's own."""
    with Rig("replay", tape, record_host=HOSTS) as rig, rig.client() as c:
        answer = ask(c, service, method, path, body)
    assert answer.status == 501
    assert f"request: {method} http:{service.host} {path.partition('?')[0]}" in answer.body.decode()
    assert len(service.asked) == 2


def test_a_presigned_link_of_an_answer_is_followed_in_replay(tmp_path: Path, service: CountingService) -> None:
    """The answer's signature is overwritten in the recording; who follows the link gets what was behind it, and nobody is asked."""
    store, sign = tmp_path / "x.db", "X-Amz-Signature=" + hashlib.sha256(b"a").hexdigest()
    link = f"/files/7?X-Amz-Date=20261123T000001Z&{sign}"
    with Rig("record", store, record_host=HOSTS) as rig, rig.client() as c:
        said = ask(c, service, "POST", "/links", json.dumps({"url": link}).encode()).json["heard"]
        assert ask(c, service, "GET", json.loads(said)["url"]).json["path"] == link
    assert len(service.asked) == 2
    with Rig("replay", store, record_host=HOSTS) as rig, rig.client() as c:
        url = json.loads(ask(c, service, "POST", "/links", json.dumps({"url": link}).encode()).json["heard"])["url"]
        assert sign not in url
        assert ask(c, service, "GET", url).json["number"] == 2
        assert ask(c, service, "GET", url.replace("REDACTEDx", "REDACTEDx0")).status == 501
    assert len(service.asked) == 2


def test_what_was_done_once_is_not_answered_twice(tape: Path, service: CountingService) -> None:
    """A second invoice would have the first one's number; a list may be read again."""
    with Rig("replay", tape, record_host=HOSTS) as rig, rig.client() as c:
        assert [ask(c, service, "GET", "/invoices?page=2").status for _ in range(3)] == [200] * 3
        assert [ask(c, service, "POST", "/invoices", INVOICE).status for _ in range(3)] == [201, 501, 501]
    assert len(service.asked) == 2


def test_a_header_that_chooses_counts(tape: Path, service: CountingService) -> None:
    """Another tenant's list is another question; another credential is not."""
    with Rig("replay", tape, record_host=HOSTS) as rig, rig.client() as c:
        other = ask(c, service, "GET", "/invoices?page=2", x_tenant="b")
        same = ask(c, service, "GET", "/invoices?page=2", authorization="Bearer another")
    assert (other.status, same.status) == (501, 200)


def test_interception_and_prefix_replay_each_other(tape: Path, service: CountingService) -> None:
    """A client that cannot use a proxy asks under /HOST, and meets the same recordings."""
    with Rig("replay", tape, record_host=HOSTS) as rig, rig.client() as c:
        answer = c.ask(request(INVOICE, f"/s/default/{service.host}/invoices"))
    assert (answer.status, answer.json["number"]) == (201, 1)
    assert len(service.asked) == 2


def test_the_prefix_records_too(tmp_path: Path, service: CountingService) -> None:
    """What goes to /HOST:PORT/path reaches that path of the service."""
    with Rig("record", tmp_path / "x.db", record_host=HOSTS) as rig, rig.client() as c:
        answer = c.ask(request(b"", f"/{service.host}/a%20b?x=1", "GET", content_type=""))
    assert answer.status == 200
    assert service.asked == [("GET", "/a%20b?x=1", "")]


def test_a_recorded_service_has_its_channel(tape: Path, service: CountingService) -> None:
    """Each interaction says what it is about."""
    with FileStore.open(tape, writable=False, now=time.time) as store:
        assert [row.provider for row in store.summaries(channel=Channel.HTTP)] == [f"http:{service.host}"] * 2
        assert store.summaries(channel=Channel.LLM) == store.summaries(channel=Channel.MCP) == []
    assert {one.operation for one in recorded(tape)} == {"/invoices"}


def test_a_host_that_nobody_named_stays_out(tmp_path: Path, service: CountingService) -> None:
    """Without --record-host replay refuses it by name and says what would record it."""
    with Rig("replay", tmp_path / "x.db", forward=True) as rig, rig.client() as c:
        answer = ask(c, service, "POST", "/invoices", INVOICE)
    assert answer.status >= 400
    assert "--record-host 127.0.0.1" in answer.body.decode()
    assert service.asked == []
