"""Every error shown to users, with its code, HTTP status and exit code.

LLMProxyError
├── SettingsError        a flag, variable or file has an invalid value
├── MachineError         the machine prevents it: port taken, extra missing, no such file
├── CassetteError        a recording cannot be used
│   ├── CassetteNotFound (also FileNotFoundError)
│   ├── CassetteCorrupt  (also ValueError)
│   ├── CassetteNewer    written by a newer llmproxy
│   ├── CassetteBusy     another session records it, or the file is locked
│   │   └── LeaseLost    another session has taken over what ours recorded
│   └── StoreReadOnly    the store cannot be written to
├── SuiteError           a YAML suite is invalid
├── AgentError           the agent under test was reached, and crashed, hung or answered nonsense
├── AgentUnreachable     the agent under test was never reached
├── MissError            the request was never recorded, and the mode refuses to go upstream
├── RefusedError         the request will not be served: host, size, framing
├── UpstreamError        the provider could not be reached or closed the connection
└── RecordingError       an answer could not be stored

A message names what happened, the values involved, and the next command to type. Programming errors stay ValueError and
TypeError.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from enum import IntEnum

_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:/{1,2}[^\s/:@'\"]*:)[^\s/@'\"]+@")


class Exit(IntEnum):
    """Exit codes. If several apply: USAGE > ENVIRONMENT > MISS > FAILED > CARRIED > CHANGED > NOTHING."""

    OK = 0
    FAILED = 1
    USAGE = 2
    ENVIRONMENT = 3
    MISS = 4
    NOTHING = 5
    CHANGED = 6
    """Requests differ from their recordings (`llmproxy changes`)."""
    CARRIED = 7
    """An answer was carried, and --fail-on-carried forbids it."""
    DRIFTED = 8
    """`drift`: answers to recorded requests have changed."""
    UNTOLD = 9
    """`drift`: too few answers for a verdict."""
    STALE = 10
    """A recording older than --max-age was replayed, and --fail-on-stale forbids it."""
    INTERRUPTED = 130


ENDED_BY_USER = (128 + 2, 128 + 15)
"""Exit codes of a shell for a command that SIGINT or SIGTERM ended."""
OURS = "llmproxy: "
"""Prefix of our messages in the output of others: a client's exception, pytest's report, a terminal."""


def ensure_program_prefix(text: object) -> str:
    """Add the prefix once: a message that came from the proxy over HTTP already has it."""
    said = str(text)
    return said if said.startswith(OURS) else OURS + said


def remove_program_prefix(text: object) -> str:
    return str(text).removeprefix(OURS)


def printable(text: str) -> str:
    """Return `text` on one line, with everything unprintable (controls, bidi marks, surrogates) escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def redact_url_passwords(text: str) -> str:
    """Return a text without the passwords of its URLs; a URL parsed as a path may have lost a slash."""
    return _PASSWORD.sub(r"\1***@", text)


class LLMProxyError(Exception):
    """Base of all errors shown to users."""

    code = "llmproxy_error"
    status = 500
    exit_code = Exit.FAILED
    stderr = ""
    """End of the stderr of an agent's command; the message includes it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class SettingsError(LLMProxyError):
    code = "llmproxy_settings"
    status = 400
    exit_code = Exit.USAGE


class MachineError(LLMProxyError):
    code = "llmproxy_environment"
    exit_code = Exit.ENVIRONMENT


class CassetteError(LLMProxyError):
    code = "llmproxy_cassette"
    exit_code = Exit.ENVIRONMENT


class CassetteNotFound(CassetteError, FileNotFoundError):
    code = "llmproxy_cassette_not_found"


class CassetteCorrupt(CassetteError, ValueError):
    """The recording is damaged; it is never treated as empty and never overwritten."""

    code = "llmproxy_cassette_corrupt"


class CassetteNewer(CassetteError):
    code = "llmproxy_cassette_newer"


class CassetteBusy(CassetteError):
    code = "llmproxy_cassette_busy"
    status = 409


class LeaseLost(CassetteBusy):
    code = "llmproxy_lease_lost"


class StoreReadOnly(CassetteError):
    code = "llmproxy_store_read_only"


class SuiteError(LLMProxyError):
    code = "llmproxy_suite"
    exit_code = Exit.USAGE


class AgentError(LLMProxyError):
    code = "llmproxy_agent"
    exit_code = Exit.FAILED


class AgentUnreachable(MachineError):
    code = "llmproxy_agent_unreachable"


class MissError(LLMProxyError):
    nearest: int | None = None
    code = "llmproxy_cache_miss"
    status = 404
    exit_code = Exit.MISS


class RefusedError(LLMProxyError):
    code = "llmproxy_refused"
    status = 400


class UpstreamError(LLMProxyError):
    code = "llmproxy_upstream"
    status = 502


class RecordingError(LLMProxyError):
    code = "llmproxy_recording"
    exit_code = Exit.ENVIRONMENT


_LONGEST_NAME = 200


def print_final_error(error: Exception, *, debug: bool) -> Exit:
    """Print an error, after its traceback if requested, and return the exit code. The only such function."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, LLMProxyError):
        text, code = str(error), error.exit_code
    elif isinstance(error, FileNotFoundError) and error.filename is None:  # what os.getcwd says
        text, code = "the folder in which this was typed is not there any more: `cd` to one that is.", Exit.ENVIRONMENT
    elif isinstance(error, OSError) and error.filename is not None:  # a name too long, a link to itself, a folder
        name = str(error.filename)
        place = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}... ({len(name):,} characters)"
        text, code = f"{place}: {error.strerror}.", Exit.ENVIRONMENT
    else:
        how = "" if debug else "\nPlease report it, with what LLMPROXY_DEBUG=1 prints (the traceback)."
        text, code = f"internal error: {type(error).__name__}: {error}{how}", Exit.ENVIRONMENT
    sys.stderr.write(f"{redact_url_passwords(ensure_program_prefix(text))}\n")
    sys.stderr.flush()
    return code
