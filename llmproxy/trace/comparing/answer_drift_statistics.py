"""Properties of an answer that are independent of its wording, and tests whether new answers differ in them.

*Refused* (the provider does not serve this request any more) and *shape* (a member that is gone or has another type, an
unknown framing) are visible in one answer. *Behaviour* (tools, finish, length, language) varies, so one permutation
test over all sampled calls decides. The statistic of a call is the mean distance between an earlier and a new answer;
its distribution comes from all assignments of the answers to earlier and new (Fisher's randomization test, stratified
by call; Good, *Permutation Tests*, 2000), sums of them drawn at random (Phipson and Smyth, 2010).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb, log2, prod, sqrt
from statistics import fmean

from llmproxy.core.dialects.stream_events import detect_framing, list_stream_events
from llmproxy.core.traffic.interaction import Ending, Interaction
from llmproxy.trace.reading.decoded_exchange import RequestMessageCache, decode_interaction_to_messages

_OPAQUE = frozenset({"input", "args", "arguments", "metadata", "parsed", "logprobs"})
"""Members whose content is the model's or the user's, not the provider's shape."""
_REFUSED = range(400, 500)
_NOT_OURS = frozenset({401, 402, 403, 407, 408, 409, 425, 429})
"""Statuses about a key, a bill or high load, not about the request."""
_ALIKE, _FAR = log2(1.5), 2.0
"""Length ratios in doublings: below the first two lengths count as equal, above the second as far apart."""
_FUNCTION_WORDS = {
    "en": "the and of to is that for with you are this have",
    "de": "der die und das ist nicht ein ich zu den mit sie",
    "fr": "le la les et des est un une pour que dans vous",
    "es": "el la los de que y en es por para una con",
    "it": "il di che è per un una sono non con della gli",
    "pt": "o que de não uma os para com em é do da",
    "nl": "de het een van en is dat niet voor met zijn op",
}
_LANGUAGES = {name: frozenset(words.split()) for name, words in _FUNCTION_WORDS.items()}
_SCRIPTS = (
    ("ja", re.compile(r"[\u3040-\u30ff]")), ("ko", re.compile(r"[\uac00-\ud7af]")),
    ("zh", re.compile(r"[\u4e00-\u9fff]")), ("ru", re.compile(r"[\u0400-\u04ff]")),
    ("ar", re.compile(r"[\u0600-\u06ff]")), ("el", re.compile(r"[\u0370-\u03ff]")),
    ("he", re.compile(r"[\u0590-\u05ff]")), ("hi", re.compile(r"[\u0900-\u097f]")),
    ("th", re.compile(r"[\u0e00-\u0e7f]")),
)  # fmt: skip
_FEWEST_WORDS = 3
"""Least function words that identify a language."""
ALPHA = 0.05
DRAWN = 9_999
_SIMULATED = 800
_DRAWN_IN_SIMULATIONS = 99
NOISE = 0.1
"""Assumed share of differing answers to one unchanged request, if unknown."""
PLANTED = (0.1, 0.3, 0.6)
"""Shares of changed calls for which the probability of detection is reported."""
_MOST_ARRANGEMENTS = 2_000


@dataclass(frozen=True, slots=True)
class AnswerDriftProperties:
    status: int
    refusal: str
    """Reason why the provider refuses the request; empty if it does not, or for other reasons."""
    framing: str
    """``sse``, ``json`` and so on; with ``, cut`` if its end was missing."""
    members: frozenset[tuple[str, str]]
    """Path and type of members; without list positions: ``usage.prompt_tokens``, ``number``."""
    legible: bool
    """Whether its text, reasoning or calls were understood, and nothing else was left."""
    kinds: tuple[bool, bool, bool]
    """Whether there are text, reasoning, calls."""
    tools: tuple[str, ...]
    finish: tuple[str, ...]
    text: str
    language: str
    """Empty if the text is too short."""
    model: str | None

    @property
    def is_success(self) -> bool:
        return self.status in range(200, 300)

    @property
    def shape_group(self) -> tuple[object, ...]:
        return self.kinds, self.finish


