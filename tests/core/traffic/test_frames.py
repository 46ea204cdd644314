"""The form in which a WebSocket conversation is kept."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, strategies as st

from llmproxy.core.dialects.conversation import parse_answer_body_as_message
from llmproxy.core.dialects.stream_events import list_stream_events
from llmproxy.core.dialects.usage_and_cost import read_model_named_in_answer, read_usage
from llmproxy.core.traffic.grpc import (
    GrpcDescriptors,
    build_grpc_refusal_headers,
    count_grpc_messages_capped,
    extract_protobuf_texts,
    format_grpc_messages,
    split_grpc_messages,
)
from llmproxy.core.traffic.interaction import is_grpc
from llmproxy.core.traffic.websocket_frames import (
    CONTENT_TYPE,
    CUT,
    WebSocketFrame,
    encode_frame_as_json_line,
    encode_websocket_frames_as_chunks,
    extract_websocket_requests,
    format_websocket_transcript,
    is_websocket_body,
    list_json_of_websocket_side,
    parse_recorded_websocket_frames,
)
from llmproxy.errors import CassetteCorrupt, SettingsError
from tests.support.narrowing import known

texts = st.text(st.characters(exclude_categories=["Cs"]))
messages = st.builds(WebSocketFrame, st.integers(0, 1 << 50), st.booleans(), texts | st.binary())
ends = st.builds(WebSocketFrame, st.integers(0, 1 << 50), st.booleans(), texts, st.integers(1000, 4999))


@given(st.lists(messages | ends))
def test_what_is_written_can_be_read(frames: list[WebSocketFrame]) -> None:
    """Text, bytes and ends survive, whatever is in them; a line is a chunk, with its time."""
    pieces = encode_websocket_frames_as_chunks(frames)
    assert parse_recorded_websocket_frames(b"".join(piece.data for piece in pieces)) == frames
    assert [piece.offset for piece in pieces] == [frame.at for frame in frames]
    assert all(piece.data.count(b"\n") == 1 and piece.data.endswith(b"\n") for piece in pieces)


@pytest.mark.parametrize(("frame", "line"), [
    (WebSocketFrame(5, client=True, data='{"a": "ü"}'), '{"t": 5, "from": "client", "text": "{\\"a\\": \\"ü\\"}"}'),
    (WebSocketFrame(5, client=False, data=b'{"a": 1}'), '{"t": 5, "from": "server", "text": "{\\"a\\": 1}", "binary": true}'),
    (WebSocketFrame(5, client=False, data=b"\x00\x01"), '{"t": 5, "from": "server", "data": "AAE="}'),
    (WebSocketFrame(5, client=False, data=b"{\xff"), '{"t": 5, "from": "server", "data": "e/8="}'),
    (WebSocketFrame(9, client=True, data="bye", close=1000), '{"t": 9, "from": "client", "close": 1000, "reason": "bye"}'),
])  # fmt: skip
def test_the_form_is_the_documented_one(frame: WebSocketFrame, line: str) -> None:
    """Binary JSON (Gemini Live) is written as text, so that people can read it."""
    assert encode_frame_as_json_line(frame).decode() == line + "\n"


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", '{"t": 1}', '{"t": 1, "from": "x", "text": ""}', '{"t": 1, "from": "client"}', '{"t": "x", "from": "client", "text": ""}',
     '{"t": 1, "from": "client", "data": "?"}', '{"t": 1, "from": "client", "text": 5}', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_line_is_an_error(line: str) -> None:
    """It names the line; nothing is guessed."""
    good = encode_frame_as_json_line(WebSocketFrame(1, client=True, data="a"))
    with pytest.raises(CassetteCorrupt, match="line 2"):
        parse_recorded_websocket_frames(good + line.encode())
    assert [*list_json_of_websocket_side(good + line.encode(), "server")] == []


def socket(*said: tuple[str, object]) -> bytes:
    """Write a conversation of JSON messages."""
    return b"".join(
        encode_frame_as_json_line(WebSocketFrame(n, who == "client", json.dumps(what)))
        for n, (who, what) in enumerate(said)
    )


REALTIME = socket(
    ("server", {"type": "session.created", "session": {"model": "gpt-realtime"}}),
    ("client", {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}}),
    ("server", {"type": "response.created", "response": {"id": "resp_1"}}),
    ("server", {"type": "response.output_text.delta", "delta": "hello"}),
    ("server", {"type": "response.done", "response": {"usage": {"input_tokens": 10, "output_tokens": 2}, "output": [{"type": "message"}]}}),
    ("server", {"type": "response.created", "response": {"id": "resp_2"}}),
    ("server", {"type": "response.output_audio_transcript.delta", "delta": "and "}),
    ("server", {"type": "response.output_audio_transcript.delta", "delta": "goodbye"}),
    ("server", {"type": "response.done", "response": {"usage": {"input_tokens": 20, "output_tokens": 3,
                                                                 "input_token_details": {"cached_tokens": 8}}}}),
)  # fmt: skip


def test_usage_is_the_sum_of_all_answers() -> None:
    """Each answer of a socket is billed by itself; a plain stream's last word would lose all but one."""
    usage = read_usage("openai", "realtime", CONTENT_TYPE, REALTIME)
    assert (usage.input, usage.output) == (30, 5)
    live = socket(
        ("server", {"usageMetadata": {"promptTokenCount": 5, "responseTokenCount": 2}}),
        ("server", {"usageMetadata": {"promptTokenCount": 9, "responseTokenCount": 1}}),
    )
    found = read_usage("gemini", "/ws/google.ai.BidiGenerateContent", CONTENT_TYPE, live)
    assert (found.input, found.output) == (14, 3)


