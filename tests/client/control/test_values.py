"""What a proxy tells, read leniently."""

from __future__ import annotations

from llmproxy.client.control.values import Call, Health, Miss, Party, Unused, never_reached


def test_a_call_is_read_as_it_is_told() -> None:
    """Each member; what is null stays unknown."""
    told = {
        "seq": 2, "at": 5, "ms": 1.5, "first_ms": None, "party": "judge", "decision": "REPLAY", "status": 200, "miss": False, "note": "",
        "key": "v1:1", "occurrence": 1, "provider": "openai", "operation": "chat.completions", "model": None, "interaction": 7,
        "recording": {"llmproxy": 1},
    }  # fmt: skip
    call = Call.of(told)
    assert {name: getattr(call, name) for name in told} == told
    assert "llmproxy" not in repr(call)


def test_a_call_whose_provider_could_not_be_reached() -> None:
    """A refusal of ours is another thing, and so is what the provider itself answered."""
    lost = {"decision": "REFUSE", "status": 502}
    assert Call.of(lost).unreached
    others: tuple[dict[str, object], ...] = ({"status": 404}, {"miss": True}, {"decision": "RECORD"})
    assert not any(Call.of(lost | other).unreached for other in others)


def test_what_an_agent_could_never_reach() -> None:
    """A retry that was answered makes up for it; what a judge could not reach is not the agent's; another request does not help."""
    lost = {
        "seq": 1,
        "party": "agent",
        "key": "v1:1",
        "decision": "REFUSE",
        "status": 502,
        "note": "llmproxy: a: refused",
    }
    again, other = lost | {"seq": 2, "note": "llmproxy: b: refused"}, lost | {"seq": 2, "key": "v1:2"}
    answered = {"decision": "RECORD", "status": 200}

    def said(*told: dict[str, object]) -> str:
        return never_reached(map(Call.of, told))

    assert said() == said(lost | {"party": "judge"}) == said(lost, again | answered) == ""
    assert said(lost) == said(lost, other | answered) == "a: refused"
    unread, elsewhere = lost | {"key": None}, {"provider": "groq"}  # refused before its body had arrived
    assert (said(unread), said(unread, other | answered)) == ("a: refused", "")
    assert said(unread, other | answered | elsewhere) == "a: refused"
    assert said(lost, again) == "b: refused"


def test_a_call_of_another_version_is_read_as_far_as_it_goes() -> None:
    """An older proxy says less, a newer one more; what counts is there, what is unknown is None."""
    call = Call.of({"seq": 1, "news": 2})
    assert (call.seq, call.status, call.miss, call.party) == (1, 0, False, "")
    assert (call.first_ms, call.model, call.recording, call.interaction) == (None, None, None, None)


def test_values_are_values() -> None:
    """They compare by what they say."""
    assert Health("1", "replay") == Health("1", "replay", None)
    assert Unused(1, "messages", None, "hi") != Unused(2, "messages", None, "hi")
    assert Party().cost is None
    assert Miss(0.0, "a", "b").session == "a"
