"""Names that more than one part, or more than one process, must spell alike: modes, decisions, headers, paths."""

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
    """An injected fault stands in for the answer: nobody was asked, and nothing is counted as played."""


class PlayScope(Enum):
    """Which recordings a mode answers with."""

    NOTHING = auto()
    GOOD = auto()
    """Whole and good answers, and those that clients left again, each once: a bad day is not frozen."""
    ALL = auto()
    """Everything in its turn, failures and cut answers too; after the last, what `Exhausted` says."""


class ToolLineOutcome(NamedTuple):
    """What becomes of a line that a client says to a server of tools over stdio."""

    out: bytes = b""
    """For the client."""
    forward: int | None = None
    """The line goes to the server, and its answer is told under this number."""
    late: float = 0
    """Seconds after which `out` goes out, while everything else goes on."""
    gone: bool = False
    """An injected fault: the server ends, as far as its client can see."""
    again: float = 0
    """Seconds after which an empty line asks for what waits for its turn; 0 where nothing does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePolicy:
    """What a mode does. Nobody asks which mode it is: everybody asks its policy."""

    does: str
    """What `--help` says of it, after its name."""
    plays: PlayScope = PlayScope.NOTHING
    on_miss: Decision
    """What becomes of a request without a recording that may be played."""
    writes: bool = False
    """It adds to the store."""
    alone: bool = False
    """Nobody else may record the cassette meanwhile, and it shall be whole: what cannot be recorded is refused."""
    anew: bool = False
    """What it records takes the place of the key's older recordings."""
    reaches_network: bool = True
    """Keys are needed, money may be spent, and a proxy that was started without it must allow it (`--allow-live`)."""
    vcr: str = ""
    """VCR's name for it, accepted as an alias."""
    complete: ModePolicy | None = None
    """What it does instead over a cassette that was complete when the session opened."""

    @property
    def uses_store(self) -> bool:
        """Whether it looks recordings up, or makes some."""
        return self.plays is not PlayScope.NOTHING or self.writes


class Mode(StrEnum):
    """What a session does with a hit and with a miss: a row each, and nothing of a mode stands anywhere else."""

    policy: ModePolicy

    def __new__(cls, name: str, policy: ModePolicy) -> Self:
        """Make a member that is its name, and knows its policy."""
        mode = str.__new__(cls, name)
        mode._value_, mode.policy = name, policy
        return mode

    REPLAY = (
        "replay",
        ModePolicy(
            does="serves recordings only",
            plays=PlayScope.ALL,
            on_miss=Decision.REFUSE,
            reaches_network=False,
            vcr="none",
        ),
    )
    AUTO = (
        "auto",
        ModePolicy(
            does="records what is missing",
            plays=PlayScope.GOOD,
            on_miss=Decision.RECORD,
            writes=True,
            vcr="new_episodes",
        ),
    )
    RECORD = (
        "record",
        ModePolicy(
            does="records everything again", on_miss=Decision.RECORD, writes=True, alone=True, anew=True, vcr="all"
        ),
    )
    ONCE = (
        "once",
        ModePolicy(
            does="records a new cassette and replays it afterwards",
            plays=PlayScope.GOOD,
            on_miss=Decision.RECORD,
            writes=True,
            alone=True,
            vcr="once",
            complete=ModePolicy(does="replays", plays=PlayScope.ALL, on_miss=Decision.REFUSE),
        ),
    )
    PASSTHROUGH = "passthrough", ModePolicy(does="forwards without recording", on_miss=Decision.PASS)


VCR_MODES = {mode.policy.vcr: mode for mode in Mode if mode.policy.vcr}
"""VCR's names, accepted as aliases."""
OFFLINE = frozenset(mode for mode in Mode if not mode.policy.reaches_network)
"""Modes in which nothing leaves the machine; to be asked with a mode or its name."""


class Exhausted(StrEnum):
    """What answers the request after a key's last recording."""

    LAST = "last"
    CYCLE = "cycle"
    MISS = "miss"


class Update(StrEnum):
    """What becomes of recordings that are there already (``LLMPROXY_UPDATE``)."""

    NONE = "none"
    TRIAL = "trial"
    """Nothing; what has changed is noted, and served on trial."""
    CHANGED = "changed"
    """What has changed is asked anew, and takes the place of what was recorded, at the end and at once."""
    ALL = "all"
    """Everything, likewise."""


class BindScope(StrEnum):
    """What may be bound between a recorded run and this one (``--bind``)."""

    ALL = "all"
    PATHS = "paths"
    """cwd, home and tmp; no slots."""
    NONE = "none"
    """Only equal requests are hits, and every answer is the recorded one."""


class Channel(StrEnum):
    LLM = "llm"
    MCP = "mcp"
    """A server of tools, in the Model Context Protocol."""
    HTTP = "http"
    """Any other service that ``--record-host`` names."""


class UnknownTool(StrEnum):
    """What becomes of a tool's call that no recording answers, while the model is live (``--unknown-tool``)."""

    ERROR = "error"
    """The model reads that it failed."""
    FAIL = "fail"
    """The same, and the run has failed: it counts as a miss."""
    LIVE = "live"
    """It goes to the real tool, and is recorded."""