def extract_answer_drift_properties(interaction: Interaction) -> AnswerDriftProperties:
    """Return the properties of an answer. Never raises."""
    response, opened = interaction.response, decode_interaction_to_messages(interaction, RequestMessageCache())
    kind = response.mime_type
    said = opened.answer
    refused = response.status in _REFUSED and response.status not in _NOT_OURS
    whole = response.ending is Ending.COMPLETE
    text = said.text if said else ""
    kinds = (bool(text), bool(said and said.reasoning), bool(said and said.tool_calls))
    return AnswerDriftProperties(
        status=response.status,
        refusal=opened.error or f"HTTP {response.status}: {response.reason}" if refused else "",
        framing=detect_framing(kind, response.body) + ("" if whole else f", {response.ending.value}"),
        members=frozenset(
            each for event in list_stream_events(kind, response.body) for each in _walk_member_types(event)
        ),
        legible=any(kinds) and not (said and said.unknown),
        kinds=kinds, tools=tuple(sorted(call.name for call in said.tool_calls)) if said else (),
        finish=tuple(sorted(opened.finish_reasons)), text=text, language=detect_text_language(text),
        model=opened.answer_model,
    )  # fmt: skip


def _walk_member_types(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        tag = value.get("type")
        here = f"{path}<{tag}>" if isinstance(tag, str) else path
        yield here, "object"
        for name, inner in value.items():
            if name not in _OPAQUE or not isinstance(inner, dict | list):
                yield from _walk_member_types(inner, f"{here}.{name}" if here else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk_member_types(inner, f"{path}[]")
    elif value is not None:
        yield path, "boolean" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"


def detect_text_language(text: str) -> str:
    """Return the language of a text by its script and function words: ``en``; empty if unclear."""
    for name, script in _SCRIPTS:
        if len(script.findall(text)) * 3 > len(text):
            return name
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = Counter({name: sum(word in known for word in words) for name, known in _LANGUAGES.items()})
    (first, most), (_, second) = counts.most_common(2)
    return first if most >= _FEWEST_WORDS and most > second else ""


def compare_old_and_new_answer_formats(
    old: Sequence[AnswerDriftProperties], new: Sequence[AnswerDriftProperties]
) -> list[str]:
    new = [each for each in new if each.is_success]
    old = [each for each in old if each.is_success]
    if not old or not new:
        return []
    framings = {each.framing for each in old}
    if framings.isdisjoint(each.framing for each in new):
        return [f"the answer was framed as {' or '.join(sorted(framings))}, and is {new[0].framing}"]
    if all(each.legible for each in old) and not any(each.legible for each in new):
        before = {path for each in old for path, _ in each.members}
        unknown = sorted(
            {path for each in new for path, _ in each.members} - before, key=lambda path: (len(path), path)
        )
        return [f"nothing in the answer is understood; new in it: {', '.join(unknown[:3]) or 'nothing'}"]
    return [text for group in {each.shape_group for each in old} for text in _describe_lost_members(
        [each for each in old if each.shape_group == group], [each for each in new if each.shape_group == group]
    )]  # fmt: skip


def _describe_lost_members(old: Sequence[AnswerDriftProperties], new: Sequence[AnswerDriftProperties]) -> Iterator[str]:
    if not new:
        return
    always = frozenset.intersection(*(each.members for each in old))
    ever = frozenset().union(*(each.members for each in new))
    types = dict(ever)
    parents = {path for path, kind in ever if kind == "object"} | {""}
    for path, kind in sorted(always - ever):
        parent = path[: path.rindex("<")] if path.endswith(">") else path.removesuffix("[]").rpartition(".")[0]
        if parent not in parents:
            continue  # its parent is gone, and named
        now = types.get(path)
        yield f"{path} is gone" if now is None else f"{path} was a {kind}, and is a {now}"


def measure_answer_behavior_distance(one: AnswerDriftProperties, other: AnswerDriftProperties) -> float:
    """Return the distance of two answers' behaviour: tools, finish and language count one, length up to one."""
    language = bool(one.language and other.language and one.language != other.language)
    doublings = abs(log2(len(one.text) + 1) - log2(len(other.text) + 1))
    length = 0.0 if doublings < _ALIKE else min(doublings, _FAR) / _FAR
    return (one.tools != other.tools) + (one.finish != other.finish) + language + length


def describe_answer_behavior(one: AnswerDriftProperties) -> str:
    parts = [f"calls {', '.join(one.tools)}" if one.tools else "", f"{len(one.text)} characters" if one.text else ""]
    parts[1] += f" ({one.language})" if one.language else ""
    return "; ".join(filter(None, (*parts, ", ".join(one.finish)))) or f"status {one.status}"


@dataclass(frozen=True, slots=True)
class StatisticWithPermutations:
    """One call: the distance of its new answers from the earlier ones, and its possible values."""

    seen: float
    possible: tuple[float, ...]
    """The statistic for every assignment of answers to earlier and new; `seen` is one of them."""


def compute_statistic_per_permutation[Answer](
    old: Sequence[Answer], new: Sequence[Answer], distance: Callable[[Answer, Answer], float]
) -> StatisticWithPermutations:
    """Return the statistic of a call, minus its mean over all arrangements. Raises ValueError: a side is empty."""
    if not old or not new:
        raise ValueError("a call is compared by an earlier answer and a new one at least")
    every = [*old, *new]
    apart = [[distance(one, other) for other in every] for one in every]
    places = range(len(every))
    chosen = map(frozenset, islice(combinations(places, len(old)), _MOST_ARRANGEMENTS))
    means = [fmean(apart[i][j] for i in earlier for j in places if j not in earlier) for earlier in chosen]
    middle = fmean(means)
    return StatisticWithPermutations(means[0] - middle, tuple(mean - middle for mean in means))


def compute_permutation_p_value(
    calls: Sequence[StatisticWithPermutations], *, both: bool = False, seed: int = 0, drawn: int = DRAWN
) -> float:
    """Return the probability of a sum at least as large as the observed one if nothing has changed.

    `both`: or as small, which means that new answers vary more than earlier ones. Not for recordings: one that was kept
    because its test passed is more typical than a random answer.
    """
    lot = random.Random(seed)  # noqa: S311 - no secret: the same answers give the same verdict
    seen = sum(call.seen for call in calls)
    moving = [call.possible for call in calls if len(set(call.possible)) > 1]
    if not moving:
        return 1.0
    sums = (sum([possible[int(lot.random() * len(possible))] for possible in moving]) for _ in range(drawn))
    least = (abs(seen) if both else seen) - 1e-9
    return (1 + sum((abs(each) if both else each) >= least for each in sums)) / (1 + drawn)


def compute_least_p_value(sizes: Sequence[tuple[int, int]]) -> float:
    return prod(1 / comb(old + new, old) for old, new in sizes)


def correct_p_values(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979), in the given order."""
    order = sorted(range(len(ps)), key=lambda at: ps[at])
    found, highest = [1.0] * len(ps), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, ps[at] * (len(ps) - rank)))
        found[at] = highest
    return found


def estimate_answer_drift_test_power(sizes: Sequence[tuple[int, int]], share: float) -> float:
    """Return the probability of detecting a change of this share of the calls.

    `sizes` has for each call the numbers of earlier and new answers. Answers are simulated: each is the call's usual
    one or another, so that two of them differ with probability NOISE.
    """
    stray = (1 - sqrt(1 - 2 * NOISE)) / 2
    lot = random.Random(0)  # noqa: S311 - a simulation
    known: dict[tuple[tuple[int, ...], int], StatisticWithPermutations] = {}
    found = 0
    for number in range(_SIMULATED):
        calls = []
        for old, new in sizes:
            other = lot.random() < share
            answers = tuple(int((lot.random() < stray) ^ (at >= old and other)) for at in range(old + new))
            if (answers, old) not in known:
                known[answers, old] = compute_statistic_per_permutation(
                    answers[:old], answers[old:], lambda one, two: float(one != two)
                )
            calls.append(known[answers, old])
        found += compute_permutation_p_value(calls, seed=number, drawn=_DRAWN_IN_SIMULATIONS) <= ALPHA
    return found / _SIMULATED
