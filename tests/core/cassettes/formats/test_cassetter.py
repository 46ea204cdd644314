"""cassetter's cassettes: trees become bytes again, as far as lengths tell how they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmproxy.core.cassettes.formats import Source, cassetter
from llmproxy.core.cassettes.formats.recorded import Recorded
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteError

Adopt = Callable[[str, str], list[Interaction]]

BINARY = """version: 1
interactions:
- request:
    method: POST
    uri: https://x/y
    headers:
      a:
      - b
    body:
      type: binary
      content: >-
        00ff0100ff
  response:
    status: 200
    headers: {}
    body:
      type: none
  recorded_at: 2026-02-20T10:30:01Z
"""
"""Written by cassetter 0.16.1, shortened."""


def read(text: str) -> list[Recorded]:
    return cassetter.read(Source(text.encode(), "x"))


def test_both_forms_are_the_same(interactions: Adopt) -> None:
    """The YAML and the TOML of one cassette give the same interactions."""
    assert interactions("cassetter", "cassetter.yaml") == interactions("cassetter", "cassetter.toml")


def test_bytes(interactions: Adopt, dialogue: list[Interaction]) -> None:
    """Requests and streams are the bytes of the wire; JSON answers those that cassetter itself serves."""
    found = {each.key: each for each in interactions("cassetter", "cassetter.yaml")}
    plain = [
        found[each.key].request.body == each.request.body for each in dialogue if "call_" not in str(each.request.body)
    ]
    assert plain == [True] * 6
    answer = interactions("cassetter", "cassetter.yaml")[0].response.body
    assert answer.startswith(b'{"id": "chatcmpl-000008", "created": 1790000008, ')
    assert len(answer) == 419  # its content-length, which cassetter restates for what it serves


def test_order(interactions: Adopt) -> None:
    """Exchanges are put in the order of their requests; cassetter writes them as answers end."""
    found = interactions("cassetter", "cassetter.yaml")
    assert [each.started_at for each in found] == sorted(each.started_at for each in found)
    assert [each.occurrence for each in found] == [1] * 6 + [2]


def test_binary_bodies_are_hexadecimal() -> None:
    """Binary is read as it was, no body is none."""
    (found,) = read(BINARY)
    assert (found.body, found.response_body, found.headers) == (b"\x00\xff\x01\x00\xff", b"", (("a", "b"),))


def test_what_is_not_http_is_skipped() -> None:
    """Calls of gRPC and WebSockets are listed with the reason."""
    found = read(BINARY + "grpc_interactions:\n- {}\nws_interactions:\n- {}\n")
    assert [each.problem for each in found] == ["", "it is a gRPC call, not HTTP", "it is a WebSocket, not HTTP"]
    assert [each.number for each in found] == [1, 2, 3]


@pytest.mark.parametrize(("old", "new", "said"), [
    ("version: 1", "version: 2", "is of version 2"),
    ("  recorded_at: 2026-02-20T10:30:01Z\n", "", "interaction 1: `recorded_at` is missing"),
    ("00ff0100ff", "00ff0", "a body of type binary is damaged"),
    ("type: binary", "type: odd", "a body of type 'odd'"),
    ("status: 200", "status: ok", "the status is 'ok'"),
    ("method: POST", "method: 1", "`method` is int"),
    ("interactions:\n", "interactions: 3\nx:\n", "`interactions` is int"),
])  # fmt: skip
def test_what_is_wrong_is_said(old: str, new: str, said: str) -> None:
    """A damaged file is named with the interaction."""
    with pytest.raises(CassetteError, match=said):
        read(BINARY.replace(old, new))


def test_damaged_toml() -> None:
    """What is no TOML is said with its line."""
    with pytest.raises(CassetteError, match=r"x: .*line 2"):
        read("[[interactions]]\na = \n")
    with pytest.raises(CassetteError, match="body, line 1"):
        read('version = 1\n[[interactions]]\nrecorded_at = "2026-02-20T10:30:01Z"\n[interactions.request]\nmethod = "GET"\n'
             'uri = "http://h/"\nbody_type = "json"\nbody_content = "{"\n[interactions.response]\nstatus = 200\n')  # fmt: skip
