"""A session: one client's walk through one cassette, and the calls that it saw.

It counts how often each key came, so that the n-th request gets the n-th recording. A session that nobody opened is
named by what arrives; it *restarts* by itself when the cassette's first request comes again although its recordings are
used up and another key was served since: that is the second run of the same agent against one running proxy, and it
gets the same answers.

A call gets its number when it arrives and is kept when it has ended. A session that nobody closes may see any number
of calls: only the last ones are kept, and asking for those before them is an error, never a gap.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llmproxy.calls import Call, Totals
from llmproxy.core.keys.changes import StateChanges
from llmproxy.core.keys.normalize import key_of
from llmproxy.core.sessions.interceptor import Interceptor
from llmproxy.core.traffic.interaction import Key
from llmproxy.errors import RefusedError
from llmproxy.protocol import AGENT, Channel, Exhausted, Mode, ModePolicy, Plays

if TYPE_CHECKING:
    from llmproxy.core.keys.normalize import Canonical


KEPT_CALLS = 20_000
"""Calls of one session; about 400 bytes each."""
KEPT_TEXTS = 1_000
"""Refusals of one session whose words are kept; a miss has some thousand characters."""
NOT_KEPT = (
    "llmproxy: refused; the words of the first {} refusals of a session are kept, and all of them in the journal."
)


class CallsGone(RefusedError):
    """Calls were asked for that are not kept any more."""

    code = "llmproxy_calls_gone"
    status = 410


@dataclass(slots=True)
class Calls:
    """What a session was asked and what became of it."""

    arrived: int = 0
    """Calls that have begun, since the session was opened; the number of the last one."""
    totals: Totals = field(default_factory=Totals)
    """Of those that have ended."""
    _ended: deque[Call] = field(default_factory=lambda: deque(maxlen=KEPT_CALLS))
    _count: int = 0
    _texts: dict[int, str] = field(default_factory=dict)

    def begin(self) -> int:
        """Return the number of a call that has arrived, from 1."""
        self.arrived += 1
        return self.arrived

    def add(self, call: Call, text: str = "") -> None:
        """Keep a call that has ended; `text` is what a refused client was told."""
        self.totals.add(call, text if call.miss else "")
        self._ended.append(call)
        self._count += 1
        if text and len(self._texts) < KEPT_TEXTS:
            self._texts[call.seq] = text

    def after(self, number: int) -> list[Call]:
        """Return the ended calls that arrived after the `number`-th, in the order of their arrival.

        Raises CallsGone: some of them are not kept any more.
        """
        dropped = self._count - len(self._ended)
        if dropped > number:
            msg = f"llmproxy: of the {self._count} calls of this session only the last {len(self._ended)} are kept."
            raise CallsGone(msg, hint=f"Ask for those after {dropped}, ask more often, or close the session.")
        return sorted((each for each in self._ended if each.seq > number), key=lambda each: each.seq)

    def text(self, call: Call) -> str:
        """Return the note of a call; of a refused one what the client was told."""
        if (text := self._texts.get(call.seq)) is not None:
            return text
        return NOT_KEPT.format(KEPT_TEXTS) if call.miss else call.note

    @property
    def open(self) -> int:
        """How many calls have begun and not ended."""
        return self.arrived - self._count


LONGEST_NAME = 300
Walker = tuple[str, Key]
"""Who asked (party) and what (key): occurrences are counted for each."""

_SAMPLE = re.compile(r"(?P<cassette>.+)~(?P<sample>[0-9]{1,6})", re.DOTALL)
_PARTY = re.compile(r"agent|(user|judge)(\.[0-9]{1,4})?")


def split_name(name: str) -> tuple[str, int]:
    """Return cassette and sample of a session's name: ``weather~3`` is the third trial of ``weather``."""
    if not name or len(name) > LONGEST_NAME or any(ord(letter) < 32 for letter in name):
        msg = f"llmproxy: a session's name has 1 to {LONGEST_NAME} printable characters; this one has {len(name)}."
        raise RefusedError(msg, hint="Name it in the URL: http://HOST:PORT/s/<name>/v1")
    if (match := _SAMPLE.fullmatch(name)) and int(match["sample"]) > 0:
        return match["cassette"], int(match["sample"])
    return name, 1


def check_party(value: str | None) -> str:
    """Return the party that a request's header names; without one it is the agent.

    Anything else is refused, never guessed.
    """
    if value is None:
        return AGENT
    if not _PARTY.fullmatch(value):
        msg = (
            f"llmproxy: x-llmproxy-party is {value[:40]!r}; it can be agent, user, judge, or judge.2 for a second vote."
        )
        raise RefusedError(msg)
    return value


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session was opened with; another value where that changes."""

    mode: Mode
    speed: float = 0.0
    exhausted: Exhausted = Exhausted.LAST
    opened: bool = False
    """By the control API: it ends with close or reset, and never restarts by itself."""
    upstreams: Mapping[str, str] = field(default_factory=dict)
    """Where this session's providers are, if not where the proxy's are."""


@dataclass(slots=True)
class ReplayPosition:
    """Where a session stands in its cassette."""

    counts: Counter[Walker] = field(default_factory=Counter)
    recorded_here: set[Walker] = field(default_factory=set)
    """Which it records, each for its party and for nobody's."""
    failed: set[int] = field(default_factory=set)
    """Failures that were recorded: one that a good answer follows is a retry."""
    changes: StateChanges = field(default_factory=StateChanges)
    """What it made of what servers keep."""
    last: Walker | None = None
    """The last request."""
    stateless: Walker | None = None
    """The last request, by the key that it has without any state (`keys.changes`)."""
    missed: Key | None = None
    """Of the last miss that was to be streamed."""

    def restart(self) -> None:
        """Stand at the start again; who asked last is still known."""
        self.counts.clear()
        self.recorded_here.clear()
        self.failed.clear()
        self.changes.clear()
        self.last = None


