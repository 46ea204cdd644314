"""Beyond JSON and SSE: NDJSON, AWS's event streams, multipart, sound, compression, files and batches, polling; recorded and replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import Received, Wire, body_of, chat, request
from tests.provider import Answer, Piece, Provider, Reply, Script, Step, json_answer
from tests.provider.answer import compress
from tests.provider.say_bedrock import STREAM_TYPE, event_frame

CODINGS = ["gzip", "deflate", "br", "zstd", "gzip, br"]
MODEL = "anthropic.claude-haiku-4-5-20251001-v1:0"


def always(reply: Reply | Answer) -> Script:
    return Script((Step(reply, times=None),))


def encoded(body: bytes, codings: str) -> bytes:
    for coding in codings.split(", "):
        body = compress(body, coding)
    return body


def both(
    tmp_path: Path, script: Script, upstream: str, raw: bytes, again: bytes | None = None
) -> tuple[Received, Received]:
    """Record `raw`, then replay `again` (or the same) with the upstream gone: (live, replayed)."""
    store = tmp_path / "x.db"
    with Provider(script) as p, Rig("record", store, {upstream: p.url}) as rig:
        live = rig.ask(raw)
    with Rig("replay", store) as rig:
        return live, rig.ask(again or raw)


# --- streams that are not SSE ------------------------------------------------------------------------------------------------


def test_ndjson_replays_line_by_line(tmp_path: Path) -> None:
    """Ollama streams unless told not to; every line comes back as its own chunk, and the last one has the counts."""
    body = json.dumps({"model": "llama3", "messages": [{"role": "user", "content": "hi"}]}).encode()
    live, again = both(tmp_path, always(Reply("one two three")), "ollama", request(body, "/api/chat"))
    assert live.headers["content-type"] == again.headers["content-type"] == "application/x-ndjson"
    assert (again.frames, again.body) == (live.frames, live.body)
    assert len(again.frames) > 2
    (kept,) = recorded(tmp_path / "x.db")
    assert (kept.stream, kept.response.ending, kept.usage.output) == (True, "complete", 3)


def bedrock(action: str, text: str = "hi", model: str = MODEL, signature: str = "a") -> bytes:
    """Format a signed request, with the colon of the model's name percent-encoded as boto does."""
    if action.startswith("converse"):
        body: object = {"messages": [{"role": "user", "content": [{"text": text}]}]}
    else:
        messages = [{"role": "user", "content": text}]
        body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": messages}
    signed = f"AWS4-HMAC-SHA256 Credential=AKIA{signature}/20260101/us-west-2/bedrock/aws4_request, SignedHeaders=host, Signature={signature}"
    date = f"2026010{len(signature)}T000000Z"
    fields = {"authorization": signed, "x_amz_date": date, "amz_sdk_invocation_id": signature}
    target = f"/bedrock/model/{model.replace(':', '%3A')}/{action}"
    return request(json.dumps(body).encode(), target, **fields)


@pytest.mark.parametrize("action", ["converse", "converse-stream", "invoke", "invoke-with-response-stream"])
def test_bedrock_replays_with_any_signature(tmp_path: Path, action: str) -> None:
    """Bytes and frames as recorded, whoever signs and when; the model counts, and the text."""
    live, again = both(
        tmp_path, always(Reply("one two three")), "bedrock", bedrock(action), bedrock(action, signature="zz")
    )
    assert (live.status, again.status, again.headers["x-llmproxy-cache"]) == (200, 200, "hit")
    assert (again.body, again.frames) == (live.body, live.frames)
    assert again.headers["content-type"] == (STREAM_TYPE if "stream" in action else "application/json")
    (kept,) = recorded(tmp_path / "x.db")
    assert (kept.model, kept.response.ending, kept.usage.output) == (MODEL, "complete", 3)
    assert "Signature" not in repr(kept.request)
    with Rig("replay", tmp_path / "x.db") as rig:
        missed = rig.ask(bedrock(action, model="amazon.nova-lite-v1:0"))
        assert (missed.status, missed.headers["x-amzn-errortype"]) == (404, "ResourceNotFoundException")
        assert missed.json["message"].startswith("llmproxy:")
        assert rig.ask(bedrock(action, "another text")).status == 404


def test_a_bedrock_stream_that_ends_in_an_exception_is_replayed_so(tmp_path: Path) -> None:
    """An exception's frame is part of the stream."""
    from tests.provider.say_bedrock import frame

    failed = frame({":exception-type": "throttlingException", ":message-type": "exception"}, b'{"message":"slow"}')
    pieces = (Piece(event_frame("messageStart", {"role": "assistant"})), Piece(failed))
    answer = Answer(200, (("content-type", STREAM_TYPE),), pieces, "chunked")
    live, again = both(tmp_path, always(answer), "bedrock", bedrock("converse-stream"))
    assert again.body == live.body