def test_the_model_is_the_one_that_the_server_names() -> None:
    """Of Realtime the session's."""
    assert read_model_named_in_answer(CONTENT_TYPE, REALTIME) == "gpt-realtime"


def test_events_are_the_servers() -> None:
    kinds = [event.get("type") for event in list_stream_events(CONTENT_TYPE, REALTIME) if isinstance(event, dict)]
    assert "conversation.item.create" not in kinds
    assert len(kinds) == 8


def test_question_and_answer_are_found_for_lists() -> None:
    """The last answer, what was spoken as its transcript; the question as a request would have put it."""
    assert known(parse_answer_body_as_message("realtime", CONTENT_TYPE, REALTIME)).text == "and goodbye"
    assert b'"hi"' in extract_websocket_requests(REALTIME)[0]
    live = socket(
        ("client", {"clientContent": {"turns": [{"role": "user", "parts": [{"text": "hi"}]}]}}),
        ("client", {"setup": {}}),
    )
    assert json.loads(extract_websocket_requests(live)[0]) == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}]
    }


def test_a_transcript_is_for_people() -> None:
    """Directions, times, ends; audio and binary are not spelled out."""
    frames = [
        WebSocketFrame(1200, client=True, data=json.dumps({"type": "input_audio_buffer.append", "audio": "A" * 5000})),
        WebSocketFrame(2300, client=False, data=b"\x00" * 7),
        WebSocketFrame(2400, client=False, data="no JSON " * 1000),
        WebSocketFrame(2500, client=True, data="bye", close=1000),
        WebSocketFrame(2600, client=False, close=CUT),
    ]
    lines = list(format_websocket_transcript(b"".join(map(encode_frame_as_json_line, frames))))
    assert "1.2 ms  client -> " in lines[0]
    assert "(5000 characters)" in lines[0]
    assert len(lines[0]) < 200
    assert lines[1].endswith("2.3 ms  server <- (7 bytes)")
    assert len(lines[2]) < 2100
    assert lines[3].endswith("(close 1000: bye)")
    assert "cut" in lines[4]


def test_the_content_type_tells() -> None:
    assert is_websocket_body((("Content-Type", CONTENT_TYPE),))
    assert not is_websocket_body((("content-type", "application/json"),))
    assert not is_websocket_body(())


ONE, TWO = b"\0\0\0\0\3abc", b"\1\0\0\0\0"


