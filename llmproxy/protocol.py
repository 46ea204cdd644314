"""Names shared by several parts or processes: modes, decisions, headers, paths."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple, Self


class Decision(StrEnum):
    REPLAY = "REPLAY"
    RECORD = "RECORD"
    PASS = "PASS"  # noqa: S105 - a name, no password
    REFUSE = "REFUSE"
    FAULT = "FAULT"
    """An injected fault replaces the answer: nothing is sent upstream, and no recording is counted as used."""


class ReplayablePolicy(Enum):
    NOTHING = auto()
    GOOD = auto()
    """Complete, successful answers, and answers that clients abandoned again, each once: failures are not kept."""
    ALL = auto()
    """All recordings in their order, including failures and cut answers; after the last one `Exhausted` applies."""


class McpStdioLineOutcome(NamedTuple):
    """The outcome of a line that a client sends to an MCP server over stdio."""

    out: bytes = b""
    """Lines to send to the client."""
    forward: int | None = None
    """Number under which the server's answer to the forwarded line is reported; None if no server is needed."""
    late: float = 0
    """An injected fault: seconds of delay before `out` is sent; other lines are not delayed."""
    gone: bool = False
    """Whether an injected fault makes the server appear to exit."""
    again: float = 0
    """Seconds until an empty line polls for waiting answers; 0 if none wait."""


@dataclass(frozen=True, slots=True)
class ModePolicy:
    """The behaviour of a mode. Code checks the policy, never the mode's name."""

    does: str
    """Description in `--help`, after the mode's name."""
    on_miss: Decision
    """Decision for a request without a recording that may be replayed."""
    plays: ReplayablePolicy = ReplayablePolicy.NOTHING
    writes: bool = False
    alone: bool = False
    """Whether it holds the cassette's lease and requires it to be complete: what cannot be recorded is refused."""
    anew: bool = False
    """Whether new recordings supersede older ones of the same key."""
    reaches_network: bool = True
    """Whether it needs keys and may spend money; another mode's proxy needs `--allow-live` for it."""
    vcr: str = ""
    complete: ModePolicy | None = None
    """Policy that applies to a cassette that was complete when the session opened."""

    @property
    def uses_store(self) -> bool:
        return self.plays is not ReplayablePolicy.NOTHING or self.writes


class Mode(StrEnum):
    """The modes with their policies, one row each; no other place defines a mode's behaviour."""

    policy: ModePolicy

    def __new__(cls, name: str, policy: ModePolicy) -> Self:
        mode = str.__new__(cls, name)
        mode._value_, mode.policy = name, policy
        return mode

    REPLAY = (
        "replay",
        ModePolicy(
            "serves recordings only", Decision.REFUSE, plays=ReplayablePolicy.ALL, reaches_network=False, vcr="none"
        ),
    )
    AUTO = (
        "auto",
        ModePolicy(
            "records what is missing", Decision.RECORD, plays=ReplayablePolicy.GOOD, writes=True, vcr="new_episodes"
        ),
    )
    RECORD = (
        "record",
        ModePolicy("records everything again", Decision.RECORD, writes=True, alone=True, anew=True, vcr="all"),
    )
    ONCE = (
        "once",
        ModePolicy(
            "records a new cassette and replays it afterwards",
            Decision.RECORD,
            plays=ReplayablePolicy.GOOD,
            writes=True,
            alone=True,
            vcr="once",
            complete=ModePolicy("replays", Decision.REFUSE, plays=ReplayablePolicy.ALL),
        ),
    )
    PASSTHROUGH = "passthrough", ModePolicy("forwards without recording", Decision.PASS)


VCR_MODES = {mode.policy.vcr: mode for mode in Mode if mode.policy.vcr}
"""VCR's names, accepted as aliases."""
OFFLINE = frozenset(mode for mode in Mode if not mode.policy.reaches_network)
"""Modes in which nothing leaves the machine; contains both the members and their names."""


class Exhausted(StrEnum):
    """The answer to a request after the last recording of its key."""

    LAST = "last"
    CYCLE = "cycle"
    MISS = "miss"


class UpdateMode(StrEnum):
    """Treatment of existing recordings (``LLMPROXY_UPDATE``)."""

    NONE = "none"
    TRIAL = "trial"
    """Keep recordings; note changed requests and replay their recordings on trial."""
    CHANGED = "changed"
    """Send changed requests upstream; at the end the new recordings replace the old ones in one transaction."""
    ALL = "all"
    """Send all requests upstream and replace likewise."""


class BindingPolicy(StrEnum):
    """The values that may be bound between a recorded run and this one (``--bind``)."""

    ALL = "all"
    PATHS = "paths"
    """cwd, home and tmp; no volatile fields."""
    NONE = "none"
    """Nothing: only equal requests are hits, and every answer is replayed unchanged."""


class Channel(StrEnum):
    LLM = "llm"
    MCP = "mcp"
    HTTP = "http"
    """Any other service named by ``--record-host``."""


