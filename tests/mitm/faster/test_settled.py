"""Settled header fields say what mitmproxy's own say, and notice when they are changed after all."""

from __future__ import annotations

from hypothesis import given, strategies as st
from mitmproxy.http import Headers

from llmproxy.mitm.faster.settled import Settled

NAMES = st.sampled_from([b"Host", b"host", b"Transfer-Encoding", b"x", b"X-\xff", b"cookie"])
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=8))).map(tuple)


@given(FIELDS)
def test_every_question_has_the_same_answer(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    """Whatever case the name has, text or bytes, once or several times, there or not."""
    ours, theirs = Settled(fields), Headers(fields)
    for name in ("host", "HOST", "transfer-encoding", "X", "cookie", "absent", b"Host"):
        assert (name in ours) == (name in theirs)
        assert ours.get(name) == theirs.get(name)
        assert ours.get(name, "default") == theirs.get(name, "default")
        if name in theirs:
            assert ours[name] == theirs[name]
    assert bytes(ours) == bytes(theirs)
    assert ours == theirs


def test_a_change_is_noticed() -> None:
    """Set, deleted or replaced as a whole: the next question sees it."""
    fields = Settled(((b"a", b"1"), (b"b", b"2")))
    assert fields["a"] == "1"
    fields["A"] = "3"
    assert fields["a"] == "3"
    del fields["a"]
    assert fields.get("a") is None
    fields.fields = ((b"c", b"4"),)
    assert "b" not in fields
    assert fields["c"] == "4"
