"""Conversion of a redacted request into its canonical form, which lacks everything that cannot change the answer.

Equal requests written differently get equal forms; different requests never do. Two kinds of ids are random and cannot
be compared literally:

- ids *declared in this request* (a tool call in the history, an echoed item) are renamed by first appearance,
  ``call#1``: the link between result and call is kept, the random name is not;
- ids *of server state* (an earlier response, a file, a call that only the server's copy holds) become the key,
  occurrence and ordinal of the interaction that created them. Unknown ids stay literal; no id is ever ignored.

Objects are walked in the sorted order of their members, so aliases do not depend on how a body was written. A body that
cannot be canonicalised is kept raw; `canonicalize_request` raises for no body.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from llmproxy.core.keys import built_in_body_rules, mcp
from llmproxy.core.keys.built_in_body_rules import (
    BARE_ITEM,
    BILLING_HEADER,
    MESSAGES,
    NOTHING,
    SHAPES,
    KeyMemberRule,
    KeyObjectRules,
    MemberAction,
)
from llmproxy.core.keys.head_rules import (
    is_header_in_request_key,
    list_header_values_in_key,
    list_query_members_in_key,
    recode_path_if_decoding_is_lossy,
)
from llmproxy.core.keys.user_rules import (
    CompiledNormalizeRules,
    Rules,
    apply_normalize_rules,
    compile_normalize_rules,
    substitute_patterns,
)
from llmproxy.core.providers.routing import RoutedRequest, asks_for_stream
from llmproxy.core.secrets.find_secrets import CredentialEpoch
from llmproxy.core.traffic.body_decoding import MultipartField, parse_multipart
from llmproxy.core.traffic.canonical_json import LossyJsonError, dump, parse_json_or_raise_if_lossy
from llmproxy.core.traffic.interaction import Headers, Key, Request, header
from llmproxy.lazy_regex import late


@dataclass(frozen=True, slots=True)
class Canonical:
    provider: str
    method: str
    operation: str
    """Operation, in which ids of server state are replaced as in the body."""
    model: str | None
    """Model named by the path; None if the body names it."""
    stream: bool
    headers: tuple[tuple[str, str], ...]
    """Header fields that count; names in lower case, sorted."""
    query: tuple[tuple[str, str], ...]
    kind: str
    """``json``, ``multipart``, ``form``, ``raw`` or ``empty``."""
    body: bytes
    """Canonical bytes; for ``raw`` the redacted body itself."""
    tree: object | None
    refs: tuple[str, ...]
    """Ids of server state in the request, known or not. If there are any, the form depends on the store's content."""
    variant: str = ""
    """Other parts of the path that select the answer: API version, location, a spelling that decoding would lose."""