class UnknownToolPolicy(StrEnum):
    """Treatment of a tool call without a recording while the model is live (``--unknown-tool``)."""

    ERROR = "error"
    FAIL = "fail"
    """The model gets an error result, and the run fails: the call counts as a miss."""
    LIVE = "live"
    """The call goes to the real tool, and is recorded."""


AGENT = "agent"

DEFAULT_SESSION = "default"


def append_sample_number_to_name(cassette: str, sample: int) -> str:
    """Return the name of a sample of a cassette, or of a run's user: ``weather``, ``weather~2``."""
    return cassette if sample == 1 else f"{cassette}~{sample}"


DEFAULT_ORDER_WAIT = 3.0
"""Seconds that an answer waits for a concurrent call that preceded it in the recording."""

# Request headers of ours; stripped before anything goes upstream, never part of a key.
SESSION_HEADER = "x-llmproxy-session"
PARTY_HEADER = "x-llmproxy-party"
TOKEN_HEADER = "x-llmproxy-token"  # noqa: S105 - a name, no password
OUR_HEADERS_PREFIX = "x-llmproxy-"
AFTER_HEADER = "x-llmproxy-after"
"""Header of a stored concurrent request: the previous request of its thread, or ``nothing``."""
THREAD_FIELD = "x-claude-code-agent-id"
"""Field in which Claude Code names a sub-agent."""

# Response headers of ours.
CACHE_HEADER = "x-llmproxy-cache"
"""``hit``, ``miss``, ``recorded``, ``passed`` or ``fault``."""
BOUND_HEADER = "x-llmproxy-bound"
CARRIED_HEADER = "x-llmproxy-carried"
KEY_HEADER = "x-llmproxy-key"
SHOWN_KEY = 15
FAULT_HEADER = "x-llmproxy-fault"
RECORDED_RETRY_AFTER_HEADER = "x-llmproxy-recorded-retry-after"

STDIO_PREFIX = "stdio:"
"""Prefix of the names of MCP servers over stdio, ``stdio:server-filesystem-1a2b3c4d``."""
STDIO_URL = "http://stdio.invalid"
URL_VARIABLE = "LLMPROXY_URL"
"""Variable with the proxy's URL in the environment of a run's child."""
UPDATE_VARIABLE = "LLMPROXY_UPDATE"
CHOSEN_RECORDING = "recording-"
"""Prefix of a change name for a recording to record again; its id follows."""
PLACEHOLDER_KEY = "llmproxy-placeholder"
"""API key set in replay, where none is needed but SDKs refuse to start without one."""
DUMMY = "LLMPROXYDUMMY"
"""Marker in every credential that a stub returns; no request that contains it is sent upstream."""
API_KEYS = "api_keys"
"""The run variable with the names of the API key variables that were set; "none" if none was."""
RUN_VARIABLE = "LLMPROXY_RUN"
"""Variable with a run's session, for its children."""

SESSION_PREFIX = "/s/"
CONTROL_PREFIX = "/_llmproxy/"
UI_PREFIX = "/_llmproxy/ui/"

PACER_VARIABLE = "LLMPROXY_PACER"
"""Address of a cluster's rate limiter, ``PORT/SECRET`` on this machine. The proxy sends a line ``SECRET MODEL
PROVIDER``, MODEL 1 or 0, and reads a line with the seconds to wait. Without it a proxy limits its own calls only."""
SUMMARY_VARIABLE = "LLMPROXY_SUMMARY"
"""Path of the file to which a proxy started by one of our commands writes its totals as JSON at exit."""
STARTED_BY_VARIABLE = "LLMPROXY_STARTED_BY"
"""Command that started the proxy, such as ``llmproxy run``, for suggestions; a test runner's with ``{mode}``."""

# What a client that is intercepted reads.
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
BUNDLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "CODEX_CA_CERTIFICATE", "GIT_SSL_CAINFO",
    "PIP_CERT", "DENO_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)  # fmt: skip
"""Variables that replace a program's trusted certificates, so the file must hold all of them, not only ours."""
NODE_CA = "NODE_EXTRA_CA_CERTS"
"""Variable that adds to Node's trusted certificates; its file holds only ours."""
NODE_PROXY = "NODE_USE_ENV_PROXY"

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080
DEFAULT_STORE = "llmproxy.db"
TESTS_STORE = ".llmproxy/llmproxy.db"
LAST_REPORT = ".llmproxy/last-report.jsonl"
"""Events of a folder's last or current `llmproxy test`, in the format of `--report jsonl=FILE`."""

TRANSIENT = frozenset({408, 409, 425, 429})
"""Statuses of temporary failures, in addition to every 5xx: recorded and replayed in order, never a hit in `auto`."""
AUTHENTICATION = frozenset({401, 403})
"""Statuses of a bad key: recorded and replayed in order, never a hit in `auto`."""
