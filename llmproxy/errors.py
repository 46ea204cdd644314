"""Every error that a user can meet, its code, the HTTP status it answers with and the exit code it ends with.

LLMProxyError
├── SettingsError        a flag, variable or file says something we do not understand
├── MachineError         the machine will not let us: port taken, extra missing, no such file
├── CassetteError        a recording cannot be used
│   ├── CassetteNotFound (also FileNotFoundError)
│   ├── CassetteCorrupt  (also ValueError)
│   ├── CassetteNewer    written by a newer llmproxy
│   ├── CassetteBusy     another session records it, or the file is locked
│   └── StoreReadOnly    the store cannot be written to
├── SuiteError           a YAML suite says something that cannot be meant
├── AgentError           the agent under test was reached, and crashed, hung or answered nonsense
├── AgentUnreachable     the agent under test was never reached
├── MissError            the request was never recorded, and the mode refuses to go upstream
├── RefusedError         the request will not be served: host, size, framing
├── UpstreamError        the provider could not be reached or broke off
└── RecordingError       an answer could not be stored

A message says what happened, with which values, and what to type next. Programmer mistakes stay ValueError and
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
    """Exit codes, one table. Several at once: USAGE > ENVIRONMENT > MISS > FAILED > CARRIED > CHANGED > NOTHING."""

    OK = 0
    FAILED = 1
    USAGE = 2
    ENVIRONMENT = 3
    MISS = 4
    NOTHING = 5
    CHANGED = 6
    """Requests are not as they were recorded (`llmproxy changes`)."""
    CARRIED = 7
    """An answer was carried, and --fail-on-carried forbids it."""
    DRIFTED = 8
    """`drift`: recorded requests are answered otherwise now."""
    UNTOLD = 9
    """`drift`: too few answers came to tell."""
    STALE = 10
    """A recording older than --max-age was replayed, and --fail-on-stale forbids it."""
    INTERRUPTED = 130


ENDED_BY_USER = (128 + 2, 128 + 15)
"""Codes with which a shell says that SIGINT or SIGTERM ended a command."""
OURS = "llmproxy: "
"""How what we say begins where others speak too: in a client's exception, in pytest's report, in a terminal."""


def add_prefix(text: object) -> str:
    """Return a text that says whose it is, once: what the proxy said over HTTP says so already."""
    said = str(text)
    return said if said.startswith(OURS) else OURS + said


def remove_prefix(text: object) -> str:
    """Return the same without whose it is: for what stands inside of another message."""
    return str(text).removeprefix(OURS)


def printable(text: str) -> str:
    """Return `text` on one line, with everything that does not print (controls, bidi marks, surrogates) escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def without_passwords(text: str) -> str:
    """Return a text in which no URL has a password; one that was taken for a path may have lost a slash."""
    return _PASSWORD.sub(r"\1***@", text)


class LLMProxyError(Exception):
    """Base of all errors that are meant for the user."""

    code = "llmproxy_error"
    status = 500
    exit_code = Exit.FAILED
    stderr = ""
    """The end of what an agent's command wrote there; its message holds it, too."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Message and hint, each on its own line."""
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class SettingsError(LLMProxyError):
    """A flag, variable or file says something that we do not understand."""

    code = "llmproxy_settings"
    status = 400
    exit_code = Exit.USAGE


class MachineError(LLMProxyError):
    """The machine will not let us: a port is taken, an extra is missing."""

    code = "llmproxy_environment"
    exit_code = Exit.ENVIRONMENT


class CassetteError(LLMProxyError):
    """A recording cannot be used."""

    code = "llmproxy_cassette"
    exit_code = Exit.ENVIRONMENT


class CassetteNotFound(CassetteError, FileNotFoundError):
    code = "llmproxy_cassette_not_found"


class CassetteCorrupt(CassetteError, ValueError):
    """The recording is damaged; it is never treated as empty and never overwritten."""

    code = "llmproxy_cassette_corrupt"


class CassetteNewer(CassetteError):
    """The recording was written by a newer llmproxy."""

    code = "llmproxy_cassette_newer"


class CassetteBusy(CassetteError):
    """Another session records this cassette, or another program holds the file."""

    code = "llmproxy_cassette_busy"
    status = 409


class StoreReadOnly(CassetteError):
    code = "llmproxy_store_read_only"


class SuiteError(LLMProxyError):
    """A YAML suite says what cannot be meant: unknown keys, undeclared names, patterns that do not compile."""

    code = "llmproxy_suite"
    exit_code = Exit.USAGE


class AgentError(LLMProxyError):
    """The agent under test was reached, but crashed, timed out, or gave no answer: a failure."""

    code = "llmproxy_agent"
    exit_code = Exit.FAILED


class AgentUnreachable(MachineError):
    """The agent under test was never reached: nothing was tested."""

    code = "llmproxy_agent_unreachable"


class MissError(LLMProxyError):
    """The request was never recorded, and the mode refuses to go upstream."""

    nearest: int | None = None
    """The recording that it is most like, where there is one."""
    code = "llmproxy_cache_miss"
    status = 404
    exit_code = Exit.MISS


class RefusedError(LLMProxyError):
    """The request will not be served: its host, size or framing is out of bounds."""

    code = "llmproxy_refused"
    status = 400


class UpstreamError(LLMProxyError):
    """The provider could not be reached, or broke off."""

    code = "llmproxy_upstream"
    status = 502


class RecordingError(LLMProxyError):
    """An answer could not be stored."""

    code = "llmproxy_recording"
    exit_code = Exit.ENVIRONMENT


_LONGEST_NAME = 200
"""Characters of a file's name that are shown."""


def print_final_error(error: Exception, *, debug: bool) -> Exit:
    """Print an error for people, after its traceback if asked for, and return the exit code. Nothing else does."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, LLMProxyError):
        text, code = str(error), error.exit_code
    elif isinstance(error, FileNotFoundError) and error.filename is None:  # what os.getcwd says
        text, code = "the folder in which this was typed is not there any more: `cd` to one that is.", Exit.ENVIRONMENT
    elif (
        isinstance(error, OSError) and error.filename is not None
    ):  # a name that is too long, a link to itself, a folder in its place
        name = str(error.filename)
        place = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}... ({len(name):,} characters)"
        text, code = f"{place}: {error.strerror}.", Exit.ENVIRONMENT
    else:
        how = "" if debug else "\nPlease report it, with what LLMPROXY_DEBUG=1 prints (the traceback)."
        text, code = f"internal error: {type(error).__name__}: {error}{how}", Exit.ENVIRONMENT
    sys.stderr.write(f"{without_passwords(add_prefix(text))}\n")
    sys.stderr.flush()
    return code
