"""Built-in rules of the key for request bodies: which members count and which do not, as data with reasons.

Everything that no shape covers (tool schemas, tool inputs and results, free text, unknown members) is *opaque*: it
counts, value for value. So a rule can only be wrong at its own position. Source: WIRE.md 2.2 (wire captures of
2026-11), DESIGN.md section 5. The principle: a false hit is worse than a miss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class MemberAction(StrEnum):
    IGNORE = "ignore"
    """Removed: it cannot change the answer."""
    STREAM = "stream"
    """The stream flag, a separate part of the key: removed if it only repeats that flag, otherwise kept."""
    WALK = "walk"
    """Its object, or each object of its array, has its own shape."""
    SPARE = "spare"
    """Like WALK, but removed when it is ``[]`` or ``{}``, which libraries write for "absent"."""
    DECLARE = "declare"
    """An id with a meaning only inside this request: renamed by first appearance, ``call#1``."""
    REFER = "refer"
    """Refers to an id declared in this request, or created by an earlier answer (a response, a file); else literal."""
    OWN = "own"
    """Id of an echoed item: declared if the item has content (`KeyMemberRule.own`; if that is empty, any
    member besides `BARE_ITEM`), else names the server's copy."""
    FILE_URI = "file-uri"
    """Refers to an uploaded file if it is the URI of a file; any other URI is content."""
    JSON = "json"
    """A string that holds JSON: written canonically if it parses."""
    SIGNATURE = "signature"
    """Signature of a thinking block: replaced by a marker if the block contains the thinking text."""
    SYSTEM = "system"
    """Like WALK, after removing Claude Code's billing header from the beginning; the rest of that block counts."""


@dataclass(frozen=True, slots=True)
class KeyMemberRule:
    do: MemberAction
    why: str
    into: KeyObjectRules | None = None
    own: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyObjectRules:
    members: Mapping[str, KeyMemberRule] = field(default_factory=dict)
    nulls: bool = False
    """Leave out members that are null: clients write null for "absent" here."""
    kinds: Mapping[str, KeyObjectRules] = field(default_factory=dict)
    """Shapes by the value of ``type``, if it decides; objects of other types have the rules above."""


NOTHING = KeyObjectRules()
BARE_ITEM = frozenset({"id", "type", "status"})

VERSION = 4
"""Version of the tables below; part of `Rules.rules_digest`. Moving a golden key also needs a new key tag."""


def _rows_to_ignore_rules(*rows: tuple[str, str]) -> dict[str, KeyMemberRule]:
    return {name: KeyMemberRule(MemberAction.IGNORE, why) for name, why in rows}


def _make_rule(
    into: KeyObjectRules, why: str = "holds ids or markers", do: MemberAction = MemberAction.WALK
) -> KeyMemberRule:
    return KeyMemberRule(do, why, into)


STREAM = {
    "stream": KeyMemberRule(MemberAction.STREAM, "the stream flag is a separate part of the key; `false` equals absent")
}
CACHE_MARKS = _rows_to_ignore_rules(
    ("cache_control", "prompt-cache marker: changes the cost, not the answer"),
    ("prompt_cache_breakpoint", "prompt-cache marker: changes the cost, not the answer"),
)
DECLARE = KeyMemberRule(
    MemberAction.DECLARE, "ids of calls are random; frameworks generate them if the provider gives none"
)
REFER = KeyMemberRule(MemberAction.REFER, "a random id of a call, or of an object of an earlier answer")
EMPTY = KeyMemberRule(MemberAction.SPARE, "libraries send an empty value instead of none")
ARGUMENTS = KeyMemberRule(MemberAction.JSON, "frameworks re-serialise this JSON (LangChain adds spaces)")

TOOL = KeyObjectRules(CACHE_MARKS)
TOOLS = _make_rule(TOOL, EMPTY.why, MemberAction.SPARE)

# -- OpenAI: chat completions, and compatible providers ----------------------------------------------------------------