def test_the_region_that_signed_is_where_it_goes(tmp_path: Path) -> None:
    """By interception the host says the region, by base URL the signature; a recording replays whatever the region."""
    from tests.mitm.test_intercept import intercepted

    store, host = tmp_path / "x.db", "bedrock-runtime.us-west-2.amazonaws.com"
    raw = (
        bedrock("converse").replace(b"/bedrock/model", b"/model").replace(b"host: 127.0.0.1", f"host: {host}".encode())
    )
    with Provider(always(Reply("hello"))) as p:
        with Rig("record", store, {"bedrock": p.url}, forward=True) as rig, intercepted(rig, host) as c:
            assert c.ask(raw).status == 200
        assert "us-west-2" in (p.requests[0].header("authorization") or "")
        assert p.requests[0].target == f"/model/{MODEL.replace(':', '%3A')}/converse"
    with Rig("passthrough", store) as rig:  # with nothing named, AWS's host of that region is where it goes
        signed = (
            ("host", host),
            ("authorization", "AWS4-HMAC-SHA256 Credential=A/20260101/us-west-2/bedrock/aws4_request"),
        )
        for place in (("https", host, 443), None):
            path = "/model/m/converse" if place else "/bedrock/model/m/converse"
            assert rig.proxy.engine.begin_exchange("POST", path, place, signed).route.upstream == f"https://{host}"
    with Rig("replay", store, forward=True) as rig, intercepted(rig, host.replace("us-west-2", "eu-west-1")) as c:
        assert c.ask(raw).headers["x-llmproxy-cache"] == "hit"


# --- bodies that are not JSON --------------------------------------------------------------------------------------------------

SOUND = b"RIFF\x00\xff\x00WAVE" + bytes(range(256)) * 20


def form(
    boundary: str, sound: bytes = SOUND, model: str = "whisper-1", name: str = "a.wav", kind: str = "audio/x-wav"
) -> bytes:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode(),
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: {kind}\r\n\r\n'.encode(),
        sound,
        f"\r\n--{boundary}--\r\n".encode(),
    ]
    kind = f"multipart/form-data; boundary={boundary}"
    return request(b"".join(parts), "/v1/audio/transcriptions", content_type=kind)


def test_multipart_is_keyed_on_its_parts(tmp_path: Path) -> None:
    """Another boundary and file name is the same upload; other bytes, another field, or another type of a part, are not."""
    live, again = both(tmp_path, always(Reply("noon")), "openai", form("aaa"), form("bbb-ccc", name="tmp81.wav"))
    assert (live.json["text"], again.body) == ("noon", live.body)
    with Rig("replay", tmp_path / "x.db") as rig:
        assert rig.ask(form("aaa", SOUND + b"!")).status == 404
        assert rig.ask(form("aaa", model="whisper-2")).status == 404
        assert rig.ask(form("aaa", name="a.mp3")).status == 404
        assert rig.ask(form("aaa", kind="audio/wav")).status == 404
        assert rig.ask(form("aaa")).status == 200


def test_sound_comes_back_byte_by_byte(tmp_path: Path) -> None:
    pieces = tuple(Piece(SOUND[at : at + 900]) for at in range(0, len(SOUND), 900))
    mp3 = Answer(200, (("content-type", "audio/mpeg"),), pieces, "chunked")
    body = json.dumps({"model": "tts-1", "input": "hello", "voice": "alloy"}).encode()
    live, again = both(tmp_path, always(mp3), "openai", request(body, "/v1/audio/speech"))
    assert live.body == again.body == SOUND
    assert again.headers["content-type"] == "audio/mpeg"
    assert again.frames == live.frames
    assert recorded(tmp_path / "x.db")[0].response.ending == "complete"


# --- compression ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["record", "auto"])
@pytest.mark.parametrize("codings", CODINGS)
def test_a_compressed_request_is_the_same_request(store: Path, codings: str, mode: str) -> None:
    """It goes upstream as it came, is stored decoded and is matched by what it says."""
    plain = body_of("hi")
    raw = request(encoded(plain, codings), content_encoding=codings)
    with Provider(always(json_answer({"ok": True}))) as p, Rig(mode, store, {"openai": p.url}) as rig:
        assert rig.ask(raw).status == 200
        assert (p.requests[0].body, p.requests[0].header("content-encoding")) == (encoded(plain, codings), codings)
    (made,) = recorded(store)
    assert made.request.body == plain
    assert "content-encoding" not in dict(made.request.headers)
    with Rig("replay", store) as rig:
        assert rig.ask(chat("hi")).status == 200
        assert rig.ask(raw).status == 200
        assert rig.ask(request(encoded(body_of("ho"), codings), content_encoding=codings)).status == 404