AGENT = "agent"
"""The party of every call that does not say otherwise."""

DEFAULT_SESSION = "default"


def join_name(cassette: str, sample: int) -> str:
    """Return how a sample of a cassette is named: ``weather``, ``weather~2``."""
    return cassette if sample == 1 else f"{cassette}~{sample}"


DEFAULT_ORDER_WAIT = 3.0
"""Seconds that an answer waits for a concurrent call that was recorded before it and has not come."""

# Request headers of ours; stripped before anything goes upstream, never part of a key.
SESSION_HEADER = "x-llmproxy-session"
PARTY_HEADER = "x-llmproxy-party"
TOKEN_HEADER = "x-llmproxy-token"  # noqa: S105 - a name, no password
OUR_HEADERS_PREFIX = "x-llmproxy-"
AFTER_HEADER = "x-llmproxy-after"
"""Of a stored request that was asked several times at once: what its thread had asked before, or ``nothing``."""
THREAD_FIELD = "x-claude-code-agent-id"
"""By which Claude Code names a sub-agent."""

# Response headers of ours.
CACHE_HEADER = "x-llmproxy-cache"
"""``hit``, ``miss``, ``recorded``, ``passed`` or ``fault``."""
BOUND_HEADER = "x-llmproxy-bound"
"""Of a bound hit: the names of what was bound."""
CARRIED_HEADER = "x-llmproxy-carried"
"""Of a carried answer: the names of the changes under which it was given."""
KEY_HEADER = "x-llmproxy-key"
SHOWN_KEY = 15
"""Characters of a key that a miss names."""
FAULT_HEADER = "x-llmproxy-fault"
"""Of an answer that an injected fault broke: its kind."""
RECORDED_RETRY_AFTER_HEADER = "x-llmproxy-recorded-retry-after"

STDIO_PREFIX = "stdio:"
"""How the names of servers of tools begin that speak over stdio, ``stdio:server-filesystem-1a2b3c4d``."""
STDIO_URL = "http://stdio.invalid"
"""Where such a server seems to be: nowhere."""
URL_VARIABLE = "LLMPROXY_URL"
"""Of the environment of a run's child: where the proxy is."""
UPDATE_VARIABLE = "LLMPROXY_UPDATE"
"""Which recordings a proxy replaces."""
CHOSEN_RECORDING = "recording-"
"""How a name among the changes begins that stands for a recording to be asked anew; its number follows."""
PLACEHOLDER_KEY = "llmproxy-placeholder"
"""What stands for a key in replay, where no key is needed but SDKs refuse to start without one."""
DUMMY = "LLMPROXYDUMMY"
"""What stands in every credential that a stub hands out; nothing that holds it is sent anywhere."""
API_KEYS = "api_keys"
"""The run variable that names the variables of keys that were set; "none" for none."""
RUN_VARIABLE = "LLMPROXY_RUN"
"""The session of a run, for its children."""

SESSION_PREFIX = "/s/"
CONTROL_PREFIX = "/_llmproxy/"
UI_PREFIX = "/_llmproxy/ui/"

PACER_VARIABLE = "LLMPROXY_PACER"
"""Whom a proxy of a cluster asks when a call may go, ``PORT/SECRET`` on this machine: it says a line ``SECRET MODEL
PROVIDER``, MODEL 1 or 0, and reads a line with the seconds to wait. Without it a proxy counts for itself."""
SUMMARY_VARIABLE = "LLMPROXY_SUMMARY"
"""Path of a file: where a proxy that a command of ours started writes at its end what it came to, as JSON."""
STARTED_BY_VARIABLE = "LLMPROXY_STARTED_BY"
"""What started the proxy, such as ``llmproxy run``, for advice; a runner's whole command, with ``{mode}``."""

# What a client that is intercepted reads.
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
BUNDLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "CODEX_CA_CERTIFICATE", "GIT_SSL_CAINFO",
    "PIP_CERT", "DENO_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)  # fmt: skip
"""Each replaces what its program trusts, so it must name everything, not our certificate alone."""
NODE_CA = "NODE_EXTRA_CA_CERTS"
"""Adds to what Node trusts, so it names our certificate alone."""
NODE_PROXY = "NODE_USE_ENV_PROXY"

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080
DEFAULT_STORE = "llmproxy.db"
TESTS_STORE = ".llmproxy/llmproxy.db"
"""Of suites, unless the settings say otherwise."""
LAST_REPORT = ".llmproxy/last-report.jsonl"
"""What the last `llmproxy test` of a folder told, or tells while it runs, in the form of `--report jsonl=FILE`."""

TRANSIENT = frozenset({408, 409, 425, 429})
"""Statuses that may differ a moment later; with every 5xx. Recorded, replayed in turn, never a hit in `auto`."""
AUTHENTICATION = frozenset({401, 403})
"""A bad key stays a bad key: recorded and replayed in turn, never a hit in `auto`."""
