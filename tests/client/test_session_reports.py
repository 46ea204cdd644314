"""What a proxy tells, read leniently, and sums of it in a line."""

from __future__ import annotations

from decimal import Decimal

from llmproxy.calls_and_totals import Call, UnusedRecording, UsageSums
from llmproxy.client.session_reports import (
    SessionReport,
    explain_unreachable_provider,
    format_session_counts,
    list_shortened_misses_with_counts,
    shorten_miss,
    sum_session_reports,
)


def test_a_call_is_read_as_it_is_told() -> None:
    """Each member; what is null stays unknown."""
    told = {
        "seq": 2, "at": 5, "ms": 1.5, "first_ms": None, "party": "judge", "decision": "REPLAY", "status": 200, "miss": False, "note": "",
        "key": "v1:1", "occurrence": 1, "provider": "openai", "operation": "chat.completions", "model": None, "interaction": 7,
        "recording": {"llmproxy": 1},
    }  # fmt: skip
    call = Call.from_json(told)
    assert {name: getattr(call, name) for name in told} == told
    assert "llmproxy" not in repr(call)


def test_a_call_whose_provider_could_not_be_reached() -> None:
    """A refusal of ours is another thing, and so is what the provider itself answered."""
    lost = {"decision": "REFUSE", "status": 502}
    assert Call.from_json(lost).unreached
    others: tuple[dict[str, object], ...] = ({"status": 404}, {"miss": True}, {"decision": "RECORD"})
    assert not any(Call.from_json(lost | other).unreached for other in others)


def test_what_an_agent_could_never_reach() -> None:
    """A retry that was answered makes up for it; what a judge could not reach is not the agent's; another request does not help."""
    lost = {
        "seq": 1, "party": "agent", "key": "v1:1", "decision": "REFUSE", "status": 502, "note": "llmproxy: a: refused",
    }  # fmt: skip
    again, other = lost | {"seq": 2, "note": "llmproxy: b: refused"}, lost | {"seq": 2, "key": "v1:2"}
    answered = {"decision": "RECORD", "status": 200}

    def said(*told: dict[str, object]) -> str:
        return explain_unreachable_provider(map(Call.from_json, told))

    assert said() == said(lost | {"party": "judge"}) == said(lost, again | answered) == ""
    assert said(lost) == said(lost, other | answered) == "a: refused"
    unread, elsewhere = lost | {"key": None}, {"provider": "groq"}  # refused before its body had arrived
    assert (said(unread), said(unread, other | answered)) == ("a: refused", "")
    assert said(unread, other | answered | elsewhere) == "a: refused"
    assert said(lost, again) == "b: refused"


def test_a_call_of_another_version_is_read_as_far_as_it_goes() -> None:
    """An older proxy says less, a newer one more; what counts is there, what is unknown is None."""
    call = Call.from_json({"seq": 1, "news": 2})
    assert (call.seq, call.status, call.miss, call.party) == (1, 0, False, "")
    assert (call.first_ms, call.model, call.recording, call.interaction) == (None, None, None, None)


def report(**facts: object) -> SessionReport:
    return SessionReport(name="a", cassette="a", **facts)  # type: ignore[arg-type]


def test_the_line_leaves_out_what_is_nothing() -> None:
    assert format_session_counts(report()) == "0 hits, 0 misses, 0 recorded"
    full = report(hits=1, misses=1, recorded=2, passed=1, refused=1, failed=1, saved=UsageSums(cost=Decimal("0.00123")))
    assert format_session_counts(full) == "1 hit, 1 miss, 2 recorded, 1 passed, 1 refused, 1 lost; $0.0012 not spent"
    found = format_session_counts(report(hits=1, parties={"agent": UsageSums(unpriced=1)}))
    assert found == "1 hit, 0 misses, 0 recorded; 1 call whose price or tokens are not known"


def test_reports_add_up_and_an_unknown_price_stays_unknown() -> None:
    """It is never counted as 0."""
    spent = report(hits=2, spent=UsageSums(cost=Decimal("0.1")), unused=(UnusedRecording(1, "messages", None, None),))
    total = sum_session_reports([report(hits=1), spent])
    assert (total.hits, total.spent.cost, total.saved.cost, len(total.unused or ())) == (3, Decimal("0.1"), None, 1)
    assert sum_session_reports([]).calls == 0


def test_a_miss_is_its_first_sentence_fit_for_a_terminal() -> None:
    """What was asked came over the wire: it moves no cursor."""
    assert shorten_miss("llmproxy: no recorded response\x1b[2J:\nthe nearest is #1\nmore") == (
        "no recorded response\N{REPLACEMENT CHARACTER}[2J: the nearest is #1"
    )
    assert len(shorten_miss("x" * 1000)) == 300
    assert shorten_miss("") == ""


def test_many_misses_are_counted_not_listed() -> None:
    """Equal ones once; how many more there are."""
    lines = list_shortened_misses_with_counts(["same", "same", *(f"other {n}" for n in range(9))])
    assert lines[0] == "  same (2 times)"
    assert lines[-1] == "  ... and 5 more"
