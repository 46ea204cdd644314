"""The user's own rules are checked when they are read, and do what they say and no more."""

from __future__ import annotations

import pytest

from llmproxy.core.keys.scrub import Rules, TextScrub, apply, compile_rules, parse_path
from llmproxy.errors import SettingsError

ISO = "Now: 2026-07-30T10:00:00Z, released 2024-05-01."


def applied(tree: object, **config: object) -> object:
    """Apply rules as the settings file would give them."""
    return apply(tree, compile_rules(Rules.from_config(config)))


@pytest.mark.parametrize(("path", "left"), [
    ("$.a", {"l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {"b": 4}}),
    ("$.l[*].b", {"a": {"b": 0}, "l": [{"c": 2}, {}], "x.y": {"b": 4}}),
    ("$.l[-1]", {"a": {"b": 0}, "l": [{"b": 1, "c": 2}], "x.y": {"b": 4}}),
    ("$.l[7].b", {"a": {"b": 0}, "l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {"b": 4}}),
    ("$..b", {"a": {}, "l": [{"c": 2}, {}], "x.y": {}}),
    ("$['x.y'].b", {"a": {"b": 0}, "l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {}}),
    ("$.*", {}),
    ("$.a.b.c", {"a": {"b": 0}, "l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {"b": 4}}),
])  # fmt: skip
def test_ignored_paths_are_left_out(path: str, left: object) -> None:
    """Paths that lead nowhere do nothing."""
    assert applied({"a": {"b": 0}, "l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {"b": 4}}, ignore=[path]) == left


@pytest.mark.parametrize(("config", "said"), [
    ({"ignore": ["a.b"]}, "'a.b' is not a path"),
    ({"ignore": ["$"]}, "'[$]' is not a path"),
    ({"ignore": ["$.a["]}, "is not a path"),
    ({"ignore": "$.a"}, "must be a list of strings"),
    ({"ignores": []}, "did you mean 'ignore'"),
    ({"packs": ["date"]}, "did you mean 'dates'"),
    ({"scrub": [{"pattern": "("}]}, "scrub '\\('"),
    ({"scrub": [{"pattern": "a", "placeholder": "\\2"}]}, "invalid group reference"),
    ({"scrub": [{"pattern": "a", "where": "sytem"}]}, "did you mean 'system'"),
    ({"scrub": [{"patern": "a"}]}, "did you mean 'pattern'"),
    ({"scrub": [{"placeholder": "a"}]}, "has no pattern"),
    ({"scrub": ["a"]}, "a scrub is"),
    ({"scrub": 3}, "must be a list of tables"),
])  # fmt: skip
def test_wrong_rules_are_said_with_their_text(config: dict[str, object], said: str) -> None:
    """At the start, not at the first request."""
    with pytest.raises(SettingsError, match=said):
        Rules.from_config(config)


def test_rules_have_a_digest() -> None:
    """Equal rules have equal digests, others another one."""
    one = Rules.from_config({"ignore": ["$.a"], "scrub": {"x": "y"}, "packs": ["dates"]})
    assert one == Rules(("$.a",), (TextScrub("x", "y"),), ("dates",))
    assert one.digest == Rules(("$.a",), (TextScrub("x", "y"),), ("dates",)).digest != Rules().digest
    assert len(one.digest) == 12


def test_system_scrubs_leave_the_user_alone() -> None:
    """A date in what a user says is meaning."""
    tree = {
        "system": [{"type": "text", "text": ISO}],
        "instructions": ISO,
        "systemInstruction": {"parts": [{"text": ISO}]},
        "messages": [{"role": "system", "content": ISO}, {"role": "user", "content": ISO}],
        "input": [{"role": "developer", "content": [{"type": "input_text", "text": ISO}]}],
    }
    scrubbed = "Now: [date-time], released 2024-05-01."
    assert applied(tree, packs=["dates"]) == {
        "system": [{"type": "text", "text": scrubbed}],
        "instructions": scrubbed,
        "systemInstruction": {"parts": [{"text": scrubbed}]},
        "messages": [{"role": "system", "content": scrubbed}, {"role": "user", "content": ISO}],
        "input": [{"role": "developer", "content": [{"type": "input_text", "text": scrubbed}]}],
    }


def test_scrubs_everywhere_reach_every_value_but_no_name() -> None:
    """With groups in the placeholder."""
    scrub = [{"pattern": r"run-(\w)\d+", "placeholder": r"run-\1"}]
    assert applied({"run-a1": ["run-a1", {"x": "see run-b22!"}]}, scrub=scrub) == {
        "run-a1": ["run-a", {"x": "see run-b!"}]
    }
    assert applied(["run-a1", 3, None], scrub=scrub) == ["run-a", 3, None]


@pytest.mark.parametrize(("pack", "text", "scrubbed"), [
    ("uuids", "id 0b5c3f4e-1111-4222-8333-444455556666.", "id [uuid]."),
    ("temp-paths", "in /tmp/tmpab12_cd3/x and /tmp/data", "in [temp-path]/x and /tmp/data"),
    ("temp-paths", "/private/var/folders/zz/abc123/T/tmpx/y", "[temp-path]/y"),
    ("temp-paths", "/tmp/pytest-of-me/pytest-12/test_a0", "/tmp/[temp-path]/test_a0"),
    ("coding-agents", "Working directory: /home/me/p\nx", "Working directory: [cwd]\nx"),
    ("coding-agents", "Today's date: 2026-01-02", "Today's date: [date]"),
    ("dates", "2024-05-01 and 10:00", "2024-05-01 and 10:00"),
    ("days", "2024-05-01 and 10:00; v2024-05-01", "[day] and 10:00; v2024-05-01"),
    ("days", "It is Thursday, January 1, 2026 10:33 PM, or 3 May 2026.", "It is [day], or [day]."),
    ("days", "Wed Mar 4 2026; May 5th; 14:00; March 2026", "[day]; May 5th; 14:00; March 2026"),
])  # fmt: skip
def test_packs_touch_only_what_is_certainly_volatile(pack: str, text: str, scrubbed: str) -> None:
    """Each pack is tight."""
    assert applied({"system": text}, packs=[pack]) == {"system": scrubbed}


def test_codex_environment_is_scrubbed_where_codex_puts_it() -> None:
    """In a user message, but only inside its own tags."""
    text = "<environment_context>\n  <cwd>/a</cwd>\n  <sandbox>on</sandbox>\n  <timezone>CET</timezone></environment_context><cwd>/b</cwd>"
    (turn,) = applied({"input": [{"role": "user", "content": text}]}, packs=["coding-agents"])["input"]  # type: ignore[index]
    assert turn["content"] == text.replace("/a", "[cwd]").replace("CET", "[timezone]")


def test_paths_are_steps() -> None:
    """The dialect in one line."""
    assert parse_path("$..a[0].b-c[*]['d e']") == (
        ("deep", "a"), ("index", 0), ("name", "b-c"), ("every", "*"), ("name", "d e"),
    )  # fmt: skip
