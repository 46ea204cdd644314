"""Search for the nearest recording: the candidate most similar to the missed request.

All candidates are ranked message by message, by comparisons that run in C; the few best are compared in full.
Everything is bounded, so that a refusal is fast with a large cassette and large bodies.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

from llmproxy.core.dialects.conversation import Kind, RequestDifferenceAtPath, compare_requests
from llmproxy.core.keys.normalize import Canonical, find_model_in_body
from llmproxy.core.keys.server_state_in_keys import STATE_HEADER
from llmproxy.core.keys.user_rules import (
    PACKS,
    Rules,
    TextScrub,
    apply_normalize_rules,
    compile_normalize_rules,
    substitute_patterns,
)
from llmproxy.core.traffic.grpc import extract_protobuf_texts, split_grpc_messages
from llmproxy.core.traffic.interaction import is_grpc
from llmproxy.core.traffic.json_diff import (
    ABSENT,
    Difference,
    build_difference,
    classify_volatile_difference,
    count_common_prefix,
    count_common_suffix,
    get_volatile_difference_kind,
    is_volatile_value,
    list_unequal_values,
)
from llmproxy.errors import SettingsError

_BUDGET = 32 << 20
"""Maximum bytes of canonical bodies that are compared."""
_CLOSE = 8
"""Number of candidates that are compared in full, after the cheap comparison of all."""
COUNTED = 40
"""Maximum differences that are counted."""
_SIMILAR = 200
"""Maximum characters of a text that difflib compares (it is quadratic)."""
_VARYING = 3
"""Maximum volatile-looking places in a message that still counts as equal."""
_MOST_VARYING = 100
"""Maximum messages of a candidate that are compared for volatile places."""
_MOST_LOOKED_AT = 200
"""Maximum messages of all candidates that are compared for volatile places: each costs as much as 1,000 equal ones."""
_RAW = 100_000
"""Maximum bytes of a body that is not JSON that are compared as text."""

_MOST_SORTED = 1 << 20
"""Bytes of a canonical body from which on a different order is not checked."""
_MESSAGE = re.compile(r"\$\.\w+\[(\d+)\]")
_OF_MODEL = ("assistant", "model", "function_call", "reasoning")

_OUTSIDE = ("provider", "method", "operation", "model", "stream")
_CONVERSATIONS = ("messages", "input", "contents", "prompt")


@dataclass(frozen=True, slots=True)
class Nearest:
    id: int
    """Row in the store; ``llmproxy show ID``."""
    same_operation: bool
    differences: tuple[Difference, ...]
    """Old: the recording, new: the request. At most 40."""
    similarity: float
    """Similarity of the conversations' last texts, 0..1."""
    suggestion: NormalizeRulesSuggestion | None = None
    places: tuple[Told, ...] = ()
    """The same differences with more of their values, for display; not in the journal."""
    bound: tuple[str, ...] = ()
    """Run variables and volatile fields whose different values fit; they are no difference."""
    reordered: str = ""
    """Path of a list or a text with the same content in another order, if nothing else differs."""
    is_word_order: bool = False
    """Whether there is a text at `reordered`."""
    is_other_question: bool = False
    """Whether only a user's words differ; one of several lines may be a template."""

    def to_dict(self) -> dict[str, object]:
        return {
            "id": self.id,
            "same_operation": self.same_operation,
            "similarity": round(self.similarity, 3),
            "differences": [difference.to_dict() for difference in self.differences],
            "suggestion": self.suggestion.to_dict() if self.suggestion else None,
        }


class CandidateRewrittenForRun(NamedTuple):
    canonical: Canonical
    bound: tuple[str, ...] = ()
    varying: tuple[Difference, ...] = ()
    """Values that vary from run to run, not included in the differences of `canonical`."""


class RecordingToCurrentRunRewriter:
    """Rewrites recordings with this run's values, lazily; this base class leaves them as they are."""

    def find_cached_request(self, id_: int) -> Canonical | None:
        return None

    def restate_message(self, id_: int, recorded: Canonical, n: int) -> object:
        """Return one rewritten message of a recording's conversation; the same object for the same message."""
        return find_messages_member(recorded.tree)[1][n]

    def restate_whole_recording(self, id_: int, recorded: Canonical) -> Canonical:
        return recorded

    def restate_nearest_recording(self, id_: int, recorded: Canonical, whole: Canonical) -> CandidateRewrittenForRun:
        return CandidateRewrittenForRun(whole)


AS_RECORDED = RecordingToCurrentRunRewriter()


