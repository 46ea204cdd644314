"""What a run can be told beyond the documented parameters."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.scenario.values.options import RunOptions


def test_defaults_neither_limit_a_run_nor_reach_for_a_proxy() -> None:
    """But one call has an end."""
    options = RunOptions()
    assert (options.proxy, options.timeout, options.call_timeout, options.sample) == (None, None, 120, 1)


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"call_timeout": -1}, {"sample": 0}, {"runs": 0}, {"max_concurrency": 0}]
)
def test_numbers_below_one_are_refused(wrong: dict[str, Any]) -> None:
    """With name and value; None is no number."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} takes a number above 0"):
        RunOptions(**wrong)
    assert RunOptions(call_timeout=None).call_timeout is None
