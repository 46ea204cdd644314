"""Explanation of key rules: differences of two requests with the same key, each with the rule that ignores it.

A difference without a reason is a bug of llmproxy, or a header field in no table, which no rule covers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

from llmproxy.core.keys.built_in_body_rules import SYSTEM_BLOCKS, KeyMemberRule, KeyObjectRules, MemberAction
from llmproxy.core.keys.head_rules import (
    ID_QUERY,
    decide_if_header_affects_key,
    explain_query_member_not_in_key,
    find_url_signature_members,
)
from llmproxy.core.keys.normalize import BodyMemberRuleApplier, find_operation_body_rules
from llmproxy.core.keys.user_rules import Rules, apply_normalize_rules, compile_normalize_rules
from llmproxy.core.providers.routing import RoutedRequest
from llmproxy.core.traffic.canonical_json import LossyJsonError, parse_json_or_raise_if_lossy
from llmproxy.core.traffic.interaction import Request, header
from llmproxy.core.traffic.json_diff import format_path

NULLS = (
    "a member that is `null` counts as absent at the top of the body, in messages and in their parts; in tool schemas, "
    "inputs and results it counts"
)
MOST = 200
ID = "an id that the server made: both were made by the same recording"
YOURS = "a rule of yours: [tool.llmproxy.normalize]"
_PROJECT = re.compile(r"/projects/[^/]+/")
Path = tuple[str | int, ...]


class IgnoredRequestDifference(NamedTuple):
    place: str
    """``$.metadata``, ``header traceparent``, ``query key``, ``path``."""
    old: str
    new: str
    why: str
    """Reason why the difference may be ignored; empty if no rule gives one."""


def explain_ignored_differences(
    old: Request, new: Request, routes: tuple[RoutedRequest, RoutedRequest], rules: Rules
) -> list[IgnoredRequestDifference]:
    one, other = (each.target.partition("?")[0] for each in (old, new))
    why = _explain_path_difference(unquote(one), unquote(other), routes) if one != other else ""
    return [
        *([IgnoredRequestDifference("path", one, other, why)] if one != other else ()),
        *_compare_queries(old, new, routes[1]),
        *_compare_headers(old, new, routes[1]),
        *_compare_bodies(old, new, routes, rules),
    ]


def _explain_path_difference(one: str, other: str, routes: tuple[RoutedRequest, RoutedRequest]) -> str:
    if routes[0].known and one.rstrip("/") == other.rstrip("/"):
        return "another spelling of the same path"
    if routes[0].ids and len(routes[0].ids) == len(routes[1].ids):
        return ID
    if routes[0].known and _PROJECT.sub("/", one) == _PROJECT.sub("/", other):
        return "the project of Vertex, whose models are not its own"
    provider = routes[1].provider
    versions = sorted({provider.versions[0], *provider.alike}, key=len, reverse=True)
    bare = [next((path[len(v) :] for v in versions if path.startswith(v)), path) for path in (one, other)]
    return "two names of one API version" if bare[0] == bare[1] else ""


def _compare_queries(old: Request, new: Request, where: RoutedRequest) -> Iterator[IgnoredRequestDifference]:
    one, other = (_group_url_parameters_by_name(each.target) for each in (old, new))
    signed = frozenset() if where.known else find_url_signature_members(old.target.partition("?")[2])
    for name in sorted(one.keys() | other.keys()):
        left, right = one.get(name, []), other.get(name, [])
        if left != right:
            reasons = [
                explain_query_member_not_in_key(where.provider, name, value, known=where.known, signed=signed)
                for value in (*left, *right)
            ]
            why = next(filter(None, reasons), ID if name in ID_QUERY else "")
            yield IgnoredRequestDifference(f"query {name}", ",".join(left), ",".join(right), why)


def _group_url_parameters_by_name(target: str) -> dict[str, list[str]]:
    return parse_qs(target.partition("?")[2], keep_blank_values=True, errors="surrogateescape")


def _compare_headers(old: Request, new: Request, where: RoutedRequest) -> Iterator[IgnoredRequestDifference]:
    for name in sorted({name.lower() for name, _ in (*old.headers, *new.headers)}):
        sides = ([value for each, value in request.headers if each.lower() == name] for request in (old, new))
        left, right = map(", ".join, sides)
        if left != right:
            # If it counts, the equal keys prove equivalent values.
            verdict = decide_if_header_affects_key(name, known=where.known)
            why = f"says the same: {verdict.why}" if verdict.counts else verdict.why
            yield IgnoredRequestDifference(f"header {name}", left, right, why)


def list_fields_ignored_in_key(request: Request, where: RoutedRequest) -> dict[str, str]:
    found = {}
    for name, _ in request.headers:
        verdict = decide_if_header_affects_key(lower := name.lower(), known=where.known)
        if not verdict.counts and not lower.startswith("x-llmproxy-"):
            found[lower] = verdict.why
    signed = frozenset() if where.known else find_url_signature_members(request.target.partition("?")[2])
    for name, values in _group_url_parameters_by_name(request.target).items():
        for value in values:
            if why := explain_query_member_not_in_key(where.provider, name, value, known=where.known, signed=signed):
                found[f"query {name}"] = why
    return found


def _compare_bodies(
    old: Request, new: Request, routes: tuple[RoutedRequest, RoutedRequest], rules: Rules
) -> Iterator[IgnoredRequestDifference]:
    if old.body == new.body:
        return
    kinds = [(header(each.headers, "content-type") or "").partition(";")[0].strip().lower() for each in (old, new)]
    if any(kind.startswith("multipart/") for kind in kinds):
        why = "a form: its boundary, the framing of its parts, and names of files that the server forgets"
        yield IgnoredRequestDifference("body", "...", "...", why)
        return
    try:
        trees = parse_json_or_raise_if_lossy(old.body), parse_json_or_raise_if_lossy(new.body)
    except LossyJsonError:
        why = "a form, escaped otherwise" if "application/x-www-form-urlencoded" in kinds else ""
        yield IgnoredRequestDifference("body", "...", "...", why)
        return
    touched = [_find_ruled_places(deepcopy(tree), where, rules) for tree, where in zip(trees, routes, strict=True)]
    for path, left, right in list(_find_tree_differences(*trees))[:MOST]:
        above = (path[:length] for length in range(len(path), 0, -1))
        why = next((each[place] for place in above for each in touched if place in each), "")
        yield IgnoredRequestDifference(format_path(path), _format_short(left), _format_short(right), why)


class _RuleTracer(BodyMemberRuleApplier):
    """A shape walk that records each member to which a rule applied."""

    def __init__(self, stream: bool | None) -> None:  # noqa: FBT001 - as the key has it
        super().__init__(lambda _: None, stream=stream)
        self.touched: dict[Path, str] = {}
        self.places: dict[int, Path] = {}

    def apply_shape(self, tree: dict[str, object], shape: KeyObjectRules) -> None:
        self._index_node_paths(tree, ())
        super().apply_shape(tree, shape)

    def _index_node_paths(self, node: object, path: Path) -> None:
        if isinstance(node, dict):
            self.places[id(node)] = path
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for name, child in children:
            self._index_node_paths(child, (*path, name))

    def _walk_object(self, node: dict[str, object], shape: KeyObjectRules) -> None:
        path = self.places.get(id(node), ())
        empty = [name for name, value in node.items() if value is None]
        super()._walk_object(node, shape)
        for name in empty:
            if name not in node:
                self.touched.setdefault((*path, name), NULLS)

    def _apply_member_rule(self, node: dict[str, object], name: str, rule: KeyMemberRule) -> None:
        path, before = (*self.places.get(id(node), ()), name), node[name]
        super()._apply_member_rule(node, name, rule)
        leads_on = rule.do in (MemberAction.WALK, MemberAction.SPARE, MemberAction.SYSTEM) or (
            rule.into is not None and isinstance(before, dict)
        )
        if not leads_on or name not in node:
            self.touched[path] = rule.why

    def remove_billing_header(self, blocks: list[object]) -> bool:
        before = deepcopy(blocks)
        gone = super().remove_billing_header(blocks)
        if blocks != before:
            self.touched["system",] = SYSTEM_BLOCKS.why
        return gone


def _find_ruled_places(tree: object, where: RoutedRequest, rules: Rules) -> dict[Path, str]:
    ruled = apply_normalize_rules(deepcopy(tree), compile_normalize_rules(rules))
    found = {path: YOURS for path, _, _ in _find_tree_differences(tree, ruled)}
    if where.known and isinstance(ruled, dict):
        watched = _RuleTracer(where.stream)
        watched.apply_shape(ruled, find_operation_body_rules(where, ruled))
        found |= watched.touched
    return found


_GONE = object()


def _find_tree_differences(old: object, new: object, path: Path = ()) -> Iterator[tuple[Path, object, object]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _find_tree_differences(old.get(name, _GONE), new.get(name, _GONE), (*path, name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from _find_tree_differences(left, right, (*path, number))
    elif type(old) is not type(new) or old != new:
        yield path, old, new


def _format_short(value: object) -> str:
    text = "absent" if value is _GONE else json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:59]}…"