def find_nearest_recording(
    wanted: Canonical, candidates: Sequence[tuple[int, Canonical]], wording: RecordingToCurrentRunRewriter = AS_RECORDED
) -> Nearest | None:
    """Return the candidate most like `wanted`, None without candidates; `wording` rewrites them with this run's values.

    Order: same provider and operation; fewest differences among the candidates with the most equal messages from the
    start (except for volatile places), or with more from the end; most similar last text; of equals the first.
    """
    if not candidates:
        return None
    before = accumulate((len(candidate.body) for _, candidate in candidates), initial=0)
    taken = [item for item, size in zip(candidates, before, strict=False) if size <= _BUDGET]
    common = _count_common_by_candidate(wanted, taken, wording)
    ranked = [(_rank_candidate(wanted, *item, common[item[0]], wording), item) for item in taken]
    ranked = sorted(ranked, key=lambda pair: pair[0], reverse=True)
    alike = [item for rank, item in ranked if rank[:3] == ranked[0][0][:3]][:_CLOSE]
    # With a changed system text, a request shares no beginning with its recording, but all that follows.
    operation, begun, *_ = ranked[0][0]
    endings = [(_count_equal_last(wanted, item[1]), item) for rank, item in ranked if rank[0] == operation]
    endings = sorted(endings, key=lambda pair: -pair[0])[:_CLOSE]
    alike += [item for count_, item in endings if count_ > begun and item not in alike]
    told = [(id_, recorded, wording.restate_whole_recording(id_, recorded)) for id_, recorded in alike]
    id_, recorded, best = told[0]
    if len(told) > 1:
        id_, recorded, best = max(
            told, key=lambda it: (-_count_differences(it[2], wanted), common[it[0]], _compare_last_texts(it[2], wanted))
        )
    best, bound, varying = wording.restate_nearest_recording(id_, recorded, best)
    pairs = [
        (_unmark_volatile_if_by_model(build_difference(each.path, each.old, each.new, each.where), wanted.tree), each)
        for each in _list_differences(best, wanted)
    ]
    pairs.sort(key=lambda pair: pair[0].looks is not None)
    found = [difference for difference, _ in pairs]
    reordered = find_reordered_json_path(best.tree, wanted.tree) if len(wanted.body) < _MOST_SORTED else ""
    written = reordered or any(_is_model_written(each.path, wanted.tree) for each in found)
    suggestion = None if written else suggest_normalize_rules(best, wanted)
    places = tuple(shorten_old_and_new_values(*place[:4]) for _, place in pairs)
    differences, similarity = (*found, *varying)[:COUNTED], _compare_last_texts(best, wanted)
    is_word_order = any(place.path == reordered and isinstance(place.old, str) for _, place in pairs)
    is_other_question = bool(pairs) and all(_is_question(place) for _, place in pairs)
    return Nearest(
        id_, _same_operation(wanted, best), differences, similarity, suggestion, places, bound, reordered,
        is_word_order, is_other_question,
    )  # fmt: skip


def _count_equal_last(wanted: Canonical, candidate: Canonical) -> int:
    old, new = (find_messages_member(each.tree)[1] for each in (candidate, wanted))
    pairs = zip(reversed(old), reversed(new), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _unmark_volatile_if_by_model(item: Difference, tree: object) -> Difference:
    """Return a difference without its volatile mark if a model wrote the value: no rule would make that a hit."""
    return replace(item, looks=None) if item.looks and _is_model_written(item.path, tree) else item


def _is_model_written(path: str, tree: object) -> bool:
    place = _MESSAGE.match(path)
    said = find_messages_member(tree)[1]
    message = said[int(place[1])] if place is not None and int(place[1]) < len(said) else None
    return isinstance(message, dict) and message.get("role", message.get("type")) in _OF_MODEL


def find_reordered_json_path(old: object, new: object, path: str = "$") -> str:
    """Return the path where two trees differ in order alone, the innermost list or text of words; else empty."""
    if old == new or _sort_tree(old) != _sort_tree(new):
        return ""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = [(f"{path}.{name}", old[name], new[name]) for name in new if old[name] != new[name]]
    elif isinstance(old, list) and isinstance(new, list):
        inner = [(f"{path}[{n}]", *pair) for n, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]]
    else:
        return path
    return (find_reordered_json_path(inner[0][1], inner[0][2], inner[0][0]) if len(inner) == 1 else "") or path


