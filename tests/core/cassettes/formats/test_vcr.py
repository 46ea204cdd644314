"""vcrpy's cassettes as a row of the table; `core.cassettes.formats.vcr_yaml` has the tests of the format."""

from __future__ import annotations

import json

import pytest

from llmproxy.core.cassettes.formats import Source, vcr
from llmproxy.core.cassettes.formats.recorded import Recorded
from llmproxy.errors import CassetteCorrupt


def test_yaml_and_json() -> None:
    """What vcrpy writes with either serializer is read."""
    each = Recorded("GET", "http://h/", (), b"", 200, "OK", (), b"x")
    text = vcr.dumps([each], "x")
    assert vcr.recognises(Source(text.encode(), "x"))
    assert vcr.read(Source(text.encode(), "x"))[0].response_body == b"x"
    tree = {"version": 1, "interactions": [{"request": {"method": "GET", "uri": "http://h/", "headers": {}, "body": None},
            "response": {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": "👋"}}}]}  # fmt: skip
    source = Source(json.dumps(tree, indent=4).encode(), "x")
    assert vcr.recognises(source)
    assert vcr.read(source)[0].response_body == "👋".encode()
    tree["interactions"].append({"request": {}})  # type: ignore[attr-defined]
    with pytest.raises(CassetteCorrupt, match="interaction 2: response is missing"):
        vcr.read(Source(json.dumps(tree).encode(), "x"))


@pytest.mark.parametrize(
    ("text", "is_it"),
    [
        ("", True),
        ("interactions: []\nversion: 1\n", True),
        ("- request:\n", True),
        ("key: value\n", False),
        ("{}", False),
    ],
)
def test_recognition(text: str, is_it: bool) -> None:
    """An empty file counts, so that it is called empty; other YAML does not."""
    assert vcr.recognises(Source(text.encode(), "x")) is is_it