def list_ids_new_in_response(made: tuple[str, ...], refs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ids that a response created: ids that its request named (a GET of a run) existed before."""
    return tuple(name for name in made if name not in refs)


_UNNAMED_FILES = ("audio.", "images.", "videos")
"""Operations (prefixes) that discard an upload's name: only its extension counts. Other servers keep names."""


def canonicalize_request(request: Request, route: RoutedRequest, rules: Rules, made_by: MadeBy) -> Canonical:
    """Derive the canonical form of a redacted request. Never raises, whatever the body is."""
    ready = compile_normalize_rules(rules)
    content_type = header(request.headers, "content-type") or ""
    kind, tree = detect_and_parse_body(
        request.body, content_type, named=not route.operation.startswith(_UNNAMED_FILES) if route.known else None
    )
    if not route.known and (said := mcp.extract_mcp_key_parts(request.method, request.headers, tree)) is not None:
        return _canonicalize_mcp(request, route, said, ready)
    stream = asks_for_stream(route, tree if kind == "json" else None)
    walker = BodyMemberRuleApplier(made_by, stream=stream)
    if kind == "json":
        tree = tree if ready.is_empty else apply_normalize_rules(tree, ready)
        if route.known and isinstance(tree, dict):
            walker.apply_shape(tree, find_operation_body_rules(route, tree))
    elif tree is not None:
        tree = apply_normalize_rules_to_form(tree, ready)
    body = request.body if tree is None and kind != "json" else dump(tree)
    path = recode_path_if_decoding_is_lossy(request.target, slashes=route.model is None)
    return Canonical(
        provider=route.provider.name, method=request.method, operation=_canonicalize_operation(request, route, walker),
        model=route.model, stream=stream,
        headers=list_header_values_in_key(request.headers, known=route.known, kind=kind, stream=stream),
        query=list_query_members_in_key(request.target, route.provider, walker.replace_url_id, known=route.known),
        kind=kind, body=body, tree=tree, refs=tuple(dict.fromkeys(walker.refs)),
        variant=f"{route.variant} {path}".strip(),
    )  # fmt: skip


REFERRING = late(rb'"(?:\w*[iI]ds?|conversation|container|file_?[uU]ri|cached_?[cC]ontent)"\s*:')
"""A member in which requests of some dialect name server state."""


def list_provider_state_ids_in_body(body: bytes, route: RoutedRequest, rules: Rules) -> list[str]:
    """Return the ids of server state in a redacted JSON body; most bodies are excluded by a search for member names."""
    walker = BodyMemberRuleApplier(lambda _: None)
    if REFERRING.search(body) is not None:
        with suppress(LossyJsonError):
            tree = apply_normalize_rules(parse_json_or_raise_if_lossy(body), compile_normalize_rules(rules))
            if isinstance(tree, dict):
                walker.apply_shape(tree, find_operation_body_rules(route, tree))
    return walker.refs


def _canonicalize_mcp(
    request: Request, route: RoutedRequest, said: mcp.McpRequestKeyParts, rules: CompiledNormalizeRules
) -> Canonical:
    tree = said.tree if said.tree is None or rules.is_empty else apply_normalize_rules(said.tree, rules)
    return Canonical(
        provider=route.provider.name, method=request.method, operation=said.operation, model=None, stream=False,
        headers=list_header_values_in_key(said.headers, known=False, kind="json", stream=False),
        query=list_query_members_in_key(request.target, route.provider, lambda name: name, known=False),
        kind="empty" if tree is None else "json", body=b"" if tree is None else dump(tree), tree=tree, refs=(),
        variant=recode_path_if_decoding_is_lossy(request.target, slashes=True)
        or unquote(request.target.partition("?")[0]),
    )  # fmt: skip


def _canonicalize_operation(request: Request, route: RoutedRequest, walk: BodyMemberRuleApplier) -> str:
    path = request.target.partition("?")[0]
    if not route.known and path != route.target.partition("?")[0]:
        return unquote(path)  # redaction changed an unknown path; the route still holds the original
    if not route.ids:
        return route.operation
    segments = route.operation.split("/")
    for n, segment in enumerate(segments):
        if segment in route.ids:
            collection = route.operation.partition("/" + segment)[0].rpartition("/")[2].rpartition(".")[2]
            segments[n] = walk.replace_url_id(segment, f"{collection}/{segment}")  # ``files/abc``: Google names it so
    return "/".join(segments)


def detect_and_parse_body(body: bytes, content_type: str, *, named: bool | None) -> tuple[str, object | None]:
    """Return the kind of a body and its tree. The content decides, because clients often send a wrong header or none.

    `named`: whether the server keeps the names of uploads; None for an unknown path, where parts' types count too.
    """
    if not body:
        return "empty", None
    media = content_type.partition(";")[0].strip().lower()
    if media.startswith("multipart/"):
        fields = _read_multipart(body, content_type, named=named)
        return ("raw", None) if fields is None else ("multipart", fields)
    if media != "application/x-www-form-urlencoded" or body.lstrip()[:1] in (b"{", b"["):
        try:
            return "json", parse_json_or_raise_if_lossy(body)
        except LossyJsonError:
            return "raw", None
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        return "raw", None
    return "form", [list(pair) for pair in pairs]


def _read_multipart(body: bytes, content_type: str, *, named: bool | None) -> list[object] | None:
    """Return parts as [field, text or sha256, extension], and further head fields of a part: servers use types."""
    if (parts := parse_multipart(body, content_type)) is None:
        return None
    fields: list[object] = []
    for part in parts:
        value: object = None
        with suppress(UnicodeDecodeError):
            value = part.data.decode("utf-8") if part.filename is None else None
        if value is None:
            value = {"sha256": hashlib.sha256(part.data).hexdigest()}
        field: list[object] = [part.name, value, _file_extension(part.filename)]
        typed = named is None or part.name is None
        if typed:
            field += [part.filename, part.content_type]
        elif named and part.filename is not None:
            field.append(part.filename)
        if said := _read_other_part_fields(part, typed=typed):
            field.append(said)
        fields.append(field)
    return fields


_PLAIN = frozenset({"", "text/plain", "text/plain;charset=utf-8", "text/plain;charset=us-ascii"})
"""Content types equivalent to a field without a type (RFC 7578 4.4)."""
_FRAMING = frozenset(
    {"content-disposition", "content-type", "content-length", "content-transfer-encoding", "mime-version"}
)
"""Fields of a part's head that its entries already hold, or that are framing of older libraries without effect."""


def _read_other_part_fields(part: MultipartField, *, typed: bool) -> dict[str, object]:
    said: dict[str, object] = {name: text for name, text in part.headers.items() if name not in _FRAMING}
    if part.parameters:
        said["content-disposition"] = part.parameters
    media, semicolon, rest = part.content_type.partition(";")
    kind = media.strip().lower() + semicolon + rest.strip()
    plain = part.filename is None and kind.lower() in _PLAIN
    return said if typed or plain or not kind else {"content-type": kind, **said}


def _file_extension(filename: str | None) -> str | None:
    """Return a file name's extension in lower case, ``.wav``: transcribers use it; the stem is a temporary name."""
    if filename is None:
        return None
    match = re.search(r"\.[A-Za-z0-9]+$", filename)
    return match[0].lower() if match else ""


def apply_normalize_rules_to_form(fields: object, rules: CompiledNormalizeRules) -> object:
    if not rules.everywhere or not isinstance(fields, list):
        return fields
    return [
        [name, substitute_patterns(value, rules.everywhere) if isinstance(value, str) else value, *more]
        for name, value, *more in fields
    ]


def find_operation_body_rules(route: RoutedRequest, tree: dict[str, object]) -> KeyObjectRules:
    operation = route.operation.partition("/")[0]
    if (route.family, operation) == built_in_body_rules.NATIVE:
        version = tree.get(built_in_body_rules.VERSION_MEMBER)
        return MESSAGES if isinstance(version, str) and version.startswith(built_in_body_rules.ON_CLOUDS) else NOTHING
    if operation == "responses" and route.ids:  # a path below one response is not a request to generate
        return NOTHING
    return SHAPES.get((route.family, operation), NOTHING)


TAG = "v2:"


def build_key(canonical: Canonical) -> Key:
    model = "" if canonical.model is None else "=" + canonical.model  # a missing one is not an empty one
    named = (canonical.provider, canonical.method, canonical.operation, canonical.variant, model)
    parts: list[bytes] = [_encode_text(part) for part in named]
    parts.append(b"\1" if canonical.stream else b"\0")
    for pairs in (canonical.headers, canonical.query):
        parts.append(len(pairs).to_bytes(4))
        parts += [_encode_text(text) for pair in pairs for text in pair]
    parts.append(_encode_text(canonical.kind))
    body = canonical.body  # may be large: not copied
    told = [piece for part in parts for piece in (len(part).to_bytes(8), part)]
    digest = hashlib.sha256(b"".join([*told, len(body).to_bytes(8)]))
    digest.update(body)
    return Key(TAG + digest.hexdigest())


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


REMEMBERED_KEYS = 20_000
"""Maximum entries of the cache; about 400 bytes each."""
WORTH_A_SWITCH = 1 << 16
"""Size in bytes from which a body is hashed without being copied."""


@dataclass(frozen=True, slots=True)
class CachedKeyEntry:
    key: Key
    model: str | None
    stream: bool
    refs: tuple[str, ...] = ()
    path: str = ""
    noted: bool = False
    """Whether it can be decided which new credentials do not affect this entry; see `CredentialEpoch`."""


class RequestKeyCache:
    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, tuple[CachedKeyEntry, int]] = OrderedDict()

    @staticmethod
    def encode_request_head(provider: str, method: str, target: str, headers: Headers, *, known: bool) -> bytes:
        """Return the counted parts of a request's head, separated by NUL, which HTTP framing refuses in them."""
        kept = [f"{name}:{value}" for name, value in headers if is_header_in_request_key(name, known=known)]
        return ("\0".join((provider, method, target, *kept)) + "\0\0").encode("utf-8", "surrogatepass")

    @staticmethod
    def digest_unnormalized_request(counted: bytes, body: bytes) -> bytes:
        """Return a digest that is equal only for requests with equal keys."""
        if len(body) < WORTH_A_SWITCH:
            return hashlib.sha256(counted + body).digest()  # copying costs less than a second call
        digest = hashlib.sha256(counted)
        digest.update(body)
        return digest.digest()

    def get_known(self, digest: bytes, learned: CredentialEpoch) -> CachedKeyEntry | None:
        known, since = self._entries.get(digest, (None, 0))
        if known is None:
            return None
        if since != learned.count:
            if not learned.is_still_valid(since, noted=known.noted):
                del self._entries[digest]
                return None
            self._entries[digest] = known, learned.count
        self._entries.move_to_end(digest)
        return known

    def remember(self, digest: bytes, known: CachedKeyEntry, learned: CredentialEpoch) -> None:
        if known.refs:
            return
        self._entries[digest] = known, learned.count
        if len(self._entries) > REMEMBERED_KEYS:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