OPENAI_ACCOUNTING = _rows_to_ignore_rules(
    ("user", "end-user id for abuse detection"), ("safety_identifier", "end-user id for abuse detection"),
    ("metadata", "labels for the provider's dashboard"),
    ("client_metadata", "Codex puts installation and turn ids there"), ("prompt_cache_key", "prompt cache"),
    ("prompt_cache_retention", "prompt cache"), ("prompt_cache_options", "prompt cache"),
    ("service_tier", "price, speed or region"),
    ("store", "whether the provider stores a copy; later GETs have recordings of their own"),
)  # fmt: skip
FILE = KeyObjectRules({"file_id": REFER})
CHAT_PART = KeyObjectRules({**CACHE_MARKS, "file": _make_rule(FILE)}, nulls=True)
CHAT_CALL = KeyObjectRules({"id": DECLARE, "function": _make_rule(KeyObjectRules({"arguments": ARGUMENTS}))})
CHAT_MESSAGE = KeyObjectRules(
    {
        **CACHE_MARKS, "content": _make_rule(CHAT_PART),
        "tool_calls": _make_rule(CHAT_CALL, EMPTY.why, MemberAction.SPARE), "tool_call_id": REFER,
        "function_call": _make_rule(KeyObjectRules({"arguments": ARGUMENTS})),
        "audio": _make_rule(KeyObjectRules({"id": REFER}), "audio of an earlier answer"), "images": EMPTY,
    },
    nulls=True,
)  # fmt: skip
OPENAI_TOP = {**STREAM, **OPENAI_ACCOUNTING}
OPENAI_PLAIN = KeyObjectRules(OPENAI_TOP, nulls=True)
CHAT = KeyObjectRules(
    {**OPENAI_TOP, **CACHE_MARKS, "messages": _make_rule(CHAT_MESSAGE), "tools": TOOLS, "include": EMPTY}, nulls=True
)

# -- OpenAI: responses -------------------------------------------------------------------------------------------------

ANNOTATION = KeyObjectRules({"file_id": REFER, "container_id": REFER})
RESPONSES_PART = KeyObjectRules({**CACHE_MARKS, "file_id": REFER, "annotations": _make_rule(ANNOTATION)}, nulls=True)
PARTS = _make_rule(RESPONSES_PART)
ECHOED = KeyMemberRule(MemberAction.OWN, "an item without content only refers to the server's copy")
ITEM = KeyObjectRules({"id": ECHOED, "call_id": REFER, "content": PARTS, "output": PARTS, **CACHE_MARKS}, nulls=True)


def _build_item_shape(extra: Mapping[str, KeyMemberRule]) -> KeyObjectRules:
    return KeyObjectRules({**ITEM.members, **extra}, nulls=True)


def _build_call_item_rules(**extra: KeyMemberRule) -> KeyObjectRules:
    return _build_item_shape({"call_id": DECLARE, **extra})


INPUT_ITEM = KeyObjectRules(
    ITEM.members,
    nulls=True,
    kinds={
        "function_call": _build_call_item_rules(arguments=ARGUMENTS),
        "mcp_call": _build_call_item_rules(arguments=ARGUMENTS, approval_request_id=REFER),
        "mcp_approval_request": _build_call_item_rules(arguments=ARGUMENTS),
        "mcp_approval_response": _build_item_shape({"approval_request_id": REFER}),
        **dict.fromkeys(
            ("custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call",
             "tool_search_call"), _build_call_item_rules()),
        "code_interpreter_call": _build_call_item_rules(container_id=REFER, id=replace(ECHOED, own=("code",))),
        "file_search_call": _build_call_item_rules(id=replace(ECHOED, own=("results",))),
        "image_generation_call": _build_call_item_rules(id=replace(ECHOED, own=("result",))),
        "web_search_call": _build_call_item_rules(id=replace(ECHOED, own=("action",))),
        "reasoning": _build_item_shape({"id": replace(ECHOED, own=("encrypted_content", "content"))}),
        "compaction": _build_item_shape({"id": replace(ECHOED, own=("encrypted_content",))}),
        "item_reference": _build_item_shape({"id": REFER}),
    },
)  # fmt: skip
CONTAINER = KeyObjectRules({"id": REFER, "file_ids": REFER})
_TOOL = {**CACHE_MARKS, "vector_store_ids": REFER, "container": KeyMemberRule(MemberAction.REFER, REFER.why, CONTAINER)}
_SECRET = KeyMemberRule(MemberAction.IGNORE, "a credential: replay works with any")
_MCP_HEADERS = dict.fromkeys(("authorization", "Authorization", "X-API-Key", "X-Api-Key", "x-api-key"), _SECRET)
_MCP_TOOL = {**_TOOL, "authorization": _SECRET, "headers": _make_rule(KeyObjectRules(_MCP_HEADERS))}
RESPONSES_TOOL = KeyObjectRules(_TOOL, kinds={"mcp": KeyObjectRules(_MCP_TOOL)})
RESPONSES = KeyObjectRules(
    {
        **OPENAI_TOP, "input": _make_rule(INPUT_ITEM),
        "tools": _make_rule(RESPONSES_TOOL, EMPTY.why, MemberAction.SPARE), "include": EMPTY,
        "previous_response_id": REFER,
        "conversation": KeyMemberRule(MemberAction.REFER, REFER.why, KeyObjectRules({"id": REFER})),
    },
    nulls=True,
)  # fmt: skip
STATEFUL = KeyObjectRules(
    {
        "assistant_id": REFER, "thread_id": REFER, "file_id": REFER, "file_ids": REFER, "input_file_id": REFER,
        "vector_store_id": REFER, "part_ids": REFER, "items": _make_rule(INPUT_ITEM),
        "tool_outputs": _make_rule(KeyObjectRules({"tool_call_id": REFER})),
        "content": _make_rule(KeyObjectRules({"image_file": _make_rule(FILE)})), "attachments": _make_rule(FILE),
        "tool_resources": _make_rule(KeyObjectRules({
            "file_search": _make_rule(KeyObjectRules({"vector_store_ids": REFER})),
            "code_interpreter": _make_rule(KeyObjectRules({"file_ids": REFER})),
        })),
    }
)  # fmt: skip
"""Threads, files, batches: objects that the server keeps. Their metadata returns in later answers, so it counts."""