@pytest.mark.parametrize(("body", "messages", "count"), [
    (b"", [], 0),
    (ONE, [(False, b"abc")], 1),
    (ONE + TWO, [(False, b"abc"), (True, b"")], 2),
    (ONE + TWO + ONE, [(False, b"abc"), (True, b""), (False, b"abc")], 2),
    (ONE[:-1], [], 0),
    (ONE[:4], [], 0),
    (ONE + TWO[:2], [(False, b"abc")], 2),
])  # fmt: skip
def test_messages_are_cut_where_they_say(body: bytes, messages: list[tuple[bool, bytes]], count: int) -> None:
    """One that is not whole is not read, but has begun."""
    assert list(split_grpc_messages(body)) == messages
    assert count_grpc_messages_capped(body) == count


def test_a_refusal_is_a_head_that_any_client_can_read() -> None:
    """Percent-encoded, ASCII, without a line break, and not longer than clients take."""
    fields = dict(build_grpc_refusal_headers(404, "llmproxy_cache_miss", "100 % größer\nwhat to do", miss=True))
    assert (fields["grpc-status"], fields["x-llmproxy-cache"]) == ("9", "miss")
    said = fields["grpc-message"]
    assert (said.isascii(), said.isprintable()) == (True, True)
    assert unquote(said) == "100 % größer\nwhat to do"
    assert len(dict(build_grpc_refusal_headers(404, "x", "ä" * 10_000))["grpc-message"]) < 7000


def test_grpc_is_told_by_its_type() -> None:
    """gRPC-Web is HTTP as any other."""
    kinds = ("application/grpc", "application/grpc+proto", "application/grpc;x=1", "application/grpc-web", "")
    assert [is_grpc((("Content-Type", kind),)) for kind in kinds] == [True, True, True, False, False]


def descriptor_set(package: str, service: str, method: str, field: str) -> descriptor_pb2.FileDescriptorSet:
    """Describe a service whose one method takes and gives a message with one text."""
    held = descriptor_pb2.FileDescriptorSet()
    file = held.file.add(name="a.proto", package=package, syntax="proto3")
    message = file.message_type.add(name="Said")
    kind = descriptor_pb2.FieldDescriptorProto
    message.field.add(name=field, number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    name = f".{package}.Said"
    file.service.add(name=service).method.add(name=method, input_type=name, output_type=name)
    return held


@pytest.mark.parametrize(("data", "texts"), [
    (b"", []),
    (b"\x0a\x02hi", [("1", "hi")]),
    (b"\x0a\x04\x12\x02hi\x10\x05", [("1.2", "hi")]),
    (b"\x0a\x22\x0a\x20" + b"x" * 32, [("1.1", "x" * 32)]),  # its length is a character
    (b"\x0d\0\0\0\0\x11\0\0\0\0\0\0\0\0\x1a\x03\xff\xfe\xfd", []),
    (b"just text", [("", "just text")]),
    (b"\xff\xff", []),
    (b"\x0a\x7f", []),
    (b"\x0a\x04\xc3\xa9\n\n", [("1", "\xe9\n\n")]),
])  # fmt: skip
def test_the_texts_of_a_message_are_found(data: bytes, texts: list[tuple[str, str]]) -> None:
    """With the numbers of the fields that lead to them."""
    assert extract_protobuf_texts(data) == texts


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    list(format_grpc_messages(data, "/a/b", None, answer=True))
    extract_protobuf_texts(data)


def test_a_descriptor_that_does_not_fit_is_an_error_in_words(tmp_path: Path) -> None:
    """No file, no descriptors, another method, another message: each says what it is."""
    path = tmp_path / "a.desc"
    path.write_bytes(descriptor_set("a", "Chat", "Say", "text").SerializeToString())
    described = GrpcDescriptors(path)
    assert described.format_message("/a.Chat/Say", b"\x0a\x02hi", answer=True) == '{\n  "text": "hi"\n}'
    wrong = {("/a.Chat/Ask", b""): "does not know a.Chat/Ask", ("/b/c", b""): "It knows: a.Chat"}
    wrong |= {("/a.Chat/Say", b"\xff"): "no a.Said", ("/a.Chat/Say", b"\x20\x01"): "no field of a.Said"}
    for (target, data), why in wrong.items():
        with pytest.raises(SettingsError) as said:
            described.format_message(target, data, answer=False)
        assert why in str(said.value)
    path.write_text("no such thing")
    for each in (path, tmp_path / "none"):
        with pytest.raises(SettingsError, match="holds no descriptors"):
            GrpcDescriptors(each)