def _sort_tree(tree: object) -> object:
    if isinstance(tree, dict):
        return {name: _sort_tree(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return sorted(map(_sort_tree, tree), key=repr)
    return sorted(tree.split()) if isinstance(tree, str) else tree


_Rank = tuple[bool, int, bool, float]
"""Same operation, number of equal messages from the start, same model, rough similarity of the last texts."""


def _same_operation(wanted: Canonical, candidate: Canonical) -> bool:
    return wanted.provider == candidate.provider and wanted.operation == candidate.operation


def _count_common_by_candidate(
    wanted: Canonical, candidates: Sequence[tuple[int, Canonical]], wording: RecordingToCurrentRunRewriter
) -> dict[int, int]:
    common = dict.fromkeys((id_ for id_, _ in candidates), 0)
    varying = Counter[int]()
    alive, looked_at = list(candidates), 0
    for n, new in enumerate(find_messages_member(wanted.tree)[1]):
        alive = [each for each in alive if n < len(find_messages_member(each[1].tree)[1])]
        if not alive or looked_at > _MOST_LOOKED_AT:
            break
        verdicts: dict[int, tuple[object, bool]] = {}
        still = []
        for id_, recorded in alive:
            old = wording.restate_message(id_, recorded, n)
            if old != new:
                varying[id_] += 1
                if varying[id_] > _MOST_VARYING:
                    continue
                if id(old) not in verdicts:
                    looked_at += 1
                    verdicts[id(old)] = old, _differs_only_in_volatile(old, new)
                if not verdicts[id(old)][1]:
                    continue
            common[id_] += 1
            still.append((id_, recorded))
        alive = still
    return common


def _rank_candidate(
    wanted: Canonical, id_: int, recorded: Canonical, common: int, wording: RecordingToCurrentRunRewriter
) -> _Rank:
    said = find_messages_member(recorded.tree)[1]
    last = wording.restate_message(id_, recorded, len(said) - 1) if said else recorded.tree
    texts = _find_last_text(last)[-_SIMILAR:], _read_last_text(wanted.tree)[-_SIMILAR:]
    same_model = (wanted.model or find_model_in_body(wanted)) == (recorded.model or find_model_in_body(recorded))
    alike = SequenceMatcher(None, *texts, autojunk=False).quick_ratio()
    return _same_operation(wanted, recorded), common, same_model, alike


def _differs_only_in_volatile(old: object, new: object) -> bool:
    if type(old) is not type(new):
        return False
    found = list_unequal_values(old, new, _VARYING + 1)
    return len(found) <= _VARYING and all(classify_volatile_difference(*each) for each in found)


def find_messages_member(tree: object) -> tuple[str, list[object]]:
    if isinstance(tree, dict):
        for name in _CONVERSATIONS:
            if isinstance(value := tree.get(name), list):
                return name, value
            if isinstance(value, str):
                return name, [value]
    return "", []


def _compare_last_texts(old: Canonical, new: Canonical) -> float:
    left, right = (_read_last_text(canonical.tree)[-_SIMILAR:] for canonical in (old, new))
    if left or right:
        return SequenceMatcher(None, left, right, autojunk=False).ratio()
    size = max(1, min(_RAW, max(len(old.body), len(new.body))))
    return count_common_prefix(*(canonical.body[:_RAW].decode("latin-1") for canonical in (old, new))) / size


def _read_last_text(tree: object) -> str:
    return _find_last_text((find_messages_member(tree)[1] or [tree])[-1])


def _find_last_text(value: object) -> str:
    for _ in range(8):
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value:
            value = value[-1]
        elif isinstance(value, dict):
            value = next((value[name] for name in ("content", "parts", "text", "input") if name in value), "")
        else:
            break
    return ""


def _count_differences(old: Canonical, new: Canonical) -> int:
    outside: int = sum(getattr(old, name) != getattr(new, name) for name in (*_OUTSIDE, "headers", "query"))
    if old.tree is None or new.tree is None:
        return outside + int(old.body != new.body)
    return outside + len(list_unequal_values(old.tree, new.tree, COUNTED))


def _is_question(place: RequestDifferenceAtPath) -> bool:
    return place.kind == Kind.USER and not any("\n" in each for each in (place.old, place.new) if isinstance(each, str))


def _list_differences(old: Canonical, new: Canonical) -> list[RequestDifferenceAtPath]:
    outside = ((name, getattr(old, name), getattr(new, name)) for name in _OUTSIDE)
    found = [RequestDifferenceAtPath(name, name, left, right) for name, left, right in outside if left != right]
    if old.tree is not None and new.tree is not None:
        found += compare_requests(new.operation, old.tree, new.tree, COUNTED)
    elif old.body != new.body:
        left, right = (canonical.body[:_RAW].decode("utf-8", "backslashreplace") for canonical in (old, new))
        texts = _compare_named_values("message", _read_grpc_texts(old), _read_grpc_texts(new))
        found += texts or [RequestDifferenceAtPath("body", "body", left, right)]
    found += _compare_named_values("query", old.query, new.query)
    rows = ([row for row in each.headers if row[0] != STATE_HEADER] for each in (old, new))
    found += _compare_named_values("headers", *rows)
    was, now = (dict(each.headers).get(STATE_HEADER, "") for each in (old, new))
    if was != now:
        said = (_AS_RECORDED, "otherwise") if was and now else ("changed", "unchanged")
        found.append(RequestDifferenceAtPath(_CHANGES, _CHANGES, *(said if was else said[::-1])))
    return found[:COUNTED]


def _read_grpc_texts(canonical: Canonical) -> list[tuple[str, str]]:
    if not is_grpc(canonical.headers):
        return []
    return [text for _, data in split_grpc_messages(canonical.body) for text in extract_protobuf_texts(data)]


_CHANGES = "what was changed before of what it names"
_AS_RECORDED = "as it was recorded"


def _compare_named_values(
    where: str, old: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]]
) -> list[RequestDifferenceAtPath]:
    if tuple(old) == tuple(new):
        return []
    found = list_unequal_values(dict(old), dict(new), COUNTED)
    named = ((path[2:].removeprefix('"').removesuffix('"]'), path, left, right) for path, left, right in found)
    return [
        RequestDifferenceAtPath(f"{where} {name}", where + path[1:], left, right) for name, path, left, right in named
    ]