# -- Anthropic ---------------------------------------------------------------------------------------------------------

_SOURCE = KeyObjectRules({"file_id": REFER})
_INNER_BLOCK = KeyObjectRules(
    {**CACHE_MARKS, "file_id": REFER, "source": _make_rule(_SOURCE), "content": _make_rule(FILE)}, nulls=True
)
_CALLER = KeyObjectRules({"tool_id": REFER})
BLOCK = KeyObjectRules(
    {
        **CACHE_MARKS, "tool_use_id": REFER, "file_id": REFER, "source": _make_rule(_SOURCE),
        "caller": _make_rule(_CALLER), "content": _make_rule(_INNER_BLOCK),
    },
    nulls=True,
    kinds={
        **{
            kind: KeyObjectRules({**CACHE_MARKS, "id": DECLARE, "caller": _make_rule(_CALLER)}, nulls=True)
            for kind in ("tool_use", "server_tool_use", "mcp_tool_use")
        },
        "thinking": KeyObjectRules(
            {
                **CACHE_MARKS,
                "signature": KeyMemberRule(MemberAction.SIGNATURE, "belongs to thinking text, which counts"),
            },
            nulls=True,
        ),
    },
)  # fmt: skip
SYSTEM_BLOCKS = KeyMemberRule(
    MemberAction.SYSTEM, "in this line, Claude Code puts a checksum that differs in every request", BLOCK
)
MESSAGES = KeyObjectRules(
    {
        **STREAM,
        **CACHE_MARKS,
        **_rows_to_ignore_rules(
            ("metadata", "end-user id for abuse detection"),
            ("diagnostics", "refers to the previous message, for the provider's cache statistics"),
            ("service_tier", "price, speed or region"),
            ("speed", "price, speed or region"),
            ("inference_geo", "price, speed or region"),
        ),
        "system": SYSTEM_BLOCKS,
        "messages": _make_rule(KeyObjectRules({**CACHE_MARKS, "content": _make_rule(BLOCK)}, nulls=True)),
        "tools": TOOLS,
        "mcp_servers": _make_rule(KeyObjectRules({"authorization_token": _SECRET})),
        "container": KeyMemberRule(MemberAction.REFER, REFER.why, KeyObjectRules({"id": REFER})),
    },
    nulls=True,
)

# -- Gemini and Vertex -------------------------------------------------------------------------------------------------