@pytest.mark.parametrize("codings", CODINGS)
def test_a_compressed_answer_is_replayed_plain(tmp_path: Path, codings: str) -> None:
    """An upstream that compresses though it was asked not to: the client gets what it sent, and in replay the same, decoded."""
    plain = json_answer({"text": "grüß Gott " * 50})
    answer = plain.compressed(*codings.split(", "))
    live, again = both(tmp_path, always(answer), "openai", chat("hi"))
    assert (live.headers["content-encoding"], live.body) == (codings, answer.body)
    (made,) = recorded(tmp_path / "x.db")
    assert made.response.body == again.body == plain.body
    assert "content-encoding" not in {*again.headers, *dict(made.response.headers)}


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_a_compressed_stream_is_replayed_plain(tmp_path: Path, coding: str) -> None:
    """Its events are found in what was inflated, so that its end is known."""
    events = [f'data: {{"choices":[{{"delta":{{"content":"{n}"}}}}]}}\n\n' for n in range(9)]
    plain = "".join([*events, "data: [DONE]\n\n"]).encode()
    fields = (("content-type", "text/event-stream"), ("content-encoding", coding))
    answer = Answer(200, fields, (Piece(compress(plain, coding)),), "chunked")
    live, again = both(tmp_path, always(answer.recut(11)), "openai", chat("hi", stream=True))
    assert live.body == compress(plain, coding)
    assert again.body == plain
    assert recorded(tmp_path / "x.db")[0].response.ending == "complete"


# --- files, batches, polling ------------------------------------------------------------------------------------------------------


def batch(status: str) -> Answer:
    done = {"output_file_id": "file-out1"} if status == "completed" else {}
    return json_answer({"id": "batch_1", "object": "batch", "input_file_id": "file-in1", "status": status, **done})


LINES = b'{"custom_id":"1","response":{"status_code":200}}\n{"custom_id":"2","response":{"status_code":200}}\n'
BATCH = Script((
    Step(json_answer({"id": "file-in1", "object": "file", "purpose": "batch"}), path="/v1/files", method="POST"),
    Step(batch("validating"), path="/v1/batches", method="POST"),
    Step(batch("in_progress"), path="/v1/batches/batch_1", times=2),
    Step(batch("completed"), path="/v1/batches/batch_1"),
    Step(Answer(200, (("content-type", "application/jsonl"),), (Piece(LINES),)), path="/v1/files/file-out1/content"),
    Step(
        json_answer({"id": "file-in1", "object": "file", "deleted": True}),
        path="/v1/files/file-in1",
        method="DELETE",
    ),
))  # fmt: skip


def upload(boundary: str) -> bytes:
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{{"custom_id":"1"}}\n\r\n'
        f"--{boundary}--\r\n"
    )
    return request(body.encode(), "/v1/files", content_type=f"multipart/form-data; boundary={boundary}")


def batch_job(c: Wire, boundary: str, polls: int) -> list[object]:
    """Do what a program with a batch does: upload, begin, poll, fetch, delete."""
    file = c.ask(upload(boundary)).json["id"]
    asked = json.dumps({"input_file_id": file, "endpoint": "/v1/chat/completions"}).encode()
    made = c.ask(request(asked, "/v1/batches")).json
    states = [c.ask(request(b"", f"/v1/batches/{made['id']}", "GET")).json for _ in range(polls)]
    lines = c.ask(request(b"", f"/v1/files/{states[-1]['output_file_id']}/content", "GET")).body
    gone = c.ask(request(b"", f"/v1/files/{file}", "DELETE")).json
    return [file, made, [state["status"] for state in states], lines, gone]


def test_a_batch_runs_offline_as_it_ran(store: Path) -> None:
    """Upload, begin, poll to the end, fetch the lines, delete: every step in its turn, twice."""
    with Provider(BATCH) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        live = batch_job(c, "one", polls=3)
    assert live[2:4] == [["in_progress", "in_progress", "completed"], LINES]
    with Rig("replay", store) as rig:
        for boundary in ("two", "three"):
            with rig.client() as c:
                assert batch_job(c, boundary, polls=3) == live


def test_polling_advances_and_then_stays_at_the_last(store: Path) -> None:
    """More polls than were recorded get the last state: a program that is slower offline still ends."""
    with Provider(BATCH, check=False) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        batch_job(c, "one", polls=3)
    poll = request(b"", "/v1/batches/batch_1", "GET")
    with Rig("replay", store) as rig, rig.client() as c:
        states = [c.ask(poll).json["status"] for _ in range(7)]
    assert states == ["in_progress", "in_progress", *["completed"] * 5]
    with Rig("replay", store, exhausted="miss") as rig, rig.client() as c:
        assert [c.ask(poll).status for _ in range(4)] == [200, 200, 200, 404]
    with Rig("replay", store, exhausted="cycle") as rig, rig.client() as c:
        states = [c.ask(poll).json["status"] for _ in range(4)]
    assert states == ["in_progress", "in_progress", "completed", "in_progress"]


def test_a_first_auto_run_polls_live_and_the_next_one_offline(store: Path) -> None:
    """In `auto` a poll is not answered from the poll before it."""
    with Provider(BATCH) as p:
        with Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
            live = batch_job(c, "one", polls=3)
        asked = len(p.requests)
        with Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
            assert batch_job(c, "two", polls=3) == live
        assert len(p.requests) == asked


def test_anthropic_s_batch_results_are_lines(tmp_path: Path) -> None:
    answer = Answer(200, (("content-type", "application/x-jsonl"),), (Piece(LINES[:30]), Piece(LINES[30:])), "chunked")
    raw = request(b"", "/anthropic/v1/messages/batches/msgbatch_1/results", "GET", anthropic_version="2023-06-01")
    live, again = both(tmp_path, always(answer), "anthropic", raw)
    assert live.body == again.body == LINES
