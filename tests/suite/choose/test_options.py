"""What a test goes by if nothing is asked for."""

from __future__ import annotations

from llmproxy.suite.choose.options import Options


def test_nothing_is_spent_or_written_unasked() -> None:
    """One run at a time, the proxy's own mode, no snapshots written, stopping at a failure."""
    default = Options()
    assert (default.mode, default.parallel, default.update, default.keep_going, default.max_cost) == (
        None,
        1,
        False,
        False,
        None,
    )