AROUND = 160
"""Number of equal characters kept before and after a difference."""
LONGEST = 4000

Told = dict[str, Any]
"""``{"path", "old", "new", "looks", "before", "after"}``; `old` or `new` is missing where there was none."""


def shorten_old_and_new_values(where: str, path: str, old: object, new: object) -> Told:
    """Return one place with both values, shortened: texts without most of their common beginning and end."""
    made: Told = {"path": path, "looks": get_volatile_difference_kind(old, new), **({"where": where} if where else {})}
    if isinstance(old, str) and isinstance(new, str):
        front = count_common_prefix(old, new)
        back = count_common_suffix(old, new, min(len(old), len(new)) - front)
        before, after = max(0, front - AROUND), max(0, back - AROUND)
        made |= {side: text[before : len(text) - after][:LONGEST] for side, text in (("old", old), ("new", new))}
        return made | {"before": before, "after": after}
    return made | {
        side: value if len(repr(value)) <= LONGEST else f"{repr(value)[:LONGEST]}…"
        for side, value in (("old", old), ("new", new))
        if value is not ABSENT
    }


_LARGEST = 1 << 20
"""Bytes of a canonical body above which no rules are tried."""
_MOST = 200
"""Maximum differences that are counted."""
_LOOKED_AT = 10
"""Maximum differences that are examined: with more, the requests are different ones."""
_TRIED = 4
"""Maximum volatile differences for which rules are tried."""
_ROUNDS = 5
"""Maximum kinds of volatile values in one text."""

_PACKS = {"date/time": ("days", "dates"), "uuid": ("uuids",), "temporary path": ("temp-paths",)}
# What `volatile` recognises, as patterns to paste: without apostrophes, since TOML's literal strings end there.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "date/time": (
        r"\d{4}-\d\d-\d\d([T ][\d:.]+(Z|[+-]\d\d:?\d\d)?)?",
        r"\b\d{1,2}:\d\d(:\d\d)?( ?[AaPp][Mm])?",
        r"([A-Z][a-z]+day, )?[A-Z][a-z]+ \d{1,2}, \d{4}",
        r"([A-Z][a-z]+day, )?\d{1,2} [A-Z][a-z]+ \d{4}",
        r"\b\d{1,2}[/.]\d{1,2}[/.]\d{2,4}\b",
        r"\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b",
    ),
    "uuid": (r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",),
    "temporary path": (r"/(private/)?(tmp|var/tmp|var/folders)/[^\s\"<>,;)]+",),
    "home or working folder": (r"/(home|Users|root|workspaces?|builds?|app|mnt)/[^\s\"<>,;)]+",),
    "tool-call id": (r"\b(call|toolu|tooluse|tool_call|fc|ctc|chatcmpl-tool)[_-][\w-]{6,}",),
    "object id": (r"\b(resp|msg|run|thread|conv|file|asst|vs|batch|chatcmpl|req|rs|ws|session)[_-][\w-]{8,}",),
    "port": (r"(localhost|127\.0\.0\.1):\d+",),
    "unix timestamp": (r"\b1\d{9}(\.\d+|\d{3}|\d{6}|\d{9})?\b",),
    "random id": (r"\b(?=\w*\d)(?=\w*[A-Za-z])\w{12,}\b",),
}


