"""Why a rule met no call, said at the end of a run.

A typo in a model's name must not look like an agent that stands everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmproxy.core.faults.choosing import chosen_by, covers, is_chosen
from llmproxy.core.faults.reading import PRESETS
from llmproxy.core.faults.values import FaultRule, Faults, FaultTarget, Needs

_HOSTS = "; hosts that are no model provider's are met where --record-host names them"
_SHOWN = 5
"""Names that are told."""


def explain_idle(
    faults: Faults, injected: Mapping[int, int], calls: Sequence[FaultTarget], *, came: int
) -> dict[int, str]:
    """Return a line for each rule that met no call, by its number.

    `injected` has how often each rule did, by its number; `calls` are the recordings that could be met, `came` is how
    many calls came.
    """
    met = {n for n, rule in enumerate(faults.rules, 1) if any(_may_meet(rule, call) for call in calls)}
    told = (
        met if met and faults.name in PRESETS else range(1, len(faults.rules) + 1)
    )  # nobody chose each rule of a preset
    return {
        number: f"fault {rule.kind.name} (rule {number}) met no call: {_why(rule, calls, came)}"
        for number, rule in enumerate(faults.rules, 1)
        if number in told and not injected.get(number)
    }


def _may_meet(rule: FaultRule, call: FaultTarget) -> bool:
    return covers(rule, call) and (not rule.texts.get("channel") or chosen_by(rule, "channel", call))


def _why(rule: FaultRule, calls: Sequence[FaultTarget], came: int) -> str:
    if not came:
        return "no call came"
    if not calls:
        return f"no call came that it chooses, and nothing is recorded to compare it with{_HOSTS}"
    if rule.kind.transports == ("tls",):
        return "no intercepted connection began that it chooses"
    if not (left := [call for call in calls if covers(rule, call)]):
        return f"it meets calls of {_describe_channels(rule)} only, and none is recorded"
    usual = [call for call in left if chosen_by(rule, "channel", call)]
    if not usual and not rule.texts.get("channel"):
        return f"no recording is of a channel that it meets unless one is named: {', '.join(rule.kind.usual)}"
    for name, patterns in rule.texts.items():
        found = [call for call in left if chosen_by(rule, name, call)]
        if patterns and not found:
            there = _names(_list_values(name, left)) or "none with any"
            return f"no recording has {name} {_names(patterns)}; there is {there}"
    if recordings := rule.numbers.get("recording"):
        ids = {call.recording for call in left}
        if not recordings & ids:
            return f"there is no recording {', '.join(f'#{each}' for each in sorted(recordings))} in this cassette"
    chosen = [call for call in left if is_chosen(rule, call)]
    if not chosen:
        return "no recording is chosen by all of its words together"
    if rule.kind.needs is Needs.ANSWER and all(rule.kind.do(call, rule.values) is None for call in chosen):
        return "no recorded answer has anything to do it to"
    if numbers := rule.numbers.get("call"):
        which = ", ".join(map(str, sorted(numbers)))
        return (
            f"no call came that is its number {which}, or an earlier rule was used for that one,"
            " or it found nothing there to be done to"
        )
    if rule.probability < 1:
        return f"a probability of {rule.probability:g} spared every call that came"
    return "none of the calls that it chooses came"


def _describe_channels(rule: FaultRule) -> str:
    return f"{' and '.join(rule.kind.channels)} over {' and '.join(rule.kind.transports)}"


def _list_values(name: str, calls: Sequence[FaultTarget]) -> list[str]:
    values = (call.tools() if name == "tool" else (getattr(call, name),) for call in calls)
    return sorted({each for some in values for each in some if each})


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
