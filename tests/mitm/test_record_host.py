"""Any other HTTP in the same cassette (`--record-host`), over real sockets: what is recorded, what replay serves, what it refuses."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.protocol import Channel
from tests.mitm.rig import Rig, connected, recorded
from tests.mitm.wire import Received, Wire, chat, request
from tests.provider import Provider, Reply, Script, Step, json_answer
from tests.support.services import CountingService

INVOICE = b'{"customer": "ann", "amount": 7}'
SAME_INVOICE = b'{"amount":7,"customer":"ann"}'
HOSTS = ("127.0.0.1",)


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
    with SqliteCassetteStore.open(tape, writable=False, now=time.time) as store:
        assert [row.provider for row in store.list_summaries(channel=Channel.HTTP)] == [f"http:{service.host}"] * 2
        assert store.list_summaries(channel=Channel.LLM) == store.list_summaries(channel=Channel.MCP) == []
    assert {one.operation for one in recorded(tape)} == {"/invoices"}


def test_a_host_that_nobody_named_stays_out(tmp_path: Path, service: CountingService) -> None:
    """Without --record-host replay refuses it by name and says what would record it."""
    with Rig("replay", tmp_path / "x.db", forward=True) as rig, rig.client() as c:
        answer = ask(c, service, "POST", "/invoices", INVOICE)
    assert answer.status >= 400
    assert "--record-host 127.0.0.1" in answer.body.decode()
    assert service.asked == []


RIGHT, WRONG = "sk-proj-right0Zq7Wn4Vb9Kx2", "sk-proj-wrong0Zq7Wn4Vb9Kx2"
DENIED = json_answer(
    {"error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}},
    401,
)
SCRIPT = Script(
    (
        Step(Reply("hello"), sends={"authorization": f"Bearer {RIGHT}"}, times=None),
        Step(DENIED, sends={"authorization": f"Bearer {WRONG}"}, times=None),
    ),
    ordered=False,
)


def status(c: Wire, key: str) -> int:
    return c.ask(chat("hi", headers={"authorization": f"Bearer {key}"} if key else {})).status


def record(store: Path, *keys: str, match: bool = True) -> None:
    with connected(Provider(SCRIPT), "record", store, match_credential=match) as (_, c):
        for key in keys:
            status(c, key)


@pytest.mark.parametrize(("keys", "match", "asked"), [
    pytest.param((RIGHT, WRONG), True, [(WRONG, 401), (RIGHT, 200), (WRONG, 401), (WRONG, 401), (RIGHT, 200), (f"{RIGHT}x", 404)],
                 id="each key its own, in any order"),
    pytest.param((RIGHT,), True, [(WRONG, 404), (RIGHT, 200)], id="a wrong key is not told what the right one was told"),
    pytest.param((WRONG, RIGHT), False, [("", 401), ("", 200), ("", 200)], id="without the option in turn, with no key at all"),
])  # fmt: skip
def test_a_key_gets_its_own_answer(
    store: Path, keys: tuple[str, ...], match: bool, asked: list[tuple[str, int]]
) -> None:
    """Recorded with these keys; a key that was never recorded is a miss."""
    record(store, *keys, match=match)
    with Rig("replay", store, match_credential=match) as rig, rig.client() as c:
        assert [(key, status(c, key)) for key, _ in asked] == asked


def test_in_auto_a_401_is_never_a_hit(tmp_path: Path) -> None:
    """Whoever mends the key is not told for ever that it is wrong; with the option or without."""
    for match in (False, True):
        store = tmp_path / f"{match}.db"
        record(store, WRONG, match=match)
        with connected(p := Provider(SCRIPT), "auto", store, match_credential=match) as (_, c):
            assert [status(c, WRONG), status(c, RIGHT)] == [401, 200]
            assert len(p.requests) == 2


def test_the_key_itself_is_nowhere(store: Path, tmp_path: Path) -> None:
    """Only its fingerprint is, and without the secret beside the store that says nothing."""
    record(store, RIGHT, WRONG)
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert RIGHT.encode() not in data
        assert WRONG.encode() not in data
    assert len({kept.key for kept in recorded(store)}) == 2


def test_the_secret_goes_with_the_store(store: Path, tmp_path: Path) -> None:
    """A store without its secret knows nobody's key: every request is a miss, and none a wrong hit."""
    record(store, RIGHT)
    (tmp_path / "x.db.secret").unlink()
    with Rig("replay", store, match_credential=True) as rig, rig.client() as c:
        assert status(c, RIGHT) == 404