_DAYS = frozenset({"days", "dates"})


@dataclass(frozen=True, slots=True)
class NormalizeRulesSuggestion:
    toml: str
    """For ``[tool.llmproxy.normalize]``, one line per member."""
    left: int
    of_days: bool = False

    def to_dict(self) -> dict[str, object]:
        return {"toml": self.toml, "left": self.left}


def suggest_normalize_rules(old: Canonical, new: Canonical) -> NormalizeRulesSuggestion | None:
    if old.tree is None or new.tree is None or max(len(old.body), len(new.body)) > _LARGEST:
        return None
    rules, left, tried = Rules(), _count_remaining_differences(old, new, Rules()), 0
    for path, before, after in list_unequal_values(old.tree, new.tree, _LOOKED_AT):
        if tried == _TRIED or not get_volatile_difference_kind(before, after):
            continue
        tried += 1
        for candidate in _suggest_ignoring_rules(path, before, after):
            merged = _merge_ignore_and_scrub_rules(rules, candidate)
            now = _count_remaining_differences(old, new, merged)
            if now < left:
                rules, left = merged, now
                break
    if rules == Rules():
        return None
    return NormalizeRulesSuggestion(_write_toml(rules), left, of_days=not _DAYS.isdisjoint(rules.packs))


def _suggest_ignoring_rules(path: str, old: object, new: object) -> Iterator[Rules]:
    if is_volatile_value(str(old)) and is_volatile_value(str(new)):
        yield Rules(ignore=(re.sub(r"\[\d+\]", "[*]", path),))
    if isinstance(old, str) and isinstance(new, str):
        found = (_suggest_text_rules(old, new, packs) for packs in (_PACKS, {}))
        yield from (rules for rules in found if rules is not None)


def _suggest_text_rules(old: str, new: str, packs: Mapping[str, tuple[str, ...]]) -> Rules | None:
    rules = Rules()
    for _ in range(_ROUNDS):
        found = next(_list_helpful_rules(get_volatile_difference_kind(old, new) or "", old, new, packs), None)
        if found is None:
            return None
        rule, old, new = found
        rules = _merge_ignore_and_scrub_rules(rules, rule)
        if old == new:
            return rules
    return None


def _list_helpful_rules(
    kind: str, old: str, new: str, packs: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[Rules, str, str]]:
    word = f"[{kind.split('/', maxsplit=1)[0].replace(' ', '-')}]"
    rules = [(Rules(packs=(pack,)), PACKS[pack]) for pack in packs.get(kind, ())]
    scrubs_of_kind = (TextScrub(each, word) for each in _PATTERNS.get(kind, ()))
    rules += [(Rules(scrub=(scrub,)), (scrub,)) for scrub in scrubs_of_kind]
    rest = len(old) - count_common_prefix(old, new)
    for rule, scrubs in rules:
        subs = tuple((re.compile(scrub.pattern), scrub.placeholder) for scrub in scrubs)
        left, right = substitute_patterns(old, subs), substitute_patterns(new, subs)
        if left == right or len(left) - count_common_prefix(left, right) < rest:
            yield rule, left, right


def _merge_ignore_and_scrub_rules(one: Rules, two: Rules) -> Rules:
    return Rules(
        tuple(dict.fromkeys(one.ignore + two.ignore)),
        tuple(dict.fromkeys(one.scrub + two.scrub)),
        tuple(dict.fromkeys(one.packs + two.packs)),
    )


def _count_remaining_differences(old: Canonical, new: Canonical, rules: Rules) -> int:
    try:
        ready = compile_normalize_rules(rules)
    except SettingsError:  # a path that our rules cannot express
        return _MOST
    left, right = (apply_normalize_rules(copy.deepcopy(canonical.tree), ready) for canonical in (old, new))
    return len(list_unequal_values(left, right, _MOST))


def _write_toml(rules: Rules) -> str:
    rows = [f"{{ pattern = '{each.pattern}', placeholder = {json.dumps(each.placeholder)} }}" for each in rules.scrub]
    lines = [
        f"ignore = {json.dumps(list(rules.ignore))}" if rules.ignore else "",
        f"scrub = [{', '.join(rows)}]" if rows else "",
        f"packs = {json.dumps(list(rules.packs))}" if rules.packs else "",
    ]
    return "\n".join(filter(None, lines))
