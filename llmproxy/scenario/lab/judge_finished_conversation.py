"""Judging a finished conversation any number of times, for re-judging and calibration.

Each verdict is a run of its own with a sample of its own: through the proxy it is recorded separately and can be
replayed. cache.db answers none of them, for a cached judge always agrees with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmproxy.errors import SettingsError
from llmproxy.scenario.repeats.repeats import RunOutcome
from llmproxy.scenario.running.run import ScenarioRunFunctionArguments
from llmproxy.scenario.script import judge as verdict
from llmproxy.scenario.types import Message, ScenarioResult
from llmproxy.scenario.values.run_ids_and_options import ScenarioRunOptions, name_cassette

CONCURRENCY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    id: str
    messages: Sequence[Message]
    description: str = ""

    @classmethod
    def of(cls, result: ScenarioResult, *, id: str = "", description: str = "") -> Transcript:  # noqa: A002 (its name)
        return cls(id=id or result.run_id, messages=result.messages, description=description)

    def __post_init__(self) -> None:
        """Refuse a transcript that cannot be judged. Raises SettingsError."""
        if not self.id:
            raise SettingsError("a transcript needs an id: it names what is recorded of it.")
        if not self.messages or not all("role" in each for each in self.messages):
            raise SettingsError(f"transcript {self.id!r} has no messages with a role; there is nothing to judge.")


async def judge_transcript(
    judge: Any, transcript: Transcript, sample: int = 1, about: str = "", *, purpose: str,
    proxy: str | bool | None = None, mode: str | None = None,
) -> RunOutcome:  # fmt: skip
    """Return a judge's verdict. Raises SettingsError: invalid.

    `purpose` is the prefix of the recordings, `about` separates equal requests in them; `proxy` as in `scenario.run`.
    """
    name = " ".join(filter(None, (purpose, transcript.id, about)))
    options = ScenarioRunOptions(
        proxy=proxy, mode=mode, cassette=name_cassette(name), history=list(transcript.messages)
    )
    plan = ScenarioRunFunctionArguments(
        name=name, description=transcript.description, agents=[judge], verbose=False, cache_key=None,
        script=[verdict()], options=options, threaded=False,
    )  # fmt: skip
    ended = await plan.once(sample, max(sample, 2))  # of several: each has an adapter of its own
    if isinstance(ended.error, SettingsError):  # every other look would end so, too
        raise ended.error
    return ended
