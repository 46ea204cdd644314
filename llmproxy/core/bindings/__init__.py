"""Bindings: recordings answer the same run in another folder, on another day, with other ids from its tools.

A *run variable* is a value that both runs declare (`RunVariable`: cwd, home, a captured id). A *volatile field* is a
place in a tool's results whose value is known to vary (`VolatileField`). A request's exact key is looked up first, and
nothing in this package changes an exact key. Pure: no I/O, no clock, nothing of the engine.

`Fit.names` are the bindings whose values differ, its `identities` the ids that tools created in this pair of
requests: add them to the session's `IdPairs` (`known`) once the answer is served. `str(mismatch)` is a line for people.
"""

from llmproxy.core.bindings.answer_rewriting import rewrite_answer, rewrite_exact_hit_answer
from llmproxy.core.bindings.created_id_pairs import IdPair, IdPairs
from llmproxy.core.bindings.leaf_pairs import (
    Fit,
    MatchedMessageCache,
    MisfitReason,
    Mismatch,
    list_volatile_field_values,
)
from llmproxy.core.bindings.leaf_places import Bindings, find_volatile_matches, mask_bound_values_in_tool_args
from llmproxy.core.bindings.request_comparison import match_requests_with_bindings, rewrite_request_to_this_run
from llmproxy.core.bindings.run_variables import (
    BadRunVariable,
    RunVariable,
    RunVariableKind,
    build_run_variable,
    deserialize_run_variables,
    dump_run_variables,
)
from llmproxy.core.bindings.session_bindings import build_value_independent_key
from llmproxy.core.bindings.volatile_learning import find_fields_of_captured_value
from llmproxy.core.bindings.volatile_result_fields import (
    BLOCK,
    KINDS,
    OUTSIDE,
    SYSTEM,
    BadVolatileField,
    VolatileField,
    matches_field_kind,
    parse_volatile_field,
)
from llmproxy.protocol import BindingPolicy

__all__ = [
    "BLOCK",
    "KINDS",
    "OUTSIDE",
    "SYSTEM",
    "BadRunVariable",
    "BadVolatileField",
    "BindingPolicy",
    "Bindings",
    "Fit",
    "IdPair",
    "IdPairs",
    "MatchedMessageCache",
    "MisfitReason",
    "Mismatch",
    "RunVariable",
    "RunVariableKind",
    "VolatileField",
    "build_run_variable",
    "build_value_independent_key",
    "deserialize_run_variables",
    "dump_run_variables",
    "find_fields_of_captured_value",
    "find_volatile_matches",
    "list_volatile_field_values",
    "mask_bound_values_in_tool_args",
    "match_requests_with_bindings",
    "matches_field_kind",
    "parse_volatile_field",
    "rewrite_answer",
    "rewrite_exact_hit_answer",
    "rewrite_request_to_this_run",
]  # fmt: skip