def find_model_in_body(canonical: Canonical) -> str | None:
    name = canonical.tree.get("model") if isinstance(canonical.tree, dict) else None
    return name if isinstance(name, str) else None


class IdOrigin(NamedTuple):
    key: Key
    occurrence: int
    """Number among the recordings with that key, from 1."""
    ordinal: int
    """Index in that interaction's `made_ids`, from 0."""


_OURS = late(r"=*(?:call#\d|<)")
"""Prefix of names that this module assigns; an id that looks like one gets a ``=`` before it, to stay distinct."""
_ID = late(r"[!-~]+")
"""Valid ids of a call. Providers refuse an empty id or one with spaces, so a valid request never has one."""
_GOOGLE_FILE = late(r"(?:https://generativelanguage\.googleapis\.com/v\d\w*/)?(files/[\w-]+)/?")

MadeBy = Callable[[str], IdOrigin | None]
"""Returns the interaction of this cassette that created an id; None if none did."""


class BodyMemberRuleApplier:
    """Application of shapes to one request's tree, in place; keeps the names that it assigned."""

    def __init__(self, made_by: MadeBy, *, stream: bool | None = None) -> None:
        """`stream` is the request's stream flag in the key; None if it has none (a WebSocket message)."""
        self.refs: list[str] = []
        self._made_by, self._stream = made_by, stream
        self._aliases: dict[str, str] = {}
        self._later: list[tuple[dict[str, object], str]] = []

    def apply_shape(self, tree: dict[str, object], shape: KeyObjectRules) -> None:
        self._walk_object(tree, shape)
        for node, name in self._later:  # only now are all declarations of the request known
            node[name] = self._replace_server_state_id(node[name])
        self._later.clear()  # the messages of a WebSocket are successive bodies of one conversation

    def replace_url_id(self, name: str, other: str = "") -> str:
        self.refs.append(name)
        origin = self._made_by(name) or (self._made_by(other) if other else None)
        return f"<{origin.key} {origin.occurrence} {origin.ordinal}>" if origin else self.escape_alias_lookalike(name)

    def escape_alias_lookalike(self, name: str) -> str:
        """Return an unknown id, escaped if it looks like a name that this class assigns."""
        return f"={name}" if _OURS.match(name) else name

    def _walk_object(self, node: dict[str, object], shape: KeyObjectRules) -> None:
        if shape.kinds:
            kind = node.get("type")
            shape = shape.kinds.get(kind, shape) if isinstance(kind, str) else shape
        if shape.nulls:
            for name in [name for name, value in node.items() if value is None]:
                del node[name]
        members = shape.members
        found = [name for name in node if name in members]
        if len(found) > 1:
            found.sort()
        for name in found:
            self._apply_member_rule(node, name, members[name])

    def _apply_member_rule(self, node: dict[str, object], name: str, rule: KeyMemberRule) -> None:
        value = node[name]
        match rule.do:
            case MemberAction.WALK:
                self._walk_elements_in_place(value, rule.into)
            case MemberAction.IGNORE:
                del node[name]
            case MemberAction.STREAM:
                if value is None or (isinstance(value, bool) and self._stream in (None, value)):
                    del node[name]
            case MemberAction.DECLARE | MemberAction.OWN if isinstance(value, str):
                bare = not any(map(node.get, rule.own)) if rule.own else node.keys() <= BARE_ITEM
                if rule.do is MemberAction.OWN and bare:
                    self._later.append((node, name))
                elif _ID.fullmatch(value) is not None:
                    node[name] = self._aliases.setdefault(value, f"call#{len(self._aliases) + 1}")
                else:
                    node[name] = self.escape_alias_lookalike(value)
            case MemberAction.REFER if not isinstance(value, dict):
                self._later.append((node, name))
            case MemberAction.FILE_URI if isinstance(value, str):
                match = _GOOGLE_FILE.fullmatch(value)
                if short := match[1] if match else value if re.search(r"/files/[\w-]+/?$", value) else "":
                    self.refs.append(value)
                    node[name] = _build_id_origin_object(self._made_by(short) or self._made_by(value)) or value
            case MemberAction.JSON if isinstance(value, str):
                with suppress(LossyJsonError):  # invalid or partial arguments count unchanged
                    node[name] = dump(parse_json_or_raise_if_lossy(value)).decode("ascii")
            case MemberAction.SIGNATURE:
                if node.get("thinking"):
                    node[name] = "*"
            case MemberAction.SPARE if value in ([], {}):
                del node[name]
            case MemberAction.SYSTEM if isinstance(value, list):
                if self.remove_billing_header(value) and not value:
                    del node[name]
                self._walk_elements_in_place(value, rule.into)
            case _:
                self._walk_elements_in_place(value, rule.into)
                node[name] = self.escape_non_text_id(value)

    def _walk_elements_in_place(self, value: object, shape: KeyObjectRules | None) -> None:
        for element in value if isinstance(value, list) else (value,):
            if shape is not None and isinstance(element, dict):
                self._walk_object(element, shape)

    def _replace_server_state_id(self, value: object) -> object:
        if isinstance(value, list):
            return [self._replace_server_state_id(element) for element in value]
        if not isinstance(value, str):
            return self.escape_non_text_id(value)
        if (alias := self._aliases.get(value)) is not None:
            return alias
        self.refs.append(value)
        return _build_id_origin_object(self._made_by(value)) or self.escape_alias_lookalike(value)

    def escape_non_text_id(self, value: object) -> object:
        """Return the value of an id that is no text, escaped if it looks like a replacement of this class."""
        return {"=": value} if isinstance(value, dict) and value.keys() & {"=", "made-by"} else value

    def remove_billing_header(self, blocks: list[object]) -> bool:
        """Remove Claude Code's billing header from the first system block; return whether the block is gone."""
        first = blocks[0] if blocks else None
        text = first.get("text") if isinstance(first, dict) else None
        if not isinstance(first, dict) or not isinstance(text, str) or not (match := BILLING_HEADER.match(text)):
            return False
        if text[match.end() :].strip() or not first.keys() <= {"type", "text", "cache_control"}:
            first["text"] = text[match.end() :]
            return False
        del blocks[0]
        return True


def _build_id_origin_object(origin: IdOrigin | None) -> object | None:
    return origin and {"made-by": origin.key, "occurrence": origin.occurrence, "ordinal": origin.ordinal}
