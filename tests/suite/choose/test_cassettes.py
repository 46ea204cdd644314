"""Names of recorded cases."""

from __future__ import annotations

from llmproxy.suite.choose.cassettes import cassette_name


def test_names_of_cassettes_never_meet() -> None:
    """They can be read, stand in a URL, and what slugging lost is told apart."""
    names = {cassette_name(suite, case) for suite in ("My suite", "my-suite") for case in ("a", "a[1]", "a[2]", "ä")}
    assert len(names) == 8
    assert cassette_name("tasks", "create") == "tasks/create"
    assert all(name.isascii() and "#" not in name for name in names)
