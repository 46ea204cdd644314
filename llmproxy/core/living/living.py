"""One run in which some channels are live: how far it is in what was recorded of its tools, and the cassette in which it is kept.

What is live is recorded in a cassette of its own, never in the one whose tools are served; what was served and what was refused stands in it
too, as the agent saw it, so that the run replays whole.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from llmproxy.core.living.channels import LiveChannels
from llmproxy.core.living.path import PathStep, ToolPath
from llmproxy.core.traffic.interaction import Interaction, Key
from llmproxy.protocol import Channel

_NAMED = 3
"""Changes that are named in a text."""
MOST_TOLD = 100
"""Calls without an answer that a report names."""


class HasId(Protocol):
    @property
    def id(self) -> int: ...


class AskedCall(NamedTuple):
    """A tool that a model asked for."""

    name: str
    arguments: str
    """JSON, as the model wrote it."""


class ChosenRecording[R: HasId](NamedTuple):
    """The recording that answers a call, or why none does."""

    recording: R | None = None
    why: str = ""
    """Empty where nothing was recorded at all, or a recording was chosen."""


@dataclass(slots=True)
class Living:
    """The state of one such run."""

    asked: LiveChannels
    parent: tuple[str, int]
    """Cassette and sample whose tools are served."""
    child: str
    """Cassette of the run."""
    path: ToolPath | None = None
    """None until somebody looked."""
    done: set[int] = field(default_factory=set)
    """Recorded changes that this run has made."""
    parted: str = ""
    """The call that went to a real tool and may have changed something: from there on no recorded state holds."""
    made: dict[int, Interaction] = field(default_factory=dict)
    """By number of the call in the session: answers of ours to calls without one."""
    waiting: deque[Interaction] = field(default_factory=deque)
    """What is to be put into the child with the next answer that is stored there."""
    announced: tuple[AskedCall, ...] = ()
    """The calls that the model asked for last."""
    served: int = 0
    unknown: list[str] = field(default_factory=list)
    """Names of calls that could not be answered."""
    begun: bool = False
    """Something of it belongs into its child."""
    again: bool = False
    """It starts again: what comes now belongs into another child."""
    _read: Counter[tuple[Key, int]] = field(default_factory=Counter)

    def is_live(self, channel: Channel) -> bool:
        """Tell whether a channel goes to its real providers or tools."""
        return channel in self.asked.channels

    def restart(self) -> None:
        """Begin anew: tools are in their first state."""
        self.again = self.again or self.begun
        self.done.clear()
        self.parted = ""
        self.announced = ()
        self._read.clear()

    def choose[R: HasId](
        self,
        path: ToolPath,
        key: Key,
        recordings: Sequence[R],
        *,
        alike: Callable[[Sequence[R]], bool],
        announced: Callable[[int], bool],
        loose: bool = False,
    ) -> ChosenRecording[R]:
        """Return the recording that was answered in the state in which this run is now, and note what it changes.

        `recordings` are those that fit the request, `alike` tells whether their answers are the same, `announced` whether the model asked for
        a recorded call in its last answer, `loose` that the answer seldom depends on a state.
        """
        if loose and recordings and alike(recordings):
            return ChosenRecording(recordings[-1])
        known = [(each, path.steps[each.id]) for each in recordings if each.id in path.steps]
        here = [(each, step) for each, step in known if not self._why_not(path, each.id, step, announced)]
        if not here:
            why = [self._why_not(path, each.id, step, announced) for each, step in known]
            return ChosenRecording(why=why[0] if why else "")
        changing = [each for each, step in here if step.changes]
        if changing:
            self.done.add(changing[0].id)
            return ChosenRecording(changing[0])
        reading = [each for each, _ in here]
        self._read[key, len(self.done)] += 1
        nth = self._read[key, len(self.done)]
        if nth <= len(reading):
            return ChosenRecording(reading[nth - 1])
        if alike(reading):
            return ChosenRecording(reading[-1])
        return ChosenRecording(
            why="its recorded results differ although nothing was changed between them, and all of them were told"
        )

    def _why_not(self, path: ToolPath, id_: int, step: PathStep, announced: Callable[[int], bool]) -> str:
        """Say why a recording does not hold in this state; empty if it does."""
        if self.parted:
            return f"{self.parted} went to a real tool, so no recorded state holds any more"
        if id_ in self.done:
            return "each of its recordings was told already, and a call may change something"
        beside = set(step.beside)
        if beside and not all(announced(each) for each in (*sorted(beside), id_)):
            names = _names(path, sorted(beside))
            return f"it was recorded while {names} ran, so nobody knows in which state it was answered"
        before = set(path.changes[: step.state])
        if missing := sorted(before - beside - self.done):
            return f"it was recorded after {_names(path, missing)}, which this run has not called"
        if extra := sorted(self.done - before - beside):
            return f"it was recorded before {_names(path, extra)}, which this run has called already"
        return ""

    def told_unknown(self, name: str) -> None:
        """Note a call that could not be answered."""
        if len(self.unknown) < MOST_TOLD:
            self.unknown.append(name)

    def take(self) -> list[Interaction]:
        """Return what waits to be stored, once; more may come meanwhile, from another thread."""
        taken = []
        while self.waiting:
            taken.append(self.waiting.popleft())
        return taken

    def to_json(self) -> dict[str, object]:
        """Return plain values, for the report of the session."""
        return {
            **self.asked.to_json(),
            "parent": self.parent[0],
            "parent_sample": self.parent[1],
            "cassette": self.child,
            "served": self.served,
            "unknown": list(self.unknown),
        }


def _names(path: ToolPath, ids: Sequence[int]) -> str:
    names = [path.steps[each].name for each in ids]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
