"""Which recordings a request is compared with: all that may fit, and few that cannot."""

from __future__ import annotations

import json

import pytest

from llmproxy.core.bindings import Bindings, Fit, RunVariable, bound_key, fit_request
from llmproxy.core.bindings.bound_key import read_last_user_text
from llmproxy.core.keys.normalize import Canonical, canonicalize
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.interaction import Request
from tests.support.narrowing import known


def _asked(question: str, *more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": question}, *more]}


def _canonical(question: str, *more: object) -> Canonical:
    where = route("POST", "/v1/chat/completions", (), {})
    request = Request("POST", "/x", (), json.dumps(_asked(question, *more)).encode())
    return canonicalize(request, where, Rules(), lambda _: None)


def _key(question: str) -> str:
    return bound_key(_canonical(question))


@pytest.mark.parametrize("question", [
    "Say {}", "Übersetze Kapitel {}", "第{}章を要約", "What is in docs/{}/x?", "Open https://example.com and say {}", "Tell {}, then read /a/b",
    "50 {}", "Is {} in http://a.b/c ok?",
])  # fmt: skip
def test_other_words_are_no_candidates(question: str) -> None:
    """However many a cassette holds of them, each request is compared with few."""
    assert _key(question.format("one")) != _key(question.format("two"))


VALUES = ("/tmp/a", "/srv/my work/b", "/w", "C:\\Users\\a b", "/é/ü", "/home/kim/x", "order|2026,a1", "1f3a9c0de4")
AROUND = ("see -I{} x", '"{}"', "path={},", "\x1b[32m{}", "\\n{}\\n", "file://{}/x", "a:{}:b", "1 {} 2")


@pytest.mark.parametrize("recorded", VALUES)
def test_whatever_fits_is_a_candidate(recorded: str) -> None:
    """A path in any of its forms, an id of any characters, wherever one may stand: what is bound is no difference."""
    fitted = 0
    for present in VALUES:
        before, now = ([RunVariable("x", value), RunVariable("home", home)]
                       for value, home in ((recorded, "/home/kim"), (present, "/home/lee")))  # fmt: skip
        bindings = Bindings(before, now)
        for form in (form for forms in bindings.typed_forms.by_text.values() for form in forms):
            for text in form.present:
                for around in AROUND:
                    one, other = around.format(form.recorded), around.format(text)
                    if isinstance(fit_request(bindings, _asked(one), _asked(other)), Fit):
                        fitted += 1
                        assert _key(one) == _key(other), (one, other)
                        typed = known(read_last_user_text(_canonical(other), {}))
                        assert typed.may_equal(1, _canonical(one), bindings), (one, other)
    assert fitted > 50


def test_what_was_typed_is_looked_at_first() -> None:
    """Of a thousand questions that begin with a path all but one are none of ours, and that is told without a comparison."""
    bindings = Bindings([RunVariable("cwd", "/tmp/a")], [RunVariable("cwd", "/srv/b")])
    recorded = [_canonical(f"In {folder} say {n}") for folder in ("/tmp/a", "/data") for n in range(9)]
    for question, wanted in (("In /srv/b say 7", [7]), ("In /data say 3", [3, 12]), ("In /srv/b say 77", [])):
        typed = known(read_last_user_text(_canonical(question), {}))
        assert [n for n, one in enumerate(recorded) if typed.may_equal(n, one, bindings)] == wanted


@pytest.mark.parametrize("last", [
    {"role": "tool", "tool_call_id": "c", "content": "x"},
    {"role": "assistant", "content": "x"},
    {"role": "user", "content": "<system-reminder>\nx\n</system-reminder>\ny"},
    {"role": "user", "content": [{"type": "image"}]},
    {"role": "user", "content": 7},
])  # fmt: skip
def test_where_it_is_not_clear_who_wrote_nothing_is_told(last: dict[str, object]) -> None:
    """A tool's answer may hold what stands in a question later, and an agent's block a day."""
    assert read_last_user_text(_canonical("hi", last), {}) is None
