"""Let a judge look at a conversation that is over, as often as one likes: what re-judging and calibrating have in
common.

    transcript, judge -> a run of which history is all and the forced verdict the only step -> how it ended

Each look is a run of its own with a sample of its own: through the proxy it is recorded apart from the others and can
be replayed; without one it goes to the provider. cache.db answers none of them, for a judge that is remembered always
agrees with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmproxy.errors import SettingsError
from llmproxy.scenario.running.run import RunEnded, RunPlan
from llmproxy.scenario.script import judge as verdict
from llmproxy.scenario.types import Message, ScenarioResult
from llmproxy.scenario.values.run_ids_and_options import CALL_TIMEOUT, RunOptions, name_cassette

CONCURRENCY = 8
"""Looks at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    id: str
    messages: Sequence[Message]
    description: str = ""
    """Of its scenario; context for the judge."""

    @classmethod
    def of(cls, result: ScenarioResult, *, id: str = "", description: str = "") -> Transcript:  # noqa: A002 (its name)
        return cls(id=id or result.run_id, messages=result.messages, description=description)

    def __post_init__(self) -> None:
        """Refuse what nobody can judge. Raises SettingsError."""
        if not self.id:
            raise SettingsError("a transcript needs an id: it names what is recorded of it.")
        if not self.messages or not all("role" in each for each in self.messages):
            raise SettingsError(f"transcript {self.id!r} has no messages with a role; there is nothing to judge.")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRunner:
    """Where a judge sits."""

    name: str
    """What it is for; begins the names of the recordings."""
    proxy: str | bool | None = None
    """As in `scenario.run`."""
    mode: str | None = None
    call_timeout: float | None = CALL_TIMEOUT

    async def judge_transcript(
        self,
        judge: Any,
        transcript: Transcript,
        sample: int = 1,
        about: str = "",
    ) -> RunEnded:
        """Return a judge's answer; `about` tells equal looks apart in recordings. Raises SettingsError: no sense."""
        name = " ".join(filter(None, (self.name, transcript.id, about)))
        options = RunOptions(
            proxy=self.proxy,
            mode=self.mode,
            call_timeout=self.call_timeout,
            cassette=name_cassette(name),
            history=list(transcript.messages),
        )
        plan = RunPlan(
            name=name, description=transcript.description, agents=[judge], verbose=False, cache_key=None,
            script=[verdict()], options=options, threaded=False,
        )  # fmt: skip
        ended = await plan.once(sample, max(sample, 2))  # of several: each has an adapter of its own
        if isinstance(ended.error, SettingsError):  # every other look would end so, too
            raise ended.error
        return ended