@dataclass(slots=True)
class Session:
    """The state of one walk."""

    name: str
    cassette: str
    sample: int
    settings: SessionSettings
    complete: bool = False
    """`once`: the cassette was complete when this session opened."""
    sealed: bool | None = None
    """What its close said of its cassette: complete, or open; None: it is complete if nothing in it failed or is
    cut.
    """
    is_over: bool = False
    """Who opened it has closed it; False: its proxy ends it."""
    first: Walker | None = None
    """The cassette's first recording; None while nothing is recorded."""
    position: ReplayPosition = field(default_factory=ReplayPosition)
    superseded: set[Walker] = field(default_factory=set)
    """`record`: keys whose older recordings were already replaced by this session."""
    served: set[int] = field(default_factory=set)
    """Interactions that were replayed or recorded, over all restarts; any thread adds."""
    calls: Calls = field(default_factory=Calls)
    """What it was asked and what became of it, over all restarts."""
    interceptors: tuple[Interceptor[Any], ...] = ()
    """Of the features that it has, in the declared order."""
    _along: dict[Channel, tuple[object, tuple[Interceptor[Any], ...]]] = field(default_factory=dict)

    @property
    def policy(self) -> ModePolicy:
        """What its mode does over the cassette as it was when this session opened."""
        policy = self.settings.mode.policy
        return policy.complete if self.complete and policy.complete is not None else policy

    def along(self, channel: Channel) -> tuple[Interceptor[Any], ...]:
        """Return the interceptors that are asked of a channel's calls."""
        which, known = self._along.get(channel, (None, ()))
        if which is not self.interceptors:
            known = tuple(each for each in self.interceptors if each.channel in {None, channel})
            self._along[channel] = self.interceptors, known
        return known

    def is_plain(self, channel: Channel) -> bool:
        """Return whether a channel's calls are served as recorded, at once: nobody is asked, and nothing is paced."""
        return not (self.settings.speed or self.along(channel))

    @property
    def sees_whole(self) -> bool:
        """Whether its calls must be here whole before anything of them goes upstream."""
        return any(each.sees_whole for each in self.interceptors)

    def find[I: Interceptor[Any]](self, kind: type[I]) -> I | None:
        """Return its interceptor of a feature, if it has that."""
        return next((each for each in self.interceptors if isinstance(each, kind)), None)

    def misses_again(self, wanted: Canonical) -> bool:
        """Note a missed request, and tell whether it is the one missed before, asked without a stream."""
        key = key_of(replace(wanted, stream=True, headers=()))
        again = not wanted.stream and self.position.missed == key
        self.position.missed = key if wanted.stream else None
        return again

    def arrive(self, walker: Walker, recordings: int) -> int:
        """Count one arrival and return its number, from 1; `recordings` is how many the key has."""
        if self.starts_again(walker, recordings):
            self.restart()
        return self.count(walker)

    def starts_again(self, walker: Walker, recordings: int) -> bool:
        """Return whether this arrival is the first of another run of the same agent.

        `recordings` is how many the key has.
        """
        return (
            walker == self.first
            and self.position.last is not None
            and self.position.last != walker
            and not self.settings.opened
            and self.policy.plays is not Plays.NOTHING
            and 0 < recordings <= self.position.counts[walker]
        )

    def count(self, walker: Walker) -> int:
        """Count one arrival that does not start the walk again, and return its number, from 1."""
        position = self.position
        position.last = walker
        position.counts[walker] += 1
        return position.counts[walker]

    def last_of(self, party: str) -> Key | None:
        """Return the key that a party asked last; None if the last request was another's, or there was none."""
        last = self.position.last
        return last[1] if last is not None and last[0] == party else None

    def restart(self) -> None:
        """Walk from the start again."""
        self.position.restart()
        for each in self.interceptors:
            each.restart()

    def record(self, walker: Walker) -> None:
        """Note that what is asked here is recorded by this session, not served."""
        self.position.recorded_here.add(walker)
        self.position.recorded_here.add(("", walker[1]))

    def records(self, key: Key) -> bool:
        """Return whether a key is recorded here, whoever asks. From any thread."""
        return ("", key) in self.position.recorded_here

    def supersedes(self, walker: Walker) -> bool:
        """Tell (once per key) that the recording about to be stored replaces the older ones."""
        if not self.policy.anew or walker in self.superseded:
            return False
        self.superseded.add(walker)
        return True

    @property
    def made_in(self) -> tuple[str, int]:
        """Cassette and sample whose answers made the ids that its requests name."""
        return next((each.made_in for each in self.interceptors if each.made_in), (self.cassette, self.sample))

    @property
    def kept_in(self) -> tuple[str, int]:
        """Cassette and sample in which its answers are kept, where a call does not say otherwise."""
        return next((each.kept_in for each in self.interceptors if each.kept_in), (self.cassette, self.sample))

    @property
    def leased(self) -> tuple[str, int] | None:
        """The cassette and sample that it alone may record now.

        Where it keeps its answers, or the child that it records or may fork to.
        """
        if self.policy.alone:
            return self.kept_in
        return next((each.leased for each in self.interceptors if each.leased is not None), None)
