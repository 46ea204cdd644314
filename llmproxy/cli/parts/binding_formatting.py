"""Texts about bindings: run variables, volatile fields, and recordings that volatile fields merge."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmproxy.cli.parts.printing import print_line, to_safe_line
from llmproxy.core.bindings import VolatileField, list_volatile_field_values
from llmproxy.core.bindings.volatile_result_fields import load_builtin_volatile_fields
from llmproxy.core.engine.learn_fields_from_recordings import (
    PairEqualUpToVolatileFields,
    find_pairs_equal_up_to_volatiles,
)
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.queries import canonicalize_stored, read_volatile_fields
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import RefusedError

_SHOWN = 20
_RUNS = 3
_LONGEST = 60


def parse_stored_run_variables(said: str) -> list[dict[str, str]]:
    return list(json.loads(said)) if said else []


def format_run_variables_line(said: str) -> str:
    """Return run variables on one line: ``cwd /tmp/a, home /home/kim``; long values are cut."""
    return ", ".join(f"{each['name']} {_shorten_value(each['value'])}" for each in parse_stored_run_variables(said))


def _shorten_value(text: str) -> str:
    flat = to_safe_line(text)
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 3]}..."


def format_recorded_variable_lines(name: str, said: Sequence[str]) -> Iterator[str]:
    for each in said[:_RUNS]:
        yield f"{name}: recorded with {format_run_variables_line(each)}"
    if len(said) > _RUNS:
        yield f"{name}: and {len(said) - _RUNS} more runs with other run variables"


def format_volatile_fields(name: str, fields: Sequence[VolatileField]) -> Iterator[str]:
    """Yield a cassette's volatile fields on a line: ``chunk_id (hex, exec_command "Chunk ID: ")``; nothing for none."""
    told = []
    for each in fields:
        where = f' "{_shorten_value(each.before)}"' if each.before else f" {each.at}"
        told.append(f"{each.name} ({each.kind}, {to_safe_line(each.tool) or 'anywhere'}{where})")
    if told:
        yield f"{name}: volatile fields {', '.join(told)}"


def convert_bindings_to_json(said: Sequence[str], fields: Sequence[VolatileField]) -> dict[str, Any]:
    return {
        "run_variables": [parse_stored_run_variables(each) for each in said],
        "volatile": [field.to_dict() for field in fields],
    }


def list_request_volatile_values(
    database: Store, found: Interaction, rules: Rules, upstreams: Mapping[str, str]
) -> list[dict[str, str]]:
    try:
        tree = canonicalize_stored(database, found, rules, upstreams).tree
    except RefusedError:
        return []
    fields = (*read_volatile_fields(database, found.cassette), *load_builtin_volatile_fields())
    return [
        {"name": each.field.name, "kind": each.field.kind, "value": each.value, "path": each.place.path}
        for each in list_volatile_field_values(fields, tree)
    ]


def find_recordings_merged_by_fields(
    database: Store, rules: Rules, upstreams: Mapping[str, str], cassette: str | None = None
) -> dict[str, list[PairEqualUpToVolatileFields]]:
    found = {}
    for name in database.list_cassette_names() if cassette is None else [cassette]:
        merges = find_pairs_equal_up_to_volatiles(database, name, (), rules, upstreams)
        if merges or read_volatile_fields(database, name):
            found[name] = merges
    return found


def print_pairs_equal_up_to_volatiles(found: Mapping[str, Sequence[PairEqualUpToVolatileFields]]) -> None:
    if not found:
        return
    count = sum(map(len, found.values()))
    many = f"{count or 'no'} {'pair' if count == 1 else 'pairs'}"
    print_line(
        f"volatile fields ({', '.join(map(to_safe_line, found))}): {many} of recordings merged{':' if count else '.'}"
    )
    for name, each in [(name, each) for name, merges in found.items() for each in merges][:_SHOWN]:
        alike = "answered alike"
        if not each.alike:
            alike = "answered differently: the order of a run says which is meant, or it is a miss"
        pair = f"#{each.first} and #{each.second}"
        print_line(f"  {to_safe_line(name)}: {pair} are one by {', '.join(each.volatile)}; {alike}")
    if count > _SHOWN:
        print_line(f"  ... and {count - _SHOWN} more")