_FILE_URI = KeyMemberRule(MemberAction.FILE_URI, "names an uploaded file by a random id")
_FILE_DATA = _make_rule(KeyObjectRules({"fileUri": _FILE_URI, "file_uri": _FILE_URI}))
GEMINI_PART = KeyObjectRules(
    {
        **dict.fromkeys(("functionCall", "function_call"), _make_rule(KeyObjectRules({"id": DECLARE}))),
        **dict.fromkeys(("functionResponse", "function_response"), _make_rule(KeyObjectRules({"id": REFER}))),
        "fileData": _FILE_DATA, "file_data": _FILE_DATA,
    },
    nulls=True,
)  # fmt: skip
CONTENT = _make_rule(KeyObjectRules({"parts": _make_rule(GEMINI_PART)}, nulls=True))
GENERATE = KeyObjectRules(
    {
        **_rows_to_ignore_rules(("labels", "labels for the provider's dashboard")),
        **dict.fromkeys(("contents", "content", "systemInstruction", "system_instruction"), CONTENT),
        **dict.fromkeys(("generationConfig", "generation_config", "tools"), EMPTY), "cachedContent": REFER,
        "cached_content": REFER,
    },
    nulls=True,
)  # fmt: skip
INTERACTIONS = KeyObjectRules({**STREAM, "previous_interaction_id": REFER}, nulls=True)

# -- Bedrock, Ollama, Cohere -------------------------------------------------------------------------------------------

_RECORD = KeyObjectRules(
    {
        "toolUse": _make_rule(KeyObjectRules({"toolUseId": DECLARE})),
        "toolResult": _make_rule(KeyObjectRules({"toolUseId": REFER})),
    },
    nulls=True,
)
CONVERSE = KeyObjectRules(
    {
        **_rows_to_ignore_rules(("requestMetadata", "labels for the provider's dashboard")), "inferenceConfig": EMPTY,
        "messages": _make_rule(KeyObjectRules({"content": _make_rule(_RECORD)}, nulls=True)),
    },
    nulls=True,
)  # fmt: skip
OLLAMA_CHAT = KeyObjectRules(
    {**STREAM, "messages": _make_rule(CHAT_MESSAGE), "tools": TOOLS, "options": EMPTY}, nulls=True
)
OLLAMA_GENERATE = KeyObjectRules({**STREAM, "options": EMPTY, "images": EMPTY}, nulls=True)
COHERE_CHAT = KeyObjectRules({**STREAM, "messages": _make_rule(CHAT_MESSAGE), "tools": EMPTY}, nulls=True)

SHAPES: dict[tuple[str, str], KeyObjectRules] = {
    ("openai", "chat.completions"): CHAT,
    **{
        ("openai", name): OPENAI_PLAIN
        for name in ("completions", "embeddings", "fim.completions", "images.generations")
    },
    **{("openai", name): RESPONSES for name in ("responses", "responses.compact", "responses.input_tokens")},
    **{
        ("openai", name): STATEFUL
        for name in ("threads", "threads.runs", "assistants", "conversations", "files", "uploads", "batches",
                     "containers", "vector_stores", "evals", "videos")
    },
    **{("anthropic", name): MESSAGES for name in ("messages", "count_tokens")},
    **{("gemini", name): GENERATE for name in ("generateContent", "countTokens", "embedContent")},
    ("gemini", "cachedContents"): KeyObjectRules({"contents": CONTENT, "systemInstruction": CONTENT}, nulls=True),
    ("gemini", "interactions"): INTERACTIONS,
    ("bedrock", "converse"): CONVERSE,
    ("ollama", "api.chat"): OLLAMA_CHAT,
    ("ollama", "api.generate"): OLLAMA_GENERATE,
    **{("ollama", name): KeyObjectRules({"options": EMPTY}, nulls=True) for name in ("api.embed", "api.embeddings")},
    ("cohere", "v2.chat"): COHERE_CHAT,
    **{("cohere", name): KeyObjectRules(STREAM, nulls=True) for name in ("v1.chat", "v1.generate")},
}  # fmt: skip
"""Shapes by dialect and operation (its first segment). In operations without a shape everything counts."""

BILLING_HEADER = re.compile(r"x-anthropic-billing-header:(?:\s*(?:cc_[a-z_]+|cch)=[^;\s]*;?)*")
"""Claude Code's billing header (2026-07) at the start of the first ``system`` block; the rest is prompt."""

SYSTEM_TEXT = ("system", "instructions", "systemInstruction", "system_instruction", "preamble")
TURNS = ("messages", "input", "contents")
SYSTEM_ROLES = frozenset({"system", "developer"})
NATIVE = ("bedrock", "invoke")
"""Dialect and operation in which each model has its own body format."""
VERSION_MEMBER = "anthropic_version"
ON_CLOUDS = ("bedrock-", "vertex-")
"""Prefixes of that member's value in bodies of the Messages dialect on clouds."""
