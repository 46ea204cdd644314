"""Recorded exchanges become interactions, and the other way round."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import brotli
import pytest
import zstandard

from llmproxy.core.cassettes.adopt import AdoptedExchange, adopt
from llmproxy.core.cassettes.formats import open_source
from llmproxy.core.cassettes.formats.recorded import Recorded
from llmproxy.core.cassettes.formats.vcr import dumps, parse, read
from llmproxy.core.cassettes.stand_ins import release
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, header

KEY = "sk-proj-" + "Zq8Xv3Lm" * 5
ASKED = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = json.dumps({
    "id": "chatcmpl-1",
    "model": "gpt-4o-2024-08-06",
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}).encode()  # fmt: skip
JSON = ("content-type", "application/json")


def recorded(**changes: object) -> Recorded:
    values: dict[str, object] = {
        "method": "POST",
        "uri": "https://api.openai.com/v1/chat/completions",
        "headers": (JSON, ("authorization", f"Bearer {KEY}")),
        "body": ASKED,
        "status": 200,
        "reason": "OK",
        "response_headers": (JSON,),
        "response_body": ANSWER,
    }
    return Recorded(**(values | changes))  # type: ignore[arg-type]


def taken(*each: Recorded, upstreams: dict[str, str] | None = None) -> list[AdoptedExchange]:
    return adopt(each, "c", rules=Rules(), redactor=Redactor(), upstreams=upstreams)


def one(*, upstreams: dict[str, str] | None = None, **changes: object) -> Interaction:
    (adopted,) = taken(recorded(**changes), upstreams=upstreams)
    assert adopted.interaction is not None
    return adopted.interaction


def test_everything_is_derived() -> None:
    """Provider, operation, key, model, usage and ending are what live traffic would have given."""
    found = one()
    assert (found.provider, found.operation, found.model) == ("openai", "chat.completions", "gpt-4o")
    assert (found.usage.input, found.usage.output) == (3, 2)
    assert found.response.ending is Ending.COMPLETE
    assert found.response.chunks == (Chunk(0, ANSWER),)
    assert (found.started_at, found.upstream, found.cassette) == (0.0, "https://api.openai.com", "c")
    assert found.key.startswith("v2:")


def test_secrets_do_not_come_in() -> None:
    """A key in a header is gone, also from an earlier answer that quotes it, and matching does not depend on it."""
    adopted = taken(recorded(response_body=ANSWER.replace(b"chatcmpl-1", KEY.encode()), headers=(JSON,)), recorded())
    assert KEY not in repr(adopted[0].interaction)
    assert KEY not in repr(adopted[1].interaction)
    assert one().key == one(headers=(JSON,)).key


@pytest.mark.parametrize(("coding", "body"), [
    ("gzip", gzip.compress(ANSWER)), ("br", brotli.compress(ANSWER)), ("zstd", zstandard.compress(ANSWER)),
    ("gzip", ANSWER), ("made-up", ANSWER),
])  # fmt: skip
def test_bodies_are_decoded(coding: str, body: bytes) -> None:
    """A compressed answer is decoded, and a coding that the body does not have is dropped."""
    headers = (JSON, ("Content-Encoding", coding), ("Content-Length", str(len(body))))
    found = one(response_headers=headers, response_body=body)
    assert found.response.body == ANSWER
    assert header(found.response.headers, "content-encoding") is None
    assert not found.response.chunked


def test_compressed_request_has_the_same_key() -> None:
    """A request that was sent compressed is found by one that is not."""
    packed = one(headers=(JSON, ("content-encoding", "gzip")), body=gzip.compress(ASKED))
    assert packed.key == one().key
    assert packed.request.body == ASKED


def test_repeats_are_occurrences() -> None:
    """The same request again is the next occurrence, and only the first one replaces what was there before."""
    adopted = taken(recorded(), recorded(response_body=b"{}"), recorded(body=b"{}"))
    assert [each.interaction.occurrence for each in adopted if each.interaction] == [1, 2, 1]
    assert [each.first for each in adopted] == [True, False, True]


def test_unknown_hosts_are_named_after_themselves() -> None:
    """A host of no table is imported as the provider that `--upstream HOST=URL` would make."""
    adopted = taken(recorded(uri="http://LocalHost:8000/v1/chat/completions"))[0]
    assert adopted.interaction is not None
    assert (adopted.known, adopted.host, adopted.interaction.provider) == (False, "localhost:8000", "localhost:8000")
    assert adopted.interaction.operation == "chat.completions"
    ours = one(uri="http://localhost:8000/v1/chat/completions", upstreams={"mine": "http://localhost:8000/v1"})
    assert ours.provider == "mine"


@pytest.mark.parametrize("uri", ["ftp://a/b", "data:,x", "/v1/chat", "http://", "http://a:99999/"])
def test_what_is_not_http_is_skipped(uri: str) -> None:
    """An exchange that was not HTTP is skipped, and says why; the others are taken."""
    adopted = taken(recorded(uri=uri), recorded())
    assert adopted[0].interaction is None
    assert uri in adopted[0].why
    assert adopted[1].interaction is not None


def test_uris_become_what_was_on_the_wire() -> None:
    """User info and fragment go, blanks and letters beyond ASCII are percent-encoded."""
    found = one(uri="https://user:pw@api.openai.com/v1/files/a b/é?x=1 2#top", method="GET", body=b"")
    assert found.request.target == "/v1/files/a%20b/%C3%A9?x=1%202"
    assert "pw" not in repr(found)


def test_ids_that_answers_made() -> None:
    """A later request that names an earlier response has a key that does not depend on the random id."""

    def conversation(made: str) -> list[str]:
        first = recorded(
            uri="https://api.openai.com/v1/responses",
            body=b'{"model": "gpt-4o", "input": "hi"}',
            response_body=json.dumps({"id": made, "object": "response", "output": []}).encode(),
        )
        body = json.dumps({"model": "gpt-4o", "input": "more", "previous_response_id": made}).encode()
        return [each.interaction.key for each in taken(first, replace(first, body=body)) if each.interaction]

    assert conversation("resp_" + "1" * 40) == conversation("resp_" + "2" * 40)


FULL = replace(
    one(response_headers=(JSON, ("x-b", "2"), ("x-a", "1"), ("x-b", "3"))),
    started_at=1795132800.123456,
    sample=3,
    party="judge",
    upstream="https://gateway.example.com:8443",
    redacted=True,
)


@pytest.mark.parametrize("before", [
    one(),
    FULL,
    replace(one(), upstream=""),
    one(status=500, reason="", response_body=b""),
    one(method="GET", uri="https://api.openai.com/v1/models?limit=2&x=%2F", body=b""),
    one(uri="http://localhost:8000/v1/chat/completions"),
    replace(one(), response=replace(one().response, headers=(JSON, ("content-encoding", "foo")))),
    replace(FULL, response=replace(FULL.response, headers=(JSON, ("content-encoding", "gzip")))),
    one(uri="https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1"),
    replace(
        FULL,
        response=replace(
            FULL.response,
            chunks=(Chunk(5, ANSWER[:10]), Chunk(5, ANSWER[10:11]), Chunk(70_000, ANSWER[11:])),
            head_offset=4,
            ending=Ending.CUT,
            chunked=False,
        ),
    ),
])  # fmt: skip
def test_round_trip(before: Interaction) -> None:
    """Interaction -> YAML -> interaction loses nothing: chunks, times, party, sample, ending, order of fields."""
    (after,) = adopt(parse(dumps([release(before)], "c")), "c", rules=Rules(), redactor=Redactor())
    assert after.interaction == before


def test_edited_body_wins_over_our_notes() -> None:
    """A body that was edited by hand is taken, and the chunk borders that do not fit it are left out."""
    text = dumps([release(one())], "c").replace("chatcmpl-1", "chatcmpl-edited")
    (after,) = adopt(parse(text), "c", rules=Rules(), redactor=Redactor())
    assert after.interaction is not None
    assert after.interaction.response.chunks == (Chunk(0, ANSWER.replace(b"chatcmpl-1", b"chatcmpl-edited")),)


@pytest.mark.parametrize("value", ["x", -1, True, None, [1], 1.5])
def test_nonsense_in_our_notes_is_ignored(value: object) -> None:
    """Notes that make no sense are as if they were not there."""
    notes = dict.fromkeys(("sample", "head_offset", "chunks", "ending", "provider", "upstream"), value)
    notes |= {"party": 7, "started_at": "x"}
    found = one(extra={name: each for name, each in notes.items() if not isinstance(each, str)})
    assert (found.sample, found.party, found.response.head_offset) == (1, "agent", 0)
    assert one(extra={"chunks": "1:2 x:y", "ending": "never"}).response == one().response


@pytest.mark.slow
def test_real_traffic(traffic: Path) -> None:
    """Every exchange of the real cassettes is taken; what is written from it reads back the same."""
    files = sorted(traffic.rglob("*.yaml"))
    skipped: Counter[str] = Counter()
    for path in files:
        adopted = adopt(read(open_source(path)), path.stem, rules=Rules(), redactor=Redactor())
        skipped.update(each.why for each in adopted if each.interaction is None)
        before = [each.interaction for each in adopted if each.interaction]
        text = dumps([release(each) for each in before], path.stem)
        again = adopt(parse(text), path.stem, rules=Rules(), redactor=Redactor())
        assert [each.interaction for each in again] == before, path
    assert len(files) > 380
    assert not skipped


def test_what_cannot_be_replayed_is_skipped() -> None:
    """An exchange whose file says why it is none is skipped with that reason, and named by its host."""
    adopted = taken(recorded(problem="its body was not saved"), recorded())
    assert [(each.host, each.interaction is None, each.why) for each in adopted] == [
        ("api.openai.com", True, "its body was not saved"), ("api.openai.com", False, "")
    ]  # fmt: skip
    assert taken(recorded(problem="it is a WebSocket", uri=""))[0].host == ""


def test_other_programs_say_when_the_body_was_there() -> None:
    """Where there are no chunk borders, the whole body comes when its end was seen."""
    times = {"head_offset": 5, "body_offset": 90}
    assert one(extra=times).response.chunks == (Chunk(90, ANSWER),)
    assert one(extra={**times, "chunks": f"7:{len(ANSWER)}"}).response.chunks == (Chunk(7, ANSWER),)
    assert one(extra=times, response_body=b"").response.chunks == ()
