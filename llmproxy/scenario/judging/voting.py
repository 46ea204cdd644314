"""Several judges, one verdict: who is asked, and what their votes come to.

    majority         everybody is asked; more than half of the votes decide a criterion
    unanimous        everybody is asked; all must agree
    confirm-on-fail  one is asked; the others only if that one would fail something, and then more than half of all decide

What is not decided is inconclusive. A vote that is missing is no vote for anything, and still counts as one that was cast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from llmproxy.errors import SettingsError
from llmproxy.scenario.values.criteria import Finding, Standing


class Vote(StrEnum):
    """How votes come to a verdict."""

    MAJORITY = "majority"
    UNANIMOUS = "unanimous"
    CONFIRM_ON_FAIL = "confirm-on-fail"


def vote_of(said: str) -> Vote:
    """Return the rule of a name. Raises SettingsError."""
    try:
        return Vote(said.strip().lower().replace("_", "-"))
    except ValueError as error:
        raise SettingsError(f"vote={said!r} is no way to vote.", hint=f"There are: {', '.join(Vote)}.") from error


def parties(judges: int) -> tuple[str, ...]:
    """Return the names under which the proxy knows so many judges."""
    return ("judge", *(f"judge.{number}" for number in range(2, judges + 1)))


def combine_votes(
    ids: Sequence[str], votes: Sequence[Mapping[str, Finding]], rule: Vote
) -> tuple[dict[str, Finding], dict[str, tuple[str, ...]]]:
    """Return what the votes come to for each criterion, and the status that each judge gave it.

    Evidence and reason are those of the first judge who voted as it was decided.
    """
    found: dict[str, Finding] = {}
    cast: dict[str, tuple[str, ...]] = {}
    silent = Finding(Standing.INCONCLUSIVE)
    for id_ in ids:
        findings = [vote.get(id_, silent) for vote in votes]
        cast[id_] = tuple(finding.status.value for finding in findings)
        decided = _decide_status([finding.status for finding in findings], rule)
        first = next((finding for finding in findings if finding.status is decided), None)
        if first is not None:
            found[id_] = first
        else:
            told = ", ".join(cast[id_])
            found[id_] = Finding(Standing.INCONCLUSIVE, reason=f"the judges do not agree: {told}")
    return found, cast


def _decide_status(statuses: Sequence[Standing], rule: Vote) -> Standing:
    wanted = len(statuses) if rule is Vote.UNANIMOUS else len(statuses) // 2 + 1
    for status in (Standing.PASSED, Standing.FAILED):
        if statuses.count(status) >= wanted:
            return status
    return Standing.INCONCLUSIVE
