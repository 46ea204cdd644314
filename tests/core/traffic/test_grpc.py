"""Messages of gRPC are cut where their lengths say and shown by descriptor or texts; an error of ours survives its head."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, strategies as st

from llmproxy.core.traffic.grpc import Descriptors, count_messages, find_texts, format_messages, refusal, split_messages
from llmproxy.core.traffic.interaction import is_grpc
from llmproxy.errors import SettingsError

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
    assert list(split_messages(body)) == messages
    assert count_messages(body) == count


def test_a_refusal_is_a_head_that_any_client_can_read() -> None:
    """Percent-encoded, ASCII, without a line break, and not longer than clients take."""
    fields = dict(refusal(404, "llmproxy_cache_miss", "100 % größer\nwhat to do", miss=True))
    assert (fields["grpc-status"], fields["x-llmproxy-cache"]) == ("9", "miss")
    said = fields["grpc-message"]
    assert said.isascii()
    assert said.isprintable()
    assert unquote(said) == "100 % größer\nwhat to do"
    assert len(dict(refusal(404, "x", "ä" * 10_000))["grpc-message"]) < 7000


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
    assert find_texts(data) == texts


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    """Whatever a body is."""
    list(format_messages(data, "/a/b", None, answer=True))
    find_texts(data)


def test_a_descriptor_that_does_not_fit_is_an_error_in_words(tmp_path: Path) -> None:
    """No file, no descriptors, another method, another message: each says what it is."""
    path = tmp_path / "a.desc"
    path.write_bytes(descriptor_set("a", "Chat", "Say", "text").SerializeToString())
    known = Descriptors(path)
    assert known.format("/a.Chat/Say", b"\x0a\x02hi", answer=True) == '{\n  "text": "hi"\n}'
    wrong = {("/a.Chat/Ask", b""): "does not know a.Chat/Ask", ("/b/c", b""): "It knows: a.Chat"}
    wrong |= {("/a.Chat/Say", b"\xff"): "no a.Said", ("/a.Chat/Say", b"\x20\x01"): "no field of a.Said"}
    for (target, data), why in wrong.items():
        with pytest.raises(SettingsError) as said:
            known.format(target, data, answer=False)
        assert why in str(said.value)
    path.write_text("no such thing")
    for each in (path, tmp_path / "none"):
        with pytest.raises(SettingsError, match="holds no descriptors"):
            Descriptors(each)
