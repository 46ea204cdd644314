"""What is carried, refused and named in generated conversations is what their generator knows."""

from __future__ import annotations

import pytest

from tests.core.changes.cases import LIES, case
from tests.core.changes.judging import Judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("cases"))


def test_each_lie_is_a_miss_in_every_dialect(judge: Judge) -> None:
    """A changed question, amount, result, tool or history gets no answer, whatever else changed."""
    assert judge.judge([case(6 * n + (n + more) % 6, lie) for n, lie in enumerate(LIES) for more in (0, 3)]) == []


def test_what_changed_is_what_was_edited(judge: Judge) -> None:
    """Answers are carried under exactly the segments that were edited, and everything else is an exact hit."""
    assert judge.judge([case(seed) for seed in range(1000, 1048)]) == []
